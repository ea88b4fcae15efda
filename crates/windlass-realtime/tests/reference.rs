//! The client's events of two conversations, compared with those of the reference's Python and JavaScript clients against
//! the same server: kinds, order and fields. One conversation is written: a message, a call, a handoff. The other is
//! spoken: an interruption, a rejected call, a guardrail that trips. Every difference is listed here and in
//! `docs/differences.md`.
//!
//! `WINDLASS_AGENTS_PYTHON` names a Python with `openai-agents`, and `WINDLASS_NODE_MODULES` a folder with
//! `@openai/agents-realtime` in its `node_modules`. If they are not installed, the test says so.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::model::RealtimeModel;
use windlass_realtime::openai::OpenAiRealtime;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer, tone};
use windlass_realtime::{RealtimeEvent, RealtimeSession, RealtimeSessionBuilder};

/// The reference's clients.
const PYTHON: &str = "PyPI `openai-agents`";
const JAVASCRIPT: &str = "npm `@openai/agents-realtime`";

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

/// The spoken conversation: a tale that the user interrupts, a call that a person rejects, and an answer that a guardrail
/// rejects.
fn spoken_server() -> LoopbackServer {
    LoopbackServer::new([
        LoopbackReply::speech("A long tale", tone(60_000)).with_speed(1),
        LoopbackReply::call("r1", "gated", "{}"),
        LoopbackReply::message("As you wish."),
        LoopbackReply::speech("forbidden ".repeat(120), tone(60_000)).with_speed(1),
        LoopbackReply::message("Sorry."),
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
        // The provider's ids count its events, and a client that reads an item again has one more.
        Value::String(id) if ["item_id", "response_id"].contains(&path) && !id.starts_with("wl_") => {
            fields.insert(path.to_owned(), "an id of the provider".to_owned());
        }
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
    /// Events that the reference sends in this order, and we in the other one.
    other_orders: &'static [(&'static str, &'static str)],
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
    other_orders: &[],
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
    other_orders: &[],
};

/// As in the written conversation. Python also reads an item again after it was truncated. The positions of interruptions
/// are times.
const PYTHON_VOICE_DIFFERENCES: DeclaredDifferences = DeclaredDifferences {
    their_events: &["conversation.item.retrieve"],
    other_values: &["audio_end_ms", "event_id", "session.model"],
    ..PYTHON_DIFFERENCES
};

/// As in the written conversation, with the turn detection set. JavaScript cancels a rejected response before it truncates it
/// and does not name it, and words the message about the guardrail differently.
const JAVASCRIPT_VOICE_DIFFERENCES: DeclaredDifferences = DeclaredDifferences {
    their_events: &["conversation.item.retrieve", "session.update -"],
    other_values: &["audio_end_ms", "event_id", "item.content", "session.model"],
    our_fields: &[
        "event_id",
        "item.id",
        "response.metadata.windlass_command",
        "response_id",
        "session.audio.output.voice",
    ],
    other_orders: &[("response.cancel", "conversation.item.truncate")],
    ..JAVASCRIPT_DIFFERENCES
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
    let mut theirs: Vec<&ClientStep> = theirs.iter().filter(is_shared).collect();
    for (first, second) in declared.other_orders {
        let is_it = |pair: &[&ClientStep]| pair[0].kind == *first && pair[1].kind == *second;
        if let Some(place) = theirs.windows(2).position(is_it) {
            theirs.swap(place, place + 1);
            used.insert(format!("order of {first}, {second}"));
        }
    }
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
    let orders = declared.other_orders.iter().map(|(first, second)| format!("order of {first}, {second}"));
    let unused = orders.filter(|known| !used.contains(known));
    found.extend(unused.map(|known| format!("declared and not found: {known}")));
    for (side, list) in all {
        let unused = list.iter().map(|path| format!("{side} {path}")).filter(|known| !used.contains(known));
        found.extend(unused.map(|known| format!("declared and not found: {known}")));
    }
    found
}

async fn our_written_steps() -> Vec<ClientStep> {
    let server = scripted_server();
    let (address, listening) = server.listen().await.expect("listens");
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let look = Tool::dynamic("look", "Looks.", schema, |_, _| async { Ok::<_, ToolError>("42") });
    let other = Agent::new("other").instructions("Other.");
    let guide = Agent::new("guide").instructions("Guide.").tools(look).handoff(&other);
    let model = OpenAiRealtime::with_url(format!("ws://{address}/v1/realtime")).model("loopback");
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

async fn send_speech(session: &RealtimeSession, ms: u64) {
    let mut samples = tone(ms);
    samples.extend(vec![0; 24_000]);
    for piece in samples.chunks(2400) {
        session.send_audio(AudioFormat::Pcm24k.encode(piece)).expect("is there");
    }
}

async fn our_spoken_steps() -> Vec<ClientStep> {
    let server = spoken_server();
    let (address, listening) = server.listen().await.expect("listens");
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let gated =
        Tool::dynamic("gated", "Needs an approval.", schema, |_, _| async { Ok::<_, ToolError>("42") });
    let guide = Agent::new("guide").instructions("Guide.").tools(gated.needs_approval());
    let model = OpenAiRealtime::with_url(format!("ws://{address}/v1/realtime")).model("loopback");
    let guardrail = OutputGuardrail::new("g", |_, text: Arc<str>| async move {
        Ok(if text.contains("forbidden") { GuardrailVerdict::Tripwire } else { GuardrailVerdict::Pass })
    });
    let builder = RealtimeSessionBuilder::new(guide, model)
        .output_guardrail(guardrail)
        .guardrail_debounce(100)
        .ready_timeout(TEST_TIMEOUT)
        .response_timeouts(TEST_TIMEOUT, TEST_TIMEOUT);
    let session = builder.connect().await.expect("connects");
    let mut events = session.events();
    send_speech(&session, 500).await;
    let (mut heard, mut turns) = (0, 0);
    while turns < 5 {
        let event = tokio::time::timeout(TEST_TIMEOUT, events.next()).await.expect("comes in time");
        match event.expect("is there") {
            RealtimeEvent::Audio(chunk) => {
                let before = heard;
                heard += chunk.bytes.len();
                if before < 48_000 && heard >= 48_000 {
                    send_speech(&session, 300).await;
                }
            }
            RealtimeEvent::CallHeld { .. } => {
                session.reject("r1", Some("no".to_owned())).await.expect("waits");
            }
            RealtimeEvent::TurnEnded { .. } => {
                turns += 1;
                if turns == 3 {
                    session.send_text("Swear").await.expect("is there");
                }
            }
            _ => {}
        }
    }
    session.close().await;
    listening.abort();
    client_steps(&server)
}

async fn reference_steps(
    mut command: tokio::process::Command,
    name: &str,
    server: LoopbackServer,
) -> Vec<ClientStep> {
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

fn python_command(script: &str) -> Option<tokio::process::Command> {
    let python = std::env::var("WINDLASS_AGENTS_PYTHON").ok()?;
    let mut command = tokio::process::Command::new(python);
    command.arg(tests_folder().join(format!("{script}.py")));
    Some(command)
}

fn node_command(script: &str) -> Option<tokio::process::Command> {
    std::env::var_os("WINDLASS_NODE_MODULES")?;
    let mut command = tokio::process::Command::new("node");
    command.arg(tests_folder().join(format!("{script}.mjs")));
    Some(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn our_events_are_those_of_the_reference_but_for_what_is_declared() {
    let (written, spoken) = (our_written_steps().await, our_spoken_steps().await);
    let mut found = Vec::new();
    for (name, command, ours, server, declared) in [
        (PYTHON, python_command("session"), &written, scripted_server(), &PYTHON_DIFFERENCES),
        (JAVASCRIPT, node_command("session"), &written, scripted_server(), &JAVASCRIPT_DIFFERENCES),
        (PYTHON, python_command("voice"), &spoken, spoken_server(), &PYTHON_VOICE_DIFFERENCES),
        (JAVASCRIPT, node_command("voice"), &spoken, spoken_server(), &JAVASCRIPT_VOICE_DIFFERENCES),
    ] {
        let Some(command) = command else {
            let _ = writeln!(std::io::stderr(), "not compared: {name} is not installed here");
            continue;
        };
        let theirs = reference_steps(command, name, server).await;
        let differences = undeclared_differences(ours, &theirs, declared);
        found.extend(differences.into_iter().map(|difference| format!("{name}: {difference}")));
    }
    assert_eq!(found, Vec::<String>::new());
}

/// The model that is used if none is named is that of the reference's clients.
#[tokio::test]
async fn the_default_model_is_that_of_the_reference() {
    let python = std::env::var("WINDLASS_AGENTS_PYTHON").ok().map(|python| {
        let mut command = tokio::process::Command::new(python);
        let script = "from agents.realtime.openai_realtime import DEFAULT_REALTIME_MODEL as m; print(m)";
        command.args(["-c", script]);
        command
    });
    let node = std::env::var_os("WINDLASS_NODE_MODULES").map(|folder| {
        let mut command = tokio::process::Command::new("node");
        let script = "console.log(require('@openai/agents-realtime').DEFAULT_OPENAI_REALTIME_MODEL)";
        command.args(["-e", script]).current_dir(folder);
        command
    });
    let ours = OpenAiRealtime::new("key");
    for (name, command) in [(PYTHON, python), (JAVASCRIPT, node)] {
        let Some(mut command) = command else {
            let _ = writeln!(std::io::stderr(), "not compared: {name} is not installed here");
            continue;
        };
        let output = tokio::time::timeout(TEST_TIMEOUT, command.output()).await.expect("ends").expect("runs");
        let theirs = String::from_utf8_lossy(&output.stdout);
        assert_eq!(Some(theirs.trim()), ours.model_name(), "{name}");
    }
}

/// The order of our events in the spoken conversation.
#[tokio::test(flavor = "multi_thread")]
async fn our_spoken_events_come_in_their_order() {
    let kinds: Vec<String> = our_spoken_steps().await.into_iter().map(|step| step.kind).collect();
    assert_eq!(
        kinds,
        [
            "session.update Guide.",
            "conversation.item.truncate",
            "conversation.item.create function_call_output",
            "response.create",
            "conversation.item.create message",
            "response.create",
            "conversation.item.truncate",
            "response.cancel",
            "conversation.item.create message",
            "response.create",
        ]
    );
}

/// The order of our events, which does not depend on what is installed.
#[tokio::test(flavor = "multi_thread")]
async fn our_events_come_in_their_order() {
    let kinds: Vec<String> = our_written_steps().await.into_iter().map(|step| step.kind).collect();
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
