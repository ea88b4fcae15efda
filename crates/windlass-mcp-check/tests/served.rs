//! Tools and agents, served by us and used by us: over HTTP, and over a pipe in the earlier life of the protocol.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::outputs;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use windlass::MemoryStore;
use windlass::core::{HoldReason, Question};
use windlass::prelude::*;
use windlass::tool::{Image, Text};
use windlass_mcp::{Approve, Config, Era, McpServer, Resource, ServerConfig, ServerState, Servers};

#[derive(Default)]
struct Till {
    paid: AtomicUsize,
    stopped: AtomicUsize,
}

/// Says it again.
#[tool(effect = pure)]
async fn echo(text: String) -> String {
    text
}

/// Pays.
#[tool(approve = |args| args.cents > 100)]
async fn pay(ctx: &ToolContext<Till>, cents: u32) -> String {
    ctx.progress(json!({ "progress": 1, "message": "paying" }));
    ctx.paid.fetch_add(1, Ordering::SeqCst);
    format!("paid {cents}")
}

/// Counts a body that was dropped.
struct Stopped(Arc<Till>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.stopped.fetch_add(1, Ordering::SeqCst);
    }
}

fn nothing() -> Value {
    json!({ "type": "object", "properties": {} })
}

fn tools() -> Vec<Tool<Till>> {
    let picture = Tool::dynamic("picture", "Shows a dot.", nothing(), |_, _: Value| async {
        Ok::<_, String>(vec![Image::at("data:image/png;base64,iVBORw0KGgo=")])
    });
    let book =
        Tool::dynamic("book", "Books a table.", nothing(), |ctx: ToolContext<Till>, _: Value| async move {
            let question = Question::new("Inside or outside?");
            match ctx.reply(&question) {
                Some(place) => Ok(Text(format!("a table {}", place.as_str().unwrap_or_default()))),
                None => Err(ToolError::ask(question)),
            }
        });
    let dawdle = Tool::dynamic(
        "dawdle",
        "Takes its time.",
        nothing(),
        |ctx: ToolContext<Till>, _: Value| async move {
            let _counted = Stopped(ctx.app().clone());
            std::future::pending::<Result<Text, String>>().await
        },
    );
    let snapshot = Tool::dynamic(
        "snapshot",
        "Keeps a picture.",
        nothing(),
        |ctx: ToolContext<Till>, _: Value| async move {
            Ok::<_, ToolError>(Image(ctx.keep_media("image/png", "iVBORw0KGgo=").await?))
        },
    );
    let recite = Tool::dynamic("recite", "Says a lot.", nothing(), |_, _: Value| async {
        Ok::<_, String>("word ".repeat(20_000))
    });
    vec![picture, book, dawdle, snapshot, recite.output_budget(1000)]
        .into_iter()
        .map(Tool::non_strict)
        .collect()
}

fn server(till: &Arc<Till>) -> McpServer<Till> {
    // A client of the earlier life has it asked twice: without an answer, and with one.
    let once = |_| [Reply::call("inner", "pay", json!({ "cents": 500 })), Reply::text("it is paid")];
    let cashier = Agent::new("cashier").tools((pay,)).model(ScriptedModel::new((0..2).flat_map(once)));
    McpServer::with_context("shop", till.clone())
        .instructions("A shop.")
        .tools((echo, pay))
        .tools(tools())
        .agent(&cashier, "ask_cashier", "Asks the cashier.")
}

async fn over_http(till: &Arc<Till>, era: Era) -> (Servers, tokio::task::JoinHandle<()>) {
    over_http_with(till, era, |server| server).await
}

