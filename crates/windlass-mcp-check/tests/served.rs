//! Tools and agents, served by us and used by us: over HTTP, and over a pipe in the earlier life of the protocol.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::outputs;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use windlass::core::{HoldReason, Question};
use windlass::prelude::*;
use windlass::tool::{Image, Text};
use windlass_mcp::{Approve, Config, Era, McpServer, ServerConfig, ServerState, Servers};

#[derive(Default)]
struct Till {
    paid: AtomicUsize,
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

fn tools() -> Vec<Tool<Till>> {
    let schema = json!({ "type": "object", "properties": {} });
    let picture = Tool::dynamic("picture", "Shows a dot.", schema.clone(), |_, _: Value| async {
        Ok::<_, String>(vec![Image::at("data:image/png;base64,iVBORw0KGgo=")])
    });
    let book =
        Tool::dynamic("book", "Books a table.", schema, |ctx: ToolContext<Till>, _: Value| async move {
            let question = Question::new("Inside or outside?");
            match ctx.reply(&question) {
                Some(place) => Ok(Text(format!("a table {}", place.as_str().unwrap_or_default()))),
                None => Err(ToolError::ask(question)),
            }
        });
    vec![picture.non_strict(), book.non_strict()]
}

fn server(till: &Arc<Till>) -> McpServer<Till> {
    let cashier = Agent::new("cashier").tools((pay,)).model(ScriptedModel::new([
        Reply::call("inner", "pay", json!({ "cents": 500 })),
        Reply::text("it is paid"),
    ]));
    McpServer::with_context("shop", till.clone())
        .instructions("A shop.")
        .tools((echo, pay))
        .tools(tools())
        .agent(&cashier, "ask_cashier", "Asks the cashier.")
}

async fn over_http(till: &Arc<Till>) -> (Servers, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = server(till).serve_http(listener, std::future::pending());
    let task = tokio::spawn(async move { serving.await.expect("it serves") });
    let config = ServerConfig::http("shop", format!("http://{address}/mcp")).trusted();
    (Servers::connect(Config::new().server(config)).await, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_over_http() {
    let till = Arc::new(Till::default());
    let (servers, _serving) = over_http(&till).await;
    let report = servers.report().await;
    assert_eq!(
        report.servers[0].state,
        ServerState::Ready { era: Some(Era::Modern), tools: 5 },
        "{report:?}"
    );
    let hints: Vec<Option<bool>> = servers.list().await.iter().map(|tool| tool.hints.read_only).collect();
    // ask_cashier only carries out calls that have effects of their own.
    assert_eq!(hints, [Some(true), Some(false), Some(true), Some(false), Some(false)]);
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
    let till = Arc::new(Till::default());
    let (servers, _serving) = over_http(&till).await;
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
