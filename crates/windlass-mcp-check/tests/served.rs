//! Tools and agents served by `McpServer`: over HTTP in both protocol eras, and over a pipe with raw JSON-RPC
//! clients.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::call_outputs;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use windlass::core::decision::{HoldReason, PersonQuestion};
use windlass::prelude::*;
use windlass::store::MemoryStore;
use windlass::tool::{ImagePart, TextPart};
use windlass_mcp::{
    McpApprovalPolicy, McpConfig, McpConnections, McpResource, McpServer, McpServerConfig, McpServerState,
    ProtocolEra,
};

#[derive(Default)]
struct ShopCounters {
    payments: AtomicUsize,
    dropped_bodies: AtomicUsize,
}

/// Says it again.
#[tool(effect = pure)]
async fn echo(text: String) -> String {
    text
}

/// Pays.
#[tool(needs_approval = |args| args.cents > 100)]
async fn pay(ctx: &ToolContext<ShopCounters>, cents: u32) -> String {
    ctx.report_progress(json!({ "progress": 1, "message": "paying" }));
    ctx.payments.fetch_add(1, Ordering::SeqCst);
    format!("paid {cents}")
}

/// A guard that counts dropped tool bodies.
struct DroppedBodyCounter(Arc<ShopCounters>);

impl Drop for DroppedBodyCounter {
    fn drop(&mut self) {
        self.0.dropped_bodies.fetch_add(1, Ordering::SeqCst);
    }
}

fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {} })
}

fn dynamic_tools() -> Vec<Tool<ShopCounters>> {
    let picture = Tool::dynamic("picture", "Shows a dot.", empty_schema(), |_, _: Value| async {
        Ok::<_, String>(vec![ImagePart::from_url("data:image/png;base64,iVBORw0KGgo=")])
    });
    let book = Tool::dynamic(
        "book",
        "Books a table.",
        empty_schema(),
        |ctx: ToolContext<ShopCounters>, _: Value| async move {
            let question = PersonQuestion::new("Inside or outside?");
            match ctx.answer_to(&question) {
                Some(place) => Ok(TextPart(format!("a table {}", place.as_str().unwrap_or_default()))),
                None => Err(ToolError::ask_person(question)),
            }
        },
    );
    let dawdle = Tool::dynamic(
        "dawdle",
        "Takes its time.",
        empty_schema(),
        |ctx: ToolContext<ShopCounters>, _: Value| async move {
            let _counted = DroppedBodyCounter(ctx.app().clone());
            std::future::pending::<Result<TextPart, String>>().await
        },
    );
    let snapshot = Tool::dynamic(
        "snapshot",
        "Keeps a picture.",
        empty_schema(),
        |ctx: ToolContext<ShopCounters>, _: Value| async move {
            Ok::<_, ToolError>(ImagePart(ctx.save_media("image/png", "iVBORw0KGgo=").await?))
        },
    );
    let recite = Tool::dynamic("recite", "Says a lot.", empty_schema(), |_, _: Value| async {
        Ok::<_, String>("word ".repeat(20_000))
    });
    vec![picture, book, dawdle, snapshot, recite.max_output_bytes(1000)]
        .into_iter()
        .map(Tool::non_strict)
        .collect()
}

fn shop_server(till: &Arc<ShopCounters>) -> McpServer<ShopCounters> {
    // A legacy client makes the call twice: without an answer, and with one.
    let once = |_| {
        [
            ScriptedResponse::call("inner", "pay", json!({ "cents": 500 })),
            ScriptedResponse::text("it is paid"),
        ]
    };
    let cashier = Agent::new("cashier").tool(pay).model(ScriptedModel::new((0..2).flat_map(once)));
    McpServer::with_context("shop", till.clone())
        .instructions("A shop.")
        .tools((echo, pay))
        .tools(dynamic_tools())
        .agent(&cashier, "ask_cashier", "Asks the cashier.")
}

async fn connect_over_http(
    till: &Arc<ShopCounters>,
    era: ProtocolEra,
) -> (McpConnections, tokio::task::JoinHandle<()>) {
    connect_over_http_with(till, era, |server| server).await
}

