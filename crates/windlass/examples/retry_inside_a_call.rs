//! A body that fails is tried again inside its call. The model sees one output, the target one key.

use std::sync::{Arc, Mutex};

use windlass::prelude::*;

/// A bank whose line drops twice. It sees the keys that it is sent.
#[derive(Default)]
struct Bank {
    keys: Mutex<Vec<String>>,
}

/// Pays an invoice.
#[tool(effect = idempotent, retry = (3, "5ms"))]
async fn pay(ctx: &ToolContext<Bank>, invoice: String) -> Result<String, std::io::Error> {
    let attempt = {
        let mut keys = ctx.keys.lock().map_err(|_| std::io::Error::other("poisoned"))?;
        keys.push(ctx.idempotency_key());
        keys.len()
    };
    match attempt {
        1 | 2 => Err(std::io::Error::other("the line to bank-7.internal dropped")),
        _ => Ok(format!("invoice {invoice} is paid")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model =
        ScriptedModel::new([Reply::call("c1", "pay", json!({ "invoice": "9" })), Reply::text("Paid.")]);
    let agent = Agent::new("clerk").model(model.clone()).tools((pay,));
    let bank = Arc::new(Bank::default());

    println!("{}", agent.run_with("Pay invoice 9.", bank.clone()).await?.text());

    let keys = bank.keys.lock().map_err(|_| "a call panicked")?.clone();
    println!("three attempts, one key: {keys:?}");
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0]));
    // What went wrong on the way is not for the model.
    assert_eq!(model.requests()[1].input_text()[2], "output c1 invoice 9 is paid");
    Ok(())
}
