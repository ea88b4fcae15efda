//! Servers from a `.mcp.json` file. A server that needs an unset variable is disabled; the others are connected.

mod shop;

use windlass::prelude::*;
use windlass_mcp::{McpConfig, McpConnections};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The example starts itself a second time as the MCP server.
    if shop::is_server_process() {
        return Ok(shop::shop_server().serve_stdio().await?);
    }
    let file = json!({ "mcpServers": {
        "shop": { "command": shop::current_program()?, "args": ["serve", "${LEVEL:-quiet}"] },
        "bank": { "url": "https://bank.example/mcp", "headers": { "authorization": "Bearer ${BANK_TOKEN_NOT_SET}" } },
    } });
    let folder = std::env::temp_dir().join(format!("windlass-mcp-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(".mcp.json"), file.to_string())?;

    let servers = McpConnections::connect(McpConfig::read(folder.join(".mcp.json"))?).await;
    let missing = servers.report().await.unavailable_servers();
    assert_eq!(missing, ["MCP server `bank` is disabled: the variable `BANK_TOKEN_NOT_SET` is not set"]);

    let model = ScriptedModel::new([ScriptedResponse::text("Good morning.")]);
    let agent = Agent::new("clerk").model(model.clone()).tool_source(servers.tools());
    agent.run("Hello").await?;
    assert_eq!(model.requests()[0].tools, ["order", "stock"]);
    servers.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
