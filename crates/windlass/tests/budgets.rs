//! Budgets: reserved in the journal before each request, shared with nested agents, and kept across pauses and crashes.

#![allow(clippy::expect_used)]

use std::future::IntoFuture;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use windlass::context::ContextPolicy;
use windlass::core::budget::{BudgetScope, SpendingBudget};
use windlass::core::decision::{Decision, DecisionScope, HoldReason, PersonQuestion};
use windlass::core::failure::RunFailure;
use windlass::core::id::RunId;
use windlass::core::item::Item;
use windlass::core::journal::{JournalEntry, JournalRecord};
use windlass::core::run::{BUDGET_CALL, Run};
use windlass::core::usage::Usage;
use windlass::error::RunError;
use windlass::model::{
    DeltaSink, Model, ModelError, ModelErrorKind, ModelRequest, ModelResponse, RetryAdvice,
};
use windlass::prelude::*;
use windlass::price::PriceList;
use windlass::run::PausedRun;
use windlass::session::Session;
use windlass::store::{MemoryStore, SqliteStore, Store, load_paused, post_decision};

/// A model that calls a tool `calls` times, and then answers. Each response costs 100 tokens.
#[derive(Clone)]
struct MeteredModel {
    tool: &'static str,
    calls: usize,
    /// Number of calls in one response.
    at_once: usize,
    requests: Arc<AtomicU64>,
    /// Number of tools that each request offered.
    offered: Arc<Mutex<Vec<usize>>>,
    /// Permits for answers; without any, a request does not return.
    answers: Arc<Semaphore>,
    /// The name that a response has.
    responder: Option<&'static str>,
    usage: Option<Usage>,
    /// The name that is known before the model responds.
    name: Option<&'static str>,
    /// Errors of the next requests.
    errors: Arc<Mutex<Vec<ModelErrorKind>>>,
    /// Time that a response takes.
    delay: Duration,
}

impl MeteredModel {
    fn calling(tool: &'static str, calls: usize) -> Self {
        Self {
            tool,
            calls,
            at_once: 1,
            requests: Arc::default(),
            offered: Arc::default(),
            answers: Arc::new(Semaphore::new(1_000)),
            responder: None,
            usage: Some(Usage::of_tokens(60, 40)),
            name: None,
            errors: Arc::default(),
            delay: Duration::ZERO,
        }
    }

