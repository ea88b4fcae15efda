//! Conformance with the official clients: their types accept every event that a session or the test server
//! sends, and the clients hold conversations with the test server.
//!
//! The official clients are in Python and JavaScript. If they are not installed, the test says so.
//! `WINDLASS_PYTHON` names a Python with `openai`, and `WINDLASS_NODE_MODULES` a folder with
//! `@openai/agents-realtime` in its `node_modules`.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::item::Role;
use windlass::model::{ModelSettings, ToolChoice};
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::model::{RealtimeCommand, RealtimeCommandKind};
use windlass_realtime::openai::encode_command;
use windlass_realtime::settings::{
    InputTranscription, NoiseReduction, RealtimeSettings, SemanticVad, ServerVad, TurnDetection,
};
use windlass_realtime::testing::{LoopbackReply, LoopbackServer, WireSender, tone};
use windlass_realtime::{RealtimeContentPart, RealtimeEvent, RealtimeSessionBuilder, RespondWhen};

/// Runs sessions that use every kind of event, and returns the events on the wire.
async fn all_wire_events() -> Vec<(&'static str, Value)> {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let look = Tool::dynamic("look", "Looks.", schema, |_, _| async { Ok::<_, ToolError>("42") });
    let other = Agent::new("other").instructions("Other.");
    let model = ModelSettings {
        tool_choice: Some(ToolChoice::Auto),
        max_tokens: Some(500),
        parallel_tool_calls: Some(true),
        reasoning_effort: Some("low".to_owned()),
        ..ModelSettings::default()
    };
    let agent =
        Agent::new("guide").instructions("Be brief.").model_settings(model).tools(look).handoff(&other);
    let silence = TurnDetection::ServerVad(ServerVad {
        threshold: Some(0.5),
        prefix_padding: Some(Duration::from_millis(300)),
        silence_duration: Some(Duration::from_millis(500)),
        idle_timeout: Some(Duration::from_secs(6)),
        ..ServerVad::default()
    });
    let meaning =
        TurnDetection::SemanticVad(SemanticVad { eagerness: Some("low".to_owned()), ..Default::default() });
    let mut seen = Vec::new();
    for (turns, format) in [
        (silence, AudioFormat::Pcm24k),
        (meaning, AudioFormat::Ulaw),
        (TurnDetection::Application, AudioFormat::Alaw),
    ] {
        let settings = RealtimeSettings {
            turn_detection: turns,
            input_audio_format: Some(format),
            output_audio_format: Some(format),
            voice: Some("ash".to_owned()),
            speed: Some(1.1),
            noise_reduction: Some(NoiseReduction::NearField),
            input_transcription: Some(InputTranscription {
                language: Some("en".to_owned()),
                prompt: Some("windlass".to_owned()),
                ..InputTranscription::default()
            }),
            ..RealtimeSettings::default()
        };
        let server = LoopbackServer::new([
            LoopbackReply::call("c1", "look", "{}"),
            LoopbackReply::message("The answer is forty-two, and that is a long story."),
            LoopbackReply::message("A story that is much too long to listen to until its end.").with_speed(2),
            LoopbackReply::call("h1", "transfer_to_other", "{}"),
        ]);
        let session = RealtimeSessionBuilder::new(agent.clone(), server.client_model())
            .settings(settings)
            .connect()
            .await
            .expect("connects");
        let mut events = session.events();
        session.send_text("Look").await.expect("is there");
        wait_for_turns(&mut events, 2).await;
        let picture = vec![
            RealtimeContentPart::text("See"),
            RealtimeContentPart::Image { url: "data:image/png;base64,iVBORw0KGgo=".to_owned() },
        ];
        let seen_item = session.send_message(Role::User, picture, RespondWhen::Now).await.expect("is there");
        // Some speech is heard before the interruption.
        let mut chunks = 0;
        while chunks < 4 {
            let event = events.next().await.expect("the session goes on");
            chunks += u32::from(matches!(event, RealtimeEvent::Audio(_)));
        }
        session.interrupt().await.expect("is there");
        wait_for_turns(&mut events, 1).await;
        session.delete_item(&seen_item).await.expect("is there");
        session
            .insert_item(Role::System, vec![RealtimeContentPart::text("Be kind.")], None)
            .await
            .expect("is there");
        session
            .insert_item(Role::Assistant, vec![RealtimeContentPart::text("I am.")], None)
            .await
            .expect("is there");
        session.send_audio(format.encode(&tone(200))).expect("is there");
        session.clear_audio().await.expect("is there");
        session.send_audio(format.encode(&tone(600))).expect("is there");
        session.commit_audio().await.expect("is there");
        session.send_text("Hand me over").await.expect("is there");
        while let Some(event) = events.next().await {
            if matches!(event, RealtimeEvent::AgentChanged { .. }) {
                break;
            }
        }
        session.close().await;
        seen.extend(server.wire_log().into_iter().map(|seen| match seen.sender {
            WireSender::Client => ("client", seen.event),
            WireSender::Server => ("server", seen.event),
        }));
        let audio = RealtimeCommand {
            id: "wl_audio".into(),
            kind: RealtimeCommandKind::AppendAudio(format.encode(&tone(1))),
        };
        seen.push(("client", encode_command(&audio, None)));
    }
    seen
}

