//! Fuzzing of the decoders of stored and moved runs, of canonical JSON and of schemas.

#![cfg(target_os = "linux")]

use std::sync::Arc;

use serde_json::Value;
use windlass::core::authenticity::{DecisionSignature, MacKeyring, SignedDecision};
use windlass::core::canonical::{Digest, canonical_text};
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{CallPath, RunId, Timestamp};
use windlass::core::journal::{DecisionRecorded, JournalRecord, decode_journal, decode_record};
use windlass::core::run::{ParsedSegments, Run, RunOutline};
use windlass::core::schema::{CompiledSchema, describe_violations, to_strict, validate};
use windlass::fleet::{CronTimes, DecisionRequest, RunSchedule};
use windlass::run::PausedRun;
use windlass::store::{ApproverPolicy, ApproverSigner, PostedDecision};
use windlass_fuzz::FuzzTarget;

/// Journals of the golden files, as texts.
const JOURNALS: [&str; 3] = [
    include_str!("../../windlass-core/tests/golden/v1/paused.windlass"),
    include_str!("../../windlass-core/tests/golden/v1/nested.windlass"),
    include_str!("../../windlass-core/tests/golden/v1/finished.windlass"),
];

fn target(name: &str) -> FuzzTarget {
    FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), name)
}

fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

#[test]
fn fuzz_the_text_of_a_run() {
    target("journal_text").seeds(JOURNALS).words(["\n", "\"hash\":", "\"seq\":", "windlass"]).run(
        module_path!(),
        "fuzz_the_text_of_a_run",
        |input| {
            let text = text(input);
            let _ = PausedRun::from_text(&text);
            let _ = decode_journal(&text);
        },
    );
}

/// The bodies of the records, which the hash chain of a text would hide from the loop.
#[test]
fn fuzz_records_and_their_replay() {
    let bodies = JOURNALS.map(|journal| {
        let records: Vec<&str> = journal.lines().filter(|line| line.starts_with('{')).collect();
        records.join("\n")
    });
    let words = [
        "\"call_settled\":",
        "\"model_responded\":",
        "\"decision_recorded\":",
        "\"path\":[\"c1\"]",
        "\"c1\"",
        "\"call_held\":",
        "\"call_started\":",
        "\"at\":0",
        "\"run_started\":",
        "\"sources\":[\"web\"]",
    ];
    target("journal_records").seeds(bodies).words(words).run(
        module_path!(),
        "fuzz_records_and_their_replay",
        |input| {
            let text = text(input);
            let mut records: Vec<JournalRecord> = Vec::new();
            for line in text.lines() {
                let seq = records.len() as u64;
                records.extend(decode_record(seq, line));
            }
            // Whatever a journal says, the machine refuses it or stays consistent.
            if let Ok(replayed) = Run::replay(&records) {
                let _ = replayed.run.next();
                let _ = replayed.run.pending_calls();
                let _ = replayed.to_snapshot(None).map(|snapshot| RunOutline::parse(&snapshot.head));
            }
            let _ = windlass::core::inspect::step_lines(&records);
        },
    );
}

#[test]
fn fuzz_snapshots() {
    let snapshot = JOURNALS.iter().find_map(|journal| {
        let records = decode_journal(journal).ok()?;
        (1..=records.len()).rev().find_map(|end| Run::replay(&records[..end]).ok()?.to_snapshot(None))
    });
    let seed = snapshot.map(|snapshot| format!("{}\n{}", snapshot.head, snapshot.segment));
    target("snapshot").seeds(seed.into_iter().chain(["{}\n{}".to_owned()])).run(
        module_path!(),
        "fuzz_snapshots",
        |input| {
            let text = text(input);
            let Some((head, segment)) = text.split_once('\n') else { return };
            let Some(outline) = RunOutline::parse(head) else { return };
            // Whatever is in a segment, the outline accepts it as its past or refuses it.
            let position = outline.position().clone().with_segments(&[segment.to_owned()]);
            let past = ParsedSegments::parse(&position, &[segment.to_owned()])
                .and_then(|parsed| parsed.resolve(Vec::new()));
            let _ = past.and_then(|past| outline.complete(past));
        },
    );
}

#[test]
fn fuzz_canonical_json() {
    let seeds = [
        r#"{"b":1,"a":[1.0,-0,1e3,"é\u00e9\n"],"":{"x":null,"y":true}}"#,
        r#"[[[[{"a":{"a":{"a":[]}}}]]]]"#,
        r#""\ud83d\ude00\"\\\/\b\f\n\r\t""#,
    ];
    target("canonical_json").seeds(seeds).run(module_path!(), "fuzz_canonical_json", |input| {
        let text = text(input);
        if let Ok(canonical) = canonical_text(&text) {
            // The canonical form is JSON of the same value, and its own canonical form.
            assert!(serde_json::from_str::<Value>(&canonical).is_ok(), "{canonical}");
            assert_eq!(canonical_text(&canonical).as_deref().ok(), Some(&*canonical));
        }
    });
}

