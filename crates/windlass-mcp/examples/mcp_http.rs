//! An agent with the tools of an MCP server at an address.

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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let shop = McpServer::new("shop").tools((stock, order));
    tokio::spawn(shop.serve_http(listener, std::future::pending()));

    let server = ServerConfig::http("shop", format!("http://{address}/mcp")).header("x-till", "7");
    let servers = Servers::connect(Config::new().server(server)).await;
    let model = ScriptedModel::new([
        Reply::call("c1", "stock", json!({ "item": "lamps" })),
        Reply::text("There are 3 lamps."),
    ]);
    let tools = servers.tools().approve(Approve::Never);
    let agent = Agent::new("clerk").model(model).tool_source(tools);
    assert_eq!(agent.run("How many lamps?").await?.text(), "There are 3 lamps.");
    servers.close().await;
    Ok(())
}
