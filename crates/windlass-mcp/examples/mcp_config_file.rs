//! Servers from a `.mcp.json`. One that needs a variable that is not set is left out, and the others are there.

mod shop;

use windlass::prelude::*;
use windlass_mcp::{Config, Servers};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The same program is the server: an agent and its tools need not live together.
    if shop::is_wanted() {
        return Ok(shop::server().serve_stdio().await?);
    }
    let file = json!({ "mcpServers": {
        "shop": { "command": shop::program()?, "args": ["serve", "${LEVEL:-quiet}"] },
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
