//! An agent with the tools of an MCP server over streamable HTTP.

mod shop;

use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(shop::shop_server().serve_http(listener, std::future::pending()));

    let server = McpServerConfig::http("shop", format!("http://{address}/mcp")).header("x-till", "7");
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "stock", json!({ "item": "lamps" })),
        ScriptedResponse::text("There are 3 lamps."),
    ]);
    let tools = servers.tools().approve(McpApprovalPolicy::Never);
    let agent = Agent::new("clerk").model(model).tool_source(tools);
    assert_eq!(agent.run("How many lamps?").await?.output_text()?, "There are 3 lamps.");
    servers.close().await;
    Ok(())
}