    fn slow(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    fn known_as(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }

    /// Makes the next request fail.
    fn fail_next(&self, kind: ModelErrorKind) {
        self.errors.lock().expect("a lock").push(kind);
    }

    fn at_once(mut self, count: usize) -> Self {
        self.at_once = count;
        self
    }

    fn named(mut self, name: &'static str) -> Self {
        self.responder = Some(name);
        self
    }

    /// Reports no usage, so that the size of a request is what the library estimates.
    fn without_usage(mut self) -> Self {
        self.usage = None;
        self
    }

    fn count(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Model for MeteredModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.offered.lock().expect("a lock").push(request.tools.len());
        self.answers.acquire().await.expect("it is open").forget();
        tokio::time::sleep(self.delay).await;
        if let Some(kind) = self.errors.lock().expect("a lock").pop() {
            return Err(ModelError::new("away").with_kind(kind).with_retry_advice(RetryAdvice::Safe));
        }
        let done = request.input.iter().filter(|item| matches!(&***item, Item::Output(_))).count();
        let items = if done < self.calls && !request.tools.is_empty() {
            let call = |n: usize| Item::call(format!("c{done}-{n}"), self.tool, "{\"input\":\"go\"}");
            (0..self.at_once).map(|n| Arc::new(call(n))).collect()
        } else {
            vec![Arc::new(Item::assistant("all done"))]
        };
        let model = self.responder.map(str::to_owned);
        Ok(ModelResponse { items, usage: self.usage, model, ..ModelResponse::default() })
    }

    fn name(&self) -> Option<&str> {
        self.name
    }
}

fn note_tool() -> Tool {
    let schema = json!({ "type": "object", "properties": { "input": { "type": "string" } },
        "required": ["input"], "additionalProperties": false });
    Tool::dynamic("note", "Notes.", schema, |_: ToolContext, _: serde_json::Value| async {
        Ok::<_, ToolError>("noted")
    })
}

fn desk(model: &MeteredModel) -> Agent {
    Agent::new("desk").model(model.clone()).tool(note_tool())
}

fn reached(result: Result<RunResult, RunError>) -> windlass::core::budget::ReachedBudget {
    match result {
        Err(RunError::Failed(failed)) => match &failed.failure {
            RunFailure::BudgetReached { reached } => reached.clone(),
            other => panic!("another failure: {other}"),
        },
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("the run did not fail"),
    }
}

fn paused(result: Result<RunResult, RunError>) -> PausedRun {
    match result.expect("the run pauses") {
        RunResult::Paused(paused) => paused,
        _ => panic!("the run did not pause"),
    }
}

fn output(result: Result<RunResult, RunError>) -> String {
    match result.expect("the run finishes") {
        RunResult::Finished(finished) => finished.output,
        _ => panic!("the run did not finish"),
    }
}

/// Checks that each request was reserved before its answer, and that the journal gives the same ledger again.
fn check_journal(records: &[JournalRecord]) {
    let mut reserved: Vec<&[_]> = Vec::new();
    for record in records {
        match &record.entry {
            JournalEntry::BudgetReserved(_) => {
                reserved.retain(|path| *path != record.path.as_slice());
                reserved.push(&record.path);
            }
            JournalEntry::ModelResponded(_) => {
                let place = reserved.iter().position(|path| *path == record.path.as_slice());
                reserved.remove(place.expect("the request was reserved"));
            }
            _ => {}
        }
    }
    let run = Run::replay(records).expect("it replays").run;
    assert_eq!(run, Run::replay(records).expect("it replays").run);
}

#[tokio::test]
async fn a_run_fails_before_the_request_that_its_budget_does_not_allow() {
    let model = MeteredModel::calling("note", 9);
    let result = desk(&model).run("go").budget(SpendingBudget::new().requests(3)).await;
    let reached = reached(result);
    assert_eq!((reached.scope, reached.limit, reached.spent), (BudgetScope::Run, 3, 3));
    assert_eq!(model.count(), 3);
}

#[tokio::test]
async fn a_run_finishes_with_one_last_answer_without_tools() {
    let model = MeteredModel::calling("note", 9);
    let budget = SpendingBudget::new().requests(3).finish();
    let result = desk(&model).run("go").budget(budget).await.expect("it finishes");
    let RunResult::Finished(finished) = result else { panic!("the run did not finish") };
    assert_eq!(finished.output, "all done");
    assert_eq!(*model.offered.lock().expect("a lock"), [1, 1, 0]);
    check_journal(finished.record.journal());
}

#[tokio::test]
async fn a_person_grants_more_from_another_process_and_refuses_the_second_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("store.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(file.clone()).expect("it opens"));
    let model = MeteredModel::calling("note", 9);
    let budget = SpendingBudget::new().requests(2).ask_person();
    let first = paused(desk(&model).run("go").budget(budget).store(store.clone()).run_id("r").await);
    let pending = first.pending_calls();
    assert_eq!((pending.len(), pending[0].call().as_str(), pending[0].attempt), (1, BUDGET_CALL, 1));
    let HoldReason::Question(question) = &pending[0].reason else { panic!("it is a question") };
    assert!(question.text.contains("2 of 2 requests"), "{}", question.text);
    // The text of the run has the question, too.
    let restored = PausedRun::from_text(&first.to_text()).expect("it is restored");
    assert_eq!(restored.pending_calls(), pending);

    let elsewhere = SqliteStore::open(file).expect("it opens");
    let run = RunId::from("r");
    let answer = |value: serde_json::Value| Decision::Answer { value };
    let wrong =
        post_decision(&elsewhere, &run, BUDGET_CALL, answer(json!("much")), DecisionScope::ThisCall, "ann");
    assert!(wrong.await.is_err(), "an answer has an amount");
    let approval =
        post_decision(&elsewhere, &run, BUDGET_CALL, Decision::Approve, DecisionScope::ThisCall, "ann");
    assert!(approval.await.is_err(), "an approval has no amount");
    post_decision(&elsewhere, &run, BUDGET_CALL, answer(json!(3)), DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    let second = paused(desk(&model).recover("r", store.clone()).await);
    assert_eq!((model.count(), second.pending_calls()[0].attempt), (5, 2));
    check_journal(second.record().journal());
    post_decision(&elsewhere, &run, BUDGET_CALL, answer(json!(0)), DecisionScope::ThisCall, "ann")
        .await
        .expect("it is posted");
    let end = reached(desk(&model).recover("r", store.clone()).await);
    assert_eq!((end.limit, end.spent, model.count()), (5, 5, 5));
}

#[tokio::test]
async fn a_budget_that_is_reached_in_a_nested_agent_asks_at_its_depth() {
    let inner = MeteredModel::calling("note", 9);
    let outer = MeteredModel::calling("ask_clerk", 1);
    let clerk = Agent::new("clerk").model(inner.clone()).tool(note_tool());
    let front = Agent::new("front").model(outer.clone()).tool(clerk.as_tool("ask_clerk", "Asks the clerk."));
    let budget = SpendingBudget::new().tokens(350).ask_person();
    let mut first = paused(front.run("go").budget(budget).await);
    let pending = first.pending_calls();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].path.to_string(), format!("c0-0/{BUDGET_CALL}"));
    let spent = *first.record().state().budget_ledger().expect("a ledger").spent();
    assert_eq!(spent.tokens, 100 * (inner.count() + outer.count()));
    assert!(spent.tokens <= 350, "{spent:?}");
    first.answer_question(pending[0].path.clone(), json!(5_000)).expect("it is answered");
    assert_eq!(output(front.resume(first).await), "all done");
}

