//! Forks of stored runs: what was under way is gone on with, under the keys that the world knows it by.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use windlass::core::time::Change;
use windlass::core::{Effect, Entry, Record, RunId};
use windlass::model::{Reply, ScriptedModel};
use windlass::store::{self, SqliteStore, Store};
use windlass::tool::Reconciled;
use windlass::{Agent, Tool, ToolContext, ToolError, read_output};

/// The keys that a bank was shown, in order.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<Vec<String>>>);

impl Bank {
    fn note(&self, what: &str, ctx: &ToolContext) {
        let note = format!("{what} {}", ctx.idempotency_key());
        self.0.lock().expect("no test panicked with it").push(note);
    }

    fn notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no test panicked with it"))
    }

    fn pay(&self) -> Tool {
        let (paid, asked) = (self.clone(), self.clone());
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        Tool::dynamic("pay", "Pays.", schema, move |ctx: ToolContext, _: Value| {
            paid.note("pay", &ctx);
            async { Ok::<_, ToolError>("paid") }
        })
        .effect(Effect::Once)
        .reconcile(move |ctx| {
            asked.note("ask", &ctx);
            async { Reconciled::Happened("paid, says the bank".into()) }
        })
    }
}

fn start_of(records: &[Record], call: &str) -> u64 {
    let is_start = |record: &&Record| matches!(&record.entry, Entry::CallStarted(one) if one.call == call);
    records.iter().find(is_start).expect("the call started").seq
}

#[tokio::test]
async fn a_fork_inside_a_call_asks_about_it_by_the_key_that_it_had() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(folder.path().join("bank.db")).expect("a new store"));
    let bank = Bank::default();
    let clerk = Agent::new("clerk")
        .model(ScriptedModel::new([Reply::call("p1", "pay", json!({})), Reply::text("paid")]))
        .tools(bank.pay());
    let desk = |replies: Vec<Reply>, clerk: &Agent| {
        let tools = vec![bank.pay(), clerk.as_tool("clerk", "Pays.").effect(Effect::Once)];
        Agent::new("desk").model(ScriptedModel::new(replies)).tools(tools)
    };
    let replies = vec![
        Reply::call("c1", "pay", json!({})),
        Reply::call("c2", "clerk", json!({ "input": "pay" })),
        Reply::text("done"),
    ];
    let outcome = desk(replies, &clerk).run("pay").run_id("one").store(store.clone()).await;
    let outcome = outcome.expect("the run ends");
    let first = bank.notes();
    assert_eq!(first.len(), 2, "{first:?}");

    for (call, place, rest) in [("c1", 0, 1), ("p1", 1, 1)] {
        let at = start_of(outcome.record().journal(), call);
        let id = RunId::new(format!("fork-at-{call}"));
        store::fork(&*store, &"one".into(), at, id.clone(), Change::None).await.expect("it can be forked");
        let mut again = vec![Reply::text("done")];
        if call == "c1" {
            again.insert(0, Reply::call("c2", "pay", json!({})));
        }
        let clerk = Agent::new("clerk").model(ScriptedModel::new([Reply::text("paid")])).tools(bank.pay());
        let ended = desk(again, &clerk).recover(id, store.clone()).await.expect("it goes on");
        assert_eq!(ended.text(), "done");
        let notes = bank.notes();
        assert_eq!(notes[0], first[place].replace("pay", "ask"), "{call} is asked about by its first key");
        assert_eq!(notes.len(), 2 - place * rest, "{notes:?}");
        if let Some(new) = notes.get(1) {
            assert!(!first.contains(new), "what the fork begins itself is new to the world: {new}");
        }
    }
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
    let tools = vec![log.output_budget(100).effect(Effect::Pure), read_output()];
    let agent = |replies: Vec<Reply>| {
        let model = ScriptedModel::new(replies);
        (Agent::new("reader").model(model.clone()).tools(tools.clone()), model)
    };
    let (reader, _) = agent(vec![Reply::call("c1", "log", json!({})), Reply::text("done")]);
    reader.run("read").run_id("one").store(store.clone()).await.expect("the run ends");

    for (origin, id) in [("one", "two"), ("two", "three")] {
        let from: RunId = origin.into();
        let records = store::paused(&*store, &from).await.expect("it is there").record().journal().to_vec();
        let is_answer =
            |record: &&Record| matches!(&record.entry, Entry::CallSettled(one) if one.call == "c1");
        let at = records.iter().find(is_answer).expect("it settled").seq;
        store::fork(&*store, &from, at, id.into(), Change::None).await.expect("it can be forked");
    }
    let read = Reply::call("c2", "read_output", json!({ "call": "c1", "from": 500, "bytes": null }));
    let (reader, model) = agent(vec![read, Reply::text("done")]);
    reader.recover("three", store).await.expect("it goes on");
    assert_eq!(model.requests()[1].input_text().pop().as_deref(), Some("output c2 the end"));
}

#[tokio::test]
async fn a_fork_is_refused_where_its_name_is_taken_or_the_record_is_not_there() {
    let store: Arc<dyn Store> = Arc::new(windlass::MemoryStore::default());
    let agent = Agent::new("host").model(ScriptedModel::new([Reply::text("Good morning.")]));
    agent.run("Hello").run_id("one").store(store.clone()).await.expect("the run ends");
    let run: RunId = "one".into();
    let missing = store::fork(&*store, &run, 99, "two".into(), Change::None).await;
    assert!(missing.expect_err("there is no such record").to_string().contains("99"));
    store::fork(&*store, &run, 1, "two".into(), Change::None).await.expect("it can be forked");
    let taken = store::fork(&*store, &run, 1, "two".into(), Change::None).await;
    assert!(taken.expect_err("the name is taken").to_string().contains("two"));
}
