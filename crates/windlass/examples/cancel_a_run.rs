//! Cancellation returns within a bound and reports the state of every call.

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
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "stock", json!({ "thing": "lamp" }))
        .and_call("c2", "ship", json!({ "thing": "lamp" }))]);
    let agent = Agent::new("store").model(model).tools((stock, ship));

    let mut stream = agent.run("Ship me a lamp.").stream();
    let (mut is_counted, mut is_shipping) = (false, false);
    while let Some(event) = stream.next().await {
        match event.kind {
            RunEventKind::CallSettled { call, .. } if call == "c1" => is_counted = true,
            RunEventKind::CallStarted { call, .. } if call == "c2" => is_shipping = true,
            _ => {}
        }
        if is_counted && is_shipping {
            stream.cancel_handle().cancel();
        }
    }

    let RunResult::Cancelled(cancelled) = stream.result().await? else {
        return Err("it was cancelled".into());
    };
    let settlement = &cancelled.settlement;
    println!("finished {:?}, in doubt {:?}", settlement.finished, settlement.in_doubt);
    assert_eq!(settlement.finished, ["c1"]);
    // The parcel may be on its way, so the report lists the call as in doubt.
    assert_eq!(settlement.in_doubt, ["c2"]);
    // Every call has an output, so a later run can continue from this history.
    assert_eq!(cancelled.record.history().len(), 5);
    Ok(())
}