async fn connect_over_http_with(
    till: &Arc<ShopCounters>,
    era: ProtocolEra,
    with: impl Fn(McpServerConfig) -> McpServerConfig,
) -> (McpConnections, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = shop_server(till).serve_http(listener, std::future::pending());
    let task = tokio::spawn(async move { serving.await.expect("it serves") });
    let config = with(McpServerConfig::http("shop", format!("http://{address}/mcp")).era(era).trusted());
    (McpConnections::connect(McpConfig::new().server(config)).await, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_over_http() {
    for era in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        check_tools(era).await;
    }
}

async fn check_tools(era: ProtocolEra) {
    let till = Arc::new(ShopCounters::default());
    let (servers, _serving) = connect_over_http(&till, era).await;
    let report = servers.report().await;
    assert_eq!(report.servers[0].state, McpServerState::Ready { era: Some(era), tools: 8 }, "{report:?}");
    let hints: Vec<Option<bool>> =
        servers.list_tools().await.iter().map(|tool| tool.hints.read_only).collect();
    // The effect of `ask_cashier` is that of its tool `pay`.
    assert_eq!(hints.iter().filter(|hint| **hint == Some(true)).count(), 1, "only echo: {hints:?}");
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "echo", json!({ "text": "hello" }))
            .and_call("c2", "pay", json!({ "cents": 5 }))
            .and_call("c3", "picture", json!({})),
        ScriptedResponse::text("done"),
    ]);
    let agent =
        Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let mut stream = agent.run("go").stream();
    let mut told = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::CallProgress { progress, .. } = event.kind {
            told.push(progress["message"].clone());
        }
    }
    let outcome = stream.result().await.expect("the run ends well");
    let said = call_outputs(&outcome);
    assert_eq!((said["c1"].as_str(), said["c2"].as_str()), ("hello", "paid 5"));
    assert_eq!(told, ["paying"]);
    let items = outcome.record().run_items();
    let written = items.iter().map(|item| serde_json::to_string(&item.item).expect("items are written"));
    assert!(written.into_iter().any(|text| text.contains("data:image/png;base64,iVBORw0KGgo=")));
}

/// One question pauses two runs: the server's and the client's.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_over_there_waits_here() {
    for era in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        check_pauses(era).await;
    }
}

async fn check_pauses(era: ProtocolEra) {
    let till = Arc::new(ShopCounters::default());
    let (servers, _serving) = connect_over_http(&till, era).await;
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
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", tool, arguments),
            ScriptedResponse::text("done"),
        ]);
        let agent =
            Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
        let RunResult::Paused(mut paused) = agent.run("go").await.expect("it pauses") else {
            panic!("{tool} should wait")
        };
        assert!(matches!(paused.pending_calls()[0].reason, HoldReason::Question(_)));
        paused.answer_question("c1", answer).expect("it fits");
        let outcome = agent.resume(paused).await.expect("the run ends well");
        assert!(call_outputs(&outcome)["c1"].contains(result), "{tool}: {:?}", call_outputs(&outcome));
        assert_eq!(till.payments.load(Ordering::SeqCst), paid, "{tool}");
    }
}

/// An HTTP server is restarted without its sessions; the client reconnects.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restarted_is_reached_again() {
    for era in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        let till = Arc::new(ShopCounters::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(shop_server(&till).serve_http(listener, async {
            let _told = stopped.await;
        }));
        let config = McpServerConfig::http("shop", format!("http://{address}/mcp")).era(era).trusted();
        let servers = McpConnections::connect(McpConfig::new().server(config)).await;
        let calls = ["one", "two"].map(|text| ScriptedResponse::call(text, "echo", json!({ "text": text })));
        let model =
            ScriptedModel::new(calls.into_iter().flat_map(|call| [call, ScriptedResponse::text("done")]));
        let agent =
            Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert_eq!(call_outputs(&outcome)["one"], "one");
        stop.send(()).expect("it serves");
        serving.await.expect("the task ends").expect("it was told to stop");
        let listener = tokio::net::TcpListener::bind(address).await.expect("the port is free");
        let _serving = tokio::spawn(shop_server(&till).serve_http(listener, std::future::pending()));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert_eq!(call_outputs(&outcome)["two"], "two", "{era:?}");
    }
}

/// A deadline of the client cancels the server's run: by a notification in the legacy era, by closing the
/// stream in the modern one.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_stops_the_run_of_the_server() {
    for era in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        let till = Arc::new(ShopCounters::default());
        // Long enough that the body has begun before the deadline.
        let soon = |server: McpServerConfig| server.call_timeout(Duration::from_secs(4));
        let (servers, _serving) = connect_over_http_with(&till, era, soon).await;
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "dawdle", json!({})),
            ScriptedResponse::text("done"),
        ]);
        let agent =
            Agent::new("desk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
        let outcome = agent.run("go").await.expect("the run ends well");
        assert!(call_outputs(&outcome)["c1"].contains("timed out"), "{:?}", call_outputs(&outcome));
        common::wait_until(|| till.dropped_bodies.load(Ordering::SeqCst) == 1).await;
    }
}

