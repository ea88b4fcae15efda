//! Cancelling returns within a bound, with a report of what became of every call.

use windlass::prelude::*;

/// How many are left.
#[tool(effect = pure)]
async fn stock(thing: String) -> String {
    format!("three of {thing}")
}

/// Sends a parcel. It takes for ever.
#[tool]
async fn ship(thing: String) -> String {
    std::future::pending::<()>().await;
    thing
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([Reply::call("c1", "stock", json!({ "thing": "lamp" })).and_call(
        "c2",
        "ship",
        json!({ "thing": "lamp" }),
    )]);
    let agent = Agent::new("store").model(model).tools((stock, ship));

    let mut stream = agent.run("Ship me a lamp.").stream();
    let (mut is_counted, mut is_shipping) = (false, false);
    while let Some(event) = stream.next().await {
        match event.kind {
            EventKind::CallSettled { call, .. } if call == "c1" => is_counted = true,
            EventKind::CallStarted { call, .. } if call == "c2" => is_shipping = true,
            _ => {}
        }
        if is_counted && is_shipping {
            stream.cancel().now();
        }
    }

    let Outcome::Cancelled(cancelled) = stream.outcome().await? else {
        return Err("it was cancelled".into());
    };
    let settlement = &cancelled.settlement;
    println!("finished {:?}, in doubt {:?}", settlement.finished, settlement.in_doubt);
    assert_eq!(settlement.finished, ["c1"]);
    // The parcel may be on its way: nobody knows, and the report says so.
    assert_eq!(settlement.in_doubt, ["c2"]);
    // Every call has an output all the same, so the history can be gone on with.
    assert_eq!(cancelled.record.history().len(), 5);
    Ok(())
}
