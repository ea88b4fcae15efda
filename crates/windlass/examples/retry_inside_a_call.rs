//! A failed body is retried inside its call. The model sees one output; the target sees one idempotency key.

use std::sync::{Arc, Mutex};

use windlass::prelude::*;

/// A bank whose first two requests fail. It records the idempotency keys that it receives.
#[derive(Default)]
struct FlakyBank {
    keys: Mutex<Vec<String>>,
}

/// Pays an invoice.
#[tool(effect = idempotent, retry = (3, "5ms"))]
async fn pay(ctx: &ToolContext<FlakyBank>, invoice: String) -> Result<String, std::io::Error> {
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
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "pay", json!({ "invoice": "9" })),
        ScriptedResponse::text("Paid."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tool(pay);
    let bank = Arc::new(FlakyBank::default());

    println!("{}", agent.run_with_context("Pay invoice 9.", bank.clone()).await?.output_text()?);

    let keys = bank.keys.lock().map_err(|_| "a call panicked")?.clone();
    println!("three attempts, one key: {keys:?}");
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0]));
    // The model does not see the errors of earlier attempts.
    assert_eq!(model.requests()[1].input_text()[2], "output c1 invoice 9 is paid");
    Ok(())
}
