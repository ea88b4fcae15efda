//! Golden files for additions to the format.

use std::sync::Arc;

use serde_json::json;
use windlass_core::{
    decision::{Decision, DecisionScope, HoldReason, PersonQuestion},
    failure::RunFailure,
    item::{CallKind, ContentPart, Item, MediaSource, OutputContent, ToolCall},
    journal::{
        CallHeld, CallSettled, CallStatus, CompactionReason, FilteredInput, HistoryCompacted, JournalEntry,
        JournalRecord, ModelRequestFailed, OutputRejected, RunRestored, RunStarted, ToolUsePolicyKind,
    },
    usage::Usage,
};

use super::{
    GoldenJournal, attempt_entry, body_ended_entry, held_entry, run_started, settled_entry, start_entry,
    tool_call_item,
};

/// Calls of other kinds, and bodies that ask questions: one was answered, one is pending.
pub(super) fn questions_journal() -> Vec<JournalRecord> {
    let of_kind = |kind, id: &str, name: &str, namespace: Option<&str>, arguments: serde_json::Value| {
        Item::Call(ToolCall {
            id: id.into(),
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
            arguments: arguments.to_string(),
            item_id: None,
            kind,
            provider_data: None,
        })
    };
    let ask = |question: PersonQuestion, call: &str| {
        JournalEntry::CallHeld(CallHeld::for_question(call.into(), question))
    };
    let mut journal = GoldenJournal::start("run-asked", "desk", "Book it.");
    let click = json!({ "actions": [{ "type": "click", "x": 3, "y": 4 }], "pending_safety_checks": [] });
    journal.append_response(vec![
        of_kind(CallKind::Computer, "c1", "computer", None, click),
        of_kind(CallKind::HostedMcp, "c2", "read", Some("files"), json!({ "path": "/a" })),
        tool_call_item("c3", "transfer", json!({ "cents": 5 })),
    ]);
    journal.append(start_entry("c1"));
    journal.append(held_entry("c2", HoldReason::Approval));
    journal.append(start_entry("c3"));
    let place = PersonQuestion::new("Which account?").with_schema(json!({ "enum": ["a", "b"] }));
    journal.append(ask(place, "c3"));
    let screen = MediaSource {
        data: Some("iVBORw0=".to_owned()),
        media_type: Some("image/png".to_owned()),
        ..MediaSource::default()
    };
    journal.append(settled_entry(
        "c1",
        CallStatus::Succeeded,
        OutputContent::Parts(vec![ContentPart::Image(screen)]),
    ));
    journal.append_decision("c2", Decision::Approve, DecisionScope::ThisCall, Some("ann"));
    journal.append(start_entry("c2"));
    journal.append(settled_entry("c2", CallStatus::Succeeded, "approved"));
    journal.append_decision(
        "c3",
        Decision::Answer { value: json!("b") },
        DecisionScope::ThisCall,
        Some("ann"),
    );
    journal.append(attempt_entry("c3", 2));
    journal.append(ask(PersonQuestion::new("Are you sure?"), "c3"));
    journal.records
}

/// Calls that standing approvals do not cover: one is held although its tool has a standing approval, one is
/// approved every time.
pub(super) fn approval_each_time_journal() -> Vec<JournalRecord> {
    let post = |id: &str| tool_call_item(id, "post", json!({ "text": id }));
    let mut journal = GoldenJournal::start("run-each", "desk", "Post and sign.");
    journal.append_response(vec![post("c1"), tool_call_item("s1", "sign", json!({ "page": 1 }))]);
    journal.append(held_entry("c1", HoldReason::Approval));
    journal.append(held_entry("s1", HoldReason::Approval));
    journal.append_decision("c1", Decision::Approve, DecisionScope::ToolForRun, Some("ann"));
    journal.append_decision("s1", Decision::Approve, DecisionScope::ThisCall, Some("ann"));
    for id in ["c1", "s1"] {
        journal.append(start_entry(id));
        journal.append(settled_entry(id, CallStatus::Succeeded, "done"));
    }
    journal.append_response(vec![post("c2"), post("c3"), tool_call_item("s2", "sign", json!({ "page": 2 }))]);
    journal.append(start_entry("c2"));
    journal.append(held_entry("c3", HoldReason::Approval));
    journal.append(held_entry("s2", HoldReason::Approval));
    journal.append(settled_entry("c2", CallStatus::Succeeded, "done"));
    journal.records
}

