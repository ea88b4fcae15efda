//! Fuzzing of traces: whatever a journal has, its spans can be made.

#![cfg(target_os = "linux")]

use windlass::core::journal::decode_record;
use windlass_fuzz::FuzzTarget;

use super::{JournalSpans, OtlpSettings, TraceContent};

#[test]
fn spans_of_any_journal() {
    let journals = [
        include_str!("../../windlass-core/tests/golden/v1/paused.windlass"),
        include_str!("../../windlass-core/tests/golden/v1/nested.windlass"),
        include_str!("../../windlass-core/tests/golden/v1/finished.windlass"),
    ];
    let words =
        ["\"run_started\":", "\"call_started\":", "\"call_settled\":", "\"path\":[\"c1\"]", "\"at\":0", "\n"];
    let seeds = journals.map(|journal| {
        let records: Vec<&str> = journal.lines().filter(|line| line.starts_with('{')).collect();
        records.join("\n")
    });
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "otel_spans").seeds(seeds).words(words);
    target.run(module_path!(), "spans_of_any_journal", |input| {
        let text = String::from_utf8_lossy(input);
        for content in [TraceContent::LeftOut, TraceContent::Included] {
            let mut spans = JournalSpans::new(content);
            for (seq, line) in text.lines().enumerate() {
                if let Ok(record) = decode_record(seq as u64, line) {
                    let _ = spans.add(&record);
                }
            }
        }
        let _ = OtlpSettings::from_vars(|_| Some(text.chars().take(200).collect()));
    });
}
