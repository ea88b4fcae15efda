use std::collections::BTreeMap;
use std::sync::Arc;

use super::{append_sealed_outputs, open_sealed_outputs};
use crate::id::{CallPath, Timestamp};
use crate::idempotency::{CallKey, IdempotencyKey, KeyScope};
use crate::item::{Item, OutputContent};
use crate::journal::{
    CallStarted, CallStatus, JournalEntry, JournalFormatError, JournalRecord, ModelResponded, RunStarted,
    ToolUsePolicyKind, decode_journal, encode_journal,
};
use crate::plan::{BodyKind, ResolvedTool, ToolLookup, plan_response};
use crate::run::{CallResult, Run};
use crate::tool::{ApprovalPolicy, ToolEffect, ToolKey};
use crate::usage::Usage;

/// Returns the text of a run whose call `c1` has ended, with `output` withheld.
fn text_with_withheld(output: &OutputContent) -> String {
    let started = RunStarted::new("run".into(), "desk".into());
    let run = Run::start(started.clone());
    let items = vec![Arc::new(Item::call("c1", "look", "{}"))];
    let plan = plan_response(items, &"desk".into(), &run, |_| {
        ToolLookup::Tool(ResolvedTool {
            sources: Default::default(),
            key: ToolKey::Bare("look".into()),
            body: BodyKind::Function,
            effect: ToolEffect::Once,
            approval_policy: ApprovalPolicy::NotRequired,
            conflict_key: None,
            arguments: Ok("{}".into()),
        })
    })
    .expect("the call can be planned");
    let key = CallKey {
        idempotency_key: IdempotencyKey::derive(
            KeyScope::Run(run.id()),
            &crate::canonical::Digest::of_text("look"),
            0,
        ),
        receipt_digest: None,
        generation: 0,
    };
    let entries = [
        JournalEntry::RunStarted(Box::new(started)),
        JournalEntry::ModelResponded(Box::new(ModelResponded {
            agent: "desk".into(),
            items: plan.items,
            calls: plan.calls,
            duplicate_calls: 0,
            context_sources: plan.context_sources,
            tool_use_policy: ToolUsePolicyKind::RunModelAgain,
            usage: Usage::default(),
            response_id: None,
            request_id: None,
            model: None,
            attempts: 1,
            requested_at: None,
            requested: Default::default(),
            finish_reason: None,
            active_ms: 0,
        })),
        JournalEntry::CallStarted(CallStarted::new("c1".into(), 1, key, 0)),
        CallResult::new(CallStatus::Succeeded, output.clone()).body_ended_entry(&"c1".into()),
    ];
    let records: Vec<JournalRecord> = (0..)
        .zip(entries)
        .map(|(seq, entry)| JournalRecord { seq, at: Timestamp(seq), path: Vec::new(), entry })
        .collect();
    encode_journal(&records)
}

#[test]
fn a_sealed_output_opens_with_its_journal_only() {
    let output = OutputContent::from("the account is 4711 ".repeat(9).as_str());
    let plain = text_with_withheld(&output);
    let withheld: BTreeMap<CallPath, OutputContent> = [("c1".into(), output)].into();
    let mut sealed = plain.clone();
    append_sealed_outputs(&mut sealed, &withheld);
    assert!(!sealed.contains("4711") && !sealed.contains(&hex("4711")), "{sealed}");
    assert_eq!(open_sealed_outputs(&sealed).expect("it opens"), withheld);
    // The journal is the same with and without the sealed line.
    assert_eq!(decode_journal(&sealed).expect("it reads"), decode_journal(&plain).expect("it reads"));
    assert_eq!(open_sealed_outputs(&plain).expect("nothing is sealed"), BTreeMap::new());

    // The line of another journal does not open, and neither does one of another output.
    let mut other: BTreeMap<CallPath, OutputContent> = [("c1".into(), "nothing".into())].into();
    let mut forged = plain;
    append_sealed_outputs(&mut forged, &other);
    assert!(matches!(
        open_sealed_outputs(&forged),
        Err(JournalFormatError::InvalidSealedOutput { index: 0 })
    ));
    other.clear();
    let line = sealed.lines().last().expect("a line").to_owned();
    let moved = format!("{}{line}\n", text_with_withheld(&"else".into()));
    assert!(open_sealed_outputs(&moved).is_err());
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}
