//! Budgets as a driver applies them: the estimate of a request, its reservation, and the wait for others.
//!
//! Invariant: a request is checked and reserved in one step, and its reservation is durable before it is sent.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use windlass_core::{
    budget::{BudgetLedger, BudgetQuery, BudgetSpending, BudgetVerdict, OnBudgetReached, SpendingBudget},
    id::{AgentName, CallId},
    journal::{BudgetReached, BudgetReserved, JournalEntry},
    run::{Run, budget_question, summary_path},
    usage::Usage,
};

use super::{DriveError, ModelRequestParts, ModelRequester};
use crate::context::ContextGauge;
use crate::lock_unpoisoned;
use crate::model::SharedModel;

/// The requests that the drivers of a run have sent, and the time that they have worked.
pub(crate) struct BudgetControl {
    under_way: Mutex<Vec<Vec<CallId>>>,
    /// Notified when a request is answered.
    answered: Notify,
    started: tokio::time::Instant,
    active_before_ms: u64,
    /// The spending of the session's other runs.
    spent_by_others: Option<BudgetSpending>,
    /// The model that responded last, as its provider names it.
    last_model: Mutex<Option<String>>,
    /// The model that made the last summary.
    last_summariser: Mutex<Option<String>>,
}

impl BudgetControl {
    /// Creates the control of a run that is opened. `spent_by_others` is the spending of the session's other runs.
    pub(crate) fn new(run: &Run, spent_by_others: Option<BudgetSpending>) -> Self {
        Self {
            under_way: Mutex::default(),
            answered: Notify::new(),
            started: tokio::time::Instant::now(),
            active_before_ms: run.budget_ledger().map_or(0, |ledger| ledger.spent().active_ms),
            spent_by_others,
            last_model: Mutex::new(run.budget_ledger().and_then(BudgetLedger::last_model).map(str::to_owned)),
            last_summariser: Mutex::default(),
        }
    }

    /// Notes the model that responded, for the estimates to come.
    pub(crate) fn note_model(&self, model: Option<&str>) {
        if let Some(model) = model {
            *lock_unpoisoned(&self.last_model) = Some(model.to_owned());
        }
    }

    /// Notes the model that made a summary, for the estimates to come.
    pub(crate) fn note_summariser(&self, model: Option<&str>) {
        if let Some(model) = model {
            *lock_unpoisoned(&self.last_summariser) = Some(model.to_owned());
        }
    }

    /// Returns the time in milliseconds that drivers have worked on the run.
    pub(crate) fn active_ms(&self) -> u64 {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active_before_ms.saturating_add(now)
    }
}

/// A request that is reserved and not answered. It ends when it is dropped.
pub(crate) struct ReservedRequest {
    control: Arc<BudgetControl>,
    path: Vec<CallId>,
}

impl ReservedRequest {
    fn begin(control: &Arc<BudgetControl>, path: &[CallId]) -> Self {
        lock_unpoisoned(&control.under_way).push(path.to_vec());
        Self { control: control.clone(), path: path.to_vec() }
    }
}

impl Drop for ReservedRequest {
    fn drop(&mut self) {
        let mut under_way = lock_unpoisoned(&self.control.under_way);
        if let Some(place) = under_way.iter().position(|path| *path == self.path) {
            under_way.remove(place);
        }
        self.control.answered.notify_waiters();
    }
}

/// The result of reserving a request for a summary.
pub(crate) enum SummaryReservation {
    /// No budget covers the request.
    NotNeeded,
    /// The request is reserved.
    Reserved(ReservedRequest),
    /// A budget does not allow the request now.
    Refused,
}

/// The result of reserving a request.
pub(crate) enum BudgetReservation {
    /// No budget covers the request.
    NotNeeded,
    /// The request is reserved.
    Reserved(ReservedRequest),
    /// A budget is reached, which is recorded. The next action of the run says what follows.
    Reached,
}

