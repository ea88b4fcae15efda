//! An agent with the tools of an MCP server that it starts itself.

use windlass::prelude::*;
use windlass_mcp::{Approve, Config, McpServer, ServerConfig, Servers};

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

    let model = ScriptedModel::new([
        Reply::call("c1", "stock", json!({ "item": "lamps" })),
        Reply::text("There are 3 lamps."),
    ]);
    // Looking is harmless; whatever else the server has needs a person.
    let tools = servers.tools().approve(Approve::all_but(["stock"]));
    let agent = Agent::new("clerk").model(model).tool_source(tools);
    assert_eq!(agent.run("How many lamps?").await?.text(), "There are 3 lamps.");
    servers.close().await;
    Ok(())
}
