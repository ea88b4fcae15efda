//! Both sides are faithful: everything that a session sends, and everything that the test server sends, is taken by the
//! official client's types; and the official clients talk to the test server.
//!
//! The official clients are Python and JavaScript. Where they are not installed this says so. `WINDLASS_PYTHON` names a
//! Python that has `openai`, and `WINDLASS_NODE_MODULES` a folder with `@openai/agents-realtime` in its `node_modules`.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::Role;
use windlass::model::{ModelSettings, ToolChoice};
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::model::{Command as Told, CommandKind};
use windlass_realtime::openai::write_command;
use windlass_realtime::settings::{
    LiveSettings, MeaningDetection, NoiseReduction, SilenceDetection, Transcription, TurnDetection,
};
use windlass_realtime::testing::{From, Loopback, Reply, tone};
use windlass_realtime::{Answer, LiveEvent, Part, Realtime};

/// Sessions that use everything there is to send.
async fn everything() -> Vec<(&'static str, Value)> {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let look = Tool::dynamic("look", "Looks.", schema, |_, _| async { Ok::<_, ToolError>("42") });
    let other = Agent::new("other").instructions("Other.");
    let model = ModelSettings {
        tool_choice: Some(ToolChoice::Auto),
        max_tokens: Some(500),
        parallel_calls: Some(true),
        reasoning_effort: Some("low".to_owned()),
        ..ModelSettings::default()
    };
    let agent = Agent::new("guide").instructions("Be brief.").settings(model).tools(look).handoff(&other);
    let silence = TurnDetection::Silence(SilenceDetection {
        threshold: Some(0.5),
        prefix: Some(Duration::from_millis(300)),
        silence: Some(Duration::from_millis(500)),
        idle: Some(Duration::from_secs(6)),
        ..SilenceDetection::default()
    });
    let meaning =
        TurnDetection::Meaning(MeaningDetection { eagerness: Some("low".to_owned()), ..Default::default() });
    let mut seen = Vec::new();
    for (turns, format) in [
        (silence, AudioFormat::Pcm24k),
        (meaning, AudioFormat::Ulaw),
        (TurnDetection::Application, AudioFormat::Alaw),
    ] {
        let settings = LiveSettings {
            turns,
            input_format: format,
            output_format: format,
            voice: Some("ash".to_owned()),
            speed: Some(1.1),
            noise_reduction: Some(NoiseReduction::NearField),
            transcription: Some(Transcription {
                language: Some("en".to_owned()),
                prompt: Some("windlass".to_owned()),
                ..Transcription::default()
            }),
            ..LiveSettings::default()
        };
        let server = Loopback::new([
            Reply::call("c1", "look", "{}"),
            Reply::say("The answer is forty-two, and that is a long story."),
            Reply::say("A story that is much too long to listen to until its end.").paced(2),
            Reply::call("h1", "transfer_to_other", "{}"),
        ]);
        let session = Realtime::new(agent.clone(), server.model())
            .settings(settings)
            .connect()
            .await
            .expect("connects");
        let mut events = session.events();
        session.say("Look").await.expect("is there");
        ended(&mut events, 2).await;
        let picture =
            vec![Part::text("See"), Part::Image { url: "data:image/png;base64,iVBORw0KGgo=".to_owned() }];
        let seen_item = session.message(Role::User, picture, Answer::Wanted).await.expect("is there");
        while let Some(event) = events.next().await {
            if matches!(event, LiveEvent::Audio(_)) {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        session.interrupt().await.expect("is there");
        ended(&mut events, 1).await;
        session.delete_item(&seen_item).await.expect("is there");
        session.insert_item(Role::System, vec![Part::text("Be kind.")], None).await.expect("is there");
        session.insert_item(Role::Assistant, vec![Part::text("I am.")], None).await.expect("is there");
        session.hear(format.encode(&tone(200))).expect("is there");
        session.clear_audio().await.expect("is there");
        session.hear(format.encode(&tone(600))).expect("is there");
        session.commit_audio().await.expect("is there");
        session.say("Hand me over").await.expect("is there");
        while let Some(event) = events.next().await {
            if matches!(event, LiveEvent::AgentChanged { .. }) {
                break;
            }
        }
        session.close().await;
        seen.extend(server.seen().into_iter().map(|seen| match seen.from {
            From::Client => ("client", seen.event),
            From::Server => ("server", seen.event),
        }));
        let audio = Told { id: "wl_audio".into(), kind: CommandKind::Audio(format.encode(&tone(1))) };
        seen.push(("client", write_command(&audio, None)));
    }
    seen
}

async fn ended(events: &mut windlass_realtime::LiveEvents, turns: u32) {
    let mut left = turns;
    while left > 0 {
        match events.next().await.expect("the session goes on") {
            LiveEvent::TurnEnded { .. } => left -= 1,
            LiveEvent::Closed(reason) => panic!("it ended: {reason:?}"),
            _ => {}
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// A Python that has the official client, where there is one.
fn python() -> Option<String> {
    let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_it = Command::new(&python).args(["-c", "import openai.types.realtime, websockets"]).output();
    has_it.is_ok_and(|output| output.status.success()).then_some(python)
}

/// What is sent is what was looked at: the types of events and their fields, one example of each.
#[tokio::test(start_paused = true)]
async fn what_is_sent_is_what_was_validated() {
    let mut shapes: Vec<String> = everything()
        .await
        .iter()
        .filter(|(from, _)| *from == "client")
        .map(|(_, event)| shape(event).to_string())
        .collect();
    shapes.sort();
    shapes.dedup();
    let text = shapes.join("\n") + "\n";
    let path = folder().join("fixtures/client_event_shapes.jsonl");
    if std::env::var_os("WINDLASS_BLESS").is_some() {
        std::fs::write(&path, &text).expect("can be written");
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, known,
        "events have other shapes than those that were validated; see this file's first lines"
    );
}

/// An event without its values: names, and kinds of values.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match (name.as_str(), value) {
                ("type" | "role", value) => (name.clone(), value.clone()),
                (_, value) => (name.clone(), shape(value)),
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(values) => Value::Array(values.iter().map(shape).collect()),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "flag".into(),
        Value::Null => Value::Null,
    }
}

#[tokio::test(start_paused = true)]
async fn the_official_types_take_every_event() {
    let Some(python) = python() else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: there is no Python with the package `openai` here (WINDLASS_PYTHON names one)"
        );
        return;
    };
    let lines: String = everything()
        .await
        .iter()
        .map(|(from, event)| json!({ "from": from, "event": event }).to_string() + "\n")
        .collect();
    let mut child = Command::new(python)
        .arg(folder().join("official/validate.py"))
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
    let python = python().map(|python| {
        let mut command = tokio::process::Command::new(python);
        command.arg(folder().join("official/client.py"));
        command
    });
    let node = std::env::var("WINDLASS_NODE_MODULES").ok().map(|_| {
        let mut command = tokio::process::Command::new("node");
        command.arg(folder().join("official/client.mjs"));
        command
    });
    for (name, command, path) in
        [("PyPI `openai`", python, "/v1"), ("npm `@openai/agents-realtime`", node, "/v1/realtime")]
    {
        let Some(mut command) = command else {
            let _ = writeln!(std::io::stderr(), "not shown: {name} is not installed here");
            continue;
        };
        let server = Loopback::new([Reply::call("c1", "look", "{}")]);
        let (address, listening) = server.listen().await.expect("listens");
        command.arg(format!("ws://{address}{path}"));
        let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
        let output = output.expect("the client ends").expect("the client runs");
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.trim().ends_with("ok"), "{name}: {said}\n{errors}");
        println!("{name} talked to the test server");
        listening.abort();
    }
}
