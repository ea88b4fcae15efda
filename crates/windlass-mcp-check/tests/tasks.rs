//! Calls that become tasks: served by `McpServer`, and polled by the library's client and by a raw JSON-RPC
//! client.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::http::{ReceivedRequest, raw_response, raw_result, serve_raw};
use common::{call_outputs, wait_until};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use windlass::core::id::RunId;
use windlass::core::{
    decision::{Decision, DecisionScope, HoldReason, PersonQuestion},
    id::CallPath,
};
use windlass::error::StoreError;
use windlass::prelude::*;
use windlass::store::{
    ApproverPolicy, ApproverSigner, DecisionReview, Lease, MemoryStore, SqliteStore, Store, StoreFuture,
    StoreWrapper, post_signed_decision,
};
use windlass_mcp::{
    McpApprovalPolicy, McpConfig, McpConnections, McpServer, McpServerConfig, ProtocolEra, TaskPolicy,
};
use windlass_mcp_check::build_agent;

/// Counters and signals of the test tools.
#[derive(Default)]
struct BuildingSite {
    starts: AtomicUsize,
    dropped_builds: AtomicUsize,
    finish_signal: Notify,
}

/// A guard that counts builds dropped before their end.
struct UnfinishedBuildCounter(Option<Arc<BuildingSite>>);

