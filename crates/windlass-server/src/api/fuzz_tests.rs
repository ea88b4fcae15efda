//! Fuzzing of the bodies of requests, and of access files.

#![cfg(target_os = "linux")]

use windlass_fuzz::FuzzTarget;

use super::decisions::{DecisionBody, ReviewBody};
use super::inbox::LookBody;
use super::journals::ForkBody;
use super::run_orders::InputBody;
use super::run_start::RunStart;
use crate::access::AccessPolicy;

const SEEDS: [&str; 6] = [
    r#"{"call":"c1/c2","attempt":1,"displayed":"00ff","decision":{"type":"approve_edited","arguments":{"a":[1e3,null]}},"for_run":true}"#,
    r#"{"call":"c1","attempt":4294967295,"displayed":"","decision":{"type":"answer","value":{"x":-0}},"signature":{"key":"ed25519:00","value":"00"}}"#,
    r#"{"agent":"clerk","input":"Go.","session":"s","run_id":"r","delay_seconds":1.0}"#,
    r#"{"record":7,"input":{"type":"message","text":"Again."}}"#,
    r#"{"call":"c1","arguments":{}}"#,
    "[[person]]\nname = 'ann'\ntoken = 'sha256:00'\n[person.agents]\n'*' = ['approve']\n[[proxy]]\n",
];

#[test]
fn bodies_of_requests() {
    let words =
        ["\"type\":", "\"decision\":{", "\"arguments\":{", "\"displayed\":\"", "1.0", "1e400", "[[person]]"];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "server_bodies").seeds(SEEDS).words(words);
    target.run(module_path!(), "bodies_of_requests", |input| {
        let _ = serde_json::from_slice::<DecisionBody>(input);
        let _ = serde_json::from_slice::<ReviewBody>(input);
        let _ = serde_json::from_slice::<LookBody>(input);
        let _ = serde_json::from_slice::<ForkBody>(input);
        let _ = serde_json::from_slice::<InputBody>(input);
        let _ = serde_json::from_slice::<RunStart>(input);
        let _ = serde_json::from_slice::<AccessPolicy>(input);
    });
}
