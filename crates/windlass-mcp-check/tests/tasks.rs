//! Calls that become tasks: of a server of ours, followed by a client of ours, and by one that is written by hand.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{outputs, until};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::sync::Notify;
use windlass::core::{CallPath, Decision, HoldReason, Question, Reach};
use windlass::prelude::*;
use windlass::{MemoryStore, SqliteStore, Store};
use windlass_mcp::{Approve, Config, McpServer, ServerConfig, Servers, Tasks};
use windlass_mcp_check::builder;

/// What happens at a building site.
#[derive(Default)]
struct Site {
    begun: AtomicUsize,
    dropped: AtomicUsize,
    may_end: Notify,
}

/// Counts what is dropped before its end.
struct Bricks(Option<Arc<Site>>);

impl Drop for Bricks {
    fn drop(&mut self) {
        if let Some(site) = &self.0 {
            site.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Builds until it may end.
#[tool]
async fn build(ctx: &ToolContext<Site>) -> String {
    ctx.begun.fetch_add(1, Ordering::SeqCst);
    let mut bricks = Bricks(Some(ctx.app().clone()));
    ctx.progress(json!({ "progress": 1, "message": "the first wall stands" }));
    ctx.may_end.notified().await;
    bricks.0 = None;
    "built".to_owned()
}

/// Tears down, when somebody says so.
#[tool(approve = always)]
async fn demolish(ctx: &ToolContext<Site>) -> String {
    ctx.begun.fetch_add(1, Ordering::SeqCst);
    "gone".to_owned()
}

/// Asks where.
#[tool]
async fn place(ctx: &ToolContext<Site>) -> Result<String, ToolError> {
    let question = Question::new("Where?");
    let Some(place) = ctx.reply(&question) else { return Err(ToolError::ask(question)) };
    Ok(format!("at {}", place.as_str().unwrap_or_default()))
}

fn works(site: &Arc<Site>, tasks: Tasks) -> McpServer<Site> {
    let surveyor = Agent::new("surveyor").tools((place,)).model(ScriptedModel::new([
        Reply::call("a", "place", json!({})).and_call("b", "place", json!({})),
        Reply::text("surveyed"),
    ]));
    McpServer::with_context("works", site.clone())
        .tools((build, demolish))
        .agent(&surveyor, "survey", "Surveys.")
        .tasks(tasks)
}

/// Serves at an address until it is dropped.
async fn at_an_address(server: McpServer<Site>) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = server.serve_http(listener, std::future::pending());
    let task = tokio::spawn(async move { serving.await.expect("it serves") });
    (format!("http://{address}/mcp"), task)
}

async fn foreman(url: &str, call: Reply) -> (Agent, Servers) {
    let servers = Servers::connect(Config::new().server(ServerConfig::http("works", url))).await;
    let model = ScriptedModel::new([call, Reply::text("done")]);
    let tools = servers.tools().approve(Approve::Never);
    (Agent::new("foreman").model(model).tool_source(tools), servers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_call_becomes_a_task_and_has_its_result() {
    let site = Arc::new(Site::default());
    let (url, _serving) = at_an_address(works(&site, Tasks::WhenSlow(Duration::ZERO))).await;
    // The server must answer soon, and the task may take its time.
    let config = ServerConfig::http("works", &url).call_timeout(Duration::from_secs(20));
    let servers = Servers::connect(Config::new().server(config)).await;
    let model = ScriptedModel::new([Reply::call("c1", "build", json!({})), Reply::text("done")]);
    let agent = Agent::new("foreman").model(model).tool_source(servers.tools().approve(Approve::Never));
    let mut stream = agent.run("go").stream();
    let mut told = Vec::new();
    while let Some(event) = stream.next().await {
        if let EventKind::Progress { progress, .. } = event.kind {
            told.push(progress["message"].as_str().unwrap_or_default().to_owned());
            site.may_end.notify_one();
        }
    }
    let outcome = stream.outcome().await.expect("the run ends well");
    assert_eq!(outputs(&outcome)["c1"], "built");
    assert!(told.iter().all(|words| words == "the first wall stands") && !told.is_empty(), "{told:?}");
    assert_eq!(site.begun.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_takes_too_long_is_told_to_stop() {
    let site = Arc::new(Site::default());
    let (url, _serving) = at_an_address(works(&site, Tasks::Always)).await;
    let config = ServerConfig::http("works", &url).task_timeout(Duration::from_millis(300));
    let servers = Servers::connect(Config::new().server(config)).await;
    let model = ScriptedModel::new([Reply::call("c1", "build", json!({})), Reply::text("done")]);
    let agent = Agent::new("foreman").model(model).tool_source(servers.tools().approve(Approve::Never));
    let outcome = agent.run("go").await.expect("the run ends well");
    assert!(outputs(&outcome)["c1"].contains("timed out after 300 ms"), "{:?}", outputs(&outcome));
    until(|| site.dropped.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cancelled_cancels_its_task() {
    let site = Arc::new(Site::default());
    let (url, _serving) = at_an_address(works(&site, Tasks::Always)).await;
    let (agent, _servers) = foreman(&url, Reply::call("c1", "build", json!({}))).await;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let run = agent.run("go").store(store.clone()).run_id("run-1");
    let cancel = run.cancel_handle();
    let running = tokio::spawn(run.into_future());
    kept(&store).await;
    until(|| site.begun.load(Ordering::SeqCst) == 1).await;
    cancel.now();
    let outcome = running.await.expect("the task ends").expect("it is cancelled");
    assert!(matches!(outcome, Outcome::Cancelled(_)));
    until(|| site.dropped.load(Ordering::SeqCst) == 1).await;
}

/// The approval of a task reaches the person through two runs, and another server of the same store goes on with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_outlives_both_its_server_and_its_client() {
    let (site, kept) = (Arc::new(Site::default()), Arc::new(MemoryStore::default()));
    let (url, serving) = at_an_address(works(&site, Tasks::Always).store(kept.clone())).await;
    let ours: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (agent, servers) = foreman(&url, Reply::call("c1", "demolish", json!({}))).await;
    let outcome = agent.run("go").store(ours.clone()).await.expect("it pauses");
    let Outcome::Paused(paused) = outcome else { panic!("{outcome:?}") };
    let HoldReason::Question(question) = &paused.pending()[0].reason else {
        panic!("{:?}", paused.pending())
    };
    assert!(question.text.contains("`demolish`"), "{question:?}");
    serving.abort();
    servers.close().await;
    let mut paused = Paused::from_text(&paused.to_text()).expect("it is whole");
    paused.answer("c1", json!({ "decision": "approve" })).expect("it fits");

    let (url, _serving) = at_an_address(works(&site, Tasks::Always).store(kept)).await;
    let (agent, _servers) = foreman(&url, Reply::text("done")).await;
    assert_eq!(site.begun.load(Ordering::SeqCst), 0, "nobody has said yes to the server");
    let outcome = agent.resume(paused).store(ours).await.expect("the run ends well");
    assert_eq!(outputs(&outcome)["c1"], "gone");
    assert_eq!(site.begun.load(Ordering::SeqCst), 1);
}

/// Waits until a run has its task.
async fn kept(store: &Arc<dyn Store>) {
    for _ in 0..3000 {
        if store.artefact(&"run-1".into(), "mcp-task c1").await.expect("the store answers").is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the task should be kept with the run by now");
}

/// A process is killed while it follows a task. Whoever recovers its run asks about the same task.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovered_run_follows_the_same_task() {
    let site = Arc::new(Site::default());
    let (url, _serving) = at_an_address(works(&site, Tasks::Always)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("runs.db");
    let mut follower = tokio::process::Command::new(env!("CARGO_BIN_EXE_follower"))
        .args([&url, &file.display().to_string(), "run-1"])
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&file).expect("a store"));
    kept(&store).await;
    follower.kill().await.expect("it is killed, and cannot do anything about it");
    site.may_end.notify_one();

    let agent = builder(&url).await;
    let mut waited = 0;
    let outcome = loop {
        match agent.recover("run-1", store.clone()).await {
            Ok(outcome) => break outcome,
            // The one that was killed is still waited for.
            Err(error) => {
                waited += 1;
                assert!(waited < 3000, "{error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    assert_eq!(outputs(&outcome)["c1"], "built");
    assert_eq!(site.begun.load(Ordering::SeqCst), 1, "it was called once");
}

/// A client of the later life, by hand.
struct ByHand {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    write: WriteHalf<DuplexStream>,
    capabilities: Value,
    next: u64,
}

impl ByHand {
    fn new(server: McpServer<Site>, capabilities: Value) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(server.serve(tokio::io::split(theirs)));
        let (read, write) = tokio::io::split(ours);
        Self { lines: BufReader::new(read).lines(), write, capabilities, next: 1 }
    }

    async fn ask(&mut self, method: &str, mut params: Value) -> Value {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "by hand", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        let message = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        self.next += 1;
        self.write.write_all(format!("{message}\n").as_bytes()).await.expect("it is sent");
        loop {
            let line = self.lines.next_line().await.expect("a line").expect("it goes on");
            let answer: Value = serde_json::from_str(&line).expect("JSON");
            if answer["id"] == message["id"] {
                return answer;
            }
        }
    }

    /// Asks about a task until it is so.
    async fn until(&mut self, task: &Value, status: &str) -> Value {
        for _ in 0..3000 {
            let got = self.ask("tasks/get", json!({ "taskId": task })).await;
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
    let site = Arc::new(Site::default());
    let can = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let mut client = ByHand::new(works(&site, Tasks::Always), can);
    client.ask("server/discover", json!({})).await;
    let call = client.ask("tools/call", json!({ "name": "survey", "arguments": { "input": "here" } })).await;
    let task = call["result"]["taskId"].clone();
    assert_eq!(call["result"]["resultType"], "task", "{call}");
    let waits = client.until(&task, "input_required").await;
    let names: Vec<String> = waits["inputRequests"].as_object().expect("questions").keys().cloned().collect();
    assert_eq!(names.len(), 2, "{waits}");
    let answer = |name: &str| {
        let said = json!({ "action": "accept", "content": { "answer": "the hill" } });
        let responses: BTreeMap<String, Value> = [(name.to_owned(), said)].into();
        json!({ "taskId": task, "inputResponses": responses })
    };
    client.ask("tasks/update", answer(&names[0])).await;
    let waits = client.ask("tasks/get", json!({ "taskId": task })).await;
    let left: Vec<String> =
        waits["result"]["inputRequests"].as_object().expect("a question").keys().cloned().collect();
    assert_eq!(left, names[1..], "{waits}");
    client.ask("tasks/update", answer(&names[1])).await;
    let done = client.until(&task, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "surveyed", "{done}");
    // It is over, and saying so again changes nothing.
    client.ask("tasks/cancel", json!({ "taskId": task })).await;
    client.until(&task, "completed").await;
}

/// Where the client cannot ask anybody, somebody decides through the server's store.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_may_be_decided_about_elsewhere() {
    let (site, store) = (Arc::new(Site::default()), Arc::new(MemoryStore::default()));
    let can = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let mut client = ByHand::new(works(&site, Tasks::default()).store(store.clone()), can);
    client.ask("server/discover", json!({})).await;
    let call = client.ask("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    let task = call["result"]["taskId"].clone();
    let shown = client.until(&task, "working").await;
    assert_eq!(shown["statusMessage"], "It waits for a person's decision.", "{shown}");
    let run = task.as_str().expect("a name").into();
    let approve = Decision::Approve;
    windlass::store::decide(&*store, &run, CallPath::from("call"), approve, Reach::Call, "the owner")
        .await
        .expect("it is posted");
    let done = client.until(&task, "completed").await;
    assert_eq!(done["result"]["content"][0]["text"], "gone", "{done}");
    assert_eq!(site.begun.load(Ordering::SeqCst), 1);

    // Without a store nobody could, so the call is refused.
    let mut client = ByHand::new(works(&site, Tasks::default()), json!({}));
    client.ask("server/discover", json!({})).await;
    let call = client.ask("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    assert_eq!(call["error"]["code"], -32021, "{call}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_waits_can_be_cancelled() {
    let site = Arc::new(Site::default());
    let can = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let mut client = ByHand::new(works(&site, Tasks::Always), can);
    client.ask("server/discover", json!({})).await;
    let call = client.ask("tools/call", json!({ "name": "demolish", "arguments": {} })).await;
    let task = call["result"]["taskId"].clone();
    client.until(&task, "input_required").await;
    client.ask("tasks/cancel", json!({ "taskId": task })).await;
    client.until(&task, "cancelled").await;
    let late = json!({ "taskId": task, "inputResponses": { "call": { "action": "accept", "content": { "decision": "approve" } } } });
    client.ask("tasks/update", late).await;
    client.until(&task, "cancelled").await;
    assert_eq!(site.begun.load(Ordering::SeqCst), 0);
    let unknown = client.ask("tasks/get", json!({ "taskId": "nobody" })).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}
