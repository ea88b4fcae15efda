//! Golden files for additions to the format.

use serde_json::json;
use windlass_core::{
    decision::{Decision, DecisionScope, HoldReason, PersonQuestion},
    item::{CallKind, ContentPart, Item, MediaSource, OutputContent, ToolCall},
    journal::{CallHeld, CallStatus, JournalEntry, JournalRecord},
};

use super::{GoldenJournal, attempt_entry, held_entry, settled_entry, start_entry, tool_call_item};

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
