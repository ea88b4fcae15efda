//! A call that takes long becomes a task. The run that made it may pause, be killed or be moved, and goes on with the
//! same task; here one process gives the run up, and another takes it over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass::{MemoryStore, Store};
use windlass_mcp::{Approve, Config, McpServer, ServerConfig, Servers, Tasks};

static BAKED: AtomicUsize = AtomicUsize::new(0);

/// Bakes a loaf, which takes a while.
#[tool]
async fn bake() -> String {
    BAKED.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    "a loaf".to_owned()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = McpServer::new("bakery").tools((bake,)).tasks(Tasks::Always);
    tokio::spawn(server.serve_http(listener, std::future::pending()));

    let bakery = ServerConfig::http("bakery", format!("http://{address}/mcp"));
    let servers = Servers::connect(Config::new().server(bakery)).await;
    let model = ScriptedModel::new([Reply::call("c1", "bake", json!({})), Reply::text("It is baked.")]);
    let agent = Agent::new("cook").model(model).tool_source(servers.tools().approve(Approve::Never));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());

    let run = agent.run("Bake.").store(store.clone()).run_id("dinner").drain(Duration::from_millis(50));
    let handle = run.cancel_handle();
    let first = tokio::spawn(run.into_future());
    // The task is kept with the run before it is first asked about.
    while store.artefact(&"dinner".into(), "mcp-task c1").await?.is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    handle.hand_over();
    first.await??;

    let outcome = agent.recover("dinner", store).await?;
    assert_eq!(outcome.text(), "It is baked.");
    assert_eq!(BAKED.load(Ordering::SeqCst), 1, "nobody called twice");
    servers.close().await;
    Ok(())
}
