//! The client's events of one conversation, compared with those of the reference's Python and JavaScript clients against
//! the same server: kinds, order and fields. Every difference is listed here and in `docs/differences.md`.
//!
//! `WINDLASS_AGENTS_PYTHON` names a Python with `openai-agents`, and `WINDLASS_NODE_MODULES` a folder with
//! `@openai/agents-realtime` in its `node_modules`. If they are not installed, the test says so.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use windlass::prelude::*;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer};
use windlass_realtime::{RealtimeEvent, RealtimeSessionBuilder};

/// Longest time that anything may take on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// The conversation: a tool call and its result, a handoff and the new agent's answer.
fn scripted_server() -> LoopbackServer {
    LoopbackServer::new([
        LoopbackReply::call("c1", "look", "{}"),
        LoopbackReply::message("It is 42."),
        LoopbackReply::call("h1", "transfer_to_other", "{}"),
        LoopbackReply::message("Other here."),
    ])
}

fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference")
}

/// An event of a client: its kind, and its fields with their values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClientStep {
    kind: String,
    fields: BTreeMap<String, String>,
}

fn client_steps(server: &LoopbackServer) -> Vec<ClientStep> {
    server.client_events(None).iter().map(client_step).collect()
}

fn client_step(event: &Value) -> ClientStep {
    let kind = event["type"].as_str().unwrap_or_default();
    let detail = match kind {
        "session.update" => event["session"]["instructions"].as_str().unwrap_or("-"),
        "conversation.item.create" => event["item"]["type"].as_str().unwrap_or_default(),
        _ => "",
    };
    let mut fields = BTreeMap::new();
    collect_fields("", event, &mut fields);
    ClientStep { kind: format!("{kind} {detail}").trim_end().to_owned(), fields }
}

/// Collects the fields that have a value, by path. Tools are compared by their kind, name and parameters' properties.
fn collect_fields(path: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect_fields(&path, value, fields);
            }
        }
        Value::Array(tools) if path == "session.tools" => {
            let named = |tool: &Value| {
                let parameters = &tool["parameters"];
                format!(
                    "{} {} {} {}",
                    tool["type"], tool["name"], parameters["type"], parameters["properties"]
                )
            };
            let tools: Vec<String> = tools.iter().map(named).collect();
            fields.insert(path.to_owned(), tools.join(", "));
        }
        Value::Null => {}
        value => drop(fields.insert(path.to_owned(), value.to_string())),
    }
}

/// The declared differences between our events and those of one client of the reference.
struct DeclaredDifferences {
    /// Events that only the reference sends, by kind.
    their_events: &'static [&'static str],
    /// Fields that only we send.
    our_fields: &'static [&'static str],
    /// Fields that only the reference sends.
    their_fields: &'static [&'static str],
    /// Fields of both whose values differ.
    other_values: &'static [&'static str],
}

/// Our events name themselves, our items have ids of the session, and a request names its command, so that
/// acknowledgements, refusals and responses are matched by identity. The server's turn actions are explicit. Audio
/// formats are sent only where they were set.
const PYTHON_DIFFERENCES: DeclaredDifferences = DeclaredDifferences {
    their_events: &[],
    our_fields: &[
        "event_id",
        "item.id",
        "response.metadata.windlass_command",
        "session.audio.input.turn_detection.create_response",
    ],
    their_fields: &[
        "session.audio.input.format.rate",
        "session.audio.input.format.type",
        "session.audio.output.format.rate",
        "session.audio.output.format.type",
    ],
    other_values: &["event_id", "session.model"],
};

/// As with Python; JavaScript also sends the speed and not the voice, switches tracing off in an event of its own, and
/// writes the output of a handoff without a space.
const JAVASCRIPT_DIFFERENCES: DeclaredDifferences = DeclaredDifferences {
    their_events: &["session.update -"],
    our_fields: &[
        "event_id",
        "item.id",
        "response.metadata.windlass_command",
        "session.audio.input.turn_detection.create_response",
        "session.audio.input.turn_detection.interrupt_response",
        "session.audio.output.voice",
    ],
    their_fields: &[
        "session.audio.input.format.rate",
        "session.audio.input.format.type",
        "session.audio.output.format.rate",
        "session.audio.output.format.type",
        "session.audio.output.speed",
    ],
    other_values: &["event_id", "item.output", "session.model"],
};

