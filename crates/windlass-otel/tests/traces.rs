//! Traces of runs: live and replayed ones are equal, across processes too, and an independent receiver reads them.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use opentelemetry::SpanId;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use windlass::core::decision::{Decision, DecisionScope};
use windlass::fleet::{AgentRegistry, DeployedAgent, RunQueue, RunSubmission, Worker};
use windlass::guardrail::{ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::prelude::*;
use windlass::store::{LeaseClaim, MemoryStore, SqliteStore, Store};
use windlass_otel::{
    OtlpSettings, SpanSender, TraceContent, TracedQueue, TracedStore, export_run, trace_id_of_run,
};

#[derive(Clone, Debug, Default)]
struct MemoryExporter(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for MemoryExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

impl MemoryExporter {
    /// Returns the spans in the order of their ids.
    fn spans(&self) -> Vec<SpanData> {
        let mut spans = self.0.lock().unwrap().clone();
        spans.sort_by_key(|span| span.span_context.span_id().to_bytes());
        spans
    }
}

#[tool(needs_approval = always, output_guardrails = [no_names()])]
/// Pays an invoice.
async fn pay(invoice: String) -> String {
    format!("invoice {invoice} of Ropeworks is paid")
}

#[tool(effect = pure)]
/// Reads the balance, which fails.
async fn read_balance(account: String) -> Result<String, ToolError> {
    Err(ToolError::visible(format!("no account {account}")))
}

fn no_names<C>() -> ToolOutputGuardrail<C> {
    ToolOutputGuardrail::new("no_names", |_: ToolContext<C>, output| async move {
        Ok(ToolGuardrailVerdict::ReplaceOutput(output.text().replace("Ropeworks", "(removed)").into()))
    })
}

fn office_agent(is_second_process: bool) -> Agent {
    let clerk = [
        ScriptedResponse::call("p1", "pay", json!({ "invoice": "swordfish" })),
        ScriptedResponse::text("The invoice is settled."),
    ];
    let office = [
        ScriptedResponse::call("c1", "books", json!({ "input": "Settle it." })).and_call(
            "c2",
            "read_balance",
            json!({ "account": "7" }),
        ),
        ScriptedResponse::text("All is settled."),
    ];
    let skipped = usize::from(is_second_process);
    let clerk = Agent::new("clerk").tool(pay).model(ScriptedModel::new(clerk.into_iter().skip(skipped)));
    let model = ScriptedModel::new(office.into_iter().skip(skipped));
    Agent::new("office").model(model).tools((clerk.as_tool("books", "Keeps the books."), read_balance))
}

/// Runs the office in two processes' worth of stores, with an approval in between. Returns the spans that the stores sent.
async fn trace_run(path: &std::path::Path, content: TraceContent) -> (Vec<SpanData>, Vec<SpanData>) {
    let run = "run-1".into();
    let first = MemoryExporter::default();
    {
        let inner = Arc::new(SqliteStore::open(path).unwrap());
        let store = Arc::new(TracedStore::new(inner, SpanSender::start(first.clone()).content(content)));
        let outcome = office_agent(false).run("Is anything open?").run_id("run-1").store(store.clone()).await;
        assert!(outcome.unwrap().is_paused());
        store.flush().await;
    }
    let inner = Arc::new(SqliteStore::open(path).unwrap());
    for call in windlass::store::load_paused(&*inner, &run).await.unwrap().pending_calls() {
        let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
        windlass::store::post_decision(&*inner, &run, call.path, decision, scope, "ada").await.unwrap();
    }
    let second = MemoryExporter::default();
    let store = Arc::new(TracedStore::new(inner, SpanSender::start(second.clone()).content(content)));
    let outcome = office_agent(true).recover("run-1", store.clone()).await.unwrap();
    assert_eq!(outcome.output_text().unwrap(), "All is settled.");
    store.flush().await;
    (first.spans(), second.spans())
}

async fn replayed_spans(path: &std::path::Path, content: TraceContent) -> Vec<SpanData> {
    let store = SqliteStore::open(path).unwrap();
    let exporter = MemoryExporter::default();
    let sender = SpanSender::start(exporter.clone()).content(content);
    let count = export_run(&store, &"run-1".into(), &sender).await.unwrap();
    let spans = exporter.spans();
    assert_eq!(spans.len(), count);
    spans
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|one| one.key.as_str() == name).map(|one| one.value.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_spans_of_two_processes_are_the_spans_of_the_replayed_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let (first, second) = trace_run(&path, TraceContent::LeftOut).await;
    assert!(!first.is_empty() && !second.is_empty(), "both processes send spans");
    let mut live = [first, second].concat();
    live.sort_by_key(|span| span.span_context.span_id().to_bytes());
    assert_eq!(live, replayed_spans(&path, TraceContent::LeftOut).await);
}

/// A worker writes through its queue: the queue must trace every append, not only those of an ordinary store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_sends_the_spans_of_the_runs_that_a_worker_drives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let exporter = MemoryExporter::default();
    let inner = Arc::new(SqliteStore::open(&path).unwrap());
    let queue = Arc::new(TracedQueue::new(inner, SpanSender::start(exporter.clone())));
    let store: Arc<dyn RunQueue> = queue.clone();
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "read_balance", json!({ "account": "7" })),
        ScriptedResponse::text("There is none."),
    ]);
    let agent = Agent::new("office").model(model).tool(read_balance);
    let submission = RunSubmission::new("run-1", "office", "How much is left?");
    store.submit_run(&submission, Default::default()).await.unwrap();
    let agents = AgentRegistry::new().deploy(DeployedAgent::new(agent));
    Worker::new(store, agents).run_until_idle().await.unwrap();
    queue.flush().await;
    let live = exporter.spans();
    assert!(live.iter().any(|span| span.name == "execute_tool read_balance"), "{live:?}");
    assert_eq!(live, replayed_spans(&path, TraceContent::LeftOut).await);
}