async fn over_http_with(
    till: &Arc<Till>,
    era: Era,
    with: impl Fn(ServerConfig) -> ServerConfig,
) -> (Servers, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = server(till).serve_http(listener, std::future::pending());
    let task = tokio::spawn(async move { serving.await.expect("it serves") });
    let config = with(ServerConfig::http("shop", format!("http://{address}/mcp")).era(era).trusted());
    (Servers::connect(Config::new().server(config)).await, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_over_http() {
    for era in [Era::Legacy, Era::Modern] {
        tools_in(era).await;
    }
}

async fn tools_in(era: Era) {
    let till = Arc::new(Till::default());
    let (servers, _serving) = over_http(&till, era).await;
    let report = servers.report().await;
    assert_eq!(report.servers[0].state, ServerState::Ready { era: Some(era), tools: 8 }, "{report:?}");
    let hints: Vec<Option<bool>> = servers.list().await.iter().map(|tool| tool.hints.read_only).collect();
    // ask_cashier only carries out calls that have effects of their own.
    assert_eq!(
        hints.iter().filter(|hint| **hint == Some(true)).count(),
        2,
        "ask_cashier and echo: {hints:?}"
    );
    let model = ScriptedModel::new([
        Reply::call("c1", "echo", json!({ "text": "hello" }))
            .and_call("c2", "pay", json!({ "cents": 5 }))
            .and_call("c3", "picture", json!({})),
        Reply::text("done"),
    ]);
    let agent = Agent::new("desk").model(model).tool_source(servers.tools().approve(Approve::Never));
    let mut stream = agent.run("go").stream();
    let mut told = Vec::new();
    while let Some(event) = stream.next().await {
        if let EventKind::Progress { progress, .. } = event.kind {
            told.push(progress["message"].clone());
        }
    }
    let outcome = stream.outcome().await.expect("the run ends well");
    let said = outputs(&outcome);
    assert_eq!((said["c1"].as_str(), said["c2"].as_str()), ("hello", "paid 5"));
    assert_eq!(told, ["paying"]);
    let items = outcome.record().items();
    let written = items.iter().map(|item| serde_json::to_string(&item.item).expect("items are written"));
    assert!(written.into_iter().any(|text| text.contains("data:image/png;base64,iVBORw0KGgo=")));
}

/// The same question reaches the person through two runs: the server's pauses, and the client's does.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_over_there_waits_here() {
    for era in [Era::Legacy, Era::Modern] {
        waits_in(era).await;
    }
}

async fn waits_in(era: Era) {
    let till = Arc::new(Till::default());
    let (servers, _serving) = over_http(&till, era).await;
    for (tool, arguments, answer, result, paid) in [
        ("pay", json!({ "cents": 500 }), json!({ "decision": "approve" }), "paid 500", 1),
        (
            "pay",
            json!({ "cents": 501 }),
            json!({ "decision": "reject", "reason": "too dear" }),
            "too dear",
            1,
        ),
        ("ask_cashier", json!({ "input": "pay" }), json!({ "decision": "approve" }), "it is paid", 2),
        ("book", json!({}), json!({ "answer": "outside" }), "a table outside", 2),
    ] {
        let model = ScriptedModel::new([Reply::call("c1", tool, arguments), Reply::text("done")]);
        let agent = Agent::new("desk").model(model).tool_source(servers.tools().approve(Approve::Never));
        let Outcome::Paused(mut paused) = agent.run("go").await.expect("it pauses") else {
            panic!("{tool} should wait")
        };
        assert!(matches!(paused.pending()[0].reason, HoldReason::Question(_)));
        paused.answer("c1", answer).expect("it fits");
        let outcome = agent.resume(paused).await.expect("the run ends well");
        assert!(outputs(&outcome)["c1"].contains(result), "{tool}: {:?}", outputs(&outcome));
        assert_eq!(till.paid.load(Ordering::SeqCst), paid, "{tool}");
    }
}

/// A server at an address is lost with all that it knew of us, and one that knows nothing of us takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restarted_is_reached_again() {
    for era in [Era::Legacy, Era::Modern] {
        let till = Arc::new(Till::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(server(&till).serve_http(listener, async {
            let _told = stopped.await;
        }));
        let config = ServerConfig::http("shop", format!("http://{address}/mcp")).era(era).trusted();
        let servers = Servers::connect(Config::new().server(config)).await;
        let calls = ["one", "two"].map(|text| Reply::call(text, "echo", json!({ "text": text })));
        let model = ScriptedModel::new(calls.into_iter().flat_map(|call| [call, Reply::text("done")]));
        let agent = Agent::new("desk").model(model).tool_source(servers.tools().approve(Approve::Never));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert_eq!(outputs(&outcome)["one"], "one");
        stop.send(()).expect("it serves");
        serving.await.expect("the task ends").expect("it was told to stop");
        let listener = tokio::net::TcpListener::bind(address).await.expect("the port is free");
        let _serving = tokio::spawn(server(&till).serve_http(listener, std::future::pending()));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert_eq!(outputs(&outcome)["two"], "two", "{era:?}");
    }
}

/// A deadline here is a cancel there: a notification in the earlier life, the end of a stream in the later one.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_stops_the_run_of_the_server() {
    for era in [Era::Legacy, Era::Modern] {
        let till = Arc::new(Till::default());
        let soon = |server: ServerConfig| server.call_timeout(Duration::from_millis(300));
        let (servers, _serving) = over_http_with(&till, era, soon).await;
        let model = ScriptedModel::new([Reply::call("c1", "dawdle", json!({})), Reply::text("done")]);
        let agent = Agent::new("desk").model(model).tool_source(servers.tools().approve(Approve::Never));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert!(outputs(&outcome)["c1"].contains("timed out"), "{:?}", outputs(&outcome));
        common::until(|| till.stopped.load(Ordering::SeqCst) == 1).await;
    }
}