impl Drop for UnfinishedBuildCounter {
    fn drop(&mut self) {
        if let Some(site) = &self.0 {
            site.dropped_builds.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Builds until it may end.
#[tool]
async fn build(ctx: &ToolContext<BuildingSite>) -> String {
    ctx.starts.fetch_add(1, Ordering::SeqCst);
    let mut bricks = UnfinishedBuildCounter(Some(ctx.app().clone()));
    ctx.report_progress(json!({ "progress": 1, "message": "the first wall stands" }));
    ctx.finish_signal.notified().await;
    bricks.0 = None;
    "built".to_owned()
}

/// Tears down, when somebody says so.
#[tool(needs_approval = always)]
async fn demolish(ctx: &ToolContext<BuildingSite>) -> String {
    ctx.starts.fetch_add(1, Ordering::SeqCst);
    "gone".to_owned()
}

/// Asks where.
#[tool]
async fn place(ctx: &ToolContext<BuildingSite>) -> Result<String, ToolError> {
    let question = PersonQuestion::new("Where?");
    let Some(place) = ctx.answer_to(&question) else { return Err(ToolError::ask_person(question)) };
    Ok(format!("at {}", place.as_str().unwrap_or_default()))
}

fn works_server(site: &Arc<BuildingSite>, tasks: TaskPolicy) -> McpServer<BuildingSite> {
    let surveyor = Agent::new("surveyor").tool(place).model(ScriptedModel::new([
        ScriptedResponse::call("a", "place", json!({})).and_call("b", "place", json!({})),
        ScriptedResponse::text("surveyed"),
    ]));
    McpServer::with_context("works", site.clone())
        .tools((build, demolish))
        .agent(&surveyor, "survey", "Surveys.")
        .task_policy(tasks)
}

/// Serves over HTTP in a background task and returns the URL.
async fn serve_over_http(server: McpServer<BuildingSite>) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = server.serve_http(listener, std::future::pending());
    let task = tokio::spawn(async move { serving.await.expect("it serves") });
    (format!("http://{address}/mcp"), task)
}

async fn foreman_agent(url: &str, call: ScriptedResponse) -> (Agent, McpConnections) {
    let servers = McpConnections::connect(McpConfig::new().server(McpServerConfig::http("works", url))).await;
    let model = ScriptedModel::new([call, ScriptedResponse::text("done")]);
    let tools = servers.tools().approve(McpApprovalPolicy::Never);
    (Agent::new("foreman").model(model).tool_source(tools), servers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_call_becomes_a_task_and_has_its_result() {
    let site = Arc::new(BuildingSite::default());
    let (url, _serving) = serve_over_http(works_server(&site, TaskPolicy::WhenSlow(Duration::ZERO))).await;
    // The call timeout bounds the server's first response, not the task.
    let config = McpServerConfig::http("works", &url).call_timeout(Duration::from_secs(60));
    let servers = McpConnections::connect(McpConfig::new().server(config)).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "build", json!({})),
        ScriptedResponse::text("done"),
    ]);
    let agent =
        Agent::new("foreman").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let mut stream = agent.run("go").stream();
    let mut told = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::CallProgress { progress, .. } = event.kind {
            told.push(progress["message"].as_str().unwrap_or_default().to_owned());
            site.finish_signal.notify_one();
        }
    }
    let outcome = stream.result().await.expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c1"], "built");
    assert!(told.iter().all(|words| words == "the first wall stands") && !told.is_empty(), "{told:?}");
    assert_eq!(site.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_takes_too_long_is_told_to_stop() {
    let site = Arc::new(BuildingSite::default());
    let (url, _serving) = serve_over_http(works_server(&site, TaskPolicy::Always)).await;
    let config = McpServerConfig::http("works", &url).task_timeout(Duration::from_secs(4));
    let servers = McpConnections::connect(McpConfig::new().server(config)).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "build", json!({})),
        ScriptedResponse::text("done"),
    ]);
    let agent =
        Agent::new("foreman").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let outcome = agent.run("go").await.expect("the run ends well");
    assert!(call_outputs(&outcome)["c1"].contains("timed out after 4000 ms"), "{:?}", call_outputs(&outcome));
    wait_until(|| site.dropped_builds.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cancelled_cancels_its_task() {
    let site = Arc::new(BuildingSite::default());
    let (url, _serving) = serve_over_http(works_server(&site, TaskPolicy::Always)).await;
    let (agent, _servers) = foreman_agent(&url, ScriptedResponse::call("c1", "build", json!({}))).await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let run = agent.run("go").store(store.clone()).run_id("run-1");
    let cancel = run.cancel_handle();
    let running = tokio::spawn(run);
    wait_for_task(&store).await;
    wait_until(|| site.starts.load(Ordering::SeqCst) == 1).await;
    cancel.cancel();
    let outcome = running.await.expect("the task ends").expect("it is cancelled");
    assert!(matches!(outcome, RunResult::Cancelled(_)));
    wait_until(|| site.dropped_builds.load(Ordering::SeqCst) == 1).await;
}

/// A store that cannot write, or cannot read, the artefacts of tasks.
struct TasklessStore {
    memory: MemoryStore,
    can_read: bool,
}

impl StoreWrapper for TasklessStore {
    fn inner(&self) -> &dyn Store {
        &self.memory
    }

    fn save_artefact<'a>(&'a self, lease: &'a Lease, name: &'a str, body: &'a [u8]) -> StoreFuture<'a, ()> {
        if name.starts_with("mcp-task") {
            return Box::pin(async { Err(StoreError::new("the disk is full")) });
        }
        self.memory.save_artefact(lease, name, body)
    }

    fn load_artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
        if name.starts_with("mcp-task") && !self.can_read {
            return Box::pin(async { Err(StoreError::new("the disk is gone")) });
        }
        self.memory.load_artefact(run, name)
    }
}

/// The store fails while the id of a task is saved or looked up. The model is not invited to repeat the call.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_cannot_be_recorded_is_told_to_stop() {
    for can_read in [true, false] {
        let site = Arc::new(BuildingSite::default());
        let (url, _serving) = serve_over_http(works_server(&site, TaskPolicy::Always)).await;
        let (agent, _servers) = foreman_agent(&url, ScriptedResponse::call("c1", "build", json!({}))).await;
        let store = Arc::new(TasklessStore { memory: MemoryStore::default(), can_read });
        let outcome = agent.run("go").store(store).await.expect("the run ends well");
        let said = &call_outputs(&outcome)["c1"];
        assert!(!said.contains("try again"), "{said}");
        if can_read {
            assert!(said.contains("The server was told to stop it"), "{said}");
            // The cancellation may arrive before the body has begun.
            wait_until(|| site.dropped_builds.load(Ordering::SeqCst) == site.starts.load(Ordering::SeqCst))
                .await;
        } else {
            assert!(said.contains("It was not called now"), "{said}");
            assert_eq!(site.starts.load(Ordering::SeqCst), 0);
        }
    }
}

