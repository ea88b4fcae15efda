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

/// The acknowledgement of the first configuration is repeated after that of the second, while a third is in flight; also
/// by a provider that changes what it repeats.
#[test]
fn an_acknowledgement_that_was_seen_before_is_never_taken_for_a_new_configuration() {
    let sent = SentConfigurations::default();
    for (command, instructions) in [("a", "A"), ("b", "B")] {
        send(&sent, command, json!({ "instructions": instructions, "tools": [] }));
        let echo = json!({ "instructions": format!("{instructions}, trimmed"), "tools": [] });
        assert_eq!(sent.acknowledge(&echo), identified(command));
    }
    send(&sent, "c", json!({ "instructions": "C", "tools": [] }));
    for seen in ["A", "A, trimmed", "B", "B, trimmed"] {
        let echo = json!({ "instructions": seen, "tools": [] });
        assert_eq!(sent.acknowledge(&echo), Acknowledgement::NotOurs, "{seen}");
    }
    assert_eq!(sent.acknowledge(&json!({ "instructions": "C, trimmed", "tools": [] })), identified("c"));
    // The first configuration is sent once more: now its acknowledgement counts again.
    for (command, echo) in [("d", "A, trimmed"), ("e", "A")] {
        send(&sent, command, json!({ "instructions": "A", "tools": [] }));
        assert_eq!(sent.acknowledge(&json!({ "instructions": echo, "tools": [] })), identified(command));
    }
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

/// Agents with the same instructions and the same names of tools differ in the schema of a tool or in another field. The
/// provider drops the change and repeats its last acknowledgement.
#[test]
fn the_acknowledgement_of_a_twin_is_not_taken_for_the_change() {
    let tool =
        |field: &str| json!([{ "type": "function", "name": "pay", "parameters": { "required": [field] } }]);
    let first = json!({ "instructions": "A", "tools": tool("card"), "tool_choice": "auto", "max_output_tokens": 100 });
    let mut twins = vec![first.clone(); 3];
    twins[0]["tools"] = tool("iban");
    twins[1]["tool_choice"] = "required".into();
    twins[2]["max_output_tokens"] = 200.into();
    for twin in twins {
        let sent = SentConfigurations::default();
        // The provider adds fields of its own, and writes numbers in its own way.
        let echo = |session: &serde_json::Value| {
            let mut echo = session.clone();
            echo["id"] = "sess_1".into();
            echo["max_output_tokens"] = session["max_output_tokens"].as_f64().into();
            echo
        };
        send(&sent, "a", first.clone());
        assert_eq!(sent.acknowledge(&echo(&first)), identified("a"));
        send(&sent, "b", twin.clone());
        assert_eq!(sent.acknowledge(&echo(&first)), Acknowledgement::NotOurs, "{twin}");
        assert_eq!(sent.acknowledge(&echo(&twin)), identified("b"));
        // Back to the first agent, whose configuration has other resets now.
        send(&sent, "c", first.clone());
        assert_eq!(sent.acknowledge(&echo(&twin)), Acknowledgement::NotOurs, "{twin}");
        assert_eq!(sent.acknowledge(&echo(&first)), identified("c"));
    }
}

/// The provider does not repeat the field in which two agents differ: its words are no proof of the change.
#[test]
fn a_difference_that_is_not_repeated_is_not_believed() {
    let sent = SentConfigurations::default();
    let echo = json!({ "instructions": "A", "tools": [] });
    send(&sent, "a", json!({ "instructions": "A", "tools": [], "tracing": "auto" }));
    assert_eq!(sent.acknowledge(&echo), identified("a"));
    send(&sent, "b", json!({ "instructions": "A", "tools": [], "temperature": 1 }));
    assert_eq!(sent.acknowledge(&echo), Acknowledgement::NotOurs);
    sent.forget_rejected(&CommandId::from("b"));
    // The first configuration is restored; it has no tracing and resets the temperature.
    send(&sent, "c", json!({ "instructions": "A", "tools": [] }));
    assert_eq!(sent.acknowledge(&echo), identified("c"));
}
