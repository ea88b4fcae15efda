//! Servers from a `.mcp.json`. One that needs a variable that is not set is left out, and the others are there.

use windlass::prelude::*;
use windlass_mcp::{Config, McpServer, Servers};

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
    let file = json!({ "mcpServers": {
        "shop": { "command": program, "args": ["serve", "${LEVEL:-quiet}"] },
        "bank": { "url": "https://bank.example/mcp", "headers": { "authorization": "Bearer ${BANK_TOKEN_NOT_SET}" } },
    } });
    let folder = std::env::temp_dir().join(format!("windlass-mcp-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(".mcp.json"), file.to_string())?;

    let servers = Servers::connect(Config::read(folder.join(".mcp.json"))?).await;
    let missing = servers.report().await.missing();
    assert_eq!(missing, ["MCP server `bank` is left out: the variable `BANK_TOKEN_NOT_SET` is not set"]);

    let model = ScriptedModel::new([Reply::text("Good morning.")]);
    let agent = Agent::new("clerk").model(model.clone()).tool_source(servers.tools());
    agent.run("Hello").await?;
    assert_eq!(model.requests()[0].tools, ["order", "stock"]);
    servers.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
