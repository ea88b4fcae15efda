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
use windlass::core::usage::Usage;
use windlass::fleet::{AgentRegistry, DeployedAgent, RunQueue, RunSubmission, Worker};
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail, ToolGuardrailVerdict, ToolOutputGuardrail};
use windlass::model::Model;
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

async fn spans_of(store: &dyn Store, run: &str) -> Vec<SpanData> {
    let exporter = MemoryExporter::default();
    export_run(store, &run.into(), &SpanSender::start(exporter.clone())).await.unwrap();
    exporter.spans()
}

fn named<'a>(spans: &'a [SpanData], name: &str) -> &'a SpanData {
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| {
        panic!("no span {name}: {:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>())
    })
}

fn handoff_agent() -> Agent {
    let second = Agent::new("second").model(ScriptedModel::new([ScriptedResponse::text("Done.")]));
    Agent::new("first")
        .model(ScriptedModel::new([ScriptedResponse::call("h1", "transfer_to_second", json!({}))]))
        .handoff(second)
}

fn guarded_agent() -> Agent {
    let refused = OutputGuardrail::new("no_numbers", |_, _| async { Ok(GuardrailVerdict::Tripwire) });
    let model = ScriptedModel::new([ScriptedResponse::text("42")]);
    Agent::new("host").model(model).output_guardrail(refused)
}

/// Runs an agent that asks a person for a larger budget, and gets it.
async fn ask_for_budget(store: Arc<dyn Store>, run: &str) {
    let agent = |answers: Vec<ScriptedResponse>| {
        let budget = windlass::core::budget::SpendingBudget::new().requests(1).ask_person();
        Agent::new("host").model(ScriptedModel::new(answers)).tool(read_balance).budget(budget)
    };
    let call = ScriptedResponse::call("c1", "read_balance", json!({ "account": "7" }));
    let outcome = agent(vec![call]).run("Hello").run_id(run).store(store.clone()).await.unwrap();
    assert!(outcome.is_paused());
    for call in windlass::store::load_paused(&*store, &run.into()).await.unwrap().pending_calls() {
        let (decision, scope) = (Decision::Answer { value: json!(5) }, DecisionScope::ThisCall);
        windlass::store::post_decision(&*store, &run.into(), call.path, decision, scope, "ada")
            .await
            .unwrap();
    }
    agent(vec![ScriptedResponse::text("Done.")]).recover(run, store.clone()).await.unwrap();
}

/// The run keeps the name of the agent that it started with; the handoff is a span of its own.
#[tokio::test]
async fn a_run_with_a_handoff_keeps_the_name_of_its_first_agent() {
    let store = Arc::new(MemoryStore::default());
    handoff_agent().run("Go").run_id("run-1").store(store.clone()).await.unwrap();
    let spans = spans_of(&*store, "run-1").await;
    let root = named(&spans, "invoke_agent first");
    assert_eq!(root.parent_span_id, SpanId::INVALID);
    assert_eq!(attribute(root, "gen_ai.agent.name").as_deref(), Some("first"));
    let handoff = named(&spans, "handoff second");
    assert_eq!(attribute(handoff, "gen_ai.agent.name").as_deref(), Some("second"));
    let by_second = spans.iter().filter(|span| {
        span.name.starts_with("chat") && attribute(span, "gen_ai.agent.name").as_deref() == Some("second")
    });
    assert_eq!(by_second.count(), 1, "the requests have the agent that made them");
}

/// A model that is known by its name and its provider, and whose first request fails.
struct NamedModel(std::sync::atomic::AtomicU32);

impl Model for NamedModel {
    async fn respond<'a>(
        &'a self,
        _: windlass::model::ModelRequest<'a>,
        _: &'a windlass::model::DeltaSink,
    ) -> Result<windlass::model::ModelResponse, windlass::model::ModelError> {
        if self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            let error = windlass::model::ModelError::new("busy");
            let error = error.with_kind(windlass::model::ModelErrorKind::Overloaded);
            return Err(error.with_retry_advice(windlass::model::RetryAdvice::Safe));
        }
        let usage = Usage { audio_input_tokens: 3, audio_output_tokens: 2, ..Usage::of_tokens(10, 5) };
        Ok(windlass::model::ModelResponse {
            items: vec![Arc::new(windlass::core::item::Item::assistant("Done."))],
            usage: Some(usage),
            model: Some("speaker-1-2026-01-01".to_owned()),
            ..Default::default()
        })
    }

    fn name(&self) -> Option<&str> {
        Some("speaker-1")
    }

    fn provider(&self) -> Option<&str> {
        Some("openai")
    }
}