async fn wait_for_turns(events: &mut windlass_realtime::RealtimeEvents, turns: u32) {
    let mut left = turns;
    while left > 0 {
        match events.next().await.expect("the session goes on") {
            RealtimeEvent::TurnEnded { .. } => left -= 1,
            RealtimeEvent::Closed(reason) => panic!("it ended: {reason:?}"),
            _ => {}
        }
    }
}

fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Returns a Python with the official client, if there is one.
fn find_python() -> Option<String> {
    let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_it = Command::new(&python).args(["-c", "import openai.types.realtime, websockets"]).output();
    has_it.is_ok_and(|output| output.status.success()).then_some(python)
}

/// The events sent are those that were validated: their types and fields, one example each.
#[tokio::test(start_paused = true)]
async fn what_is_sent_is_what_was_validated() {
    let mut shapes: Vec<String> = all_wire_events()
        .await
        .iter()
        .filter(|(from, _)| *from == "client")
        .map(|(_, event)| event_shape(event).to_string())
        .collect();
    shapes.sort();
    shapes.dedup();
    let text = shapes.join("\n") + "\n";
    let path = tests_folder().join("fixtures/client_event_shapes.jsonl");
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &text).expect("can be written");
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, known,
        "events have other shapes than those that were validated; see this file's first lines"
    );
}

/// Returns an event without its values: the names and the kinds of the values.
fn event_shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match (name.as_str(), value) {
                ("type" | "role", value) => (name.clone(), value.clone()),
                (_, value) => (name.clone(), event_shape(value)),
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(values) => Value::Array(values.iter().map(event_shape).collect()),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "flag".into(),
        Value::Null => Value::Null,
    }
}

#[tokio::test(start_paused = true)]
async fn the_official_types_take_every_event() {
    let Some(python) = find_python() else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: there is no Python with the package `openai` here (WINDLASS_PYTHON names one)"
        );
        return;
    };
    let lines: String = all_wire_events()
        .await
        .iter()
        .map(|(from, event)| json!({ "from": from, "event": event }).to_string() + "\n")
        .collect();
    let mut child = Command::new(python)
        .arg(tests_folder().join("official/validate.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    child.stdin.take().expect("is piped").write_all(lines.as_bytes()).expect("is read");
    let output = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_clients_talk_to_the_test_server() {
    let python = find_python().map(|python| {
        let mut command = tokio::process::Command::new(python);
        command.arg(tests_folder().join("official/client.py"));
        command
    });
    let node = std::env::var("WINDLASS_NODE_MODULES").ok().map(|_| {
        let mut command = tokio::process::Command::new("node");
        command.arg(tests_folder().join("official/client.mjs"));
        command
    });
    for (name, command, path) in
        [("PyPI `openai`", python, "/v1"), ("npm `@openai/agents-realtime`", node, "/v1/realtime")]
    {
        let Some(mut command) = command else {
            let _ = writeln!(std::io::stderr(), "not shown: {name} is not installed here");
            continue;
        };
        let server = LoopbackServer::new([LoopbackReply::call("c1", "look", "{}")]);
        let (address, listening) = server.listen().await.expect("listens");
        command.arg(format!("ws://{address}{path}"));
        let output = tokio::time::timeout(Duration::from_secs(300), command.output()).await;
        let output = output.expect("the client ends").expect("the client runs");
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.trim().ends_with("ok"), "{name}: {said}\n{errors}");
        println!("{name} talked to the test server");
        listening.abort();
    }
}
