//! A process crashes inside a payment. No person is asked: the tool's reconcile function looks the payment up
//! by its idempotency key.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use windlass::prelude::*;
use windlass::store::MemoryStore;
use windlass::tool::ReconcileOutcome;

/// A bank outside the process: its state survives the crash.
#[derive(Default)]
struct PaymentBank {
    payments: Mutex<BTreeSet<String>>,
    paid: Notify,
}

impl PaymentBank {
    /// Records a payment. Returns true if its key is new.
    fn record_payment(&self, key: String) -> bool {
        self.payments.lock().is_ok_and(|mut payments| payments.insert(key))
    }

    fn has_payment(&self, key: &str) -> bool {
        self.payments.lock().is_ok_and(|payments| payments.contains(key))
    }
}

/// Moves money.
#[tool(reconcile = ask_the_bank)]
async fn transfer(ctx: &ToolContext<PaymentBank>, cents: u64) -> String {
    assert!(ctx.record_payment(ctx.idempotency_key()), "nothing is paid twice");
    ctx.paid.notify_one();
    // The money has moved; the process crashes before it records the result.
    std::future::pending::<()>().await;
    format!("{cents} cents moved")
}

/// Looks the payment up. The idempotency key is the same in every attempt and in every process.
async fn ask_the_bank(ctx: ToolContext<PaymentBank>) -> ReconcileOutcome {
    if ctx.has_payment(&ctx.idempotency_key()) {
        ReconcileOutcome::Executed("the money had moved".to_owned().into())
    } else {
        ReconcileOutcome::NotExecuted
    }
}

fn clerk_agent(model: &ScriptedModel) -> Agent<PaymentBank> {
    Agent::new("clerk").model(model.clone()).tool(transfer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (store, bank) = (Arc::new(MemoryStore::default()), Arc::new(PaymentBank::default()));
    let lease = Duration::from_millis(500);

    let model = ScriptedModel::new([ScriptedResponse::call("c1", "transfer", json!({ "cents": 5_000 }))]);
    let run = clerk_agent(&model)
        .run_with_context("Send Bo 50 euros.", bank.clone())
        .run_id("run-1")
        .store(store.clone());
    let process = tokio::spawn(run.lease_duration(lease));
    bank.paid.notified().await;
    process.abort();
    tokio::time::sleep(lease * 2).await;

    let model = ScriptedModel::new([ScriptedResponse::text("Bo has the money.")]);
    let outcome = clerk_agent(&model).recover_with_context("run-1", store, bank).await?;

    println!("{}\n{}", model.requests()[0].input_text()[2], outcome.output_text()?);
    assert_eq!(model.requests()[0].input_text()[2], "output c1 the money had moved");
    assert_eq!(outcome.output_text()?, "Bo has the money.");
    Ok(())
}
