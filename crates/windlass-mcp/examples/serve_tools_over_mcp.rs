//! Tools as an MCP server. With `serve` it speaks on standard input and output; without, it tries itself out.

use windlass::prelude::*;
use windlass_mcp::{Approve, Config, McpServer, ServerConfig, ServerState, Servers};

/// What is in stock.
#[tool(effect = pure)]
async fn stock(item: String) -> String {
    format!("3 {item}")
}

/// Orders more.
#[tool]
async fn order(item: String, count: u32) -> String {
    format!("ordered {count} {item}")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The same program is the server: an agent and its tools need not live together.
    if std::env::args().nth(1).as_deref() == Some("serve") {
        McpServer::new("shop").tools((stock, order)).serve_stdio().await?;
        return Ok(());
    }
    let program = std::env::current_exe()?.display().to_string();
    let server = ServerConfig::stdio("shop", program).args(["serve"]);
    let servers = Servers::connect(Config::new().server(server)).await;
    let report = servers.report().await;
    assert!(matches!(report.servers[0].state, ServerState::Ready { tools: 2, .. }), "{report:?}");

    // What does not fit is told to whoever called, by path, and nothing has run.
    let model = ScriptedModel::new([
        Reply::call("c1", "order", json!({ "item": "lamps", "count": "many" })),
        Reply::call("c2", "order", json!({ "item": "lamps", "count": 2 })),
        Reply::text("Two lamps are on their way."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tool_source(servers.tools().approve(Approve::Never));
    agent.run("Order lamps.").await?;
    let told = model.requests()[2].input_text();
    assert!(told.iter().any(|line| line.contains("`count` must be an integer")), "{told:?}");
    assert!(told.iter().any(|line| line == "output c2 ordered 2 lamps"), "{told:?}");
    servers.close().await;
    Ok(())
}
