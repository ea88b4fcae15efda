//! The victim, with the key, and the attacker, who can write to the same file.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::agent::Agent;
use windlass::core::{
    authenticity::{MacKey, MacKeyring},
    canonical::Digest,
    decision::{Decision, DecisionScope},
    id::{RunId, Timestamp},
    tool::ToolEffect,
};
use windlass::error::RunError;
use windlass::event::RunEventKind;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::run::RunResult;
use windlass::store::{self, Lease, LeaseClaim, SqliteStore, Store};
use windlass::tool::{Tool, ToolContext, ToolError};

/// The application, its store file, and the payments that were really made.
pub(crate) struct Victim {
    folder: tempfile::TempDir,
    pub(crate) payments: Arc<Mutex<Vec<Value>>>,
}

/// Returns a key; equal numbers make equal keys.
pub(crate) fn key(number: u8) -> MacKey {
    MacKey::from_bytes([number; 32])
}

impl Victim {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), payments: Arc::default() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("runs.db")
    }

    /// Opens the store with the key.
    pub(crate) fn store(&self) -> Arc<SqliteStore> {
        self.store_with(MacKeyring::new(key(1)))
    }

    pub(crate) fn store_with(&self, keys: MacKeyring) -> Arc<SqliteStore> {
        let store = SqliteStore::open(self.path()).expect("a store").with_snapshot_interval(4);
        Arc::new(store.with_keys(keys))
    }

    /// Opens the store as the attacker does: with write access and without the key.
    pub(crate) fn attackers_store(&self) -> Arc<SqliteStore> {
        let store = SqliteStore::open(self.path()).expect("a store").with_snapshot_interval(4);
        Arc::new(store)
    }

    /// Opens the file as the attacker does.
    pub(crate) fn attackers_file(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).expect("the file is there")
    }

    pub(crate) fn paid(&self) -> Vec<Value> {
        self.payments.lock().expect("no panic").clone()
    }

    /// Creates an agent that may look, and may pay after an approval.
    pub(crate) fn agent(&self, replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
        let payments = self.payments.clone();
        let pay = move |_: ToolContext, arguments: Value| {
            payments.lock().expect("no panic").push(arguments);
            async { Ok::<_, ToolError>("paid") }
        };
        let schema = json!({ "type": "object", "properties": { "euros": { "type": "integer" } } });
        let pay =
            Tool::dynamic("pay", "Pays.", schema.clone(), pay).effect(ToolEffect::Once).needs_approval();
        let look = Tool::dynamic("look", "Looks.", schema, |_: ToolContext, _: Value| async {
            Ok::<_, ToolError>("seen")
        });
        let note =
            Tool::dynamic("note", "Notes.", json!({ "type": "object" }), |_: ToolContext, _: Value| async {
                Ok::<_, ToolError>("noted")
            });
        let tools = [pay, look.effect(ToolEffect::Pure), note.needs_approval()];
        Agent::new("clerk").model(ScriptedModel::new(replies)).tools(tools)
    }

    /// Starts a run that waits for the approval of a payment.
    pub(crate) async fn start_payment(&self, store: Arc<dyn Store>, run: &str) {
        let agent = self.agent([pay_response("c1", 9000)]);
        let result = agent.run("pay").run_id(run).store(store).await.expect("the run goes on");
        assert!(result.is_paused());
    }

    /// Recovers a run until it pauses or ends. Returns the result and the warnings.
    pub(crate) async fn recover(
        &self,
        store: Arc<dyn Store>,
        run: &str,
        replies: impl IntoIterator<Item = ScriptedResponse>,
    ) -> (Result<RunResult, RunError>, Vec<String>) {
        let mut stream = self.agent(replies).recover(run, store).stream();
        let mut warnings = Vec::new();
        while let Some(event) = stream.next().await {
            if let RunEventKind::Warning { message } = event.kind {
                warnings.push(message);
            }
        }
        (stream.result().await, warnings)
    }
}

pub(crate) fn pay_response(call: &str, euros: u32) -> ScriptedResponse {
    ScriptedResponse::call(call, "pay", json!({ "euros": euros }))
}

pub(crate) fn done() -> [ScriptedResponse; 1] {
    [ScriptedResponse::text("done")]
}

pub(crate) fn is_finished(result: &RunResult) -> bool {
    matches!(result, RunResult::Finished(_))
}

/// Posts an approval of the call `c1` through a store.
pub(crate) async fn post_approval(store: &SqliteStore, run: &str, by: &str) {
    post_approval_of(store, run, "c1", by).await;
}

pub(crate) async fn post_approval_of(store: &SqliteStore, run: &str, call: &str, by: &str) {
    store::post_decision(store, &run.into(), call, Decision::Approve, DecisionScope::ThisCall, by)
        .await
        .expect("it waits");
}

/// Acquires the lease of a run that nobody drives.
pub(crate) async fn acquire(store: &SqliteStore, run: &RunId) -> Lease {
    let claim = LeaseClaim { owner: "mallory", now: Timestamp(1), duration: Duration::from_secs(30) };
    store.acquire_lease(run, claim, None).await.expect("nobody drives it")
}

/// Edits the lines of a run, and computes the hash chain anew.
pub(crate) fn edit_lines(db: &rusqlite::Connection, run: &str, edit: impl Fn(String) -> String) {
    let header = Digest::of_text("windlass 1");
    let mut head = header.as_bytes().to_vec();
    let id: i64 =
        db.query_row("SELECT id FROM runs WHERE name = ?1", [run], |row| row.get(0)).expect("a run");
    let mut select = db.prepare("SELECT seq, body FROM lines WHERE run = ?1 ORDER BY seq").expect("a table");
    let lines: Vec<(i64, String)> = select
        .query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("lines")
        .map(|line| line.expect("a line"))
        .collect();
    for (seq, body) in lines {
        let body = edit(body);
        head.extend_from_slice(body.as_bytes());
        head = Digest::of_bytes(&head).as_bytes().to_vec();
        db.execute(
            "UPDATE lines SET hash = ?1, body = ?2 WHERE run = ?3 AND seq = ?4",
            (&head, &body, id, seq),
        )
        .expect("the attacker can write");
    }
}