/// The store serves images that the journal only references, and the full text of truncated outputs.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_store_keeps_is_served() {
    let till = Arc::new(ShopCounters::default());
    let store = Arc::new(MemoryStore::default());
    let (ours, theirs) = tokio::io::duplex(256 * 1024);
    tokio::spawn(shop_server(&till).store(store).serve(tokio::io::split(theirs)));
    let mut client = RawMcpClient::connect_in_era(ours, ProtocolEra::Legacy).await;
    let kept = client.request("tools/call", json!({ "name": "snapshot", "arguments": {} })).await;
    let block = &kept["result"]["content"][0];
    assert_eq!((&block["type"], &block["data"]), (&json!("image"), &json!("iVBORw0KGgo=")), "{kept}");
    let long = client.request("tools/call", json!({ "name": "recite", "arguments": {} })).await;
    let content = long["result"]["content"].as_array().expect("content");
    assert!(content[0]["text"].as_str().expect("words").contains("[cut: "), "{long}");
    assert_eq!(content[1]["type"], "resource_link", "{long}");
    let whole = client.request("resources/read", json!({ "uri": content[1]["uri"] })).await;
    let text = whole["result"]["contents"][0]["text"].as_str().expect("a text");
    assert_eq!(text.len(), 100_000);
    let nothing = client.request("resources/read", json!({ "uri": "windlass://artefact/nobody/call" })).await;
    assert_eq!(nothing["error"]["code"], -32002, "{nothing}");
}

/// Only clients that subscribed to a resource are notified of its updates.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_reads_is_told_of_changes() {
    for era in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        let till = Arc::new(ShopCounters::default());
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let shop = shop_server(&till).resource(McpResource::text("shop://prices", "prices", "1"));
        let changes = shop.resource_updates();
        tokio::spawn(shop.serve(tokio::io::split(theirs)));
        let mut client = RawMcpClient::connect_in_era(ours, era).await;
        let unknown = json!({ "uri": "shop://nothing" });
        match era {
            ProtocolEra::Legacy => {
                assert!(client.request("resources/subscribe", unknown).await["error"].is_object());
                client.request("resources/subscribe", json!({ "uri": "shop://prices" })).await;
            }
            ProtocolEra::Modern => {
                let wanted = json!({ "notifications": { "resourceSubscriptions": ["shop://prices"] } });
                client.send_request("subscriptions/listen", wanted).await;
                client.wait_for_method("notifications/subscriptions/acknowledged").await;
            }
            other => panic!("no subscription is known for {other:?}"),
        }
        // The subscription is acknowledged shortly before it is registered.
        common::wait_until(|| format!("{changes:?}").contains("subscriptions: 1")).await;
        changes.notify_updated("shop://other").await;
        changes.notify_updated("shop://prices").await;
        let told = client.wait_for_method("notifications/resources/updated").await;
        assert_eq!(told["params"]["uri"], "shop://prices", "{era:?}: {told}");
        if era == ProtocolEra::Legacy {
            client.request("resources/unsubscribe", json!({ "uri": "shop://prices" })).await;
        }
        drop(client);
        common::wait_until(|| format!("{changes:?}").contains("subscriptions: 0")).await;
    }
}

/// A raw JSON-RPC client without the elicitation capability.
struct RawMcpClient {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    era: ProtocolEra,
    next_id: u64,
}

impl RawMcpClient {
    async fn connect_in_era(pipe: DuplexStream, era: ProtocolEra) -> Self {
        let (read, write) = tokio::io::split(pipe);
        let mut client = Self { lines: BufReader::new(read).lines(), writer: write, era, next_id: 1 };
        if era == ProtocolEra::Modern {
            client.request("server/discover", json!({})).await;
            return client;
        }
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
                            "clientInfo": { "name": "by hand", "version": "1" } });
        client.request("initialize", hello).await;
        client.send_message(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        client
    }

    async fn send_message(&mut self, message: &Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.expect("it is sent");
    }

    /// Sends a request and returns its id.
    async fn send_request(&mut self, method: &str, mut params: Value) -> u64 {
        if self.era == ProtocolEra::Modern {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": { "name": "by hand", "version": "1" },
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        self.next_id += 1;
        self.send_message(
            &json!({ "jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params }),
        )
        .await;
        self.next_id
    }

    async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params).await;
        self.wait_for_message(|message| message["id"] == id).await
    }

    async fn wait_for_method(&mut self, method: &str) -> Value {
        self.wait_for_message(|message| message["method"] == method).await
    }

    async fn wait_for_message(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.next_line().await.expect("a line").expect("it goes on");
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if is_it(&message) {
                return message;
            }
        }
    }
}

/// A legacy client receives the elicitation while its call is open.
#[tokio::test]
async fn an_earlier_client_is_asked_while_its_call_is_open() {
    let till = Arc::new(ShopCounters::default());
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (read, write) = tokio::io::split(theirs);
    let serving = tokio::spawn(shop_server(&till).serve((read, write)));
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
        assert_eq!(till.payments.load(Ordering::SeqCst), paid);
    }
    drop((lines, write));
    serving.await.expect("the task ends").expect("the client is gone, which is no error");
}
