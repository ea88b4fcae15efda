//! A slow MCP call becomes a task. The run that made it may pause, be killed or be moved, and continues with
//! the same task; here one worker hands the run over and another recovers it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass::store::{MemoryStore, Store};
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServer, McpServerConfig, TaskPolicy};

static BAKE_CALLS: AtomicUsize = AtomicUsize::new(0);

/// Bakes a loaf, which takes a while.
#[tool]
async fn bake() -> String {
    BAKE_CALLS.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    "a loaf".to_owned()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = McpServer::new("bakery").tool(bake).task_policy(TaskPolicy::Always);
    tokio::spawn(server.serve_http(listener, std::future::pending()));

    let bakery = McpServerConfig::http("bakery", format!("http://{address}/mcp"));
    let servers = McpConnections::connect(McpConfig::new().server(bakery)).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "bake", json!({})),
        ScriptedResponse::text("It is baked."),
    ]);
    let agent =
        Agent::new("cook").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());

    let run =
        agent.run("Bake.").store(store.clone()).run_id("dinner").drain_timeout(Duration::from_millis(50));
    let handle = run.cancel_handle();
    let first = tokio::spawn(run);
    // The task id is saved with the run before the first poll.
    while store.load_artefact(&"dinner".into(), "mcp-task c1").await?.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    handle.detach();
    first.await??;

    let outcome = agent.recover("dinner", store).await?;
    assert_eq!(outcome.output_text()?, "It is baked.");
    assert_eq!(BAKE_CALLS.load(Ordering::SeqCst), 1, "nobody called twice");
    servers.close().await;
    Ok(())
}
