use serde_json::json;

use super::{Acknowledgement, SentConfigurations};
use crate::id::CommandId;

fn send(sent: &SentConfigurations, command: &str, mut session: serde_json::Value) -> serde_json::Value {
    sent.record_sent(&CommandId::from(command), &mut session);
    session
}

fn identified(command: &str) -> Acknowledgement {
    Acknowledgement::Identified(CommandId::from(command))
}

#[test]
fn an_acknowledgement_is_identified_by_its_content_and_not_by_its_place() {
    let sent = SentConfigurations::default();
    send(&sent, "a", json!({ "instructions": "A", "tools": [] }));
    send(&sent, "b", json!({ "instructions": "B", "tools": [] }));
    assert_eq!(sent.acknowledge(&json!({ "instructions": "B", "tools": [] })), identified("b"));
    assert_eq!(sent.acknowledge(&json!({ "instructions": "A", "tools": [] })), identified("a"));
    // Repeated, and of a configuration that the session did not send.
    send(&sent, "c", json!({ "instructions": "C", "tools": [] }));
    assert_eq!(sent.acknowledge(&json!({ "instructions": "A", "tools": [] })), Acknowledgement::NotOurs);
    assert_eq!(sent.acknowledge(&json!({ "instructions": "C", "tools": [] })), identified("c"));
    assert_eq!(sent.acknowledge(&json!({ "instructions": "C", "tools": [] })), Acknowledgement::NotOurs);
}

#[test]
fn a_server_that_repeats_nothing_or_something_else_is_still_understood() {
    let sent = SentConfigurations::default();
    send(&sent, "a", json!({ "instructions": "A", "tools": [{ "name": "look" }] }));
    assert_eq!(sent.acknowledge(&json!({ "id": "sess_1" })), Acknowledgement::Unidentified);
    assert_eq!(sent.acknowledge(&json!({ "instructions": "A, trimmed", "tools": [] })), identified("a"));
}

#[test]
fn fields_of_the_agent_before_are_reset_and_tracing_is_sent_once() {
    let sent = SentConfigurations::default();
    let first = json!({ "instructions": "A", "tool_choice": "required", "tracing": "auto", "tools": [] });
    assert_eq!(send(&sent, "a", first.clone()), first);
    assert_eq!(
        send(&sent, "b", json!({ "tools": [], "tracing": "auto" })),
        json!({ "instructions": "", "tool_choice": "auto", "tools": [] })
    );
}
