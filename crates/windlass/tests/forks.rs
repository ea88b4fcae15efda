//! Forks of stored runs: calls in flight keep the idempotency keys that the target already knows.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use windlass::core::inspect::ForkChange;
use windlass::core::{
    id::{RunId, Timestamp},
    journal::{JournalEntry, JournalRecord},
    tool::ToolEffect,
};
use windlass::error::StoreError;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::store::{self, Lease, RunStatus, SqliteStore, Store, StoreFuture, StoreWrapper};
use windlass::tool::ReconcileOutcome;
use windlass::{
    agent::Agent,
    artefact::read_output,
    tool::{Tool, ToolContext, ToolError},
};

/// A bank that records the idempotency keys it receives, in order.
#[derive(Clone, Default)]
struct KeyRecordingBank(Arc<Mutex<Vec<String>>>);

impl KeyRecordingBank {
    fn record_key(&self, what: &str, ctx: &ToolContext) {
        let note = format!("{what} {}", ctx.idempotency_key());
        self.0.lock().expect("no test panicked with it").push(note);
    }

    fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no test panicked with it"))
    }

    fn pay_tool(&self) -> Tool {
        let (paid, asked) = (self.clone(), self.clone());
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        Tool::dynamic("pay", "Pays.", schema, move |ctx: ToolContext, _: Value| {
            paid.record_key("pay", &ctx);
            async { Ok::<_, ToolError>("paid") }
        })
        .effect(ToolEffect::Once)
        .reconcile(move |ctx| {
            asked.record_key("ask", &ctx);
            async { ReconcileOutcome::Executed("paid, says the bank".into()) }
        })
    }
}

fn start_seq(records: &[JournalRecord], call: &str) -> u64 {
    let is_start =
        |record: &&JournalRecord| matches!(&record.entry, JournalEntry::CallStarted(one) if one.call == call);
    records.iter().find(is_start).expect("the call started").seq
}

#[tokio::test]
async fn a_fork_inside_a_call_asks_about_it_by_the_key_that_it_had() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(folder.path().join("bank.db")).expect("a new store"));
    let bank = KeyRecordingBank::default();
    let clerk = Agent::new("clerk")
        .model(ScriptedModel::new([
            ScriptedResponse::call("p1", "pay", json!({})),
            ScriptedResponse::text("paid"),
        ]))
        .tools(bank.pay_tool());
    let desk = |replies: Vec<ScriptedResponse>, clerk: &Agent| {
        let tools = vec![bank.pay_tool(), clerk.as_tool("clerk", "Pays.").effect(ToolEffect::Once)];
        Agent::new("desk").model(ScriptedModel::new(replies)).tools(tools)
    };
    let replies = vec![
        ScriptedResponse::call("c1", "pay", json!({})),
        ScriptedResponse::call("c2", "clerk", json!({ "input": "pay" })),
        ScriptedResponse::text("done"),
    ];
    let outcome = desk(replies, &clerk).run("pay").run_id("one").store(store.clone()).await;
    let outcome = outcome.expect("the run ends");
    let first = bank.take_notes();
    assert_eq!(first.len(), 2, "{first:?}");

    for (call, place, rest) in [("c1", 0, 1), ("p1", 1, 1)] {
        let at = start_seq(outcome.record().journal(), call);
        let id = RunId::new(format!("fork-at-{call}"));
        store::fork_run(&*store, &"one".into(), at, id.clone(), ForkChange::Unchanged)
            .await
            .expect("it can be forked");
        let mut again = vec![ScriptedResponse::text("done")];
        if call == "c1" {
            again.insert(0, ScriptedResponse::call("c2", "pay", json!({})));
        }
        let clerk = Agent::new("clerk")
            .model(ScriptedModel::new([ScriptedResponse::text("paid")]))
            .tools(bank.pay_tool());
        let ended = desk(again, &clerk).recover(id, store.clone()).await.expect("it goes on");
        assert_eq!(ended.output_text().expect("the run finished"), "done");
        let notes = bank.take_notes();
        assert_eq!(notes[0], first[place].replace("pay", "ask"), "{call} is asked about by its first key");
        assert_eq!(notes.len(), 2 - place * rest, "{notes:?}");
        if let Some(new) = notes.get(1) {
            assert!(!first.contains(new), "what the fork begins itself is new to the world: {new}");
        }
    }
}

