//! An agent as a tool of an MCP server. Calls inside it that need approval elicit the decision through the client.

use windlass::prelude::*;
use windlass_mcp::{McpApprovalPolicy, McpConfig, McpConnections, McpServer, McpServerConfig};

/// Orders more.
#[tool(needs_approval = always)]
async fn order(item: String) -> String {
    format!("ordered {item}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let buyer = Agent::new("buyer").tool(order).model(ScriptedModel::new([
        ScriptedResponse::call("inner", "order", json!({ "item": "lamps" })),
        ScriptedResponse::text("Lamps are ordered."),
    ]));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = McpServer::new("office").agent(&buyer, "ask_buyer", "Asks the buyer for something.");
    tokio::spawn(server.serve_http(listener, std::future::pending()));

    let office = McpServerConfig::http("office", format!("http://{address}/mcp"));
    let servers = McpConnections::connect(McpConfig::new().server(office)).await;
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "ask_buyer", json!({ "input": "We need lamps." })),
        ScriptedResponse::text("The buyer has seen to it."),
    ]);
    let clerk =
        Agent::new("clerk").model(model).tool_source(servers.tools().approve(McpApprovalPolicy::Never));

    // Two runs are paused: the buyer's at the server waits for a decision, the clerk's here for the answer.
    let mut paused = clerk.run("Get lamps.").await?.into_paused().ok_or("the buyer should ask")?;
    paused.answer_question("c1", json!({ "decision": "approve" }))?;
    assert_eq!(clerk.resume(paused).await?.output_text()?, "The buyer has seen to it.");
    servers.close().await;
    Ok(())
}