/// Ten agents at once have a budget for three more requests: the others wait for the answers under way, and then reach it.
#[tokio::test]
async fn agents_at_once_never_overspend() {
    let inner = MeteredModel::calling("note", 9);
    inner.answers.forget_permits(1_000);
    let outer = MeteredModel::calling("ask_clerk", 1).at_once(10);
    let clerk = Agent::new("clerk").model(inner.clone()).tool(note_tool());
    let front = Agent::new("front").model(outer.clone()).tool(clerk.as_tool("ask_clerk", "Asks the clerk."));
    let budget = SpendingBudget::new().requests(4);
    let run = tokio::spawn(async move { front.run("go").budget(budget).await });
    while inner.count() < 3 {
        tokio::task::yield_now().await;
    }
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(inner.count(), 3, "the others wait");
    inner.answers.add_permits(1_000);
    assert_eq!(reached(run.await.expect("it ends")).spent, 4);
    assert_eq!((inner.count(), outer.count()), (3, 1));
}

/// Each nested agent that reaches the budget wants to give a last answer. The room is kept for the agent that called them.
#[tokio::test]
async fn last_answers_of_agents_at_once_never_overspend() {
    let inner = MeteredModel::calling("note", 9);
    let outer = MeteredModel::calling("ask_clerk", 1).at_once(10);
    let clerk = Agent::new("clerk").model(inner.clone()).tool(note_tool());
    let front = Agent::new("front").model(outer.clone()).tool(clerk.as_tool("ask_clerk", "Asks the clerk."));
    let result = front.run("go").budget(SpendingBudget::new().requests(4).finish()).await;
    assert_eq!(output(result), "all done");
    assert_eq!((inner.count(), outer.count()), (2, 2));
}

fn long_tool() -> Tool {
    let schema = json!({ "type": "object", "properties": { "input": { "type": "string" } },
        "required": ["input"], "additionalProperties": false });
    Tool::dynamic("note", "Notes.", schema, |_: ToolContext, _: serde_json::Value| async {
        Ok::<_, ToolError>("a long note ".repeat(150))
    })
}

fn summarised_by(summariser: &MeteredModel) -> ContextPolicy {
    ContextPolicy::with_window(1_500).summarise_with(summariser.clone()).keep_newest(2)
}