/// On one thread nothing is derived before the test waits, so that more appends wait than are kept with their lines.
#[tokio::test]
async fn no_span_is_lost_if_more_appends_wait_than_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    trace_run(&path, TraceContent::LeftOut).await;
    let journal = SqliteStore::open(&path).unwrap().load_journal(&"run-1".into(), 0).await.unwrap();
    let exporter = MemoryExporter::default();
    let inner = Arc::new(MemoryStore::default());
    let store = TracedStore::new(inner, SpanSender::start(exporter.clone()));
    let claim =
        LeaseClaim { owner: "o", now: Default::default(), duration: std::time::Duration::from_secs(60) };
    for n in 0..2_000 {
        let run = format!("other-{n}").as_str().into();
        store.create_run(&run, &"office".into(), claim, vec![journal[0].clone()]).await.unwrap();
    }
    store.create_run(&"run-1".into(), &"office".into(), claim, journal).await.unwrap();
    store.flush().await;
    assert_eq!(exporter.spans(), replayed_spans(&path, TraceContent::LeftOut).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_form_one_tree_in_the_times_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    trace_run(&path, TraceContent::LeftOut).await;
    let spans = replayed_spans(&path, TraceContent::LeftOut).await;
    let by_id: BTreeMap<_, _> =
        spans.iter().map(|span| (span.span_context.span_id().to_bytes(), span)).collect();
    assert_eq!(by_id.len(), spans.len(), "ids are unique");
    let mut tree = BTreeSet::new();
    for span in &spans {
        assert_eq!(span.span_context.trace_id(), trace_id_of_run(&"run-1".into()));
        let parent = by_id.get(&span.parent_span_id.to_bytes());
        assert_eq!(parent.is_none(), span.parent_span_id == SpanId::INVALID, "{}", span.name);
        if let Some(parent) = parent {
            assert!(
                parent.start_time <= span.start_time && span.end_time <= parent.end_time,
                "{}",
                span.name
            );
        }
        tree.insert((parent.map_or(String::new(), |parent| parent.name.to_string()), span.name.to_string()));
    }
    let expected = [
        ("", "invoke_agent office"),
        ("execute_tool books", "invoke_agent clerk"),
        ("execute_tool pay", "guardrail no_names"),
        ("invoke_agent clerk", "turn 1"),
        ("invoke_agent clerk", "turn 2"),
        ("invoke_agent office", "turn 1"),
        ("invoke_agent office", "turn 2"),
        ("turn 1", "chat"),
        ("turn 1", "execute_tool books"),
        ("turn 1", "execute_tool pay"),
        ("turn 1", "execute_tool read_balance"),
        ("turn 1", "wait_for_person pay"),
        ("turn 2", "chat"),
    ];
    let expected: BTreeSet<_> =
        expected.into_iter().map(|(parent, name)| (parent.to_owned(), name.to_owned())).collect();
    assert_eq!(tree, expected);
    let find = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    assert_eq!(attribute(find("wait_for_person pay"), "windlass.wait.decided_by").as_deref(), Some("ada"));
    assert_eq!(attribute(find("execute_tool pay"), "windlass.call.status").as_deref(), Some("succeeded"));
    assert_eq!(attribute(find("execute_tool read_balance"), "error.type").as_deref(), Some("failed"));
    assert_eq!(
        attribute(find("guardrail no_names"), "windlass.guardrail.verdict").as_deref(),
        Some("replaced")
    );
    assert_eq!(attribute(find("invoke_agent office"), "windlass.run.status").as_deref(), Some("finished"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conversation_is_in_spans_only_if_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    trace_run(&path, TraceContent::LeftOut).await;
    let without = format!("{:?}", replayed_spans(&path, TraceContent::LeftOut).await);
    let with = format!("{:?}", replayed_spans(&path, TraceContent::Included).await);
    for text in ["swordfish", "(removed)", "Is anything open?", "All is settled.", "no account 7"] {
        assert!(!without.contains(text), "{text}");
        assert!(with.contains(text), "{text}");
    }
    assert!(!with.contains("Ropeworks"), "a withheld output is in no span");
}

#[tokio::test]
async fn a_fork_is_linked_to_its_origin() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let agent = |text: &str| Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text(text)]));
    agent("Good morning.").run("Hello").run_id("run-1").store(store.clone()).await.unwrap();
    let change = windlass::core::inspect::ForkChange::Unchanged;
    windlass::store::fork_run(&*store, &"run-1".into(), 0, "run-2".into(), change).await.unwrap();
    agent("Good evening.").recover("run-2", store.clone()).await.unwrap();
    let exporter = MemoryExporter::default();
    export_run(&*store, &"run-2".into(), &SpanSender::start(exporter.clone())).await.unwrap();
    let spans = exporter.spans();
    let root = spans.iter().find(|span| span.name == "invoke_agent host").unwrap();
    assert_eq!(root.links.links[0].span_context.trace_id(), trace_id_of_run(&"run-1".into()));
    assert_eq!(root.span_context.trace_id(), trace_id_of_run(&"run-2".into()));
}