/// Pictures that the server's journal only names, and outputs that were too long to be told.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_keeps_is_served() {
    let till = Arc::new(Till::default());
    let store = Arc::new(MemoryStore::default());
    let (ours, theirs) = tokio::io::duplex(256 * 1024);
    tokio::spawn(server(&till).store(store).serve(tokio::io::split(theirs)));
    let mut client = ByHand::in_era(ours, Era::Legacy).await;
    let kept = client.ask("tools/call", json!({ "name": "snapshot", "arguments": {} })).await;
    let block = &kept["result"]["content"][0];
    assert_eq!((&block["type"], &block["data"]), (&json!("image"), &json!("iVBORw0KGgo=")), "{kept}");
    let long = client.ask("tools/call", json!({ "name": "recite", "arguments": {} })).await;
    let content = long["result"]["content"].as_array().expect("content");
    assert!(content[0]["text"].as_str().expect("words").contains("[cut: "), "{long}");
    assert_eq!(content[1]["type"], "resource_link", "{long}");
    let whole = client.ask("resources/read", json!({ "uri": content[1]["uri"] })).await;
    let text = whole["result"]["contents"][0]["text"].as_str().expect("a text");
    assert_eq!(text.len(), 100_000);
    let nothing = client.ask("resources/read", json!({ "uri": "windlass://artefact/nobody/call" })).await;
    assert_eq!(nothing["error"]["code"], -32002, "{nothing}");
}

