//! Requests for Gemini and Bedrock, validated by the types of the official Python SDKs, and event streams exchanged with
//! botocore. No request reaches a provider: this repository has no key for either.
//!
//! `WINDLASS_CLOUD_PYTHON` names an interpreter with the packages `google-genai` and `boto3`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::{CallOutput, ContentPart, Item, MediaSource, Message, OutputStatus, Role};
use windlass::model::{ModelSettings, OutputSchema, describe_item};
use windlass_models::testing::{FakeProvider, FakeReply, encode_amazon_event};
use windlass_models::{Bedrock, StreamingMode};

use crate::support::{TestRequest, function_tool, hosted_tool, send_to};

/// Returns an interpreter that has both SDKs, if there is one.
fn find_python() -> Option<String> {
    let python = std::env::var("WINDLASS_CLOUD_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python)
        .args(["-c", "import google.genai, botocore"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    let _ = writeln!(
        std::io::stderr(),
        "not shown: `{python}` with the packages google-genai and boto3 is not here"
    );
    None
}

fn run_script(python: &str, input: &Value) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/official/sdks.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(input.to_string().as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}

/// Requests with everything that an API can express.
fn requests(settings: Value) -> Vec<TestRequest> {
    let image = MediaSource { data: Some("aGk=".to_owned()), ..MediaSource::default() };
    let file = MediaSource {
        data: Some("aGk=".to_owned()),
        name: Some("a.pdf".to_owned()),
        ..MediaSource::default()
    };
    let content = vec![ContentPart::text("Look."), ContentPart::Image(image), ContentPart::File(file)];
    let output = |call: &str, status| {
        Item::Output(CallOutput {
            call: call.into(),
            content: "rain".into(),
            status,
            sources: Default::default(),
        })
    };
    let conversation = TestRequest {
        tools: vec![function_tool("weather"), function_tool("time of day")],
        settings: serde_json::from_value(settings).expect("settings"),
        output: Some(OutputSchema {
            name: "Report".to_owned(),
            schema: json!({ "type": "object" }),
            is_strict: true,
        }),
        ..TestRequest::from_items([
            Item::Message(Message { role: Role::User, content, item_id: None, sources: Default::default() }),
            Item::assistant("I look."),
            Item::call("c1", "weather", r#"{"city":"Tromsø"}"#),
            Item::call("c2", "time of day", "not JSON"),
            output("c1", OutputStatus::Ok),
            output("c2", OutputStatus::Failed),
            Item::user("And now?"),
        ])
    };
    vec![conversation, TestRequest::from_items([Item::user("Hello")])]
}

#[tokio::test]
async fn requests_and_frames_are_those_of_the_official_sdks() {
    let Some(python) = find_python() else { return };
    let mut gemini = Vec::new();
    let mut gemini_requests = requests(json!({
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 100, "stop": ["END"], "seed": 7, "frequency_penalty": 0.1,
        "presence_penalty": 0.2, "reasoning_effort": "low", "reasoning_summary": "auto", "top_logprobs": 2,
        "tool_choice": "weather",
    }));
    gemini_requests.push(TestRequest {
        tools: vec![
            function_tool("weather"),
            hosted_tool(json!({ "type": "google_search" })),
            hosted_tool(json!({ "type": "code_execution" })),
        ],
        ..TestRequest::from_items([Item::user("Hello")])
    });
    for request in &gemini_requests {
        gemini.push(send_to(("gemini", "GEMINI_BASE_URL", "gemini"), request).await.expect("an answer").body);
    }
    let mut converse = Vec::new();
    for choice in ["required", "auto", "weather", "none"] {
        let settings = json!({
            "temperature": 0.5, "top_p": 0.9, "max_tokens": 100, "stop": ["END"], "metadata": { "a": "b" },
            "service_tier": "flex", "reasoning_effort": "low", "tool_choice": choice,
        });
        for request in &requests(settings) {
            let sent = send_to(("bedrock", "BEDROCK_BASE_URL", "converse"), request).await;
            converse.push(sent.expect("an answer").body);
        }
    }
    let events = json!([
        ["messageStart", { "role": "assistant" }],
        ["contentBlockDelta", { "contentBlockIndex": 0, "delta": { "text": "Good morning, Tromsø." } }],
        ["contentBlockStop", { "contentBlockIndex": 0 }],
        ["messageStop", { "stopReason": "end_turn" }],
        ["metadata", { "usage": { "inputTokens": 3, "outputTokens": 4, "totalTokens": 7 }, "metrics": { "latencyMs": 1 } }],
    ]);
    let ours: Vec<u8> = events
        .as_array()
        .expect("a list")
        .iter()
        .flat_map(|event| {
            encode_amazon_event(event[0].as_str().expect("a name"), event[1].to_string().as_bytes())
        })
        .collect();
    let asked = json!({
        "gemini": gemini, "converse": converse, "frames": events,
        "our_frames": data_encoding::BASE64.encode(&ours),
    });
    let answer = run_script(&python, &asked);
    assert_eq!(answer["decoded"], events, "botocore reads our frames");
    let frames =
        data_encoding::BASE64.decode(answer["frames"].as_str().expect("text").as_bytes()).expect("base64");
    let server = FakeProvider::start([FakeReply::raw_body("application/vnd.amazon.eventstream", frames)])
        .await
        .expect("a server");
    let model = Bedrock::at(&server.root_url())
        .key("k")
        .converse("m")
        .expect("a model")
        .streaming(StreamingMode::Always);
    let request =
        TestRequest { settings: ModelSettings::default(), ..TestRequest::from_items([Item::user("Hello")]) };
    let said = request.send(&model.into()).await.expect("an answer");
    let items: Vec<String> = said.items.iter().map(|item: &Arc<Item>| describe_item(item)).collect();
    assert_eq!(items, ["assistant: Good morning, Tromsø."]);
    let signature = answer["signature"].as_str().expect("text");
    assert!(
        signature.ends_with("3c831c4aef095d2e8fd636604a229287b355f7792f5c3eb587d703c81dda019c"),
        "{signature}"
    );
}