#[tokio::test]
async fn a_sampling_ratio_selects_the_same_runs_in_every_process() {
    let sampled = |ratio: f64| {
        let sender = SpanSender::start(MemoryExporter::default()).sampling_ratio(ratio);
        (0..1_000).filter(|n| sender.is_sampled(&format!("run-{n}").as_str().into())).collect::<Vec<_>>()
    };
    assert_eq!((sampled(0.0).len(), sampled(1.0).len()), (0, 1_000));
    let third = sampled(0.3);
    assert_eq!(third, sampled(0.3));
    assert!((200..400).contains(&third.len()), "{}", third.len());
}

#[test]
fn settings_are_read_from_variables_and_unsupported_ones_are_named() {
    let read = |vars: &[(&str, &str)]| {
        let vars: BTreeMap<_, _> = vars.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        OtlpSettings::from_vars(move |name| vars.get(name).cloned())
    };
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    assert!(read(&[]).unwrap().is_none());
    assert!(read(&[endpoint]).unwrap().is_some());
    assert!(read(&[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap().is_none());
    assert!(read(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]).unwrap().is_none());
    let grpc = read(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap_err();
    assert_eq!(grpc.to_string(), "OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`: only `http/protobuf` is supported");
    let ratio = [endpoint, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
    let ratio = read(&ratio).unwrap_err();
    assert_eq!(ratio.to_string(), "OTEL_TRACES_SAMPLER_ARG is `2`: a number from 0 to 1 is expected");
}

/// The receiver decodes requests with the official protobuf package for Python.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_independent_receiver_reads_the_spans_of_the_journal() {
    let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/otlp_receiver.py");
    let child = Command::new(&python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("python runs");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let Some(port) = first.strip_prefix("port ") else {
        let shown = "not shown: traces in an independent receiver, because Python has no opentelemetry-proto";
        let _ = writeln!(std::io::stderr(), "{shown}; set WINDLASS_PYTHON");
        let _ = child.wait();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    trace_run(&path, TraceContent::LeftOut).await;
    let sender = OtlpSettings::new(format!("http://127.0.0.1:{port}/v1/traces")).connect().unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let count = export_run(&store, &"run-1".into(), &sender).await.unwrap();
    drop(child.stdin.take());
    let received: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(received.len(), count);
    let nanos = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos().to_string();
    let summary = |span: &SpanData| {
        serde_json::json!({
            "trace": span.span_context.trace_id().to_string(),
            "id": span.span_context.span_id().to_string(),
            "parent": if span.parent_span_id == SpanId::INVALID { String::new() } else { span.parent_span_id.to_string() },
            "name": span.name,
            "start": nanos(span.start_time),
            "end": nanos(span.end_time),
            "attributes": span.attributes.iter().map(|one| (one.key.to_string(), one.value.to_string()))
                .collect::<BTreeMap<_, _>>(),
            "schema": windlass_otel::SEMANTIC_CONVENTIONS,
        })
    };
    let mut sent: Vec<_> = replayed_spans(&path, TraceContent::LeftOut).await.iter().map(summary).collect();
    let mut received = received;
    for list in [&mut sent, &mut received] {
        list.sort_by_key(|span| span["id"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(received, sent);
}

/// An exporter without a collector.
#[derive(Clone, Debug)]
struct DeadExporter;

impl SpanExporter for DeadExporter {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Err(OTelSdkError::InternalFailure("nobody listens".to_owned()))
    }
}

#[tokio::test]
async fn spans_that_no_collector_received_are_counted_and_an_error_of_the_export() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    trace_run(&path, TraceContent::LeftOut).await;
    let count = replayed_spans(&path, TraceContent::LeftOut).await.len() as u64;
    let sender = SpanSender::start(DeadExporter);
    let error = export_run(&SqliteStore::open(&path).unwrap(), &"run-1".into(), &sender).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("{count} spans of run `run-1` were not sent: ")), "{text}");
    assert!(text.contains("nobody listens"), "{text}");
    assert_eq!(sender.dropped_spans(), count);
}

#[tokio::test]
async fn an_unknown_run_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("runs.db")).unwrap();
    let store: &dyn Store = &store;
    let error = export_run(store, &"nobody".into(), &SpanSender::start(MemoryExporter::default())).await;
    assert_eq!(error.unwrap_err().to_string(), "the store has no run `nobody`");
}
