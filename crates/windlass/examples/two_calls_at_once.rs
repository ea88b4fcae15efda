//! The calls of one response run concurrently; their outputs keep the model's order.

use std::sync::Mutex;

use tokio::sync::Barrier;
use windlass::prelude::*;

/// A market of two shops that both must be asked at once.
struct PriceMarket {
    both_are_open: Barrier,
    closed: Mutex<Vec<String>>,
}

/// The price of a thing at a shop.
#[tool(effect = pure)]
async fn price(ctx: &ToolContext<PriceMarket>, shop: String) -> String {
    // The barrier waits for both calls, so the run ends only because they overlap.
    ctx.both_are_open.wait().await;
    if shop == "slow" {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    if let Ok(mut closed) = ctx.closed.lock() {
        closed.push(shop.clone());
    }
    format!("the {shop} shop wants 5 euros")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "price", json!({ "shop": "slow" })).and_call(
            "c2",
            "price",
            json!({ "shop": "fast" }),
        ),
        ScriptedResponse::text("Both want 5 euros."),
    ]);
    let agent = Agent::new("buyer").model(model.clone()).tool(price);
    let market =
        std::sync::Arc::new(PriceMarket { both_are_open: Barrier::new(2), closed: Mutex::default() });

    println!("{}", agent.run_with_context("Who is cheaper?", market.clone()).await?.output_text()?);

    let ended = market.closed.lock().map_err(|_| "a call panicked")?.clone();
    let told = model.requests()[1].input_text();
    println!("they ended as {ended:?}; the model reads:\n{}\n{}", told[3], told[4]);
    assert_eq!(ended, ["fast", "slow"]);
    assert_eq!(told[3..], ["output c1 the slow shop wants 5 euros", "output c2 the fast shop wants 5 euros"]);
    Ok(())
}
