//! An agent as a tool of an MCP server. What waits for a person inside it reaches the person through the client.

use windlass::prelude::*;
use windlass_mcp::{Approve, Config, McpServer, ServerConfig, Servers};

/// Orders more.
#[tool(approve = always)]
async fn order(item: String) -> String {
    format!("ordered {item}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let buyer = Agent::new("buyer").tools((order,)).model(ScriptedModel::new([
        Reply::call("inner", "order", json!({ "item": "lamps" })),
        Reply::text("Lamps are ordered."),
    ]));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = McpServer::new("office").agent(&buyer, "ask_buyer", "Asks the buyer for something.");
    tokio::spawn(server.serve_http(listener, std::future::pending()));

    let office = ServerConfig::http("office", format!("http://{address}/mcp"));
    let servers = Servers::connect(Config::new().server(office)).await;
    let model = ScriptedModel::new([
        Reply::call("c1", "ask_buyer", json!({ "input": "We need lamps." })),
        Reply::text("The buyer has seen to it."),
    ]);
    let clerk = Agent::new("clerk").model(model).tool_source(servers.tools().approve(Approve::Never));

    // Two runs wait: the buyer's over there for a decision, and the clerk's here for the answer.
    let mut paused = clerk.run("Get lamps.").await?.paused().ok_or("the buyer should ask")?;
    paused.answer("c1", json!({ "decision": "approve" }))?;
    assert_eq!(clerk.resume(paused).await?.text(), "The buyer has seen to it.");
    servers.close().await;
    Ok(())
}
