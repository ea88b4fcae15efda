//! Approval of MCP calls by the user's policy; a server's hints do not lift it. Decisions are keyed by server
//! and tool.

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

    // Only large orders require approval.
    let large = McpApprovalPolicy::when(|_, tool, arguments: serde_json::Value| async move {
        &*tool.name == "order" && arguments["count"].as_u64() > Some(100)
    });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "order", json!({ "item": "lamps", "count": 10 })).and_call(
            "c2",
            "order",
            json!({ "item": "lamps", "count": 1000 }),
        ),
        ScriptedResponse::text("Both are ordered."),
    ]);
    let agent = Agent::new("clerk").model(model).tool_source(servers.tools().approve(large));
    let mut paused = agent.run("Order lamps.").await?.into_paused().ok_or("the large order should wait")?;
    assert_eq!(paused.pending_calls()[0].tool.to_string(), "mcp:shop/order");
    paused.approve("c2")?;
    assert_eq!(agent.resume(paused).await?.output_text()?, "Both are ordered.");
    servers.close().await;
    Ok(())
}
