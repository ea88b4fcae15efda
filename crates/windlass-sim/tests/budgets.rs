//! Budgets under crashes: whatever dies between two writes, no more requests, tokens and money are spent than the budget
//! allows, in nested agents too and by several at once.

#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::core::budget::{OnBudgetReached, SpendingBudget};
use windlass::core::failure::RunFailure;
use windlass::core::item::Item;
use windlass::core::journal::JournalEntry;
use windlass::core::run::Run;
use windlass::core::usage::Usage;
use windlass::error::RunError;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse, ModelSettings};
use windlass::prelude::*;
use windlass::price::PriceList;
use windlass::run::RunRecord;
use windlass_sim::{RunStart, SeedList, Sim, SimStore, WriteFault, check_record, check_seeds};

/// Longest output of a request.
const MAX_OUTPUT: u64 = 200;
/// Prices of the greedy models, in units per million tokens.
const PRICES: &str = r#"{ "as_of": "2026-10-01", "source": "the test", "currency": "EUR",
    "models": [{ "model": "greedy", "input": 3.0, "output": 15.0 }] }"#;

/// The requests, the tokens and the money of all processes.
#[derive(Default)]
struct Spent {
    requests: AtomicU64,
    tokens: AtomicU64,
    cost_nanos: AtomicU64,
}

/// A model that calls its tool as long as it is offered it, several times in one response, and counts what it costs.
struct GreedyModel {
    sim: Sim,
    tool: &'static str,
    at_once: usize,
    spent: Arc<Spent>,
}

impl GreedyModel {
    /// Returns the usage of a request: some input, and an output up to the longest.
    fn spend(&self) -> Usage {
        let output = self.sim.draw(|rng| 1 + rng.below(MAX_OUTPUT));
        let usage = Usage::of_tokens(20, output);
        let price = PriceList::parse(PRICES)
            .expect("a list")
            .find_price("greedy")
            .expect("a price")
            .cost_nanos(&usage);
        self.spent.requests.fetch_add(1, Ordering::SeqCst);
        self.spent.tokens.fetch_add(usage.total_tokens(), Ordering::SeqCst);
        self.spent.cost_nanos.fetch_add(price, Ordering::SeqCst);
        usage
    }
}

impl Model for GreedyModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let usage = Some(self.spend());
        self.sim.random_delay(Duration::from_secs(3)).await;
        let model = Some("greedy".to_owned());
        if request.tools.is_empty() {
            let items = vec![Arc::new(Item::assistant("done"))];
            return Ok(ModelResponse { items, usage, model, ..ModelResponse::default() });
        }
        let call = |n| Item::call(format!("c{}-{n}", request.turn), self.tool, "{\"input\":\"go\"}");
        let items = (0..self.at_once).map(|n| Arc::new(call(n))).collect();
        Ok(ModelResponse { items, usage, model, ..ModelResponse::default() })
    }

    fn name(&self) -> Option<&str> {
        Some("greedy")
    }
}

fn greedy_agent(sim: &Sim, spent: &Arc<Spent>) -> Agent {
    let schema = json!({ "type": "object", "properties": { "input": { "type": "string" } },
        "required": ["input"], "additionalProperties": false });
    let note = Tool::dynamic("note", "Notes.", schema, |_: ToolContext, _: serde_json::Value| async {
        Ok::<_, ToolError>("noted")
    })
    .effect(windlass::core::tool::ToolEffect::Pure);
    let model = |tool, at_once| GreedyModel { sim: sim.clone(), tool, at_once, spent: spent.clone() };
    let settings = ModelSettings { max_tokens: Some(MAX_OUTPUT), ..ModelSettings::default() };
    let clerk = Agent::new("clerk")
        .model(windlass::model::SharedModel::new(model("note", 1)))
        .model_settings(settings.clone())
        .tool(note);
    let ask = clerk.as_tool("ask_clerk", "Asks the clerk.").effect(windlass::core::tool::ToolEffect::Pure);
    Agent::new("front")
        .model(windlass::model::SharedModel::new(model("ask_clerk", 3)))
        .model_settings(settings)
        .tool(ask)
}

#[test]
fn no_crash_makes_a_budget_larger() {
    check_seeds(&SeedList::from_zero(150), |seed| {
        let (sim, spent) = (Sim::new(seed), Arc::new(Spent::default()));
        let prices = Arc::new(PriceList::parse(PRICES).expect("a list"));
        let store = Arc::new(SimStore::new(&sim).max_latency(Duration::from_millis(20)));
        for _ in 0..2 {
            let fault = sim.draw(|rng| *rng.pick(&[WriteFault::CrashBefore, WriteFault::CrashAfter]));
            store.inject_fault(sim.draw(|rng| rng.below(30)), fault);
        }
        // Several limits at once: the one that is reached first counts.
        let (requests, tokens, cost) = sim
            .draw(|rng| (2 + rng.below(9), 500 + rng.below(6_000), 0.003 + rng.below(60_000) as f64 / 1e6));
        let resource = sim.draw(|rng| *rng.pick(&["requests", "tokens", "cost", "all"]));
        let reactions = [OnBudgetReached::Fail, OnBudgetReached::Finish, OnBudgetReached::AskPerson];
        let reaction = sim.draw(|rng| *rng.pick(&reactions));
        let mut budget = SpendingBudget::new().on_reached(reaction);
        if matches!(resource, "requests" | "all") {
            budget = budget.requests(requests);
        }
        if matches!(resource, "tokens" | "all") {
            budget = budget.tokens(tokens);
        }
        if matches!(resource, "cost" | "all") {
            budget = budget.cost(cost);
        }
        let result = sim.run_through_crashes(&store, "run", |start| match start {
            RunStart::Fresh => {
                greedy_agent(&sim, &spent).run("go").prices(prices.clone()).budget(budget.clone())
            }
            RunStart::Recovered { run, store } => {
                greedy_agent(&sim, &spent).recover(run, store).prices(prices.clone())
            }
        });
        let record: &RunRecord = match (&result, reaction) {
            (Ok(RunResult::Finished(finished)), OnBudgetReached::Finish) => &finished.record,
            (Ok(RunResult::Paused(paused)), OnBudgetReached::AskPerson) => paused.record(),
            // A crash may cost the request that was kept for the last answer.
            (Err(RunError::Failed(failed)), OnBudgetReached::Fail | OnBudgetReached::Finish) => {
                assert!(matches!(failed.failure, RunFailure::BudgetReached { .. }), "{}", failed.failure);
                &failed.record
            }
            (Ok(_), _) => panic!("{reaction:?}: another end"),
            (Err(error), _) => panic!("{reaction:?}: {error}"),
        };
        for (amount, limit) in [
            (&spent.requests, budget.requests),
            (&spent.tokens, budget.tokens),
            (&spent.cost_nanos, budget.cost_nanos),
        ] {
            let amount = amount.load(Ordering::SeqCst);
            assert!(amount <= limit.unwrap_or(u64::MAX), "{amount} of {limit:?}, with a limit on {resource}");
        }
        check_record(record).expect("the invariants hold");
        let journal = record.journal();
        let reserved =
            journal.iter().filter(|one| matches!(one.entry, JournalEntry::BudgetReserved(_))).count();
        let ledger = Run::replay(journal).expect("it replays").run;
        let ledger = ledger.budget_ledger().expect("it has a ledger");
        assert_eq!(ledger.spent().requests + ledger.reserved().requests, reserved as u64);
        assert!(reserved as u64 <= budget.requests.unwrap_or(u64::MAX));
    });
}
