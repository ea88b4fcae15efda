//! Large refunds wait for approval. Calls that need no approval run at once, and only once.

use std::sync::{Arc, Mutex};

use windlass::prelude::*;

/// A cash register that records every payout.
#[derive(Default)]
struct CashRegister {
    paid: Mutex<Vec<(String, u64)>>,
}

/// Gives a guest their money back.
#[tool(needs_approval = |args| args.cents > 10_000)]
async fn refund(ctx: &ToolContext<CashRegister>, order: String, cents: u64) -> Result<String, ToolError> {
    let mut paid = ctx.paid.lock().map_err(|_| ToolError::hidden("the till is stuck"))?;
    paid.push((order.clone(), cents));
    Ok(format!("{cents} cents for order {order} are on their way"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("small", "refund", json!({ "order": "17", "cents": 900 })).and_call(
            "large",
            "refund",
            json!({ "order": "18", "cents": 52_000 }),
        ),
        ScriptedResponse::text("Both refunds are on their way."),
    ]);
    let agent = Agent::new("desk").model(model).tool(refund);
    let till = Arc::new(CashRegister::default());
    let paid = || till.paid.lock().map(|paid| paid.len()).unwrap_or_default();

    let outcome = agent.run_with_context("Orders 17 and 18 never came.", till.clone()).await?;
    let mut paused = outcome.into_paused().ok_or("a person should be asked")?;
    for call in paused.pending_calls() {
        println!("{} wants {} {}", call.agent, call.tool, call.arguments);
    }
    assert_eq!(paid(), 1, "the small one has run");

    paused.decide_as("ada");
    paused.approve("large")?;
    let outcome = agent.resume_with_context(paused, till.clone()).await?;

    println!("{}", outcome.output_text()?);
    assert_eq!(outcome.output_text()?, "Both refunds are on their way.");
    assert_eq!(paid(), 2, "the small one has not run again");
    Ok(())
}
