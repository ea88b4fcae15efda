//! Human in the loop across processes: one process starts a run, another decides, a third continues it. They
//! share only the SQLite file.

use std::path::Path;
use std::sync::Arc;

use windlass::core::decision::{Decision, DecisionScope};
use windlass::prelude::*;
use windlass::store::SqliteStore;

/// The error type of this example.
type ExampleError = Box<dyn std::error::Error>;

/// Orders a part.
#[tool(needs_approval = always)]
async fn order(part: String) -> String {
    format!("{part} is ordered")
}

fn yard_agent(replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    Agent::new("yard").model(ScriptedModel::new(replies)).tool(order)
}

async fn begin_run(file: &Path) -> Result<(), ExampleError> {
    let store = Arc::new(SqliteStore::open(file)?);
    let agent = yard_agent([ScriptedResponse::call("c1", "order", json!({ "part": "a rudder" }))]);
    let outcome = agent.run("We need a rudder.").run_id("run-1").store(store).await?;
    assert!(outcome.is_paused());
    Ok(())
}

/// Posts an approval. This needs no agent and no lease: the decision waits in the store for the next driver.
async fn post_approval(file: &Path) -> Result<(), ExampleError> {
    let store = SqliteStore::open(file)?;
    let run = "run-1".into();
    for call in windlass::store::load_paused(&store, &run).await?.pending_calls() {
        println!("{run}: {} {} waits", call.tool, call.arguments);
        windlass::store::post_decision(
            &store,
            &run,
            call.path,
            Decision::Approve,
            DecisionScope::ThisCall,
            "ada",
        )
        .await?;
    }
    Ok(())
}

async fn continue_run(file: &Path) -> Result<String, ExampleError> {
    let store = Arc::new(SqliteStore::open(file)?);
    let outcome = yard_agent([ScriptedResponse::text("It is ordered.")]).recover("run-1", store).await?;
    Ok(outcome.output_text()?.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), ExampleError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("runs.db");

    begin_run(&file).await?;
    post_approval(&file).await?;
    let text = continue_run(&file).await?;

    println!("{text}");
    assert_eq!(text, "It is ordered.");
    Ok(())
}
