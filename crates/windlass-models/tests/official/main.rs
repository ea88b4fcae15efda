//! Conformance of the wire formats with the providers' official Python clients. The clients decode the fake
//! provider's responses in strict mode, and our requests are validated against the clients' types.
//!
//! The clients' results are recorded in `tests/fixtures`, so the comparison runs everywhere; if Python and the
//! packages are installed, it also runs against the clients themselves. `WINDLASS_PYTHON` names the interpreter.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::core::item::Item;
use windlass::core::{
    id::AgentName,
    item::{CallOutput, ContentPart, MediaSource, Message, OutputContent, OutputStatus, Role},
};
use windlass::model::{
    DeltaSink, ModelRequest, ModelResponse, ModelSettings, OutputSchema, SharedModel, ToolChoice,
    ToolDefinition, ToolKind,
};
use windlass_models::StreamingMode;
use windlass_models::testing::{FakeProvider, FakeReply};

fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Returns the recorded value. If `WINDLASS_RECORD` is set, `now` is recorded first.
fn load_or_record(name: &str, now: Option<&Value>) -> Value {
    if let (Some(now), true) = (now, std::env::var_os("WINDLASS_RECORD").is_some()) {
        let text = serde_json::to_string_pretty(now).expect("it is JSON");
        std::fs::write(fixture_path(name), text + "\n").expect("it can be written");
    }
    let text = std::fs::read_to_string(fixture_path(name)).expect("the fixture is there");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

/// Returns a Python interpreter that has both clients, if there is one.
fn find_python() -> Option<String> {
    let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python)
        .args(["-c", "import openai, anthropic, pydantic"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    let _ = writeln!(
        std::io::stderr(),
        "not shown with the clients themselves: `{python}` with the packages openai and anthropic is not here"
    );
    None
}

fn run_script(python: &str, arguments: &[&str], input: &Value) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/official/official.py");
    let mut child = Command::new(python)
        .arg(script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(input.to_string().as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}

fn sample_replies() -> Vec<FakeReply> {
    vec![
        FakeReply::text("Good morning. Grüße, 日本, 🚢, a \"quote\"."),
        FakeReply::text("I look.").and_call("c1", "weather", r#"{"city":"Tromsø"}"#).and_call(
            "c2",
            "weather",
            r#"{"city":"Oslo","days":3}"#,
        ),
        FakeReply::reasoning("rs_1", "It is early.").and_text("Good morning.").usage(1000, 800, 50, 40),
        FakeReply::refusal("I will not."),
    ]
}

fn all_models(provider: &FakeProvider, streaming: StreamingMode) -> [SharedModel; 3] {
    let (openai, anthropic) = (provider.openai(), provider.anthropic());
    [
        openai.responses("fake-1").expect("a model").streaming(streaming).into(),
        openai.chat("fake-1").expect("a model").streaming(streaming).into(),
        anthropic.messages("fake-1").expect("a model").streaming(streaming).into(),
    ]
}

/// Summarises a response in the format of the Python script.
fn summarise_response(answer: &ModelResponse) -> Value {
    let (mut text, mut refusal, mut thought, mut calls) =
        (String::new(), String::new(), String::new(), Vec::new());
    for item in &answer.items {
        match &**item {
            Item::Message(message) => match message.refusal() {
                Some(words) => refusal.push_str(words),
                None => text.push_str(&message.text()),
            },
            Item::Reasoning(reasoning) => thought.push_str(&reasoning.summary),
            Item::Call(call) => {
                let arguments: Value = serde_json::from_str(&call.arguments).expect("it is JSON");
                calls.push(json!([call.id.as_str(), call.name, arguments]));
            }
            _ => {}
        }
    }
    let usage = answer.usage.expect("it was said");
    let usage = [usage.input_tokens, usage.cached_tokens, usage.output_tokens];
    json!({ "text": text, "refusal": refusal, "thought": thought, "calls": calls, "usage": usage })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn official_clients_read_what_we_read() {
    let now = match find_python() {
        Some(python) => {
            let script = sample_replies().into_iter().flat_map(|reply| std::iter::repeat_n(reply, 6));
            let provider = FakeProvider::start(script).await.expect("a provider");
            let (base, root, count) =
                (provider.base_url(), provider.root_url(), sample_replies().len().to_string());
            let read = move || run_script(&python, &["read", &base, &root, &count], &Value::Null);
            Some(tokio::task::spawn_blocking(read).await.expect("it ends"))
        }
        None => None,
    };
    let official = load_or_record("readings.json", now.as_ref());
    if let Some(now) = &now {
        assert_eq!(now, &official, "what the clients read now, and what was recorded");
    }

    let mut ours = Vec::new();
    for reply in sample_replies() {
        let provider = FakeProvider::start(std::iter::repeat_n(reply, 6)).await.expect("a provider");
        let plain = all_models(&provider, StreamingMode::Never);
        let streamed = all_models(&provider, StreamingMode::Always);
        for model in plain.iter().zip(&streamed).flat_map(|(plain, streamed)| [plain, streamed]) {
            let answer = RecordedTestRequest::default().send(model).await;
            ours.push(summarise_response(&answer));
        }
    }
    assert_eq!(Value::from(ours), official, "left: our reading; right: that of the official clients");
}

/// The variable parts of a model request.
struct RecordedTestRequest {
    input: Vec<Arc<Item>>,
    tools: Vec<ToolDefinition>,
    settings: ModelSettings,
    output: Option<OutputSchema>,
}

impl Default for RecordedTestRequest {
    fn default() -> Self {
        let input = vec![Arc::new(Item::user("Good morning."))];
        Self { input, tools: Vec::new(), settings: ModelSettings::default(), output: None }
    }
}

impl RecordedTestRequest {
    fn with_everything() -> Self {
        let picture = MediaSource {
            data: Some("iVBORw0KGgo=".to_owned()),
            media_type: Some("image/png".to_owned()),
            ..MediaSource::default()
        };
        let file = MediaSource {
            data: Some("JVBERi0=".to_owned()),
            name: Some("a.pdf".to_owned()),
            ..MediaSource::default()
        };
        let content =
            vec![ContentPart::text("Look."), ContentPart::Image(picture.clone()), ContentPart::File(file)];
        let shown = OutputContent::Parts(vec![ContentPart::text("here"), ContentPart::Image(picture)]);
        let items = [
            Item::Message(Message { role: Role::User, content, item_id: None, sources: Default::default() }),
            Item::assistant("I look."),
            Item::call("c1", "weather", r#"{"city":"Oslo"}"#),
            Item::call("c2", "weather", "{}"),
            Item::Output(CallOutput {
                call: "c1".into(),
                content: shown,
                status: OutputStatus::Ok,
                sources: Default::default(),
            }),
            Item::Output(CallOutput {
                call: "c2".into(),
                content: "no city".into(),
                status: OutputStatus::Failed,
                sources: Default::default(),
            }),
        ];
        let parameters = json!({
            "type": "object",
            "properties": { "city": { "type": "string" } },
            "required": ["city"],
            "additionalProperties": false,
        });
        let tool = ToolDefinition {
            name: "weather".into(),
            namespace: None,
            description: "Current weather.".into(),
            parameters: Arc::new(parameters.clone()),
            is_strict: true,
            kind: ToolKind::Function,
        };
        let settings = ModelSettings {
            tool_choice: Some(ToolChoice::Required),
            parallel_tool_calls: Some(true),
            temperature: Some(0.5),
            top_p: Some(0.9),
            max_tokens: Some(1000),
            reasoning_effort: Some("low".to_owned()),
            ..ModelSettings::default()
        };
        let output = Some(OutputSchema { name: "Report".to_owned(), schema: parameters, is_strict: true });
        Self { input: items.into_iter().map(Arc::new).collect(), tools: vec![tool], settings, output }
    }

    async fn send(&self, model: &SharedModel) -> ModelResponse {
        let agent = AgentName::from("host");
        let request = ModelRequest {
            agent: &agent,
            turn: 1,
            instructions: Some("Be brief."),
            input: &self.input,
            tools: &self.tools,
            deferred_tools: &[],
            handoffs: &[],
            settings: &self.settings,
            output_schema: self.output.as_ref(),
            previous_response_id: None,
            conversation_id: None,
        };
        model.respond(request, &DeltaSink::discarding()).await.expect("an answer")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_requests_fit_the_official_types() {
    // Each provider's own output is sent back to it: reasoning, texts, and calls with their ids.
    let said = FakeReply::reasoning("rs_1", "Hm.").and_text("I look.").and_call(
        "c9",
        "weather",
        r#"{"city":"Oslo"}"#,
    );
    let provider = FakeProvider::start([]).await.expect("a provider");
    for streaming in [StreamingMode::Never, StreamingMode::Always] {
        for (index, model) in all_models(&provider, streaming).into_iter().enumerate() {
            provider.push(said.clone());
            provider.push(FakeReply::text("Yes."));
            let mut question = RecordedTestRequest::with_everything();
            if index == 2 {
                // Anthropic's types no longer have these fields; they are still sent if the settings contain them.
                (question.settings.temperature, question.settings.top_p) = (None, None);
            }
            let answer = question.send(&model).await;
            question.input.extend(answer.items);
            let output = CallOutput {
                call: "c9".into(),
                content: "rain".into(),
                status: OutputStatus::Ok,
                sources: Default::default(),
            };
            question.input.push(Arc::new(Item::Output(output)));
            question.send(&model).await;
        }
    }
    let requests =
        provider.requests().into_iter().map(|sent| json!({ "path": sent.path, "body": sent.body }));
    let requests: Value = requests.collect();
    assert_eq!(
        load_or_record("requests.json", Some(&requests)),
        requests,
        "left: what was held against the types"
    );
    if let Some(python) = find_python() {
        let problems = tokio::task::spawn_blocking(move || run_script(&python, &["check"], &requests));
        assert_eq!(problems.await.expect("it ends"), json!([]));
    }
}
