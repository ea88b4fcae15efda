//! The idempotency keys of a fork: it asks about a call in flight by the key of its origin, and what it does itself, also
//! instead of a call that had no effect, is done under keys of its own.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::core::inspect::ForkChange;
use windlass::core::{
    decision::{Decision, DecisionScope, PersonQuestion},
    journal::{JournalEntry, JournalRecord},
    tool::ToolEffect,
};
use windlass::prelude::*;
use windlass::store::{MemoryStore, Store, fork_run, load_paused, post_decision};
use windlass::tool::ReconcileOutcome;

/// Lease of a driver that is dropped; another one takes the run over after it.
const LEASE: Duration = Duration::from_millis(20);

/// A bank that records the idempotency keys that it receives, in order.
#[derive(Clone, Default)]
struct TestBank {
    notes: Arc<Mutex<Vec<String>>>,
    /// The next payment hangs until its process dies.
    hangs: Arc<AtomicBool>,
}

impl TestBank {
    fn note(&self, what: &str, ctx: &ToolContext) {
        let note = format!("{what} {}", ctx.idempotency_key());
        self.notes.lock().expect("a log").push(note);
    }

    fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().expect("a log"))
    }

    fn pay_tool(&self) -> Tool {
        let bank = self.clone();
        let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        Tool::dynamic("pay", "Pays.", schema, move |ctx: ToolContext, _: Value| {
            bank.note("pay", &ctx);
            let hangs = bank.hangs.swap(false, Ordering::SeqCst);
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok::<_, ToolError>("paid")
            }
        })
        .non_strict()
        .effect(ToolEffect::Once)
    }

    fn asking_tool(&self) -> Tool {
        let bank = self.clone();
        self.pay_tool().reconcile(move |ctx| {
            bank.note("ask", &ctx);
            async { ReconcileOutcome::NotExecuted }
        })
    }
}

/// Returns an agent that pays once, itself or through a nested agent.
fn desk(tool: &Tool, is_nested: bool) -> Agent {
    let pay = || ScriptedResponse::call("p1", "pay", json!({}));
    let bye = || ScriptedResponse::text("bye");
    if !is_nested {
        return Agent::new("desk").model(ScriptedModel::new([pay(), bye()])).tool(tool.clone());
    }
    let clerk = Agent::new("clerk").model(ScriptedModel::new([pay(), bye()])).tool(tool.clone());
    let ask = ScriptedResponse::call("c1", "clerk", json!({ "input": "pay" }));
    Agent::new("desk").model(ScriptedModel::new([ask, bye()])).tool(clerk.as_tool("clerk", "Pays."))
}

/// Returns an agent that goes on after its payment.
fn desk_again(tool: &Tool, is_nested: bool) -> Agent {
    let bye = || ScriptedModel::new([ScriptedResponse::text("bye")]);
    if !is_nested {
        return Agent::new("desk").model(bye()).tool(tool.clone());
    }
    let clerk = Agent::new("clerk").model(bye()).tool(tool.clone());
    Agent::new("desk").model(bye()).tool(clerk.as_tool("clerk", "Pays."))
}

fn path_of(is_nested: bool) -> &'static str {
    if is_nested { "c1/p1" } else { "p1" }
}

fn seq_of(records: &[JournalRecord], is_it: impl Fn(&JournalEntry) -> bool) -> u64 {
    records.iter().find(|record| is_it(&record.entry)).expect("the record is there").seq
}

fn is_start(entry: &JournalEntry) -> bool {
    matches!(entry, JournalEntry::CallStarted(one) if one.call == "p1")
}

async fn records_of(store: &MemoryStore, run: &str) -> Vec<JournalRecord> {
    let known = load_paused(store, &run.into()).await.expect("it is stored");
    known.record().journal().to_vec()
}

