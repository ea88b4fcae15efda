use super::unannounced_records;
use crate::canonical::Digest;
use crate::id::{AgentName, CallId, Timestamp};
use crate::idempotency::{CallKey, IdempotencyKey, KeyScope};
use crate::journal::{
    CallHeld, CallSettled, CallStarted, CallStatus, HandoffRecorded, JournalEntry, JournalRecord,
    ModelResponded, RunFinished,
};

/// Returns the records of a script: `path:entry call`, separated by semicolons.
fn records(script: &str) -> Vec<JournalRecord> {
    let entries = script.split(';').map(str::trim).filter(|step| !step.is_empty());
    let parse = |(seq, step): (usize, &str)| {
        let (path, step) = step.split_once(':').expect("a step has a path");
        let path = path.split('/').filter(|call| !call.is_empty()).map(CallId::from).collect();
        let (name, call) = step.split_once(' ').unwrap_or((step, ""));
        JournalRecord { seq: seq as u64, at: Timestamp(0), path, entry: entry(name, call.into()) }
    };
    entries.enumerate().map(parse).collect()
}

fn entry(name: &str, call: CallId) -> JournalEntry {
    match name {
        "respond" => JournalEntry::ModelResponded(
            ModelResponded {
                agent: AgentName::new("desk"),
                items: Vec::new(),
                calls: Vec::new(),
                duplicate_calls: 0,
                context_sources: Default::default(),
                tool_use_policy: Default::default(),
                usage: Default::default(),
                response_id: None,
                request_id: None,
                model: None,
                attempts: 1,
                requested_at: None,
                requested: Default::default(),
                finish_reason: None,
                active_ms: 0,
            }
            .into(),
        ),
        "start" => {
            let key = CallKey {
                idempotency_key: IdempotencyKey::derive(KeyScope::Store("s"), &Digest::of_text("k"), 0),
                receipt_digest: None,
                generation: 0,
            };
            JournalEntry::CallStarted(CallStarted::new(call, 1, key, 0))
        }
        "hold" => JournalEntry::CallHeld(CallHeld::new(call, crate::decision::HoldReason::Approval)),
        "settle" => JournalEntry::CallSettled(CallSettled::new(call, CallStatus::Succeeded, "done")),
        "hand_off" => JournalEntry::HandoffRecorded(HandoffRecorded {
            call,
            to: AgentName::new("billing"),
            filtered_history: None,
        }),
        "continue" => JournalEntry::TurnContinued,
        "finish" => JournalEntry::RunFinished(RunFinished { output: String::new(), message: None }),
        other => panic!("{other}"),
    }
}

#[test]
fn a_later_step_of_the_same_agent_proves_that_records_were_announced() {
    let cases: [(&str, &[u64]); 13] = [
        ("", &[]),
        (":respond", &[0]),
        // The driver works on calls after it has announced the response.
        (":respond; :start a", &[]),
        (":respond; :start a; :settle a", &[2]),
        (":respond; :start a; :start b; :settle b; :settle a", &[3, 4]),
        (":respond; :hold a; :start b; :settle b", &[1, 3]),
        (":respond; :start a; :settle a; :respond", &[3]),
        (":respond; :start a; :settle a; :continue", &[]),
        (":respond; :start a; :settle a; :finish", &[]),
        (":respond; :start a; :settle a; :hand_off h", &[3]),
        // A nested agent proves nothing about the calls beside its own.
        (":respond; :start a; :start b; :settle b; a:respond; a:start n; a:settle n; a:respond", &[3, 7]),
        (":respond; :start a; a:respond; a:start n; a:settle n", &[4]),
        // The call of a nested agent settles after everything inside of it was announced.
        (":respond; :start a; a:respond; a:start n; a:settle n; a:finish; :settle a", &[6]),
    ];
    for (script, expected) in cases {
        let records = records(script);
        let found: Vec<u64> = unannounced_records(&records).iter().map(|record| record.seq).collect();
        assert_eq!(found, expected, "{script}");
    }
}

#[test]
fn an_interrupted_nested_agent_is_over_with_its_call() {
    let records = records(":respond; :start a; a:respond; a:start n; a:settle n; a/n:respond; :settle a");
    let found: Vec<u64> = unannounced_records(&records).iter().map(|record| record.seq).collect();
    assert_eq!(found, [6]);
}