/// A server whose only call becomes a task that asks for a response of the client's model.
fn respond_with_sampling_task(request: &ReceivedRequest, methods: &std::sync::Mutex<Vec<String>>) -> String {
    let method = request.body["method"].as_str().unwrap_or_default();
    methods.lock().expect("a log").push(method.to_owned());
    let task = |kind: &str, status: &str| {
        json!({ "resultType": kind, "taskId": "t1", "status": status, "ttlMs": null, "pollIntervalMs": 50,
                "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z" })
    };
    let result = match method {
        "server/discover" => json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"],
            "capabilities": { "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } },
            "serverInfo": { "name": "raw", "version": "1" }, "ttlMs": 0, "cacheScope": "private",
        }),
        "tools/list" => json!({
            "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            "tools": [{ "name": "act", "inputSchema": { "type": "object" } }],
        }),
        "tools/call" => task("task", "working"),
        "tasks/get" => {
            let mut task = task("complete", "input_required");
            task["inputRequests"] = json!({ "thought": { "method": "sampling/createMessage", "params": {
                "messages": [{ "role": "user", "content": { "type": "text", "text": "2+2?" } }],
                "maxTokens": 9 } } });
            task
        }
        "tasks/cancel" => json!({ "resultType": "complete" }),
        _ => return raw_response("405 Method Not Allowed", "text/plain", ""),
    };
    raw_result(&request.body["id"], &result)
}

/// A task that asks for something that is not offered cannot continue. It has begun, and may have had its effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_cannot_continue_is_told_to_stop() {
    let methods = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = methods.clone();
    let address = serve_raw(move |request| respond_with_sampling_task(&request, &seen)).await;
    let config = McpServerConfig::http("raw", format!("http://{address}/mcp")).era(ProtocolEra::Modern);
    let servers = McpConnections::connect(McpConfig::new().server(config)).await;
    let call = ScriptedResponse::call("c1", "act", json!({}));
    let model = ScriptedModel::new([call, ScriptedResponse::text("done")]);
    let agent =
        Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let outcome = agent.run("go").await.expect("the run ends well");
    let said = &call_outputs(&outcome)["c1"];
    assert!(said.contains("not offered here") && said.contains("The server was told to stop it"), "{said}");
    assert!(!said.contains("try again"), "{said}");
    let methods = methods.lock().expect("a log");
    let cancelled = methods.iter().filter(|method| *method == "tasks/cancel").count();
    assert_eq!(cancelled, 1, "{methods:?}");
}

/// The approval of a task crosses two paused runs, and a second server with the same store continues the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_outlives_both_its_server_and_its_client() {
    let (site, kept) = (Arc::new(BuildingSite::default()), Arc::new(MemoryStore::default()));
    let (url, serving) = serve_over_http(works_server(&site, TaskPolicy::Always).store(kept.clone())).await;
    let ours: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (agent, servers) = foreman_agent(&url, ScriptedResponse::call("c1", "demolish", json!({}))).await;
    let outcome = agent.run("go").store(ours.clone()).await.expect("it pauses");
    let RunResult::Paused(paused) = outcome else { panic!("{outcome:?}") };
    let HoldReason::Question(question) = &paused.pending_calls()[0].reason else {
        panic!("{:?}", paused.pending_calls())
    };
    assert!(question.text.contains("`demolish`"), "{question:?}");
    serving.abort();
    servers.close().await;
    let mut paused = PausedRun::from_text(&paused.to_text()).expect("it is whole");
    paused.answer_question("c1", json!({ "decision": "approve" })).expect("it fits");

    let (url, _serving) = serve_over_http(works_server(&site, TaskPolicy::Always).store(kept)).await;
    let (agent, _servers) = foreman_agent(&url, ScriptedResponse::text("done")).await;
    assert_eq!(site.starts.load(Ordering::SeqCst), 0, "nobody has said yes to the server");
    let outcome = agent.resume(paused).store(ours).await.expect("the run ends well");
    assert_eq!(call_outputs(&outcome)["c1"], "gone");
    assert_eq!(site.starts.load(Ordering::SeqCst), 1);
}