#[test]
fn fuzz_schemas() {
    let seeds = [
        r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/n"},"b":{"enum":[1,"x",null]}},"required":["a"],"additionalProperties":false,"$defs":{"n":{"type":["integer","null"],"minimum":0}}}
{"a":1,"b":"x"}"##,
        r##"{"$defs":{"t":{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/t"}}]}},"$ref":"#/$defs/t"}
[[[null]]]"##,
        r##"{"oneOf":[{"const":1},{"type":"string","pattern":"^a+$","maxLength":3}],"allOf":[{"not":{"type":"boolean"}}],"patternProperties":{"^x":{}},"propertyNames":{"maxLength":2}}
"aaa""##,
    ];
    let words =
        ["\"$ref\":\"#\"", "\"anyOf\":[", "\"items\":", "\"type\":", "\"pattern\":\"(a*)*b\"", "\"$defs\""];
    target("schema").seeds(seeds).words(words).run(module_path!(), "fuzz_schemas", |input| {
        let text = text(input);
        let (schema, value) = text.split_once('\n').unwrap_or((&text, "null"));
        let Ok(schema) = serde_json::from_str::<Value>(schema) else { return };
        let value = serde_json::from_str::<Value>(value).unwrap_or(Value::Null);
        let _ = to_strict(schema.clone());
        let plain = validate(&schema, &value);
        let compiled = CompiledSchema::new(Arc::new(schema));
        let shown = describe_violations(&plain);
        assert!(shown.len() < 64 * 1024, "the report of a small value is {} bytes long", shown.len());
        if let Ok(canonical) = canonical_text(&value.to_string()) {
            let _ = compiled.validate_text(&canonical);
        }
    });
}

/// Texts of operators and engines: keyrings, schedules, and decisions that arrive as values.
#[test]
fn fuzz_keys_schedules_and_decisions() {
    let seeds = [
        format!("windlass keys 1\n{} {}\n# old\n", "ab".repeat(4), "0f".repeat(32)),
        "*/15 0-6,20-23 1,15 */2 1-5".to_owned(),
        "@monthly".to_owned(),
        r#"{"call":"c1/c2","decision":{"approve_edited":{"arguments":"{}"}},"scope":"this_call","decided_by":"ann","attempt":3}"#
            .to_owned(),
        r#"{"key":"ed25519:00","value":"0f"}"#.to_owned(),
    ];
    let words =
        ["windlass keys 1\n", "*/", "-", ",", "\"decision\":", "\"approve\"", "ed25519:", "\"displayed\":"];
    target("keys_and_schedules").seeds(seeds).words(words).run(
        module_path!(),
        "fuzz_keys_schedules_and_decisions",
        |input| {
            let text = text(input);
            let _ = MacKeyring::from_text(&text);
            if let Ok(times) = text.parse::<CronTimes>() {
                for after in [0, 1_700_000_000_000, u64::MAX] {
                    let next = times.next_after(Timestamp(after));
                    assert!(next.is_none_or(|next| next.0 > after), "{times}: {next:?} after {after}");
                }
            }
            let _ = serde_json::from_str::<DecisionRequest>(&text);
            let _ = serde_json::from_str::<PostedDecision>(&text);
            let _ = serde_json::from_str::<RunSchedule>(&text);
            if let Ok(signature) = serde_json::from_str::<DecisionSignature>(&text) {
                let _ = signature.key.is_well_formed();
            }
        },
    );
}

/// Decisions of a journal with approvers: no change of a signed record makes another decision count.
#[test]
fn fuzz_signed_decisions() {
    let ann = ApproverSigner::from_seed(&[7; 32]).expect("a key");
    let run = RunId::from("run");
    let path = CallPath::from("c1");
    let mut decision = DecisionRecorded {
        call: "c1".into(),
        digest: Digest::from_bytes([1; 32]),
        decision: Decision::Approve,
        scope: DecisionScope::ThisCall,
        decided_by: Some("ann".to_owned()),
        displayed: None,
        posted_revision: 0,
        signature: None,
        mac: None,
    };
    let signed = SignedDecision { run: &run, path: &path, attempt: 1, decision: &decision };
    decision.signature = Some(Box::new(ann.sign(&signed)));
    let policy = ApproverPolicy::new().approver("ann", ann.key().clone());
    let genuine = serde_json::to_string(&decision).expect("it can be written");
    let original = decision;
    target("signed_decisions").seeds([genuine]).run(module_path!(), "fuzz_signed_decisions", |input| {
        let Ok(changed) = serde_json::from_slice::<DecisionRecorded>(input) else { return };
        let judged =
            policy.verify(&SignedDecision { run: &run, path: &path, attempt: 1, decision: &changed });
        let unsigned = |decision: &DecisionRecorded| DecisionRecorded {
            call: "c1".into(),
            posted_revision: 0,
            signature: None,
            mac: None,
            ..decision.clone()
        };
        let is_rejection = matches!(changed.decision, Decision::Reject { .. }) && changed.signature.is_none();
        assert!(
            judged.is_err() || is_rejection || unsigned(&changed) == unsigned(&original),
            "another decision counts: {changed:?}"
        );
    });
}