#[tokio::test]
async fn a_summary_is_reserved_and_is_left_out_if_it_does_not_fit() {
    let (model, summariser) =
        (MeteredModel::calling("note", 30).without_usage(), MeteredModel::calling("none", 0));
    let reader = |model: &MeteredModel| Agent::new("desk").model(model.clone()).tool(long_tool());
    let budget = SpendingBudget::new().requests(20);
    let run =
        reader(&model).run("go").max_turns(50).budget(budget).context_policy(summarised_by(&summariser));
    let Err(RunError::Failed(failed)) = run.await else { panic!("it reaches its budget") };
    assert!(summariser.count() > 0);
    assert_eq!(model.count() + summariser.count(), 20);
    let records = failed.record.journal();
    let summaries = records
        .iter()
        .filter(|one| matches!(&one.entry, JournalEntry::BudgetReserved(reserved) if reserved.is_summary));
    assert_eq!(summaries.count() as u64, summariser.count());
    let replayed = Run::replay(records).expect("it replays").run;
    let ledger = replayed.budget_ledger().expect("a ledger");
    assert_eq!((ledger.spent().requests, ledger.reserved().requests), (20, 0));
    // The request that needs the first summary is the last one of this budget.
    let first = records.iter().position(|one| matches!(one.entry, JournalEntry::HistoryCompacted(_)));
    let asked = |one: &&JournalRecord| matches!(&one.entry, JournalEntry::BudgetReserved(reserved) if !reserved.is_summary);
    let before = records[..first.expect("a compaction")].iter().filter(asked).count() as u64;
    let (model, summariser) =
        (MeteredModel::calling("note", 30).without_usage(), MeteredModel::calling("none", 0));
    let run = reader(&model).run("go").max_turns(50).budget(SpendingBudget::new().requests(before));
    let Err(RunError::Failed(failed)) = run.context_policy(summarised_by(&summariser)).await else {
        panic!("it reaches its budget")
    };
    assert_eq!((model.count(), summariser.count()), (before, 0));
    let is_compacted = |one: &JournalRecord| matches!(one.entry, JournalEntry::HistoryCompacted(_));
    assert!(failed.record.journal().iter().any(is_compacted), "a note stands for what was removed");
}

#[tokio::test]
async fn a_summary_of_a_process_that_died_counts_as_spent() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (model, summariser) =
        (MeteredModel::calling("note", 30).without_usage(), MeteredModel::calling("none", 0));
    summariser.answers.forget_permits(1_000);
    let run = Agent::new("desk").model(model.clone()).tool(long_tool()).run("go").max_turns(50);
    let run = run.budget(SpendingBudget::new().requests(20)).context_policy(summarised_by(&summariser));
    let run = tokio::spawn(run.run_id("r").store(store.clone()).into_future());
    while summariser.count() == 0 {
        assert!(!run.is_finished(), "the history is summarised");
        tokio::task::yield_now().await;
    }
    run.abort();
    assert!(run.await.is_err(), "it was given up");
    let stored = load_paused(&*store, &RunId::from("r")).await.expect("it loads");
    let ledger = stored.record().state().budget_ledger().expect("a ledger").clone();
    assert_eq!((ledger.spent().requests, ledger.reserved().requests), (model.count(), 2));
}

#[tokio::test]
async fn an_agent_has_a_budget_of_its_own_which_those_that_it_calls_share() {
    let (inner, middle) = (MeteredModel::calling("note", 2), MeteredModel::calling("ask_clerk", 5));
    let outer = MeteredModel::calling("ask_lead", 1);
    let clerk = Agent::new("clerk").model(inner.clone()).tool(note_tool());
    let lead = Agent::new("lead")
        .model(middle.clone())
        .tool(clerk.as_tool("ask_clerk", "Asks the clerk."))
        .budget(SpendingBudget::new().requests(4));
    let front = Agent::new("front").model(outer.clone()).tool(lead.as_tool("ask_lead", "Asks the lead."));
    // The lead and its clerk have four requests between them. The front agent is told, and goes on.
    assert_eq!(output(front.run("go").await), "all done");
    assert_eq!((inner.count() + middle.count(), outer.count()), (4, 2));
}

#[tokio::test]
async fn the_runs_of_a_session_share_its_budget() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let session = Session::in_run_store("s".into(), &store).expect("the store has sessions");
    let model = MeteredModel::calling("note", 0);
    let budget = SpendingBudget::new().requests(3);
    for n in 0..3 {
        let run =
            desk(&model).run("go").store(store.clone()).session(&session).session_budget(budget.clone());
        assert_eq!(output(run.run_id(format!("r{n}")).await), "all done");
    }
    let run = desk(&model).run("go").store(store.clone()).session(&session).session_budget(budget);
    let reached = reached(run.await);
    assert_eq!((reached.scope, reached.spent, model.count()), (BudgetScope::Session, 3, 3));
}