/// Waits until the task id is saved with the run.
async fn wait_for_task(store: &Arc<dyn Store>) {
    for _ in 0..3000 {
        if store.load_artefact(&"run-1".into(), "mcp-task c1").await.expect("the store answers").is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the task should be kept with the run by now");
}

/// A process is killed while it polls a task; the process that recovers the run polls the same task.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovered_run_follows_the_same_task() {
    let site = Arc::new(BuildingSite::default());
    let (url, _serving) = serve_over_http(works_server(&site, TaskPolicy::Always)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("runs.db");
    let mut follower = tokio::process::Command::new(env!("CARGO_BIN_EXE_follower"))
        .args([&url, &file.display().to_string(), "run-1"])
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&file).expect("a store"));
    wait_for_task(&store).await;
    follower.kill().await.expect("it is killed, and cannot do anything about it");
    site.finish_signal.notify_one();

    let agent = build_agent(&url).await;
    let mut waited = 0;
    let outcome = loop {
        match agent.recover("run-1", store.clone()).await {
            Ok(outcome) => break outcome,
            // The lease of the killed process has not expired yet.
            Err(error) => {
                waited += 1;
                assert!(waited < 3000, "{error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    assert_eq!(call_outputs(&outcome)["c1"], "built");
    assert_eq!(site.starts.load(Ordering::SeqCst), 1, "it was called once");
}

/// A raw JSON-RPC client of the modern protocol.
struct RawTaskClient {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    capabilities: Value,
    next_id: u64,
}

impl RawTaskClient {
    fn new(server: McpServer<BuildingSite>, capabilities: Value) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(server.serve(tokio::io::split(theirs)));
        let (read, write) = tokio::io::split(ours);
        Self { lines: BufReader::new(read).lines(), writer: write, capabilities, next_id: 1 }
    }

    async fn request(&mut self, method: &str, mut params: Value) -> Value {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "by hand", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        let message = json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params });
        self.next_id += 1;
        self.writer.write_all(format!("{message}\n").as_bytes()).await.expect("it is sent");
        loop {
            let line = self.lines.next_line().await.expect("a line").expect("it goes on");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            if answer["id"] == message["id"] {
                return answer;
            }
        }
    }

    /// Polls a task until it has the given status.
    async fn wait_for_status(&mut self, task: &Value, status: &str) -> Value {
        for _ in 0..3000 {
            let got = self.request("tasks/get", json!({ "taskId": task })).await;
            if got["result"]["status"] == status {
                return got["result"].clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{task} should be {status} by now")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_of_a_task_are_answered_bit_by_bit() {
    let site = Arc::new(BuildingSite::default());
    let can = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let mut client = RawTaskClient::new(works_server(&site, TaskPolicy::Always), can);
    client.request("server/discover", json!({})).await;
    let call =
        client.request("tools/call", json!({ "name": "survey", "arguments": { "input": "here" } })).await;
    let task = call["result"]["taskId"].clone();
    assert_eq!(call["result"]["resultType"], "task", "{call}");
    let waits = client.wait_for_status(&task, "input_required").await;
    let names: Vec<String> = waits["inputRequests"].as_object().expect("questions").keys().cloned().collect();
    assert_eq!(names.len(), 2, "{waits}");
    let answer = |name: &str| {
        let said = json!({ "action": "accept", "content": { "answer": "the hill" } });
        let responses: BTreeMap<String, Value> = [(name.to_owned(), said)].into();
        json!({ "taskId": task, "inputResponses": responses })
    };
    client.request("tasks/update", answer(&names[0])).await;
    let waits = client.request("tasks/get", json!({ "taskId": task })).await;
    let left: Vec<String> =
        waits["result"]["inputRequests"].as_object().expect("a question").keys().cloned().collect();
    assert_eq!(left, names[1..], "{waits}");
    client.request("tasks/update", answer(&names[1])).await;
    let done = client.wait_for_status(&task, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "surveyed", "{done}");
    // Cancelling a completed task has no effect.
    client.request("tasks/cancel", json!({ "taskId": task })).await;
    client.wait_for_status(&task, "completed").await;
}

/// If the client does not support elicitation, an approver decides through the server's store.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_may_be_decided_about_elsewhere() {
    let (site, store) = (Arc::new(BuildingSite::default()), Arc::new(MemoryStore::default()));
    let can = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let mut client = RawTaskClient::new(works_server(&site, TaskPolicy::default()).store(store.clone()), can);
    client.request("server/discover", json!({})).await;
    let call = client.request("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    let task = call["result"]["taskId"].clone();
    let shown = client.wait_for_status(&task, "working").await;
    assert_eq!(shown["statusMessage"], "It waits for a person's decision.", "{shown}");
    let run = task.as_str().expect("a name").into();
    let approve = Decision::Approve;
    windlass::store::post_decision(
        &*store,
        &run,
        CallPath::from("call"),
        approve,
        DecisionScope::ThisCall,
        "the owner",
    )
    .await
    .expect("it is posted");
    let done = client.wait_for_status(&task, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "gone", "{done}");
    assert_eq!(site.starts.load(Ordering::SeqCst), 1);

    // Without a store nobody can decide, so the call is refused.
    let mut client = RawTaskClient::new(works_server(&site, TaskPolicy::default()), json!({}));
    client.request("server/discover", json!({})).await;
    let call = client.request("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    assert_eq!(call["error"]["code"], -32021, "{call}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_can_be_cancelled() {
    let site = Arc::new(BuildingSite::default());
    let can = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let mut client = RawTaskClient::new(works_server(&site, TaskPolicy::Always), can);
    client.request("server/discover", json!({})).await;
    let call = client.request("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    let task = call["result"]["taskId"].clone();
    client.wait_for_status(&task, "input_required").await;
    client.request("tasks/cancel", json!({ "taskId": task })).await;
    client.wait_for_status(&task, "cancelled").await;
    let late = json!({ "taskId": task, "inputResponses": { "call": { "action": "accept", "content": { "decision": "approve" } } } });
    client.request("tasks/update", late).await;
    client.wait_for_status(&task, "cancelled").await;
    assert_eq!(site.starts.load(Ordering::SeqCst), 0);
    let unknown = client.request("tasks/get", json!({ "taskId": "nobody" })).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

/// The user of a client has no approver's key: nothing that a client answers counts in a store with approvers.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_decides_nothing_in_a_store_with_approvers() {
    let signer = Arc::new(ApproverSigner::from_seed(&[7; 32]).expect("a seed of 32 bytes"));
    let policy = ApproverPolicy::new().approver("ann", signer.key().clone());
    let site = Arc::new(BuildingSite::default());
    let store = Arc::new(MemoryStore::default().with_approvers(policy));
    let server = || works_server(&site, TaskPolicy::default()).store(store.clone());
    let can = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let mut client = RawTaskClient::new(server(), can);
    client.request("server/discover", json!({})).await;
    let call = client.request("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    let task = call["result"]["taskId"].clone();
    let shown = client.wait_for_status(&task, "working").await;
    assert_eq!(
        (&shown["inputRequests"], call["result"]["resultType"].as_str()),
        (&Value::Null, Some("task"))
    );
    // The client answers a question that it was not asked.
    let said = json!({ "action": "accept", "content": { "decision": "approve" } });
    for name in ["call", "call#0", "call#1"] {
        let responses: BTreeMap<String, Value> = [(name.to_owned(), said.clone())].into();
        client.request("tasks/update", json!({ "taskId": task, "inputResponses": responses })).await;
    }
    client.wait_for_status(&task, "working").await;
    assert_eq!(site.starts.load(Ordering::SeqCst), 0);
    let run = task.as_str().expect("a name").into();
    let review = DecisionReview { decided_by: "ann".to_owned(), displayed: None, attempt: None };
    let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
    post_signed_decision(&*store, &run, "call", decision, scope, review, &signer).await.expect("it counts");
    client.wait_for_status(&task, "completed").await;
    assert_eq!(site.starts.load(Ordering::SeqCst), 1);

    // A client without tasks is not asked either.
    let mut client = RawTaskClient::new(server(), json!({ "elicitation": {} }));
    client.request("server/discover", json!({})).await;
    let call = client.request("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    assert_eq!((&call["result"]["isError"], &call["result"]["inputRequests"]), (&json!(true), &Value::Null));
    let text = call["result"]["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("waits for an approver"), "{call}");
    assert_eq!(site.starts.load(Ordering::SeqCst), 1);
}
