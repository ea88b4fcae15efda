//! Golden files for budgets.

use serde_json::json;
use windlass_core::{
    budget::{
        BudgetResource, BudgetScope, BudgetSpending, OnBudgetReached, ReachedBudget, SessionBudget,
        SpendingBudget,
    },
    decision::{Decision, DecisionScope},
    failure::RunFailure,
    item::Item,
    journal::{BudgetReached, BudgetReserved, JournalEntry, JournalRecord, RunFailed, RunStarted},
    run::{BUDGET_CALL, budget_question},
};

use super::{GoldenJournal, run_started, start_entry, tool_call_item};

fn reserve(agent: &str, active_ms: u64) -> JournalEntry {
    let estimate = BudgetSpending { requests: 1, tokens: 40, cost_nanos: 700, ..BudgetSpending::default() };
    JournalEntry::BudgetReserved(BudgetReserved {
        agent: agent.into(),
        estimate,
        active_ms,
        is_summary: false,
    })
}

fn reach(
    agent: &str,
    scope: BudgetScope,
    resource: BudgetResource,
    reaction: OnBudgetReached,
) -> JournalEntry {
    let budget = ReachedBudget { scope, resource, limit: 100, spent: 90, unpriced_requests: 0 };
    let question = (reaction == OnBudgetReached::AskPerson).then(|| budget_question(&budget));
    JournalEntry::BudgetReached(Box::new(BudgetReached {
        agent: agent.into(),
        budget,
        reaction,
        question,
        active_ms: 0,
    }))
}

/// The budget of the run was reached before a request of a nested agent, and a person granted more.
pub(super) fn granted_journal() -> Vec<JournalRecord> {
    let budget = SpendingBudget::new().requests(2).tokens(100).cost(1.5).ask_person();
    let mut journal = GoldenJournal::from_started(RunStarted {
        budget: Some(Box::new(budget)),
        ..run_started("run-granted", "desk", "Look into it.")
    });
    journal.append(reserve("desk", 0));
    journal.append_response(vec![tool_call_item("c1", "books", json!({ "input": "c1" }))]);
    journal.append(start_entry("c1"));
    let inner = run_started("run-granted/c1", "clerk", "c1");
    journal.append_at(&["c1"], JournalEntry::RunStarted(inner.into()));
    journal.append_at(&["c1"], reserve("clerk", 120));
    // The process died here: the request counts as spent.
    let tokens = BudgetResource::Tokens;
    journal.append_at(&["c1"], reach("clerk", BudgetScope::Run, tokens, OnBudgetReached::AskPerson));
    let answer = Decision::Answer { value: json!(900) };
    journal.append_decision_at(&["c1"], BUDGET_CALL, answer, DecisionScope::ThisCall, Some("ann"));
    journal.append_at(&["c1"], reserve("clerk", 340));
    journal.records
}

/// A session has a budget; the last answer of a run came, and the run failed at another budget.
pub(super) fn reached_journal() -> Vec<JournalRecord> {
    let session = SessionBudget {
        budget: SpendingBudget::new().requests(9).time(std::time::Duration::from_secs(60)).finish(),
        spent_before: BudgetSpending {
            requests: 7,
            tokens: 500,
            cost_nanos: 12,
            unpriced_requests: 1,
            active_ms: 900,
        },
    };
    let mut journal = GoldenJournal::from_started(RunStarted {
        session_budget: Some(Box::new(session)),
        ..run_started("run-over-budget", "desk", "How many?")
    });
    for (resource, answer) in [(BudgetResource::Cost, 0.5), (BudgetResource::Requests, 3.0)] {
        let agent = BudgetScope::Agent("desk".into());
        journal.append(reach("desk", agent, resource, OnBudgetReached::AskPerson));
        let value = if resource == BudgetResource::Cost { json!(answer) } else { json!(3) };
        let granted = Decision::Answer { value };
        journal.append_decision(BUDGET_CALL, granted, DecisionScope::ThisCall, Some("ann"));
    }
    journal.append(reserve("desk", 10));
    journal.append_response(vec![tool_call_item("c1", "to_nowhere", json!({}))]);
    journal.append(super::settled_entry(
        "c1",
        windlass_core::journal::CallStatus::UnknownTool,
        "Tool 'to_nowhere' not found.",
    ));
    journal.append(reach("desk", BudgetScope::Session, BudgetResource::Time, OnBudgetReached::Finish));
    journal.append(reserve("desk", 61_000));
    journal.append_response(vec![Item::assistant("Seven or so.")]);
    let reached = ReachedBudget {
        scope: BudgetScope::Session,
        resource: BudgetResource::Time,
        limit: 60_000,
        spent: 61_000,
        unpriced_requests: 1,
    };
    journal.append(JournalEntry::RunFailed(RunFailed::new(RunFailure::BudgetReached { reached })));
    journal.records
}

/// The budget of a run did not allow its first request, and the run is to fail.
pub(super) fn failed_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::from_started(RunStarted {
        budget: Some(Box::new(SpendingBudget::new().tokens(5))),
        ..run_started("run-without-budget", "desk", "How many?")
    });
    journal.append(reach("desk", BudgetScope::Run, BudgetResource::Tokens, OnBudgetReached::Fail));
    journal.records
}