/// Whoever has subscribed to a resource is told that it has changed, and nobody else is.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_reads_is_told_of_changes() {
    for era in [Era::Legacy, Era::Modern] {
        let till = Arc::new(Till::default());
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let shop = server(&till).resource(Resource::text("shop://prices", "prices", "1"));
        let changes = shop.changes();
        tokio::spawn(shop.serve(tokio::io::split(theirs)));
        let mut client = ByHand::in_era(ours, era).await;
        let unknown = json!({ "uri": "shop://nothing" });
        match era {
            Era::Legacy => {
                assert!(client.ask("resources/subscribe", unknown).await["error"].is_object());
                client.ask("resources/subscribe", json!({ "uri": "shop://prices" })).await;
            }
            Era::Modern => {
                let wanted = json!({ "notifications": { "resourceSubscriptions": ["shop://prices"] } });
                client.tell("subscriptions/listen", wanted).await;
                client.until("notifications/subscriptions/acknowledged").await;
            }
        }
        // It is acknowledged a moment before it is kept.
        common::until(|| format!("{changes:?}").contains("subscriptions: 1")).await;
        changes.resource("shop://other").await;
        changes.resource("shop://prices").await;
        let told = client.until("notifications/resources/updated").await;
        assert_eq!(told["params"]["uri"], "shop://prices", "{era:?}: {told}");
        if era == Era::Legacy {
            client.ask("resources/unsubscribe", json!({ "uri": "shop://prices" })).await;
        }
        drop(client);
        common::until(|| format!("{changes:?}").contains("subscriptions: 0")).await;
    }
}

/// A client that asks nobody.
struct ByHand {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    write: WriteHalf<DuplexStream>,
    era: Era,
    next: u64,
}

impl ByHand {
    async fn in_era(pipe: DuplexStream, era: Era) -> Self {
        let (read, write) = tokio::io::split(pipe);
        let mut client = Self { lines: BufReader::new(read).lines(), write, era, next: 1 };
        if era == Era::Modern {
            client.ask("server/discover", json!({})).await;
            return client;
        }
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
                            "clientInfo": { "name": "by hand", "version": "1" } });
        client.ask("initialize", hello).await;
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        client
    }

    async fn send(&mut self, message: &Value) {
        self.write.write_all(format!("{message}\n").as_bytes()).await.expect("it is sent");
    }

    /// Makes a request, and gives its number.
    async fn tell(&mut self, method: &str, mut params: Value) -> u64 {
        if self.era == Era::Modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": { "name": "by hand", "version": "1" },
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params })).await;
        self.next
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.tell(method, params).await;
        self.come(|message| message["id"] == id).await
    }

    async fn until(&mut self, method: &str) -> Value {
        self.come(|message| message["method"] == method).await
    }

    async fn come(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.next_line().await.expect("a line").expect("it goes on");
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if is_it(&message) {
                return message;
            }
        }
    }
}

/// A client of the earlier life, by hand: it is asked while its call is open.
#[tokio::test]
async fn an_earlier_client_is_asked_while_its_call_is_open() {
    let till = Arc::new(Till::default());
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (read, write) = tokio::io::split(theirs);
    let serving = tokio::spawn(server(&till).serve((read, write)));
    let (read, mut write) = tokio::io::split(ours);
    let mut lines = BufReader::new(read).lines();
    let mut send = async |message: Value| {
        write.write_all(format!("{message}\n").as_bytes()).await.expect("it is sent");
    };
    send(json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "by hand", "version": "1" } } }))
    .await;
    let hello: Value =
        serde_json::from_str(&lines.next_line().await.expect("a line").expect("a line")).expect("JSON");
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(hello["result"]["instructions"], "A shop.");
    send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    for (id, decision, paid) in [(2, "reject", 0), (3, "approve", 1)] {
        send(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call",
                     "params": { "name": "pay", "arguments": { "cents": 999 } } }))
        .await;
        loop {
            let line = lines.next_line().await.expect("a line").expect("it goes on");
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if message["method"] == "elicitation/create" {
                let asked = message["params"]["message"].as_str().expect("words");
                assert!(asked.contains("`pay`") && asked.contains("999"), "{asked}");
                send(json!({ "jsonrpc": "2.0", "id": message["id"],
                             "result": { "action": "accept", "content": { "decision": decision } } }))
                .await;
            } else if message["id"] == id {
                assert_eq!(message["result"]["isError"] == true, decision == "reject", "{message}");
                break;
            }
        }
        assert_eq!(till.paid.load(Ordering::SeqCst), paid);
    }
    drop((lines, write));
    serving.await.expect("the task ends").expect("the client is gone, which is no error");
}