/// Drives a run until its payment hangs, and drops the driver as a crash does.
async fn crash_in_body(run: windlass::run::RunBuilder, bank: &TestBank) {
    bank.hangs.store(true, Ordering::SeqCst);
    let paid = || bank.notes.lock().expect("a log").iter().any(|note| note.starts_with("pay"));
    let mut run = std::pin::pin!(run.lease_duration(LEASE).into_future());
    while !paid() || bank.hangs.load(Ordering::SeqCst) {
        let ended = tokio::time::timeout(Duration::from_millis(5), &mut run).await;
        assert!(ended.is_err(), "the payment hangs: {ended:?}");
    }
}

async fn confirm_not_executed(store: &MemoryStore, run: &str, call: &str) {
    let scope = DecisionScope::ThisCall;
    post_decision(store, &run.into(), call, Decision::ConfirmNotExecuted, scope, "ann")
        .await
        .expect("it is in doubt");
}

async fn recover(agent: Agent, run: &str, store: &Arc<MemoryStore>) -> RunResult {
    let store: Arc<dyn Store> = store.clone();
    agent.recover(run, store).await.expect("it goes on")
}

fn expect_paused(result: &RunResult) {
    assert!(matches!(result, RunResult::Paused(_)), "{result:?} does not wait");
}

fn expect_finished(result: &RunResult) {
    assert!(matches!(result, RunResult::Finished(_)), "{result:?} has not finished");
}

#[tokio::test]
async fn a_call_that_had_no_effect_runs_in_a_fork_under_a_key_of_the_fork() {
    for is_nested in [false, true] {
        let (bank, store) = (TestBank::default(), Arc::new(MemoryStore::default()));
        let (tool, call) = (bank.pay_tool(), path_of(is_nested));
        crash_in_body(desk(&tool, is_nested).run("go").run_id("one").store(store.clone()), &bank).await;
        expect_paused(&recover(desk_again(&tool, is_nested), "one", &store).await);
        confirm_not_executed(&store, "one", call).await;
        expect_finished(&recover(desk_again(&tool, is_nested), "one", &store).await);
        let of_origin = bank.take_notes();
        assert_eq!(of_origin.len(), 2, "{of_origin:?}");
        assert_eq!(of_origin[0], of_origin[1], "both attempts of a run have one key");
        let mut seen = BTreeSet::from([of_origin[0].clone()]);

        // Before the decision the fork asks a person of its own; after it, the decision is inherited.
        let records = records_of(&store, "one").await;
        let places = [
            ("at-start", seq_of(&records, is_start)),
            ("at-hold", seq_of(&records, |entry| matches!(entry, JournalEntry::CallHeld(_)))),
            ("at-decision", seq_of(&records, |entry| matches!(entry, JournalEntry::DecisionRecorded(_)))),
        ];
        for (fork, at) in places {
            let origin = "one".into();
            fork_run(&*store, &origin, at, fork.into(), ForkChange::Unchanged).await.expect("it forks");
            if fork != "at-decision" {
                expect_paused(&recover(desk_again(&tool, is_nested), fork, &store).await);
                assert_eq!(bank.take_notes(), Vec::<String>::new(), "nobody knows what happened");
                confirm_not_executed(&store, fork, call).await;
            }
            // The fork keeps its own key over a crash.
            let run = desk_again(&tool, is_nested).recover(fork, store.clone());
            crash_in_body(run, &bank).await;
            expect_paused(&recover(desk_again(&tool, is_nested), fork, &store).await);
            confirm_not_executed(&store, fork, call).await;
            expect_finished(&recover(desk_again(&tool, is_nested), fork, &store).await);
            let of_fork = bank.take_notes();
            assert_eq!(of_fork.len(), 2, "{of_fork:?}");
            assert_eq!(of_fork[0], of_fork[1], "both attempts of the fork have one key");
            assert!(seen.insert(of_fork[0].clone()), "{fork}: {of_fork:?} is known from {seen:?}");
        }
    }
}

