//! A server's word lifts no approval: the user's policy does. A decision belongs to the server and its tool.

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

    // A person decides about large orders. Nobody is asked about the rest.
    let large = Approve::when(|_, tool, arguments: serde_json::Value| async move {
        &*tool.name == "order" && arguments["count"].as_u64() > Some(100)
    });
    let model = ScriptedModel::new([
        Reply::call("c1", "order", json!({ "item": "lamps", "count": 10 })).and_call(
            "c2",
            "order",
            json!({ "item": "lamps", "count": 1000 }),
        ),
        Reply::text("Both are ordered."),
    ]);
    let agent = Agent::new("clerk").model(model).tool_source(servers.tools().approve(large));
    let mut paused = agent.run("Order lamps.").await?.paused().ok_or("the large order should wait")?;
    assert_eq!(paused.pending()[0].tool.to_string(), "mcp:shop/order");
    paused.approve("c2")?;
    assert_eq!(agent.resume(paused).await?.text(), "Both are ordered.");
    servers.close().await;
    Ok(())
}
