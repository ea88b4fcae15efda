//! Large refunds wait for a person. What needs nobody runs at once, and runs once.

use std::sync::{Arc, Mutex};

use windlass::prelude::*;

/// What was really paid out.
#[derive(Default)]
struct Till {
    paid: Mutex<Vec<(String, u64)>>,
}

/// Gives a guest their money back.
#[tool(approve = |args| args.cents > 10_000)]
async fn refund(ctx: &ToolContext<Till>, order: String, cents: u64) -> Result<String, ToolError> {
    let mut paid = ctx.paid.lock().map_err(|_| ToolError::hidden("the till is stuck"))?;
    paid.push((order.clone(), cents));
    Ok(format!("{cents} cents for order {order} are on their way"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        Reply::call("small", "refund", json!({ "order": "17", "cents": 900 })).and_call(
            "large",
            "refund",
            json!({ "order": "18", "cents": 52_000 }),
        ),
        Reply::text("Both refunds are on their way."),
    ]);
    let agent = Agent::new("desk").model(model).tools((refund,));
    let till = Arc::new(Till::default());
    let paid = || till.paid.lock().map(|paid| paid.len()).unwrap_or_default();

    let outcome = agent.run_with("Orders 17 and 18 never came.", till.clone()).await?;
    let mut paused = outcome.paused().ok_or("a person should be asked")?;
    for call in paused.pending() {
        println!("{} wants {} {}", call.agent, call.tool, call.arguments);
    }
    assert_eq!(paid(), 1, "the small one has run");

    paused.decide_as("ada");
    paused.approve("large")?;
    let outcome = agent.resume_with(paused, till.clone()).await?;

    println!("{}", outcome.text());
    assert_eq!(outcome.text(), "Both refunds are on their way.");
    assert_eq!(paid(), 2, "the small one has not run again");
    Ok(())
}