/// Compares the events of two clients: kinds and order, fields, and values. Returns the differences that are not
/// declared, and the declared ones that were not found.
fn undeclared_differences(
    ours: &[ClientStep],
    theirs: &[ClientStep],
    declared: &DeclaredDifferences,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    let is_shared = |step: &&ClientStep| !declared.their_events.contains(&step.kind.as_str());
    let extra = theirs.iter().filter(|step| !is_shared(step));
    used.extend(extra.map(|step| format!("their event {}", step.kind)));
    let theirs: Vec<&ClientStep> = theirs.iter().filter(is_shared).collect();
    let kinds = |steps: &mut dyn Iterator<Item = &ClientStep>| {
        steps.map(|step| step.kind.clone()).collect::<Vec<_>>()
    };
    let (our_kinds, their_kinds) = (kinds(&mut ours.iter()), kinds(&mut theirs.iter().copied()));
    if our_kinds != their_kinds {
        return vec![format!("events: {our_kinds:?} and {their_kinds:?}")];
    }
    for (our, their) in ours.iter().zip(theirs) {
        let paths: BTreeSet<&String> = our.fields.keys().chain(their.fields.keys()).collect();
        for path in paths {
            let (list, side) = match (our.fields.get(path), their.fields.get(path)) {
                (Some(our), Some(their)) if our == their => continue,
                (Some(_), Some(_)) => (declared.other_values, "value of"),
                (Some(_), None) => (declared.our_fields, "our field"),
                (None, _) => (declared.their_fields, "their field"),
            };
            match list.contains(&path.as_str()) {
                true => drop(used.insert(format!("{side} {path}"))),
                false => found.push(format!(
                    "{}: {side} {path}: {:?} and {:?}",
                    our.kind,
                    our.fields.get(path),
                    their.fields.get(path)
                )),
            }
        }
    }
    let all = [
        ("their event", declared.their_events),
        ("our field", declared.our_fields),
        ("their field", declared.their_fields),
        ("value of", declared.other_values),
    ];
    for (side, list) in all {
        let unused = list.iter().map(|path| format!("{side} {path}")).filter(|known| !used.contains(known));
        found.extend(unused.map(|known| format!("declared and not found: {known}")));
    }
    found
}

async fn our_steps() -> Vec<ClientStep> {
    let server = scripted_server();
    let (address, listening) = server.listen().await.expect("listens");
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let look = Tool::dynamic("look", "Looks.", schema, |_, _| async { Ok::<_, ToolError>("42") });
    let other = Agent::new("other").instructions("Other.");
    let guide = Agent::new("guide").instructions("Guide.").tools(look).handoff(&other);
    let model = windlass_realtime::openai::OpenAiRealtime::with_url(format!("ws://{address}/v1/realtime"))
        .model("loopback");
    // A busy machine must not make the session ask again.
    let builder = RealtimeSessionBuilder::new(guide, model)
        .ready_timeout(TEST_TIMEOUT)
        .response_timeouts(TEST_TIMEOUT, TEST_TIMEOUT);
    let session = builder.connect().await.expect("connects");
    let mut events = session.events();
    session.send_text("Look").await.expect("is there");
    let mut turns = 0;
    while turns < 4 {
        let event = tokio::time::timeout(TEST_TIMEOUT, events.next()).await.expect("comes in time");
        if matches!(event.expect("is there"), RealtimeEvent::TurnEnded { .. }) {
            turns += 1;
            if turns == 2 {
                session.send_text("Hand me over").await.expect("is there");
            }
        }
    }
    session.close().await;
    listening.abort();
    client_steps(&server)
}

async fn reference_steps(mut command: tokio::process::Command, name: &str) -> Vec<ClientStep> {
    let server = scripted_server();
    let (address, listening) = server.listen().await.expect("listens");
    command.arg(format!("ws://{address}/v1/realtime?model=loopback"));
    let output = tokio::time::timeout(TEST_TIMEOUT, command.output()).await;
    let output = output.expect("the client ends").expect("the client runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().ends_with("ok"), "{name}: {said}\n{errors}");
    listening.abort();
    client_steps(&server)
}

fn python_command() -> Option<tokio::process::Command> {
    let python = std::env::var("WINDLASS_AGENTS_PYTHON").ok()?;
    let mut command = tokio::process::Command::new(python);
    command.arg(tests_folder().join("session.py"));
    Some(command)
}

fn node_command() -> Option<tokio::process::Command> {
    std::env::var_os("WINDLASS_NODE_MODULES")?;
    let mut command = tokio::process::Command::new("node");
    command.arg(tests_folder().join("session.mjs"));
    Some(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn our_events_are_those_of_the_reference_but_for_what_is_declared() {
    let ours = our_steps().await;
    for (name, command, declared) in [
        ("PyPI `openai-agents`", python_command(), &PYTHON_DIFFERENCES),
        ("npm `@openai/agents-realtime`", node_command(), &JAVASCRIPT_DIFFERENCES),
    ] {
        let Some(command) = command else {
            let _ = writeln!(std::io::stderr(), "not compared: {name} is not installed here");
            continue;
        };
        let theirs = reference_steps(command, name).await;
        assert_eq!(undeclared_differences(&ours, &theirs, declared), Vec::<String>::new(), "{name}");
    }
}

/// The order of our events, which does not depend on what is installed.
#[tokio::test(flavor = "multi_thread")]
async fn our_events_come_in_their_order() {
    let kinds: Vec<String> = our_steps().await.into_iter().map(|step| step.kind).collect();
    assert_eq!(
        kinds,
        [
            "session.update Guide.",
            "conversation.item.create message",
            "response.create",
            "conversation.item.create function_call_output",
            "response.create",
            "conversation.item.create message",
            "response.create",
            "session.update Other.",
            "conversation.item.create function_call_output",
            "response.create",
        ]
    );
}
