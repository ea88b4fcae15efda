//! The wire formats, held against independent implementations: the providers' own clients for Python. They read what
//! the fake provider says, strictly, and their types are what our requests must fit.
//!
//! What they made of it is recorded in `tests/fixtures`, so that the comparison is made everywhere; where Python and
//! the packages are, it is made anew. `WINDLASS_PYTHON` names the Python to use.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass::Item;
use windlass::core::{AgentName, Content, Media, Message, Output, OutputContent, OutputStatus, Role};
use windlass::model::{
    Answer, Deltas, ModelRequest, ModelSettings, OfferedKind, OfferedTool, OutputShape, SharedModel,
    ToolChoice,
};
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{PromptCache, Streaming};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The recorded value; with `WINDLASS_RECORD` set it is written first.
fn recorded(name: &str, now: Option<&Value>) -> Value {
    if let (Some(now), true) = (now, std::env::var_os("WINDLASS_RECORD").is_some()) {
        let text = serde_json::to_string_pretty(now).expect("it is JSON");
        std::fs::write(fixture(name), text + "\n").expect("it can be written");
    }
    let text = std::fs::read_to_string(fixture(name)).expect("the fixture is there");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

/// A Python that has both clients.
fn python() -> Option<String> {
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

fn run(python: &str, arguments: &[&str], input: &Value) -> Value {
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

fn replies() -> Vec<FakeReply> {
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

fn models(provider: &FakeProvider, streaming: Streaming) -> [SharedModel; 3] {
    let (openai, anthropic) = (provider.openai(), provider.anthropic());
    [
        openai.responses("fake-1").expect("a model").streaming(streaming).into(),
        openai.chat("fake-1").expect("a model").streaming(streaming).into(),
        anthropic
            .messages("fake-1")
            .expect("a model")
            .streaming(streaming)
            .prompt_cache(PromptCache::On)
            .into(),
    ]
}

/// Our own reading, in the form in which the script tells its.
fn reading(answer: &Answer) -> Value {
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
    let now = match python() {
        Some(python) => {
            let script = replies().into_iter().flat_map(|reply| std::iter::repeat_n(reply, 6));
            let provider = FakeProvider::start(script).await.expect("a provider");
            let (base, root, count) = (provider.base_url(), provider.root_url(), replies().len().to_string());
            let read = move || run(&python, &["read", &base, &root, &count], &Value::Null);
            Some(tokio::task::spawn_blocking(read).await.expect("it ends"))
        }
        None => None,
    };
    let official = recorded("readings.json", now.as_ref());
    if let Some(now) = &now {
        assert_eq!(now, &official, "what the clients read now, and what was recorded");
    }

    let mut ours = Vec::new();
    for reply in replies() {
        let provider = FakeProvider::start(std::iter::repeat_n(reply, 6)).await.expect("a provider");
        let plain = models(&provider, Streaming::Never);
        let streamed = models(&provider, Streaming::Always);
        for model in plain.iter().zip(&streamed).flat_map(|(plain, streamed)| [plain, streamed]) {
            let answer = Question::default().ask(model).await;
            ours.push(reading(&answer));
        }
    }
    assert_eq!(Value::from(ours), official, "left: our reading; right: that of the official clients");
}

/// Everything a model can be asked with.
struct Question {
    input: Vec<Arc<Item>>,
    tools: Vec<OfferedTool>,
    settings: ModelSettings,
    output: Option<OutputShape>,
}

impl Default for Question {
    fn default() -> Self {
        let input = vec![Arc::new(Item::user("Good morning."))];
        Self { input, tools: Vec::new(), settings: ModelSettings::default(), output: None }
    }
}

impl Question {
    fn full() -> Self {
        let picture = Media {
            data: Some("iVBORw0KGgo=".to_owned()),
            media_type: Some("image/png".to_owned()),
            ..Media::default()
        };
        let file =
            Media { data: Some("JVBERi0=".to_owned()), name: Some("a.pdf".to_owned()), ..Media::default() };
        let content = vec![Content::text("Look."), Content::Image(picture.clone()), Content::File(file)];
        let shown = OutputContent::Parts(vec![Content::text("here"), Content::Image(picture)]);
        let items = [
            Item::Message(Message { role: Role::User, content, item_id: None }),
            Item::assistant("I look."),
            Item::call("c1", "weather", r#"{"city":"Oslo"}"#),
            Item::call("c2", "weather", "{}"),
            Item::Output(Output { call: "c1".into(), content: shown, status: OutputStatus::Ok }),
            Item::Output(Output {
                call: "c2".into(),
                content: "no city".into(),
                status: OutputStatus::Failed,
            }),
        ];
        let parameters = json!({
            "type": "object",
            "properties": { "city": { "type": "string" } },
            "required": ["city"],
            "additionalProperties": false,
        });
        let tool = OfferedTool {
            name: "weather".into(),
            namespace: None,
            description: "Current weather.".into(),
            parameters: Arc::new(parameters.clone()),
            strict: true,
            kind: OfferedKind::Function,
        };
        let settings = ModelSettings {
            tool_choice: Some(ToolChoice::Required),
            parallel_calls: Some(true),
            temperature: Some(0.5),
            top_p: Some(0.9),
            max_tokens: Some(1000),
            reasoning_effort: Some("low".to_owned()),
            ..ModelSettings::default()
        };
        let output = Some(OutputShape { name: "Report".to_owned(), schema: parameters });
        Self { input: items.into_iter().map(Arc::new).collect(), tools: vec![tool], settings, output }
    }

    async fn ask(&self, model: &SharedModel) -> Answer {
        let agent = AgentName::from("host");
        let request = ModelRequest {
            agent: &agent,
            turn: 1,
            instructions: Some("Be brief."),
            input: &self.input,
            tools: &self.tools,
            handoffs: &[],
            settings: &self.settings,
            output: self.output.as_ref(),
            previous_response: None,
        };
        model.answer(request, &Deltas::ignored()).await.expect("an answer")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_requests_fit_the_official_types() {
    // What each said goes back to it: reasoning, texts and calls with their ids.
    let said = FakeReply::reasoning("rs_1", "Hm.").and_text("I look.").and_call(
        "c9",
        "weather",
        r#"{"city":"Oslo"}"#,
    );
    let provider = FakeProvider::start([]).await.expect("a provider");
    for streaming in [Streaming::Never, Streaming::Always] {
        for (index, model) in models(&provider, streaming).into_iter().enumerate() {
            provider.push(said.clone());
            provider.push(FakeReply::text("Yes."));
            let mut question = Question::full();
            if index == 2 {
                // Anthropic has dropped these; servers that still know them are sent them where somebody asks.
                (question.settings.temperature, question.settings.top_p) = (None, None);
            }
            let answer = question.ask(&model).await;
            question.input.extend(answer.items);
            let output = Output { call: "c9".into(), content: "rain".into(), status: OutputStatus::Ok };
            question.input.push(Arc::new(Item::Output(output)));
            question.ask(&model).await;
        }
    }
    let requests =
        provider.requests().into_iter().map(|sent| json!({ "path": sent.path, "body": sent.body }));
    let requests: Value = requests.collect();
    assert_eq!(recorded("requests.json", Some(&requests)), requests, "left: what was held against the types");
    if let Some(python) = python() {
        let problems = tokio::task::spawn_blocking(move || run(&python, &["check"], &requests));
        assert_eq!(problems.await.expect("it ends"), json!([]));
    }
}
