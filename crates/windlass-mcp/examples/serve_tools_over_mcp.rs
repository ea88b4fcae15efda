//! Tools as an MCP server. With the argument `serve` it serves standard input and output; without, it
//! connects to itself.

use windlass::prelude::*;
use windlass_mcp::{
    McpApprovalPolicy, McpConfig, McpConnections, McpServer, McpServerConfig, McpServerState,
};

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
    // The example starts itself a second time as the MCP server.
    if std::env::args().nth(1).as_deref() == Some("serve") {
        McpServer::new("shop").tools((stock, order)).serve_stdio().await?;
        return Ok(());
    }
    let program = std::env::current_exe()?.display().to_string();
    let server = McpServerConfig::stdio("shop", program).args(["serve"]);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    let report = servers.report().await;
    assert!(matches!(report.servers[0].state, McpServerState::Ready { tools: 2, .. }), "{report:?}");

    // Invalid arguments are reported to the caller by path; the tool is not executed.
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "order", json!({ "item": "lamps", "count": "many" })),
        ScriptedResponse::call("c2", "order", json!({ "item": "lamps", "count": 2 })),
        ScriptedResponse::text("Two lamps are on their way."),
    ]);
    let agent = Agent::new("clerk")
        .model(model.clone())
        .tool_source(servers.tools().approve(McpApprovalPolicy::Never));
    agent.run("Order lamps.").await?;
    let told = model.requests()[2].input_text();
    assert!(told.iter().any(|line| line.contains("`count` must be an integer")), "{told:?}");
    assert!(told.iter().any(|line| line == "output c2 ordered 2 lamps"), "{told:?}");
    servers.close().await;
    Ok(())
}
