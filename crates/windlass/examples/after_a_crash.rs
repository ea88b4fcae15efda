//! A process crashes inside a payment. The outcome is unknown, so the runtime does not execute the call again:
//! the call stays in doubt until a person says what happened.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use windlass::core::decision::HoldReason;
use windlass::prelude::*;
use windlass::store::MemoryStore;

/// Moves money. Its effect is `once`, as that of every tool that does not say otherwise.
#[tool]
async fn transfer(ctx: &ToolContext<Notify>, cents: u64) -> String {
    ctx.notify_one();
    std::future::pending::<()>().await;
    format!("{cents} cents moved")
}

/// Builds the agent. Every process builds its own.
fn bank_agent(replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent<Notify> {
    Agent::new("bank").model(ScriptedModel::new(replies)).tool(transfer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(MemoryStore::default());
    let moving = Arc::new(Notify::new());

    // The driver owns its run by a lease and keeps renewing it. The default lease lasts 30 seconds.
    let lease = Duration::from_millis(500);
    let agent = bank_agent([ScriptedResponse::call("c1", "transfer", json!({ "cents": 5_000 }))]);
    let run = agent
        .run_with_context("Send Bo 50 euros.", moving.clone())
        .run_id("run-1")
        .store(store.clone())
        .lease_duration(lease);
    let process = tokio::spawn(run);
    moving.notified().await;
    process.abort();
    println!("the process is gone");
    tokio::time::sleep(lease * 2).await;

    // Another process finds the journal: it records the start of the call, and no end.
    let agent = bank_agent([ScriptedResponse::text("Bo has the money.")]);
    let outcome = agent.recover_with_context("run-1", store.clone(), moving.clone()).await?;
    let mut paused = outcome.into_paused().ok_or("nothing may run by itself")?;
    for call in paused.pending_calls() {
        println!("in doubt: {} {}", call.tool, call.arguments);
        assert_eq!(call.reason, HoldReason::InDoubt);
    }

    // The approver checked the account.
    paused.confirm_executed("c1", "5000 cents moved")?;
    let outcome = agent.resume_with_context(paused, moving).store(store).await?;
    println!("{}", outcome.output_text()?);
    assert_eq!(outcome.output_text()?, "Bo has the money.");
    Ok(())
}
