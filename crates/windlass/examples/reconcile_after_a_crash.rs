//! A process ends inside a payment, and nobody has to be asked about it: the bank knows the payment by its key.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use windlass::MemoryStore;
use windlass::prelude::*;
use windlass::tool::Reconciled;

/// The outside world, which outlives processes.
#[derive(Default)]
struct Bank {
    payments: Mutex<BTreeSet<String>>,
    paid: Notify,
}

impl Bank {
    /// Gives whether the payment is a new one.
    fn pay(&self, key: String) -> bool {
        self.payments.lock().is_ok_and(|mut payments| payments.insert(key))
    }

    fn knows(&self, key: &str) -> bool {
        self.payments.lock().is_ok_and(|payments| payments.contains(key))
    }
}

/// Moves money.
#[tool(reconcile = ask_the_bank)]
async fn transfer(ctx: &ToolContext<Bank>, cents: u64) -> String {
    assert!(ctx.pay(ctx.idempotency_key()), "nothing is paid twice");
    ctx.paid.notify_one();
    // The money has moved, and the process ends before anybody is told.
    std::future::pending::<()>().await;
    format!("{cents} cents moved")
}

/// The key is the same in every attempt and in every process.
async fn ask_the_bank(ctx: ToolContext<Bank>) -> Reconciled {
    if ctx.knows(&ctx.idempotency_key()) {
        Reconciled::Happened("the money had moved".to_owned().into())
    } else {
        Reconciled::DidNotHappen
    }
}

fn clerk(model: &ScriptedModel) -> Agent<Bank> {
    Agent::new("clerk").model(model.clone()).tools((transfer,))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (store, bank) = (Arc::new(MemoryStore::default()), Arc::new(Bank::default()));
    let lease = Duration::from_millis(500);

    let model = ScriptedModel::new([Reply::call("c1", "transfer", json!({ "cents": 5_000 }))]);
    let run = clerk(&model).run_with("Send Bo 50 euros.", bank.clone()).run_id("run-1").store(store.clone());
    let process = tokio::spawn(run.lease(lease).into_future());
    bank.paid.notified().await;
    process.abort();
    tokio::time::sleep(lease * 2).await;

    let model = ScriptedModel::new([Reply::text("Bo has the money.")]);
    let outcome = clerk(&model).recover_with("run-1", store, bank).await?;

    println!("{}\n{}", model.requests()[0].input_text()[2], outcome.text());
    assert_eq!(model.requests()[0].input_text()[2], "output c1 the money had moved");
    assert_eq!(outcome.text(), "Bo has the money.");
    Ok(())
}
