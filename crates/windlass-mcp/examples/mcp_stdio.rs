//! An agent with the tools of an MCP server that it starts itself.

mod shop;

use windlass::prelude::*;
use windlass_mcp::{Approve, Config, ServerConfig, Servers};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The same program is the server: an agent and its tools need not live together.
    if shop::is_wanted() {
        return Ok(shop::server().serve_stdio().await?);
    }
    let server = ServerConfig::stdio("shop", shop::program()?).args(["serve"]);
    let servers = Servers::connect(Config::new().server(server)).await;

    let model = ScriptedModel::new([
        Reply::call("c1", "stock", json!({ "item": "lamps" })),
        Reply::text("There are 3 lamps."),
    ]);
    // Looking is harmless; whatever else the server has needs a person.
    let tools = servers.tools().approve(Approve::all_but(["stock"]));
    let agent = Agent::new("clerk").model(model).tool_source(tools);
    assert_eq!(agent.run("How many lamps?").await?.text(), "There are 3 lamps.");
    servers.close().await;
    Ok(())
}
