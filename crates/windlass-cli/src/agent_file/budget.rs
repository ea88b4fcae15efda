//! The budgets of an agent file: `[budget]` for a run, `[session_budget]` for the runs of a session.

use serde::Deserialize;
use windlass::core::budget::{OnBudgetReached, SpendingBudget};

use super::duration::HumanDuration;

/// A budget in an agent file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetSpec {
    /// Maximum number of model requests.
    requests: Option<u64>,
    /// Maximum number of tokens, input plus output.
    tokens: Option<u64>,
    /// Maximum cost in the currency of the price list.
    cost: Option<f64>,
    /// Maximum time of work.
    time: Option<HumanDuration>,
    /// The reaction when a limit is reached.
    #[serde(default)]
    when_reached: ReactionSpec,
}

/// The reaction when a limit is reached. A person who uses the command is asked.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReactionSpec {
    #[default]
    Ask,
    Finish,
    Fail,
}

impl BudgetSpec {
    pub(super) fn to_budget(&self) -> SpendingBudget {
        let mut budget = SpendingBudget::new().on_reached(match self.when_reached {
            ReactionSpec::Ask => OnBudgetReached::AskPerson,
            ReactionSpec::Finish => OnBudgetReached::Finish,
            ReactionSpec::Fail => OnBudgetReached::Fail,
        });
        (budget.requests, budget.tokens) = (self.requests, self.tokens);
        if let Some(cost) = self.cost {
            budget = budget.cost(cost);
        }
        if let Some(time) = self.time {
            budget = budget.time(time.as_duration());
        }
        budget
    }
}
