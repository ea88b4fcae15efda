//! The agents, tools and processes with which the engines are tested.
//!
//! A [`DeskFolder`] is the world that a test and its processes share: the store, the witness that the tools write, and the
//! gate that their bodies wait for.

#![allow(clippy::expect_used)]

mod process;

use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::decision::HoldReason;
use windlass::core::id::{CallPath, RunId};
use windlass::core::item::Item;
use windlass::core::journal::JournalEntry;
use windlass::core::tool::ToolEffect;
use windlass::fleet::{AgentRegistry, DeployedAgent, Worker};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::store::{RunStatus, SqliteStore, Store, load_paused};

pub use process::{ChildProcess, free_port, is_listening, say_not_shown};

/// Longest time that a test waits for a condition.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A model without state: it calls the tools of its list in one turn, and then says `done`.
struct DeskModel {
    calls: &'static [&'static str],
}

impl Model for DeskModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let has_called = request.input.iter().any(|item| matches!(&**item, Item::Output(_)));
        let items = match has_called {
            true => vec![Arc::new(Item::assistant("done"))],
            false => self.calls.iter().map(|tool| Arc::new(Item::call(*tool, *tool, "{}"))).collect(),
        };
        Ok(ModelResponse { items, ..ModelResponse::default() })
    }
}

/// The folder that a test shares with its processes.
#[derive(Clone, Debug)]
pub struct DeskFolder {
    path: PathBuf,
}

impl DeskFolder {
    /// Names the folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the store of the folder.
    ///
    /// # Panics
    ///
    /// Panics if it does not open.
    pub fn open_store(&self) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(self.path.join("desk.db")).expect("the store opens"))
    }

    /// Returns a worker for the agents `payer` (calls `look`, `key` and `pay` at once), `signer` (calls `sign`, which needs
    /// an approval) and `hasty` (the same, with approvals that expire after three seconds).
    pub fn worker(&self, store: Arc<SqliteStore>) -> Worker {
        let payer = Agent::new("payer").model(DeskModel { calls: &["look", "key", "pay"] }).tools(vec![
            self.tool("look", ToolEffect::Pure, BodyGate::Open),
            self.tool("key", ToolEffect::Idempotent, BodyGate::Closed),
            self.tool("pay", ToolEffect::Once, BodyGate::Closed),
        ]);
        let sign = || self.tool("sign", ToolEffect::Once, BodyGate::Open).needs_approval();
        let signer = Agent::new("signer").model(DeskModel { calls: &["sign"] }).tools(sign());
        let hasty = Agent::new("hasty").model(DeskModel { calls: &["sign"] }).tools(sign());
        let hasty = DeployedAgent::new(hasty)
            .configure_runs(|run| run.approvals_expire_after(Duration::from_secs(3)));
        let registry = AgentRegistry::from([payer, signer]).deploy(hasty);
        Worker::new(store, registry).drain_timeout(Duration::from_secs(60))
    }

    /// A tool that writes a line when its body starts and when it ends.
    fn tool(&self, name: &'static str, effect: ToolEffect, gate: BodyGate) -> Tool {
        let desk = self.clone();
        let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        Tool::dynamic(name, "Acts.", schema, move |context: ToolContext, _: Value| {
            let desk = desk.clone();
            async move {
                let run = context.run_context().run_id().clone();
                desk.witness(&format!("START {run} {name}"));
                while gate == BodyGate::Closed && !desk.gate().exists() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                desk.witness(&format!("DONE {run} {name}"));
                Ok::<_, ToolError>("acted")
            }
        })
        .effect(effect)
    }

    fn gate(&self) -> PathBuf {
        self.path.join("gate")
    }

    /// Lets the bodies of `key` and `pay` end.
    ///
    /// # Panics
    ///
    /// Panics if the folder cannot be written.
    pub fn open_gate(&self) {
        std::fs::write(self.gate(), "").expect("the folder can be written");
    }

    fn witness(&self, line: &str) {
        let file = OpenOptions::new().create(true).append(true).open(self.path.join("witness"));
        let mut file = file.expect("the witness opens");
        file.write_all(format!("{line}\n").as_bytes())
            .and_then(|()| file.sync_data())
            .expect("it is written");
    }

    /// Counts the lines that the tools have written: `START <run> <tool>` and `DONE <run> <tool>`.
    pub fn count(&self, line: &str) -> usize {
        let text = std::fs::read_to_string(self.path.join("witness")).unwrap_or_default();
        text.lines().filter(|written| *written == line).count()
    }

    /// Waits until both bodies of `payer` run that wait for the gate, and the finished call is settled.
    pub async fn wait_until_paying(&self, store: &dyn Store, run: &RunId) {
        wait_for("the calls run", async || {
            let started = ["key", "pay"].iter().all(|tool| self.count(&format!("START {run} {tool}")) > 0);
            started && count_settled(store, run).await == 1
        })
        .await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyGate {
    Open,
    Closed,
}

async fn count_settled(store: &dyn Store, run: &RunId) -> usize {
    let Ok(paused) = load_paused(store, run).await else { return 0 };
    let settled = |entry: &JournalEntry| matches!(entry, JournalEntry::CallSettled(_));
    paused.record().journal().iter().filter(|record| settled(&record.entry)).count()
}

/// Returns the calls of a run that are held, with their reasons.
///
/// # Panics
///
/// Panics if the run does not open.
pub async fn held_calls(store: &dyn Store, run: &RunId) -> Vec<(CallPath, HoldReason)> {
    let paused = load_paused(store, run).await.expect("the run opens");
    paused.pending_calls().iter().map(|call| (call.path.clone(), call.reason.clone())).collect()
}

/// Returns the status of a run in the store.
///
/// # Panics
///
/// Panics if the store does not answer or has no such run.
pub async fn status_of(store: &dyn Store, run: &RunId) -> RunStatus {
    let runs = store.list_runs(&Default::default()).await.expect("they are listed");
    runs.into_iter().find(|stored| stored.run == *run).expect("the run exists").status
}

/// Waits for a condition.
///
/// # Panics
///
/// Panics if it is not met in time.
pub async fn wait_for<F: Future<Output = bool>>(what: &str, mut is_met: impl FnMut() -> F) {
    let waiting = async {
        while !is_met().await {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}
