//! A worker that a test kills while its run, in a SQLite store, polls an MCP task.
//!
//! Usage: `follower URL STORE RUN`

use std::sync::Arc;
use std::time::Duration;

use windlass::store::SqliteStore;
use windlass_mcp_check::build_agent;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let (url, file, run) = (words[1].clone(), words[2].clone(), words[3].clone());
    let store = Arc::new(SqliteStore::open(file)?);
    let agent = build_agent(&url).await;
    agent.run("build").store(store).run_id(run).lease_duration(Duration::from_secs(2)).await?;
    Ok(())
}