/// A store that fails when the status of a run is set.
struct FailingStore(Arc<SqliteStore>);

impl StoreWrapper for FailingStore {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    fn set_status<'a>(&'a self, _: &'a Lease, _: RunStatus, _: Timestamp) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Err(StoreError::new("the disk failed"))))
    }
}

#[tokio::test]
async fn a_fork_that_fails_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let store = Arc::new(SqliteStore::open(folder.path().join("forks.db")).expect("a new store"));
    let agent = Agent::new("desk").model(ScriptedModel::new([ScriptedResponse::text("done")]));
    agent.run("go").run_id("one").store(store.clone()).await.expect("it ends");
    let failing = FailingStore(store.clone());
    let (origin, fork) = (RunId::from("one"), RunId::from("fork"));
    let failed = store::fork_run(&failing, &origin, 0, fork.clone(), ForkChange::Unchanged).await;
    assert!(failed.is_err(), "the store failed");
    assert_eq!(store.load_journal(&fork, 0).await.expect("it can be read"), []);
    let again = store::fork_run(&*store, &origin, 0, fork, ForkChange::Unchanged).await;
    again.expect("the id is free, and nobody holds the run");
}

#[tokio::test]
async fn a_fork_can_read_on_in_what_was_cut_before_it() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(folder.path().join("log.db")).expect("a new store"));
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let log = Tool::dynamic("log", "A long log.", schema, |_: ToolContext, _: Value| async {
        Ok::<_, ToolError>("x".repeat(500) + "the end")
    });
    let tools = vec![log.max_output_bytes(100).effect(ToolEffect::Pure), read_output()];
    let agent = |replies: Vec<ScriptedResponse>| {
        let model = ScriptedModel::new(replies);
        (Agent::new("reader").model(model.clone()).tools(tools.clone()), model)
    };
    let (reader, _) =
        agent(vec![ScriptedResponse::call("c1", "log", json!({})), ScriptedResponse::text("done")]);
    reader.run("read").run_id("one").store(store.clone()).await.expect("the run ends");

    for (origin, id) in [("one", "two"), ("two", "three")] {
        let from: RunId = origin.into();
        let records =
            store::load_paused(&*store, &from).await.expect("it is there").record().journal().to_vec();
        let is_answer = |record: &&JournalRecord| matches!(&record.entry, JournalEntry::CallSettled(one) if one.call == "c1");
        let at = records.iter().find(is_answer).expect("it settled").seq;
        store::fork_run(&*store, &from, at, id.into(), ForkChange::Unchanged)
            .await
            .expect("it can be forked");
    }
    let read =
        ScriptedResponse::call("c2", "read_output", json!({ "call": "c1", "from": 500, "bytes": null }));
    let (reader, model) = agent(vec![read, ScriptedResponse::text("done")]);
    reader.recover("three", store).await.expect("it goes on");
    assert_eq!(model.requests()[1].input_text().pop().as_deref(), Some("output c2 the end"));
}

#[tokio::test]
async fn a_fork_is_refused_where_its_name_is_taken_or_the_record_is_not_there() {
    let store: Arc<dyn Store> = Arc::new(store::MemoryStore::default());
    let agent = Agent::new("host").model(ScriptedModel::new([ScriptedResponse::text("Good morning.")]));
    agent.run("Hello").run_id("one").store(store.clone()).await.expect("the run ends");
    let run: RunId = "one".into();
    let missing = store::fork_run(&*store, &run, 99, "two".into(), ForkChange::Unchanged).await;
    assert!(missing.expect_err("there is no such record").to_string().contains("99"));
    store::fork_run(&*store, &run, 1, "two".into(), ForkChange::Unchanged).await.expect("it can be forked");
    let taken = store::fork_run(&*store, &run, 1, "two".into(), ForkChange::Unchanged).await;
    assert!(taken.expect_err("the name is taken").to_string().contains("two"));
}