/// A run that parks, one without the budget, and a later one: each sees what all others have spent.
#[tokio::test]
async fn a_parked_run_of_a_session_sees_what_others_spent_meanwhile() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let session = Session::in_run_store("s".into(), &store).expect("the store has sessions");
    let (asking, answering) = (MeteredModel::calling("note", 9), MeteredModel::calling("note", 0));
    let budget = SpendingBudget::new().requests(3);
    let agent = Agent::new("desk").model(asking.clone()).tool(note_tool().needs_approval());
    let first = agent.run("go").store(store.clone()).session(&session).session_budget(budget.clone());
    let mut parked = paused(first.run_id("parked").await);
    let start = |id: &str| desk(&answering).run("go").store(store.clone()).session(&session).run_id(id);
    assert_eq!(output(start("b").await), "all done");
    assert_eq!(output(start("c").session_budget(budget.clone()).await), "all done");
    let call = parked.pending_calls()[0].path.clone();
    parked.approve(call).expect("it is approved");
    let end = reached(agent.resume(parked).store(store.clone()).await);
    assert_eq!((end.scope, end.spent, asking.count()), (BudgetScope::Session, 3, 1));
    let end = reached(start("d").session_budget(budget).await);
    assert_eq!((end.scope, end.spent, answering.count()), (BudgetScope::Session, 3, 2));
}

fn prices_of_clerk() -> Arc<PriceList> {
    let prices = r#"{ "as_of": "2026-01-01", "source": "a test", "currency": "USD",
        "models": [{ "model": "clerk", "input": 10, "output": 100 }] }"#;
    Arc::new(PriceList::parse(prices).expect("it parses"))
}

#[tokio::test]
async fn money_is_counted_by_the_price_list_and_an_unknown_price_reaches_the_limit() {
    let prices = prices_of_clerk();
    // A request costs 60 × 10 + 40 × 100 millionths.
    let model = MeteredModel::calling("note", 9).named("clerk-2026-01-01");
    let run = desk(&model).run("go").prices(prices.clone()).budget(SpendingBudget::new().cost(0.01));
    let end = reached(run.await);
    assert!(end.spent == 4_600_000 * model.count() && end.spent <= 10_000_000, "{end}");
    assert!(model.count() >= 1);

    let model = MeteredModel::calling("note", 9).named("nobody-knows");
    let run = desk(&model).run("go").prices(prices).budget(SpendingBudget::new().cost(0.01));
    let end = reached(run.await);
    assert_eq!((end.unpriced_requests, model.count()), (1, 1));
    assert!(end.to_string().contains("unknown"), "{end}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_counts_as_it_was_estimated_also_the_first_of_a_driver() {
    let budget = || SpendingBudget::new().cost(1.0);
    let run = |model: &MeteredModel| desk(model).run("go").prices(prices_of_clerk()).budget(budget());
    // The model is known before it responds.
    let model = MeteredModel::calling("note", 2).named("clerk").known_as("clerk");
    model.fail_next(ModelErrorKind::Overloaded);
    assert_eq!(output(run(&model).await), "all done");
    assert_eq!(model.count(), 4);
    // It is not, and nothing was sent.
    let model = MeteredModel::calling("note", 2).named("clerk");
    model.fail_next(ModelErrorKind::Unreachable);
    assert_eq!(output(run(&model).await), "all done");
    // It is not, and the provider may have worked.
    let model = MeteredModel::calling("note", 2).named("clerk");
    model.fail_next(ModelErrorKind::Overloaded);
    assert_eq!(reached(run(&model).await).unpriced_requests, 1);
    // A driver that takes over knows the model that responded to the one before.
    let model = MeteredModel::calling("note", 2).named("clerk");
    let held = || Agent::new("desk").model(model.clone()).tool(note_tool().needs_approval());
    let mut first = paused(held().run("go").prices(prices_of_clerk()).budget(budget()).await);
    let call = first.pending_calls()[0].path.clone();
    first.approve(call).expect("it is approved");
    model.fail_next(ModelErrorKind::Overloaded);
    let second = paused(held().resume(first).prices(prices_of_clerk()).await);
    assert_eq!(model.count(), 3);
    let ledger = second.record().state().budget_ledger().expect("a ledger");
    assert!(ledger.spent().cost_nanos > 9_200_000, "the failed request is counted: {ledger:?}");
    check_journal(second.record().journal());
}

#[tokio::test(start_paused = true)]
async fn time_counts_across_drivers_and_not_while_a_run_is_parked() {
    let model = MeteredModel::calling("note", 9).slow(Duration::from_secs(40));
    let desk = || Agent::new("desk").model(model.clone()).tool(note_tool().needs_approval());
    let budget = SpendingBudget::new().time(Duration::from_secs(150));
    let mut result = desk().run("go").budget(budget).await;
    while let Ok(RunResult::Paused(mut parked)) = result {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let call = parked.pending_calls()[0].path.clone();
        parked.approve(call).expect("it is approved");
        result = desk().resume(PausedRun::from_text(&parked.to_text()).expect("it is restored")).await;
    }
    let end = reached(result);
    assert_eq!((model.count(), end.spent / 1_000), (4, 160), "{end}");
}

#[tokio::test(start_paused = true)]
async fn time_of_bodies_and_questions_counts_across_drivers() {
    let model = MeteredModel::calling("note", 9);
    let schema = json!({ "type": "object", "properties": { "input": { "type": "string" } },
        "required": ["input"], "additionalProperties": false });
    let ask = Tool::dynamic("note", "Asks.", schema, |ctx: ToolContext, _: serde_json::Value| async move {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let question = PersonQuestion::new("Which one?").with_schema(json!({ "type": "string" }));
        match ctx.answer_to(&question) {
            Some(_) => Ok::<_, ToolError>("it is said"),
            None => Err(ToolError::ask_person(question)),
        }
    });
    let desk = || Agent::new("desk").model(model.clone()).tool(ask.clone());
    let budget = SpendingBudget::new().time(Duration::from_secs(100)).ask_person();
    let mut parked = paused(desk().run("go").budget(budget).await);
    while parked.pending_calls()[0].call().as_str() != BUDGET_CALL {
        let call = parked.pending_calls()[0].path.clone();
        parked.answer_question(call, json!("this one")).expect("it is answered");
        parked = paused(desk().resume(parked).await);
    }
    // A body asks after 30 s, and answers after 30 s.
    let spent = parked.record().state().budget_ledger().expect("a ledger").spent().active_ms;
    assert_eq!((model.count(), spent / 1_000), (2, 120));
    let call = parked.pending_calls()[0].path.clone();
    parked.answer_question(call, json!(10)).expect("it is answered");
    let again = paused(desk().resume(parked).await);
    assert_eq!((again.pending_calls()[0].attempt, model.count()), (2, 2), "10 s more are spent already");
}

#[tokio::test(start_paused = true)]
async fn time_counts_while_a_driver_works() {
    let model = MeteredModel::calling("wait", 9);
    let wait = Tool::dynamic(
        "wait",
        "Waits.",
        json!({ "type": "object", "properties": { "input": { "type": "string" } },
            "required": ["input"], "additionalProperties": false }),
        |_: ToolContext, _: serde_json::Value| async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, ToolError>("waited")
        },
    );
    let agent = Agent::new("desk").model(model.clone()).tool(wait);
    let budget = SpendingBudget::new().time(Duration::from_secs(150));
    let end = reached(agent.run("go").budget(budget).await);
    assert!(end.spent >= 150_000 && model.count() == 3, "{end}");
}

