//! Fuzzing of the values of rows, which somebody with the database may have changed.

#![cfg(target_os = "linux")]

use windlass::core::item::{Item, OutputContent};
use windlass::core::journal::HistoryReference;
use windlass::fleet::{RunSchedule, RunSubmission};
use windlass::store::PostedDecision;
use windlass_fuzz::FuzzTarget;

use crate::convert::{from_integer, from_json, from_time, parse_status, read_digest};

const SEEDS: [&str; 5] = [
    r#"{"path":"c1","attempt":1,"decision":{"call":"c1","digest":"00","decision":"approve","scope":"this_call"},"posted_at":7}"#,
    r#"{"message":{"role":"user","content":"Pay."}}"#,
    r#"{"agent":"clerk","input":[{"message":{"role":"user","content":"Go."}}],"session":"s","priority":1}"#,
    r#"{"name":"daily","times":"30 7 * * 1-5","submission":{"agent":"clerk","input":[]}}"#,
    "running",
];

#[test]
fn values_of_rows() {
    let words = [
        "\"decision\":",
        "\"approve_edited\":",
        "\"signature\":{\"key\":",
        "\"mac\":",
        "\"text\":",
        "\"items\":",
    ];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "postgres_rows").seeds(SEEDS).words(words);
    target.run(module_path!(), "values_of_rows", |input| {
        let _ = from_json::<PostedDecision>(input);
        let _ = from_json::<RunSubmission>(input);
        let _ = from_json::<RunSchedule>(input);
        let _ = from_json::<HistoryReference>(input);
        let _ = from_json::<Item>(input);
        let _ = from_json::<OutputContent>(input);
        let _ = read_digest(input);
        let _ = parse_status(&String::from_utf8_lossy(input));
        if let Some(number) = input.first_chunk::<8>().map(|bytes| i64::from_le_bytes(*bytes)) {
            let _ = (from_integer(number), from_time(number));
        }
    });
}
