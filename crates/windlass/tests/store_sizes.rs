//! The sizes of stored runs and of the text of a paused run. They are deterministic.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use windlass::agent::Agent;
use windlass::core::{item::Item, tool::ToolEffect, usage::Usage};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::run::PausedRun;
use windlass::store::SqliteStore;
use windlass::tool::{Tool, ToolContext, ToolError};

/// A model that makes `calls` calls in each of `turns` turns, then a call that needs approval, if asked for, and ends.
struct CountingModel {
    turns: usize,
    calls: usize,
    needs_approval: bool,
}

impl Model for CountingModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let turn = (request.input.len() - 1) / (2 * self.calls);
        let is_asked = request.input.len() - 1 > 2 * self.calls * self.turns;
        let items = if turn < self.turns {
            let call = |call| {
                let arguments = format!("{{\"x\":{}}}", turn * self.calls + call);
                Arc::new(Item::call(format!("call_{turn}_{call}"), "noop", arguments))
            };
            (0..self.calls).map(call).collect()
        } else if self.needs_approval && !is_asked {
            vec![Arc::new(Item::call("gated", "gated", "{\"x\":1}"))]
        } else {
            vec![Arc::new(Item::assistant("done"))]
        };
        Ok(ModelResponse { items, usage: Some(Usage::of_tokens(10, 5)), ..ModelResponse::default() })
    }
}

fn counting_agent(model: CountingModel) -> Agent {
    let tool = |name| {
        let schema = json!({
            "type": "object", "properties": { "x": { "type": "integer" } },
            "required": ["x"], "additionalProperties": false
        });
        let body = |_: ToolContext, _: serde_json::Value| async { Ok::<_, ToolError>("ok") };
        Tool::dynamic(name, "Does nothing.", schema, body).effect(ToolEffect::Pure)
    };
    let tools = vec![tool("noop"), tool("gated").needs_approval()];
    Agent::new("bench").instructions("You are a benchmark.").model(model).tools(tools)
}

/// Returns the size of a database, whether or not its write-ahead log has been copied into it.
fn database_size(path: &Path) -> i64 {
    let db = rusqlite::Connection::open(path).expect("the file is there");
    let read = |pragma: &str| db.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    read("page_count").expect("it can be read") * read("page_size").expect("it can be read")
}

#[tokio::test]
async fn a_run_of_fifteen_records_takes_at_most_four_kilobytes() {
    const RUNS: i64 = 1_000;
    let folder = tempfile::tempdir().expect("a folder for the test");
    let path = folder.path().join("runs.db");
    let store = Arc::new(SqliteStore::open(&path).expect("a store"));
    let agent = counting_agent(CountingModel { turns: 4, calls: 1, needs_approval: false });
    let empty = database_size(&path);
    for _ in 0..RUNS {
        let result = agent.run("go").store(store.clone()).await.expect("it ends");
        assert_eq!(result.record().journal().len(), 15);
    }
    drop(store);
    // The whole file, with the page that each of its tables takes.
    let size = database_size(&path) / RUNS;
    println!("{size} bytes a run, {empty} of an empty store");
    assert!(size <= 4_096, "{size} bytes a run");
}

#[tokio::test]
async fn a_paused_run_of_a_thousand_items_is_a_short_text() {
    let agent = counting_agent(CountingModel { turns: 100, calls: 5, needs_approval: true });
    let result = agent.run("go").unlimited_turns().await.expect("it pauses");
    let text = result.into_paused().expect("it waits").to_text();
    println!("{} bytes of text", text.len());
    assert!(text.len() <= 200 * 1024, "{} bytes", text.len());
    assert_eq!(PausedRun::from_text(&text).expect("it can be read").record().history().len(), 1002);
}