#[tokio::test(start_paused = true)]
async fn requests_name_the_model_that_was_asked_and_its_provider() {
    let store = Arc::new(MemoryStore::default());
    let agent = Agent::new("host").model(NamedModel(Default::default()));
    agent.run("Hello").run_id("run-1").store(store.clone()).await.unwrap();
    let spans = spans_of(&*store, "run-1").await;
    let chats: Vec<_> = spans.iter().filter(|span| span.name == "chat speaker-1").collect();
    assert_eq!(chats.len(), 2, "a request that failed names its model, too");
    for chat in &chats {
        assert_eq!(attribute(chat, "gen_ai.provider.name").as_deref(), Some("openai"));
        assert_eq!(attribute(chat, "gen_ai.request.model").as_deref(), Some("speaker-1"));
    }
    let answered = chats.iter().find(|chat| attribute(chat, "gen_ai.response.model").is_some()).unwrap();
    let said =
        ["gen_ai.response.model", "gen_ai.response.finish_reasons", "windlass.usage.audio_input_tokens"];
    let said = said.map(|name| attribute(answered, name).unwrap_or_default());
    assert_eq!(said, ["speaker-1-2026-01-01", "[\"stop\"]", "3"].map(str::to_owned));
}

#[tokio::test]
async fn the_wait_for_a_larger_budget_is_a_span() {
    let store = Arc::new(MemoryStore::default());
    ask_for_budget(store.clone(), "run-1").await;
    let spans = spans_of(&*store, "run-1").await;
    let wait = named(&spans, "wait_for_person budget");
    assert_eq!(wait.parent_span_id, named(&spans, "invoke_agent host").span_context.span_id());
    for (name, value) in [
        ("windlass.wait.reason", "budget"),
        ("windlass.budget.resource", "requests"),
        ("windlass.wait.decision", "answer"),
        ("windlass.wait.decided_by", "ada"),
    ] {
        assert_eq!(attribute(wait, name).as_deref(), Some(value), "{name}");
    }
    assert!(named(&spans, "turn 2").start_time >= wait.end_time, "the wait is no part of the next turn");
}

#[tokio::test]
async fn a_guardrail_that_fails_the_run_is_a_span() {
    let store = Arc::new(MemoryStore::default());
    guarded_agent().run("Hello").run_id("run-1").store(store.clone()).await.unwrap_err();
    let spans = spans_of(&*store, "run-1").await;
    let guardrail = named(&spans, "guardrail no_numbers");
    let said = ["windlass.guardrail.stage", "windlass.guardrail.verdict"];
    assert_eq!(said.map(|name| attribute(guardrail, name).unwrap_or_default()), ["output", "failed_run"]);
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

/// The spans that a receiver of OTLP got, one JSON text each. It decodes requests with the official protobuf package for
/// Python; `None` if that is not installed.
async fn receive_spans(python: &str, store: &dyn Store, run: &str) -> Option<Vec<serde_json::Value>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/otlp_receiver.py");
    let child = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("python runs");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap_or_default();
    let Some(port) = first.strip_prefix("port ") else {
        let shown = "not shown: traces in an independent receiver, because Python has no opentelemetry-proto";
        let _ = writeln!(std::io::stderr(), "{shown}; set WINDLASS_PYTHON");
        let _ = child.wait();
        return None;
    };
    let sender = OtlpSettings::new(format!("http://127.0.0.1:{port}/v1/traces")).connect().unwrap();
    let count = export_run(store, &run.into(), &sender).await.unwrap();
    drop(child.stdin.take());
    let received: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(received.len(), count);
    Some(received)
}

fn python() -> String {
    std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_independent_receiver_reads_the_spans_of_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    trace_run(&path, TraceContent::LeftOut).await;
    let store = SqliteStore::open(&path).unwrap();
    let Some(mut received) = receive_spans(&python(), &store, "run-1").await else { return };
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
    for list in [&mut sent, &mut received] {
        list.sort_by_key(|span| span["id"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(received, sent);
}

/// A script in Python reads the journals by itself, and finds every record among the spans that the receiver got, and no
/// other span.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn received_spans_are_those_that_another_reader_finds_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    // A nested agent, an approval, a failed call, and another process.
    trace_run(&path, TraceContent::LeftOut).await;
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    handoff_agent().run("Go").run_id("handoff").store(store.clone()).await.unwrap();
    let named = Agent::new("host").model(NamedModel(Default::default()));
    named.run("Hello").run_id("retry").store(store.clone()).await.unwrap();
    ask_for_budget(store.clone(), "budget").await;
    guarded_agent().run("Hello").run_id("guardrail").store(store.clone()).await.unwrap_err();
    let paused =
        office_agent(false).run("Is anything open?").run_id("cancel").store(store.clone()).await.unwrap();
    assert!(paused.is_paused());
    let cancelled = office_agent(true).recover("cancel", store.clone());
    let handle = cancelled.cancel_handle();
    handle.cancel();
    let _ = cancelled.await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/journal_check.py");
    for run in ["run-1", "handoff", "retry", "budget", "guardrail", "cancel"] {
        let Some(received) = receive_spans(&python(), &*store, run).await else { return };
        let journal = store.load_journal(&run.into(), 0).await.unwrap();
        let journal: Vec<&str> = journal.iter().map(|line| line.body.as_str()).collect();
        let received: Vec<String> = received.iter().map(ToString::to_string).collect();
        let [lines, spans] = ["journal", "spans"].map(|name| folder.path().join(format!("{run}-{name}")));
        std::fs::write(&lines, journal.join("\n")).unwrap();
        std::fs::write(&spans, received.join("\n")).unwrap();
        let output = Command::new(python()).arg(script).args([&lines, &spans]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.trim(), format!("equal {}", received.len()), "{run}: {errors}");
    }
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
