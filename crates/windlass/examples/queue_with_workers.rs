//! A queue and a worker: runs are submitted by name, and a worker drives them until none is left.

use std::sync::Arc;

use windlass::fleet::{AgentRegistry, DeployedAgent, RunQueue, RunSubmission, Worker};
use windlass::prelude::*;
use windlass::store::SqliteStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let queue = Arc::new(SqliteStore::open(folder.path().join("runs.db"))?);
    for number in 1..=3 {
        let submission =
            RunSubmission::new(format!("invoice-{number}"), "clerk", format!("Pay invoice {number}."));
        queue.submit_run(&submission, Default::default()).await?;
        // A client that did not hear the answer may submit again: the id makes it one run.
        queue.submit_run(&submission, Default::default()).await?;
    }

    let clerk = Agent::new("clerk").model(ScriptedModel::from_fn(|_| ScriptedResponse::text("Paid.")));
    let worker = Worker::new(queue, AgentRegistry::new().deploy(DeployedAgent::new(clerk)));
    let report = worker.run_until_idle().await?;

    println!("{} runs ended", report.ended);
    assert_eq!(report.ended, 3);
    Ok(())
}
