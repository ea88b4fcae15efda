//! A process ends inside a payment. Nobody knows whether the money moved, so it is not moved again: the call
//! is in doubt until somebody says what happened.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use windlass::MemoryStore;
use windlass::core::HoldReason;
use windlass::prelude::*;

/// Moves money. Its effect is `once`, as that of every tool that does not say otherwise.
#[tool]
async fn transfer(ctx: &ToolContext<Notify>, cents: u64) -> String {
    ctx.notify_one();
    std::future::pending::<()>().await;
    format!("{cents} cents moved")
}

/// Every process builds its agents for itself.
fn bank(replies: impl IntoIterator<Item = Reply>) -> Agent<Notify> {
    Agent::new("bank").model(ScriptedModel::new(replies)).tools((transfer,))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(MemoryStore::default());
    let moving = Arc::new(Notify::new());

    // Who drives a run owns it, by a lease that it keeps renewing. It is half a minute, unless one says otherwise.
    let lease = Duration::from_millis(500);
    let agent = bank([Reply::call("c1", "transfer", json!({ "cents": 5_000 }))]);
    let run =
        agent.run_with("Send Bo 50 euros.", moving.clone()).run_id("run-1").store(store.clone()).lease(lease);
    let process = tokio::spawn(run.into_future());
    moving.notified().await;
    process.abort();
    println!("the process is gone");
    tokio::time::sleep(lease * 2).await;

    // Another one finds the journal. It says that the call started, and not how it ended.
    let agent = bank([Reply::text("Bo has the money.")]);
    let outcome = agent.recover_with("run-1", store.clone(), moving.clone()).await?;
    let mut paused = outcome.paused().ok_or("nothing may run by itself")?;
    for call in paused.pending() {
        println!("in doubt: {} {}", call.tool, call.arguments);
        assert_eq!(call.reason, HoldReason::InDoubt);
    }

    // The person looked at the account.
    paused.it_happened("c1", "5000 cents moved")?;
    let outcome = agent.resume_with(paused, moving).store(store).await?;
    println!("{}", outcome.text());
    assert_eq!(outcome.text(), "Bo has the money.");
    Ok(())
}