/// The process ended while output guardrails ran: of a call, of a receipt, of a call that was confirmed as executed, and
/// of a call of a nested agent. An earlier call had ended another nested agent with its output withheld.
pub(super) fn withheld_journal() -> Vec<JournalRecord> {
    let look = |id: &str| tool_call_item(id, "look", json!({ "name": id }));
    let books = |id: &str| tool_call_item(id, "books", json!({ "input": id }));
    let again = ToolUsePolicyKind::RunModelAgain;
    let mut journal = GoldenJournal::start("run-withheld", "desk", "Look around.");
    journal.append_response(vec![
        look("c1"),
        tool_call_item("c2", "print", json!({ "page": 1 })),
        tool_call_item("c3", "transfer", json!({ "cents": 5 })),
        books("c4"),
        books("c5"),
        tool_call_item("c6", "transfer", json!({ "cents": 6 })),
    ]);
    for id in ["c1", "c3", "c4", "c5"] {
        journal.append(start_entry(id));
    }
    journal.append(body_ended_entry("c1", CallStatus::Failed, "Bo is not known."));
    journal.append(body_ended_entry("c2", CallStatus::Deduplicated, "page 1"));
    journal.append(held_entry("c3", HoldReason::InDoubt));
    journal.append_decision(
        "c3",
        Decision::ConfirmExecuted { output: "5 sent".into() },
        DecisionScope::ThisCall,
        Some("ann"),
    );
    journal.append(body_ended_entry("c3", CallStatus::Reconciled, "5 sent"));
    for id in ["c4", "c5"] {
        let inner = run_started(&format!("run-withheld/{id}"), "clerk", id);
        journal.append_at(&[id], JournalEntry::RunStarted(inner.into()));
        journal.append_response_at(&[id], vec![look("p1")], again.clone());
        journal.append_at(&[id], start_entry("p1"));
        journal.append_at(&[id], body_ended_entry("p1", CallStatus::Succeeded, "a secret"));
    }
    let failure = RunFailure::ToolOutputGuardrailTripped {
        guardrail: "no secrets".to_owned(),
        tool: "look".to_owned(),
        call: "p1".into(),
    };
    let blocked = CallSettled {
        run_failure: Some(Box::new(failure)),
        ..CallSettled::new("p1".into(), CallStatus::OutputWithheld, "Output withheld.")
    };
    journal.append_at(&["c5"], JournalEntry::CallSettled(blocked));
    journal.records
}

/// A handoff that was switched off was answered, and the model is to correct a final output that does not match its type.
pub(super) fn corrected_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-corrected", "desk", "How many?");
    journal.append_response(vec![tool_call_item("h1", "to_billing", json!({}))]);
    journal.append(settled_entry("h1", CallStatus::UnknownTool, "Tool 'to_billing' not found."));
    journal.append_response(vec![Item::assistant("Seven or so.")]);
    let correction = Arc::new(Item::user("`count` is missing"));
    journal.append(JournalEntry::OutputRejected(OutputRejected { correction }));
    journal.records
}

/// A run whose history was compacted twice: by a summary near the window, and after the provider refused a request.
pub(super) fn compacted_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-compacted", "desk", "Read them all.");
    let kept = |from, to| FilteredInput::History { from, to };
    for id in ["c1", "c2"] {
        journal.append_response(vec![tool_call_item(id, "crawl", json!({ "page": id }))]);
        journal.append(start_entry(id));
        journal.append(settled_entry(id, CallStatus::Succeeded, "a long page"));
    }
    let summary = FilteredInput::Item(Arc::new(Item::user("Summary: page c1 was read.")));
    journal.append(JournalEntry::HistoryCompacted(HistoryCompacted {
        agent: "desk".into(),
        reason: CompactionReason::NearContextWindow,
        history: vec![kept(0, 1), summary, kept(3, 5)],
        tokens_before: 900,
        tokens_after: 500,
        summary_usage: Some(Usage::of_tokens(700, 20)),
        learned_window: None,
    }));
    journal.append(JournalEntry::ModelRequestFailed(ModelRequestFailed {
        requested: Default::default(),
        agent: "desk".into(),
        error: "the input is too long".to_owned(),
        retry_after_ms: Some(0),
        usage: None,
        active_ms: 0,
    }));
    journal.append(JournalEntry::HistoryCompacted(HistoryCompacted {
        agent: "desk".into(),
        reason: CompactionReason::ContextLengthExceeded,
        history: vec![kept(0, 2)],
        tokens_before: 500,
        tokens_after: 90,
        summary_usage: None,
        learned_window: Some(500),
    }));
    journal.append_response(vec![Item::assistant("Two pages are read.")]);
    journal.records
}

/// A run whose id another run may have, and its nonce in the keys of its calls.
pub(super) fn used_id_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::from_started(RunStarted {
        key_nonce: Some("0199a1b2c3d47e5f8a9b0c1d2e3f4a5b".into()),
        ..run_started("payroll", "desk", "Pay Bo.")
    });
    journal.append_response(vec![
        tool_call_item("c1", "print", json!({ "invoice": 9 })),
        tool_call_item("c2", "look", json!({ "name": "Bo" })),
    ]);
    journal.append(start_entry("c1"));
    journal.append(start_entry("c2"));
    journal.append(settled_entry("c2", CallStatus::Succeeded, "Bo is known."));
    journal.records
}

/// A run of a restored backup: its pending approval became a doubt, and so did the call of the next turn.
pub(super) fn restored_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-restored", "desk", "Pay both.");
    journal.append_response(vec![tool_call_item("c1", "transfer", json!({ "cents": 5 }))]);
    journal.append(JournalEntry::RunRestored(RunRestored::default()));
    journal.append(held_entry("c1", HoldReason::InDoubt));
    let output = OutputContent::from("transfer 17");
    journal.append_decision(
        "c1",
        Decision::ConfirmExecuted { output: output.clone() },
        DecisionScope::ThisCall,
        None,
    );
    journal.append(settled_entry("c1", CallStatus::Reconciled, output));
    journal.append_response(vec![tool_call_item("c2", "transfer", json!({ "cents": 6 }))]);
    journal.append(held_entry("c2", HoldReason::InDoubt));
    journal.append(JournalEntry::RunRestored(RunRestored::default()));
    journal.append(held_entry("c2", HoldReason::InDoubt));
    journal.records
}
