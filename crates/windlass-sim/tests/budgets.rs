//! Budgets under crashes: whatever dies between two writes, no more requests are sent than the budget allows.

#![allow(clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::core::budget::{OnBudgetReached, SpendingBudget};
use windlass::core::failure::RunFailure;
use windlass::core::item::Item;
use windlass::core::journal::JournalEntry;
use windlass::core::run::Run;
use windlass::error::RunError;
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::run::RunRecord;
use windlass_sim::{RunStart, SeedList, Sim, SimStore, WriteFault, check_record, check_seeds};

/// A model that calls its tool as long as it is offered it, several times in one response, and counts the requests of all
/// processes.
struct GreedyModel {
    sim: Sim,
    tool: &'static str,
    at_once: usize,
    sent: Arc<AtomicU64>,
}

impl Model for GreedyModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.sim.random_delay(Duration::from_secs(3)).await;
        if request.tools.is_empty() {
            let items = vec![Arc::new(Item::assistant("done"))];
            return Ok(ModelResponse { items, ..ModelResponse::default() });
        }
        let call = |n| Item::call(format!("c{}-{n}", request.turn), self.tool, "{\"input\":\"go\"}");
        let items = (0..self.at_once).map(|n| Arc::new(call(n))).collect();
        Ok(ModelResponse { items, ..ModelResponse::default() })
    }
}

fn greedy_agent(sim: &Sim, sent: &Arc<AtomicU64>) -> Agent {
    let schema = json!({ "type": "object", "properties": { "input": { "type": "string" } },
        "required": ["input"], "additionalProperties": false });
    let note = Tool::dynamic("note", "Notes.", schema, |_: ToolContext, _: serde_json::Value| async {
        Ok::<_, ToolError>("noted")
    })
    .effect(windlass::core::tool::ToolEffect::Pure);
    let model = |tool, at_once| GreedyModel { sim: sim.clone(), tool, at_once, sent: sent.clone() };
    let clerk = Agent::new("clerk").model(windlass::model::SharedModel::new(model("note", 1))).tool(note);
    let ask = clerk.as_tool("ask_clerk", "Asks the clerk.").effect(windlass::core::tool::ToolEffect::Pure);
    Agent::new("front").model(windlass::model::SharedModel::new(model("ask_clerk", 3))).tool(ask)
}

#[test]
fn no_crash_makes_a_budget_larger() {
    check_seeds(&SeedList::from_zero(150), |seed| {
        let (sim, sent) = (Sim::new(seed), Arc::new(AtomicU64::new(0)));
        let store = Arc::new(SimStore::new(&sim).max_latency(Duration::from_millis(20)));
        for _ in 0..2 {
            let fault = sim.draw(|rng| *rng.pick(&[WriteFault::CrashBefore, WriteFault::CrashAfter]));
            store.inject_fault(sim.draw(|rng| rng.below(30)), fault);
        }
        let limit = sim.draw(|rng| 2 + rng.below(9));
        let reactions = [OnBudgetReached::Fail, OnBudgetReached::Finish, OnBudgetReached::AskPerson];
        let reaction = sim.draw(|rng| *rng.pick(&reactions));
        let budget = SpendingBudget::new().requests(limit).on_reached(reaction);
        let result = sim.run_through_crashes(&store, "run", |start| match start {
            RunStart::Fresh => greedy_agent(&sim, &sent).run("go").budget(budget.clone()),
            RunStart::Recovered { run, store } => greedy_agent(&sim, &sent).recover(run, store),
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
        assert!(sent.load(Ordering::SeqCst) <= limit, "{} of {limit}", sent.load(Ordering::SeqCst));
        check_record(record).expect("the invariants hold");
        let journal = record.journal();
        let reserved =
            journal.iter().filter(|one| matches!(one.entry, JournalEntry::BudgetReserved(_))).count();
        let ledger = Run::replay(journal).expect("it replays").run;
        let ledger = ledger.budget_ledger().expect("it has a ledger");
        assert_eq!(ledger.spent().requests + ledger.reserved().requests, reserved as u64);
        assert!(reserved as u64 <= limit);
    });
}