impl<C: Send + Sync + 'static> ModelRequester<'_, C> {
    /// Reserves the next request in the budgets that cover it. It waits for requests under way, if the next one fits only
    /// if they cost less than was reserved.
    pub(crate) async fn reserve_budget(
        &self,
        parts: &ModelRequestParts,
        gauge: &ContextGauge,
    ) -> Result<BudgetReservation, DriveError> {
        if !self.has_budget() {
            return Ok(BudgetReservation::NotNeeded);
        }
        let estimate = self.estimate_spending(parts, gauge);
        let agent = self.agent.name().clone();
        loop {
            // Registered before the check, so that no answer is missed.
            let mut answered = std::pin::pin!(self.budget.answered.notified());
            answered.as_mut().enable();
            let active_ms = self.budget.active_ms();
            match self.check_budget(estimate, active_ms, false) {
                BudgetVerdict::Allowed => {
                    let reserved = ReservedRequest::begin(self.budget, &self.scope.parent_calls);
                    let entry = BudgetReserved { agent, estimate, active_ms, is_summary: false };
                    self.scope.record_entry(JournalEntry::BudgetReserved(entry)).await?;
                    return Ok(BudgetReservation::Reserved(reserved));
                }
                BudgetVerdict::WaitForOthers => self.scope.unless_stopped(answered).await?,
                BudgetVerdict::Reached(budget, reaction) => {
                    let is_asked = reaction == OnBudgetReached::AskPerson;
                    let question = is_asked.then(|| budget_question(&budget));
                    let entry = BudgetReached { agent, budget, reaction, question, active_ms };
                    self.scope.record_entry(JournalEntry::BudgetReached(entry.into())).await?;
                    return Ok(BudgetReservation::Reached);
                }
            }
        }
    }

    /// Reserves a request for a summary. It waits for nobody: agents that hold the reservations of their own requests would
    /// wait for each other.
    pub(crate) async fn reserve_summary(
        &self,
        summariser: &SharedModel,
        input: u64,
        output: u64,
    ) -> Result<SummaryReservation, DriveError> {
        if !self.has_budget() {
            return Ok(SummaryReservation::NotNeeded);
        }
        let last = lock_unpoisoned(&self.budget.last_summariser).clone();
        let estimate = self.estimate_tokens(input, output, &[summariser.name(), last.as_deref()]);
        let active_ms = self.budget.active_ms();
        match self.check_budget(estimate, active_ms, true) {
            BudgetVerdict::Allowed => {
                let path = summary_path(&self.scope.parent_calls);
                let reserved = ReservedRequest::begin(self.budget, &path);
                let agent = self.agent.name().clone();
                let entry = BudgetReserved { agent, estimate, active_ms, is_summary: true };
                self.scope.record_entry(JournalEntry::BudgetReserved(entry)).await?;
                Ok(SummaryReservation::Reserved(reserved))
            }
            BudgetVerdict::WaitForOthers | BudgetVerdict::Reached(..) => Ok(SummaryReservation::Refused),
        }
    }

    fn has_budget(&self) -> bool {
        !self.agent_budgets.is_empty() || self.scope.recorder.with_root(|run| run.budget_ledger().is_some())
    }

    fn check_budget(&self, estimate: BudgetSpending, active_ms: u64, is_summary: bool) -> BudgetVerdict {
        self.scope.recorder.with_root(|run| {
            run.check_budget(&BudgetQuery {
                path: &self.scope.parent_calls,
                agent_budgets: &self.agent_budgets,
                estimate,
                active_ms,
                under_way: &lock_unpoisoned(&self.budget.under_way),
                spent_by_others: self.budget.spent_by_others,
                is_summary,
            })
        })
    }

    /// Estimates the request: its input, the longest output that it asks for, and their price if it is known.
    fn estimate_spending(&self, parts: &ModelRequestParts, gauge: &ContextGauge) -> BudgetSpending {
        let input = gauge.tokens_of(self.estimate_request(parts));
        let output = parts.model.max_output_tokens(&parts.settings).unwrap_or(0);
        let last = lock_unpoisoned(&self.budget.last_model).clone();
        let models = [parts.model.name(), last.as_deref()];
        self.estimate_tokens(input, output, &models)
    }

    /// Estimates a request with the price of the first of these models that has one.
    fn estimate_tokens(&self, input: u64, output: u64, models: &[Option<&str>]) -> BudgetSpending {
        let price = models.iter().flatten().find_map(|model| self.config.prices.find_price(model));
        BudgetSpending {
            requests: 1,
            tokens: input.saturating_add(output),
            cost_nanos: price.map_or(0, |price| price.cost_nanos(&Usage::of_tokens(input, output))),
            unpriced_requests: u64::from(price.is_none()),
            ..BudgetSpending::default()
        }
    }
}

/// Returns the budgets of an agent and of those that called it.
pub(crate) fn budgets_with(
    callers: &[(AgentName, SpendingBudget)],
    agent: &AgentName,
    budget: Option<&SpendingBudget>,
) -> Vec<(AgentName, SpendingBudget)> {
    let mut budgets = callers.to_vec();
    if let Some(budget) = budget.filter(|_| !callers.iter().any(|(caller, _)| caller == agent)) {
        budgets.push((agent.clone(), budget.clone()));
    }
    budgets
}
