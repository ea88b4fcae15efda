//! Live traces of the command: the variables `OTEL_*` name an independent receiver, which decodes requests with the official
//! protobuf package for Python, and gets the same spans as from `windlass export --otlp`.

#![cfg(all(unix, feature = "otlp"))]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{CommandOutput, TestProject, windlass_command};

/// Longest time that a test waits for spans. A loaded machine may need long for anything.
const PATIENCE: Duration = Duration::from_secs(180);

const ANSWERS: &str = r#"{"call":[{"id":"c1","tool":"list_files","arguments":{"path":"."}}]}
{"text":"Two files."}
"#;

/// A collector of spans.
struct SpanReceiver {
    child: Child,
    address: String,
    lines: mpsc::Receiver<Value>,
    spans: BTreeMap<String, Value>,
}

impl SpanReceiver {
    /// Starts a collector; `None` if Python has no protobuf package of OpenTelemetry.
    fn start() -> Option<Self> {
        let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = folder.join("../windlass-otel/tests/python/otlp_receiver.py");
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python runs");
        let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        let Some(port) = first.strip_prefix("port ") else {
            let shown =
                "not shown: live traces, because Python has no opentelemetry-proto; set WINDLASS_PYTHON";
            let _ = writeln!(std::io::stderr(), "{shown}");
            let _ = child.wait();
            return None;
        };
        let address = format!("http://127.0.0.1:{port}");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines {
                let span = serde_json::from_str(&line).expect("a span");
                if sender.send(span).is_err() {
                    return;
                }
            }
        });
        Some(Self { child, address, lines: receiver, spans: BTreeMap::new() })
    }

    /// Waits for a span of this name, and returns all spans so far by their ids. A span that comes twice must be the same.
    fn spans_until(&mut self, name: &str) -> &BTreeMap<String, Value> {
        let deadline = Instant::now() + PATIENCE;
        while !self.spans.values().any(|span| span["name"] == name) {
            let left = deadline.saturating_duration_since(Instant::now());
            let span = self.lines.recv_timeout(left).expect("the span comes");
            let id = span["id"].as_str().expect("an id").to_owned();
            if let Some(before) = self.spans.insert(id, span.clone()) {
                assert_eq!(before, span);
            }
        }
        &self.spans
    }

    /// Runs a command whose spans this collector receives.
    fn trace(&self, project: &TestProject, words: &[&str]) -> CommandOutput {
        let mut command = windlass_command(&project.folder(), words);
        let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &self.address).output().expect("it runs");
        CommandOutput::from_output(output)
    }
}

impl Drop for SpanReceiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn project() -> TestProject {
    let project = TestProject::new("tools = [\"files\"]\n", "");
    let agent = std::fs::read_to_string(project.file("agent.toml")).expect("it is text");
    std::fs::write(project.file("agent.toml"), agent.replace("answers.toml", "answers.jsonl"))
        .expect("it can be written");
    std::fs::write(project.file("answers.jsonl"), ANSWERS).expect("it can be written");
    project
}

/// Asserts that the spans of a run that were sent live are those of its journal.
fn assert_replayed(project: &TestProject, run: &str, live: &BTreeMap<String, Value>) {
    let mut replayed = SpanReceiver::start().expect("there is a receiver");
    let address = format!("--otlp={}/v1/traces", replayed.address);
    let sent = project.run_windlass(&["export", run, &address]);
    assert_eq!(sent.code, Some(0), "{}", sent.stderr);
    assert_eq!(live, replayed.spans_until("invoke_agent helper"));
    let names: Vec<&str> = live.values().filter_map(|span| span["name"].as_str()).collect();
    assert!(names.contains(&"execute_tool list_files") && names.contains(&"chat"), "{names:?}");
}

#[test]
fn a_run_sends_the_spans_of_its_journal_while_it_is_written() {
    let Some(mut receiver) = SpanReceiver::start() else { return };
    let project = project();
    let done = receiver.trace(&project, &["run", ".", "What is here?", "--run-id", "r1"]);
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    assert_replayed(&project, "r1", receiver.spans_until("invoke_agent helper"));
}

#[test]
fn a_worker_sends_the_spans_of_a_submitted_run() {
    let Some(mut receiver) = SpanReceiver::start() else { return };
    let project = project();
    let submitted = project.run_windlass(&["submit", ".", "What is here?", "--run-id", "r1"]);
    assert_eq!(submitted.code, Some(0), "{}{}", submitted.stdout, submitted.stderr);
    let worked = receiver.trace(&project, &["work", ".", "--until-idle"]);
    assert_eq!(worked.code, Some(0), "{}{}", worked.stdout, worked.stderr);
    assert_replayed(&project, "r1", receiver.spans_until("invoke_agent helper"));
}

#[test]
fn variables_that_are_not_supported_are_named_and_the_run_goes_on() {
    let project = project();
    let mut command = windlass_command(&project.folder(), &["run", ".", "What is here?"]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let done = CommandOutput::from_output(command.output().expect("it runs"));
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
    assert!(done.stderr.contains("only `http/protobuf` is supported"), "{}", done.stderr);
}

#[cfg(feature = "serve")]
#[test]
fn a_server_sends_the_spans_of_its_runs() {
    use std::io::Read;
    use std::net::TcpStream;
    let Some(mut receiver) = SpanReceiver::start() else { return };
    let project = project();
    let words = ["serve", ".", "--listen", "127.0.0.1:0", "--json"];
    let mut command = windlass_command(&project.folder(), &words);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.address).stdout(Stdio::piped());
    let mut server = command.spawn().expect("it runs");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("is piped"))
        .read_line(&mut line)
        .expect("it says its address");
    let said: Value = serde_json::from_str(&line).expect("a line of JSON");
    let address = said["url"].as_str().expect("is said").replace("http://", "");
    let token = said["token"].as_str().expect("is said");
    let body = serde_json::json!({ "agent": "helper", "input": "What is here?", "run": "r1" }).to_string();
    let request = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len(),
    );
    let mut stream = TcpStream::connect(&address).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let live = receiver.spans_until("invoke_agent helper").clone();
    let _ = server.kill();
    let _ = server.wait();
    assert_replayed(&project, "r1", &live);
}
