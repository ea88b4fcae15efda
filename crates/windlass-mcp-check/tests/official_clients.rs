//! The official Python and TypeScript clients call our server over HTTP: tools, approvals by elicitation, structured
//! content, progress, resources and prompts. A client that is not installed is reported.
//!
//! `WINDLASS_MCP_SERVERS` names the folder in which `.ci/run` installs them, with the real servers.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::net::TcpListener;
use windlass::prelude::*;
use windlass_mcp::{McpPrompt, McpPromptArgument, McpPromptMessage, McpResource, McpServer};

#[derive(Default)]
struct TillPayments {
    count: AtomicUsize,
}

/// Says it again.
#[tool(effect = pure)]
async fn echo(text: String) -> String {
    text
}

/// Pays.
#[tool(needs_approval = |args| args.cents > 100)]
async fn pay(ctx: &ToolContext<TillPayments>, cents: u32) -> String {
    ctx.report_progress(json!({ "progress": 1, "message": "paying" }));
    ctx.count.fetch_add(1, Ordering::SeqCst);
    format!("paid {cents}")
}

/// Fails.
#[tool]
async fn fails() -> Result<String, String> {
    Err("the drawer is stuck".to_owned())
}

/// Serves a shop until the test ends and returns the URL.
async fn serve_shop(payments: &Arc<TillPayments>) -> String {
    let model = ScriptedModel::new([
        ScriptedResponse::call("inner", "pay", json!({ "cents": 700 })),
        ScriptedResponse::text("it is settled"),
    ]);
    let cashier: Agent<TillPayments> = Agent::new("cashier").tool(pay).model(model);
    let schema = json!({ "type": "object", "properties": { "degrees": { "type": "number" } }, "required": ["degrees"] });
    let empty = json!({ "type": "object", "properties": {} });
    let measure = Tool::dynamic("measure", "Measures.", empty, |_, _: Value| async {
        Ok::<_, String>(json!({ "degrees": 21 }))
    });
    let greet = McpPrompt::new("greet", "Greets.", |arguments| async move {
        Ok(vec![McpPromptMessage::User(format!("Greet {}.", arguments["name"]))])
    });
    let server: McpServer<TillPayments> = McpServer::with_context("till", payments.clone())
        .tools((echo, pay, fails))
        .tool(measure.output_schema(schema))
        .agent(&cashier, "ask_cashier", "Asks the cashier.")
        .resource(McpResource::text("till://prices", "prices", "bread 3").description("The prices."))
        .prompt(greet.argument(McpPromptArgument::required("name", "Whom.")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(server.serve_http(listener, std::future::pending()));
    format!("http://{address}/mcp")
}

fn installed_folder() -> Option<PathBuf> {
    std::env::var_os("WINDLASS_MCP_SERVERS").map(PathBuf::from)
}

/// Runs a client of ours around an official one; `None` with a note if the program is not installed.
async fn run_client(program: &str, script: &str, words: &[&str]) -> Option<Value> {
    let program = installed_folder().map(|folder| folder.join(program)).filter(|path| path.exists());
    let Some(program) = program else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: {script}, because WINDLASS_MCP_SERVERS does not say where the official clients are"
        );
        return None;
    };
    let script = format!("{}/tests/clients/{script}", env!("CARGO_MANIFEST_DIR"));
    let output = tokio::process::Command::new(program).arg(script).args(words).kill_on_drop(true).output();
    let output = output.await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_str(&said).expect("JSON"))
}

fn check_seen(seen: &Value, payments: &TillPayments) {
    assert_eq!(seen["tools"], json!(["ask_cashier", "echo", "fails", "measure", "pay"]), "{seen}");
    assert_eq!(seen["read_only"], json!(["echo"]), "an agent that pays is not read-only: {seen}");
    assert_eq!(seen["echo"]["text"], json!(["grüezi"]));
    assert_eq!(seen["measure"]["structured"], json!({ "degrees": 21 }), "{seen}");
    assert_eq!(seen["pay"]["text"], json!(["paid 500"]), "{seen}");
    assert_eq!(seen["fails"]["error"], true, "{seen}");
    assert!(seen["fails"]["text"].to_string().contains("the drawer is stuck"), "{seen}");
    assert_eq!(seen["agent"]["text"], json!(["it is settled"]), "{seen}");
    assert_eq!((&seen["resource"], &seen["prompt"]), (&json!("bread 3"), &json!("Greet Ann.")), "{seen}");
    assert!(seen["progress"].to_string().contains("paying"), "{seen}");
    assert_eq!(payments.count.load(Ordering::SeqCst), 2, "each payment is made once");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_python_client_uses_our_server_in_both_eras() {
    for mode in ["auto", "legacy"] {
        let payments = Arc::new(TillPayments::default());
        let url = serve_shop(&payments).await;
        let words = [url.as_str(), "approve", mode];
        let Some(seen) = run_client("python/bin/python", "client.py", &words).await else { return };
        check_seen(&seen, &payments);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_typescript_client_uses_our_server() {
    let payments = Arc::new(TillPayments::default());
    let url = serve_shop(&payments).await;
    let folder = installed_folder().unwrap_or_default().display().to_string();
    let words = [url.as_str(), "approve", &folder];
    let Some(seen) = run_client("node_modules/.bin/node", "client.mjs", &words).await else { return };
    check_seen(&seen, &payments);
}
