//! Golden files of what the format came to have later.

use serde_json::json;
use windlass_core::{
    Call, CallKind, Content, Decision, Entry, Held, HoldReason, How, Item, Media, OutputContent, Question,
    Reach, Record,
};

use super::{Journal, attempt, call, hold, settle, start};

/// Calls of other kinds, and bodies that ask: one was answered, one still waits.
pub(super) fn asked() -> Vec<Record> {
    let of_kind = |kind, id: &str, name: &str, namespace: Option<&str>, arguments: serde_json::Value| {
        Item::Call(Call {
            id: id.into(),
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
            arguments: arguments.to_string(),
            item_id: None,
            kind,
        })
    };
    let ask = |question: Question, call: &str| Entry::Held(Held::for_answer(call.into(), question));
    let mut journal = Journal::start("run-asked", "desk", "Book it.");
    let click = json!({ "actions": [{ "type": "click", "x": 3, "y": 4 }], "pending_safety_checks": [] });
    journal.answer(vec![
        of_kind(CallKind::Computer, "c1", "computer", None, click),
        of_kind(CallKind::HostedMcp, "c2", "read", Some("files"), json!({ "path": "/a" })),
        call("c3", "transfer", json!({ "cents": 5 })),
    ]);
    journal.add(start("c1"));
    journal.add(hold("c2", HoldReason::Approval));
    journal.add(start("c3"));
    let place = Question::new("Which account?").schema(json!({ "enum": ["a", "b"] }));
    journal.add(ask(place, "c3"));
    let screen = Media {
        data: Some("iVBORw0=".to_owned()),
        media_type: Some("image/png".to_owned()),
        ..Media::default()
    };
    journal.add(settle("c1", How::Succeeded, OutputContent::Parts(vec![Content::Image(screen)])));
    journal.decide("c2", Decision::Approve, Reach::Call, Some("ann"));
    journal.add(start("c2"));
    journal.add(settle("c2", How::Succeeded, "approved"));
    journal.decide("c3", Decision::Answer { value: json!("b") }, Reach::Call, Some("ann"));
    journal.add(attempt("c3", 2));
    journal.add(ask(Question::new("Are you sure?"), "c3"));
    journal.records
}

/// Calls that approvals for good do not cover: one waits though its tool was approved for good, one is signed for each.
pub(super) fn each() -> Vec<Record> {
    let post = |id: &str| call(id, "post", json!({ "text": id }));
    let mut journal = Journal::start("run-each", "desk", "Post and sign.");
    journal.answer(vec![post("c1"), call("s1", "sign", json!({ "page": 1 }))]);
    journal.add(hold("c1", HoldReason::Approval));
    journal.add(hold("s1", HoldReason::Approval));
    journal.decide("c1", Decision::Approve, Reach::Always, Some("ann"));
    journal.decide("s1", Decision::Approve, Reach::Call, Some("ann"));
    for id in ["c1", "s1"] {
        journal.add(start(id));
        journal.add(settle(id, How::Succeeded, "done"));
    }
    journal.answer(vec![post("c2"), post("c3"), call("s2", "sign", json!({ "page": 2 }))]);
    journal.add(start("c2"));
    journal.add(hold("c3", HoldReason::Approval));
    journal.add(hold("s2", HoldReason::Approval));
    journal.add(settle("c2", How::Succeeded, "done"));
    journal.records
}