const CHILD_FOLDER: &str = "WINDLASS_BUDGET_CHILD";

/// The process that is killed: it sends its second request, says so, and never gets an answer.
#[tokio::test]
async fn child_process_that_is_killed() {
    let Some(folder) = std::env::var_os(CHILD_FOLDER) else { return };
    let store = SqliteStore::open(Path::new(&folder).join("store.db")).expect("it opens");
    let model = MeteredModel::calling("note", 9);
    model.answers.forget_permits(999);
    let watched = model.clone();
    tokio::spawn(async move {
        while watched.count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::fs::write(Path::new(&folder).join("asked"), "").expect("it is written");
    });
    let run = desk(&model).run("go").budget(SpendingBudget::new().requests(4)).run_id("r");
    run.store(Arc::new(store)).await.expect("it does not return");
}

#[tokio::test]
async fn a_request_that_a_killed_process_sent_counts_as_spent() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", "child_process_that_is_killed"])
        .env(CHILD_FOLDER, folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    while !folder.path().join("asked").exists() {
        assert!(child.try_wait().expect("a status").is_none(), "the child ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child.kill().expect("it is killed");
    child.wait().expect("it has ended");
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(folder.path().join("store.db")).expect("it opens"));
    let model = MeteredModel::calling("note", 9);
    // One was answered and one was lost: two are left of four.
    let end = reached(desk(&model).recover("r", store.clone()).await);
    assert_eq!((end.spent, model.count()), (4, 2));
    let stored = load_paused(&*store, &RunId::from("r")).await.expect("it loads");
    check_journal(stored.record().journal());
}
