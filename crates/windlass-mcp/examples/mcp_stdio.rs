//! An agent with the tools of an MCP server that runs as a child process.

mod shop;

use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServerConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The example starts itself a second time as the MCP server.
    if shop::is_server_process() {
        return Ok(shop::shop_server().serve_stdio().await?);
    }
    let server = McpServerConfig::stdio("shop", shop::current_program()?).args(["serve"]);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;

    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "stock", json!({ "item": "lamps" })),
        ScriptedResponse::text("There are 3 lamps."),
    ]);
    // `stock` only reads; every other tool requires approval.
    let tools = servers.tools().approve(McpApprovalPolicy::always_except(["stock"]));
    let agent = Agent::new("clerk").model(model).tool_source(tools);
    assert_eq!(agent.run("How many lamps?").await?.output_text()?, "There are 3 lamps.");
    servers.close().await;
    Ok(())
}
