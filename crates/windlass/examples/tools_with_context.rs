//! Tools share the application's context, which is hidden from the model.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use windlass::prelude::*;

/// The application's context: a desk with its orders.
struct OrderDesk {
    clerk: &'static str,
    orders: Mutex<BTreeMap<String, u64>>,
}

/// What a guest paid for an order, in cents.
#[tool(effect = pure)]
async fn paid(ctx: &ToolContext<OrderDesk>, order: String) -> Result<u64, String> {
    let orders = ctx.orders.lock().map_err(|_| "the order book cannot be read")?;
    orders.get(&order).copied().ok_or(format!("there is no order {order}"))
}

/// Gives a guest their money back.
#[tool]
async fn refund(ctx: &ToolContext<OrderDesk>, order: String) -> Result<String, ToolError> {
    let mut orders = ctx.orders.lock().map_err(|_| ToolError::hidden("the order book is poisoned"))?;
    let cents =
        orders.remove(&order).ok_or_else(|| ToolError::visible(format!("there is no order {order}")))?;
    Ok(format!("{} gave back {cents} cents", ctx.clerk))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "paid", json!({ "order": "17" })),
        ScriptedResponse::call("c2", "refund", json!({ "order": "17" })),
        ScriptedResponse::text("You have your 40 euros back."),
    ]);
    // `#[tool]` fixes the context type, so an agent with another context would not compile.
    let agent = Agent::new("desk")
        .dynamic_instructions(async |ctx: RunContext<OrderDesk>| format!("You are {}.", ctx.clerk))
        .model(model.clone())
        .tools((paid, refund));

    let desk = Arc::new(OrderDesk { clerk: "Ada", orders: Mutex::new([("17".to_owned(), 4_000)].into()) });
    let outcome = agent.run_with_context("My order 17 never came.", desk.clone()).await?;

    println!("{}", outcome.output_text()?);
    let last = &model.requests()[2];
    assert_eq!(last.instructions.as_deref(), Some("You are Ada."));
    assert_eq!(last.input_text()[4], "output c2 Ada gave back 4000 cents");
    assert!(desk.orders.lock().is_ok_and(|orders| orders.is_empty()));
    Ok(())
}
