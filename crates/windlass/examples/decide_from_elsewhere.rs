//! A run in a store on disk. One process begins it, another one decides, a third goes on with it: they share a
//! file, and nothing else.

use std::path::Path;
use std::sync::Arc;

use windlass::SqliteStore;
use windlass::core::{Decision, Reach};
use windlass::prelude::*;

type Error = Box<dyn std::error::Error>;

/// Orders a part.
#[tool(approve = always)]
async fn order(part: String) -> String {
    format!("{part} is ordered")
}

fn yard(replies: impl IntoIterator<Item = Reply>) -> Agent {
    Agent::new("yard").model(ScriptedModel::new(replies)).tools((order,))
}

async fn begin(file: &Path) -> Result<(), Error> {
    let store = Arc::new(SqliteStore::open(file)?);
    let agent = yard([Reply::call("c1", "order", json!({ "part": "a rudder" }))]);
    let outcome = agent.run("We need a rudder.").run_id("run-1").store(store).await?;
    assert!(outcome.is_paused());
    Ok(())
}

/// It needs no agent and no lease: the decision waits in the store for whoever drives the run.
async fn decide(file: &Path) -> Result<(), Error> {
    let store = SqliteStore::open(file)?;
    let run = "run-1".into();
    for call in windlass::store::paused(&store, &run).await?.pending() {
        println!("{run}: {} {} waits", call.tool, call.arguments);
        windlass::store::decide(&store, &run, call.path, Decision::Approve, Reach::Call, "ada").await?;
    }
    Ok(())
}

async fn go_on(file: &Path) -> Result<String, Error> {
    let store = Arc::new(SqliteStore::open(file)?);
    let outcome = yard([Reply::text("It is ordered.")]).recover("run-1", store).await?;
    Ok(outcome.text().to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("runs.db");

    begin(&file).await?;
    decide(&file).await?;
    let text = go_on(&file).await?;

    println!("{text}");
    assert_eq!(text, "It is ordered.");
    Ok(())
}