#[tokio::test]
async fn a_fork_asks_by_the_key_of_its_origin_and_runs_under_its_own() {
    for is_nested in [false, true] {
        let (bank, store) = (TestBank::default(), Arc::new(MemoryStore::default()));
        let tool = bank.asking_tool();
        let result = desk(&tool, is_nested).run("go").run_id("one").store(store.clone()).await;
        expect_finished(&result.expect("it ends"));
        let of_origin = bank.take_notes();
        assert_eq!(of_origin.len(), 1, "{of_origin:?}");

        let at = seq_of(&records_of(&store, "one").await, is_start);
        fork_run(&*store, &"one".into(), at, "two".into(), ForkChange::Unchanged).await.expect("it forks");
        let run = desk_again(&tool, is_nested).recover("two", store.clone());
        crash_in_body(run, &bank).await;
        let of_fork = bank.take_notes();
        assert_eq!(of_fork[0], of_origin[0].replace("pay", "ask"));
        assert_eq!(of_fork.len(), 2, "{of_fork:?}");
        assert_ne!(of_fork[1], of_origin[0], "the payment of the fork is another one");

        expect_finished(&recover(desk_again(&tool, is_nested), "two", &store).await);
        let again = bank.take_notes();
        assert_eq!(again, [of_fork[1].replace("pay", "ask"), of_fork[1].clone()], "the key is recorded");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_an_answer_runs_in_a_fork_under_a_key_of_the_fork() {
    let (bank, store) = (TestBank::default(), Arc::new(MemoryStore::default()));
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let asked = bank.clone();
    let tool = Tool::dynamic("pay", "Pays.", schema, move |ctx: ToolContext, _: Value| {
        let question = PersonQuestion::new("From which account?");
        let answer = ctx.answer_to(&question).cloned();
        if answer.is_some() {
            asked.note("pay", &ctx);
        }
        async move { if answer.is_some() { Ok("paid") } else { Err(ToolError::ask_person(question)) } }
    })
    .non_strict()
    .effect(ToolEffect::Once);
    let result = desk(&tool, false).run("go").run_id("one").store(store.clone()).await.expect("it waits");
    expect_paused(&result);
    let at = seq_of(&records_of(&store, "one").await, |entry| matches!(entry, JournalEntry::CallHeld(_)));
    let origin = "one".into();
    fork_run(&*store, &origin, at, "two".into(), ForkChange::Unchanged).await.expect("it forks");
    for run in ["one", "two"] {
        let (answer, scope) = (Decision::Answer { value: json!("savings") }, DecisionScope::ThisCall);
        post_decision(&*store, &run.into(), "p1", answer, scope, "ann").await.expect("it waits");
        expect_finished(&recover(desk_again(&tool, false), run, &store).await);
    }
    // Where the answer is inherited, the key is not.
    let at =
        seq_of(&records_of(&store, "one").await, |entry| matches!(entry, JournalEntry::DecisionRecorded(_)));
    fork_run(&*store, &origin, at, "three".into(), ForkChange::Unchanged).await.expect("it forks");
    expect_finished(&recover(desk_again(&tool, false), "three", &store).await);
    let notes = bank.take_notes();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert_eq!(notes.iter().collect::<BTreeSet<_>>().len(), 3, "three payments have three keys: {notes:?}");
}

#[tokio::test]
async fn an_idempotent_call_in_flight_keeps_its_key_in_a_fork() {
    let (bank, store) = (TestBank::default(), Arc::new(MemoryStore::default()));
    let tool = bank.pay_tool().effect(ToolEffect::Idempotent);
    let result = desk(&tool, false).run("go").run_id("one").store(store.clone()).await;
    expect_finished(&result.expect("it ends"));
    let at = seq_of(&records_of(&store, "one").await, is_start);
    fork_run(&*store, &"one".into(), at, "two".into(), ForkChange::Unchanged).await.expect("it forks");
    expect_finished(&recover(desk_again(&tool, false), "two", &store).await);
    let notes = bank.take_notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_eq!(notes[0], notes[1], "the first payment may have happened under this key");
}
