//! Has an agent call a tool of a server at an address, in a store, until somebody kills it.
//!
//! `follower URL STORE RUN`

use std::sync::Arc;
use std::time::Duration;

use windlass::SqliteStore;
use windlass_mcp_check::builder;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let (url, file, run) = (words[1].clone(), words[2].clone(), words[3].clone());
    let store = Arc::new(SqliteStore::open(file)?);
    let agent = builder(&url).await;
    agent.run("build").store(store).run_id(run).lease(Duration::from_secs(2)).await?;
    Ok(())
}
