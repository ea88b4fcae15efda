//! An agent with the tools of an MCP server at an address.

mod shop;

use windlass::prelude::*;
use windlass_mcp::{Approve, Config, ServerConfig, Servers};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(shop::server().serve_http(listener, std::future::pending()));

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
