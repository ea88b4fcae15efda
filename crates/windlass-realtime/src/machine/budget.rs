//! The budgets of a session. Invariant: every response of the model, and every model request of the agents that calls run,
//! is reserved in the journal before it is sent. A reservation without an answer counts as spent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::budget::{
    BudgetLedger, BudgetPosition, BudgetQuery, BudgetResource, BudgetSpending, BudgetVerdict,
    OnBudgetReached, ReachedBudget, SpendingBudget,
};
use windlass::core::id::{AgentName, CallId};
use windlass::core::usage::Usage;
use windlass::model::ToolChoice;
use windlass::price::PriceList;

use super::response_scheduler::RequestBody;
use super::{RealtimeMachine, SessionEffect};
use crate::event::{CloseReason, RealtimeEvent};
use crate::id::{CommandId, ResponseId};
use crate::journal::{RealtimeEntry, ReplayedSession};
use crate::model::{RealtimeUsage, ResponseOptions};

/// The budget of a session and the prices of its model.
#[derive(Clone, Debug)]
pub(crate) struct SessionSpendingPolicy {
    pub(crate) budget: Option<SpendingBudget>,
    pub(crate) prices: Arc<PriceList>,
    /// The provider's name of the model.
    pub(crate) model: Option<String>,
}

impl Default for SessionSpendingPolicy {
    fn default() -> Self {
        Self { budget: None, prices: PriceList::shipped(), model: None }
    }
}

/// The reserved and spent amounts of a session.
#[derive(Debug, Default)]
pub(super) struct SessionSpending {
    ledger: BudgetLedger,
    stage: SpendingStage,
    /// Requests of this process that are not answered.
    under_way: Vec<Vec<CallId>>,
    /// The request of the conversation's response that is requested or active, with its agent.
    open_response: Option<(CallId, AgentName)>,
    /// Requests of agents inside calls that wait for their reservation.
    waiting_requests: VecDeque<(CallId, BudgetSpending)>,
    /// Usage of the last response, from which the next one is estimated.
    last_usage: Usage,
    active_before_ms: u64,
    /// Time spent on waiting for people about budgets.
    waited: Duration,
    question_count: u64,
}

/// The state of a session with respect to its budgets.
#[derive(Clone, Debug, Default, PartialEq)]
enum SpendingStage {
    /// Responses are requested as the budgets allow.
    #[default]
    Open,
    /// The model gives its last answer, without tools.
    Finishing { reached: ReachedBudget, progress: FinishProgress },
    /// A person is asked for more.
    Asking { reached: ReachedBudget, since: Duration },
    /// Nothing is requested any more.
    Exhausted,
}

/// The progress of the last answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FinishProgress {
    Due,
    Requested,
    /// The session ends when the user has heard it.
    HeardAt(Duration),
}

/// A question to a person about a budget.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BudgetQuestion {
    /// Number of the question in the session, from 1.
    pub(crate) number: u64,
    pub(crate) reached: ReachedBudget,
}

impl RealtimeMachine {
    /// Continues with what the journal says was reserved and spent.
    pub(crate) fn adopt_spending(&mut self, record: &ReplayedSession) {
        let spending = &mut self.spending;
        spending.ledger = record.ledger.clone();
        spending.active_before_ms = record.ledger.spent().active_ms;
        spending.question_count = record.budget_questions;
        if let Some(budget) = self.policy.spending.budget.clone() {
            spending.ledger.cover_session(budget);
        }
        if let Some(reached) = record.open_budget_question.clone() {
            let question = BudgetQuestion { number: record.budget_questions, reached: reached.clone() };
            self.spending.stage = SpendingStage::Asking { reached, since: self.now };
            self.pending_effects.push(SessionEffect::AskForBudget(question));
        }
    }

    /// Returns true if a budget covers the responses of the current agent.
    fn has_budget(&self) -> bool {
        self.policy.spending.budget.is_some() || self.current_agent.budget.is_some()
    }

    fn active_ms(&self) -> u64 {
        let waiting = match self.spending.stage {
            SpendingStage::Asking { since, .. } => self.now.saturating_sub(since),
            SpendingStage::Open | SpendingStage::Finishing { .. } | SpendingStage::Exhausted => {
                Duration::ZERO
            }
        };
        let active = self.now.saturating_sub(self.spending.waited).saturating_sub(waiting);
        let here = u64::try_from(active.as_millis()).unwrap_or(u64::MAX);
        self.spending.active_before_ms.saturating_add(here)
    }

    fn check_budget(
        &self,
        request: &CallId,
        estimate: BudgetSpending,
        agent: Option<AgentName>,
    ) -> BudgetVerdict {
        let agent_budgets: Vec<(AgentName, SpendingBudget)> =
            agent.zip(self.current_agent.budget.clone()).into_iter().collect();
        let query = BudgetQuery {
            path: std::slice::from_ref(request),
            agent_budgets: &agent_budgets,
            estimate,
            active_ms: self.active_ms(),
            under_way: &self.spending.under_way,
            spent_by_others: None,
            is_summary: false,
        };
        self.spending.ledger.check(&query, BudgetPosition::default())
    }

    /// Estimates the next response: the model reads what it read and said before, and says no more than was asked for.
    fn estimate_response(&self, max_output_tokens: Option<u64>) -> BudgetSpending {
        let configured = self.current_agent.configuration.model_settings.max_tokens;
        let output = max_output_tokens.or(configured).unwrap_or(0);
        let before = self.spending.last_usage;
        let input = before.total_tokens();
        let SessionSpendingPolicy { prices, model, .. } = &self.policy.spending;
        let price = model.as_deref().and_then(|model| prices.find_price(model));
        let cost =
            price.map(|price| price.cost_nanos(&Usage::of_tokens(input, output)).max(before.cost_nanos));
        BudgetSpending {
            requests: 1,
            tokens: input.saturating_add(output),
            cost_nanos: cost.unwrap_or(before.cost_nanos),
            unpriced_requests: u64::from(cost.is_none()),
            ..BudgetSpending::default()
        }
    }

    /// Returns true if the budgets allow the next response now. Reacts if one is reached.
    pub(super) fn admit_response(&mut self) -> bool {
        if !self.has_budget() {
            return true;
        }
        match &self.spending.stage {
            SpendingStage::Open => {}
            SpendingStage::Finishing { progress, .. } => {
                return !matches!(progress, FinishProgress::HeardAt(_));
            }
            SpendingStage::Asking { .. } | SpendingStage::Exhausted => return false,
        }
        let agent = self.current_agent.activation.name.clone();
        match self.check_budget(&CallId::from("next"), self.estimate_response(None), Some(agent)) {
            BudgetVerdict::Allowed => true,
            BudgetVerdict::WaitForOthers => false,
            BudgetVerdict::Reached(reached, reaction) => {
                self.react_to_limit(reached, reaction);
                matches!(self.spending.stage, SpendingStage::Finishing { .. })
            }
        }
    }

    /// Carries out what is declared for a budget that is reached.
    fn react_to_limit(&mut self, reached: ReachedBudget, reaction: OnBudgetReached) {
        let active_ms = self.active_ms();
        self.record(RealtimeEntry::BudgetReached { budget: reached.clone(), reaction, active_ms });
        self.emit_event(RealtimeEvent::BudgetReached { budget: reached.clone(), reaction });
        match reaction {
            OnBudgetReached::Fail => self.end_for_budget(reached),
            OnBudgetReached::Finish => {
                self.spending.stage = SpendingStage::Finishing { reached, progress: FinishProgress::Due };
            }
            OnBudgetReached::AskPerson => {
                self.spending.question_count += 1;
                let question =
                    BudgetQuestion { number: self.spending.question_count, reached: reached.clone() };
                self.spending.stage = SpendingStage::Asking { reached, since: self.now };
                self.pending_effects.push(SessionEffect::AskForBudget(question));
            }
        }
    }

    fn end_for_budget(&mut self, reached: ReachedBudget) {
        self.spending.stage = SpendingStage::Exhausted;
        self.pending_effects.push(SessionEffect::EndSession(CloseReason::BudgetReached(reached)));
    }

    /// Handles the answer of a person to the question about a budget; 0 grants nothing.
    pub(crate) fn on_budget_answer(&mut self, amount: u64) {
        let SpendingStage::Asking { reached, since } = self.spending.stage.clone() else { return };
        if amount == 0 {
            return self.end_for_budget(reached);
        }
        self.spending.waited += self.now.saturating_sub(since);
        self.spending.ledger.grant(&reached, amount);
        self.spending.stage = SpendingStage::Open;
        self.record(RealtimeEntry::BudgetGranted { budget: reached, amount });
    }

    /// Reserves the response that a command requests. Returns the wording of the request: a last answer has no tools.
    pub(super) fn reserve_response(
        &mut self,
        command: &CommandId,
        body: Option<RequestBody>,
    ) -> Option<RequestBody> {
        if !self.has_budget() {
            return body;
        }
        self.forget_response_request();
        let max_output = match &body {
            Some(RequestBody::Options(options)) => options.max_output_tokens,
            Some(RequestBody::Raw(raw)) => raw["response"]["max_output_tokens"].as_u64(),
            None => None,
        };
        self.open_response_request(CallId::from(command.as_str()), max_output);
        let SpendingStage::Finishing { progress, .. } = &mut self.spending.stage else { return body };
        *progress = FinishProgress::Requested;
        Some(without_tools(body))
    }

    fn open_response_request(&mut self, request: CallId, max_output: Option<u64>) {
        let agent = self.current_agent.activation.name.clone();
        let estimate = self.estimate_response(max_output);
        self.spending.open_response = Some((request.clone(), agent.clone()));
        self.reserve(request, Some(agent), estimate);
    }

    fn reserve(&mut self, request: CallId, agent: Option<AgentName>, estimate: BudgetSpending) {
        let active_ms = self.active_ms();
        let agents = agent.iter().cloned().collect();
        self.spending.ledger.reserve(std::slice::from_ref(&request), agents, estimate, active_ms);
        self.spending.under_way.push(vec![request.clone()]);
        self.record(RealtimeEntry::BudgetReserved { request, agent, estimate, active_ms });
    }

    fn spend(&mut self, request: CallId, agent: Option<AgentName>, usage: Usage) {
        let active_ms = self.active_ms();
        self.spending.under_way.retain(|path| path.first() != Some(&request));
        self.spending.ledger.note_time(active_ms);
        self.spending.ledger.spend(std::slice::from_ref(&request), agent.as_slice(), &usage, true);
        self.record(RealtimeEntry::BudgetSpent { request, agent, usage, active_ms });
    }

    /// Notes the start of a response of the conversation. One that nobody requested is reserved now, and cancelled if the
    /// budgets do not allow it.
    pub(super) fn note_response_start(&mut self, response: &ResponseId) {
        if !self.has_budget() || self.spending.open_response.is_some() {
            return;
        }
        let agent = self.current_agent.activation.name.clone();
        let request = CallId::from(response.as_str());
        let is_allowed = self.spending.stage == SpendingStage::Open
            && self.check_budget(&request, self.estimate_response(None), Some(agent))
                == BudgetVerdict::Allowed;
        self.open_response_request(request, None);
        if !is_allowed {
            self.cancel_response(response);
        }
    }

    /// Adds the cost to the usage of a response, if the price of the model is known.
    pub(super) fn price_usage(&self, usage: Option<RealtimeUsage>) -> Option<RealtimeUsage> {
        let mut usage = usage?;
        let SessionSpendingPolicy { prices, model, .. } = &self.policy.spending;
        // Cached audio is part of the cached input.
        let audio_input_tokens = usage.total.audio_input_tokens.saturating_sub(usage.cached.audio);
        let mut priced = Usage { audio_input_tokens, ..usage.total };
        prices.complete_usage(&mut priced, model.as_deref());
        (usage.total.cost_nanos, usage.total.priced_requests) = (priced.cost_nanos, priced.priced_requests);
        Some(usage)
    }

    /// Counts the response of the conversation that has ended.
    pub(super) fn spend_response(&mut self, usage: Option<&RealtimeUsage>) {
        let usage = usage.map_or_else(Usage::of_unknown_request, |usage| usage.total);
        if usage.unknown_requests == 0 {
            self.spending.last_usage = usage;
        }
        if let Some((request, agent)) = self.spending.open_response.take() {
            self.spend(request, Some(agent), usage);
        }
    }

    /// Counts a request whose response never came as spent.
    fn forget_response_request(&mut self) {
        if let Some((request, agent)) = self.spending.open_response.take() {
            self.spend(request, Some(agent), Usage::of_unknown_request());
        }
    }

    /// Gives up the demand for a response. A last answer that never comes ends the session.
    pub(super) fn give_up_response(&mut self) {
        self.forget_response_request();
        self.note_last_answer(self.now);
    }

    /// Releases the reservation of a request that the provider has refused.
    pub(super) fn release_response_request(&mut self) {
        if self.scheduler.active_response().is_none()
            && let Some((request, agent)) = self.spending.open_response.take()
        {
            self.spend(request, Some(agent), Usage::default());
        }
    }

    /// Reserves a response outside the conversation. Returns false if the budgets do not allow it.
    pub(super) fn reserve_side_response(&mut self, command: &CommandId) -> bool {
        if !self.has_budget() {
            return true;
        }
        let request = CallId::from(command.as_str());
        let agent = self.current_agent.activation.name.clone();
        let estimate = self.estimate_response(None);
        let is_allowed = self.spending.stage == SpendingStage::Open
            && self.check_budget(&request, estimate, Some(agent.clone())) == BudgetVerdict::Allowed;
        if is_allowed {
            self.reserve(request, Some(agent), estimate);
        }
        is_allowed
    }

    /// Hands the reservation of a command over to a response that turned out to be no part of the conversation.
    pub(super) fn move_reservation(&mut self, command: Option<&CommandId>) -> Option<CallId> {
        let request = CallId::from(command?.as_str());
        if self.spending.open_response.as_ref().is_some_and(|(open, _)| *open == request) {
            self.spending.open_response = None;
        }
        self.spending.under_way.iter().any(|path| path.first() == Some(&request)).then_some(request)
    }

    /// Releases the reservation of a response outside the conversation that the provider has refused.
    pub(super) fn release_side_request(&mut self, request: Option<CallId>) {
        if let Some(request) = request {
            let agent = self.current_agent.activation.name.clone();
            self.spend(request, Some(agent), Usage::default());
        }
    }

    /// Counts a response outside the conversation that has ended.
    pub(super) fn spend_side_response(&mut self, request: Option<CallId>, usage: Option<&RealtimeUsage>) {
        if let Some(request) = request {
            let usage = usage.map_or_else(Usage::of_unknown_request, |usage| usage.total);
            let agent = self.current_agent.activation.name.clone();
            self.spend(request, Some(agent), usage);
        }
    }

    /// Queues a model request of an agent inside a call for its reservation.
    pub(crate) fn queue_model_request(&mut self, request: CallId, estimate: BudgetSpending) {
        self.spending.waiting_requests.push_back((request, estimate));
    }

    /// Counts a model request of an agent inside a call.
    pub(crate) fn on_model_request_ended(&mut self, request: CallId, usage: Usage) {
        self.spending.waiting_requests.retain(|(waiting, _)| *waiting != request);
        if self.spending.under_way.iter().any(|path| path.first() == Some(&request)) {
            self.spend(request, None, usage);
        }
    }

    /// Reserves the model requests inside calls that the budget of the session allows, in their order.
    pub(super) fn reserve_model_requests(&mut self) {
        while let Some((request, estimate)) = self.spending.waiting_requests.front().cloned() {
            let result = match self.check_budget(&request, estimate, None) {
                _ if matches!(self.spending.stage, SpendingStage::Asking { .. }) => return,
                BudgetVerdict::Allowed => {
                    self.reserve(request.clone(), None, estimate);
                    Ok(())
                }
                BudgetVerdict::WaitForOthers => return,
                BudgetVerdict::Reached(reached, OnBudgetReached::AskPerson) => {
                    return self.react_to_limit(reached, OnBudgetReached::AskPerson);
                }
                // The agent inside the call fails, and the model is told. The next response reaches the limit itself.
                BudgetVerdict::Reached(reached, OnBudgetReached::Fail | OnBudgetReached::Finish) => {
                    Err(reached)
                }
            };
            self.spending.waiting_requests.pop_front();
            self.pending_effects.push(SessionEffect::AdmitModelRequest { request, result });
        }
    }

    /// Returns the time at which the session must look at its budget again.
    pub(super) fn budget_deadline(&self) -> Option<Duration> {
        match &self.spending.stage {
            SpendingStage::Open => {}
            SpendingStage::Finishing { progress: FinishProgress::HeardAt(at), .. } => return Some(*at),
            SpendingStage::Finishing { .. } | SpendingStage::Asking { .. } | SpendingStage::Exhausted => {
                return None;
            }
        }
        // A response under way may end first.
        if self.spending.open_response.is_some() {
            return None;
        }
        let limit = self.spending.ledger.session_limit(BudgetResource::Time)?;
        let left = Duration::from_millis(limit.saturating_sub(self.active_ms()));
        Some(self.now.saturating_add(left))
    }

    /// Reacts to the end of the session's time, and ends the session when its last answer was heard.
    pub(super) fn expire_budget(&mut self) {
        if self.budget_deadline().is_none_or(|deadline| self.now < deadline) {
            return;
        }
        if let SpendingStage::Finishing { reached, .. } = self.spending.stage.clone() {
            return self.end_for_budget(reached);
        }
        let probe = CallId::from("time");
        let verdict = self.check_budget(&probe, BudgetSpending::default(), None);
        if let BudgetVerdict::Reached(reached, reaction) = verdict {
            self.react_to_limit(reached, reaction);
            if reaction == OnBudgetReached::Finish {
                self.scheduler.demand_response(self.now, None);
            }
        }
    }

    /// Returns true if the model gives its last answer or has given it: its calls are not made.
    pub(super) fn is_finishing(&self) -> bool {
        matches!(
            self.spending.stage,
            SpendingStage::Finishing { progress: FinishProgress::Requested | FinishProgress::HeardAt(_), .. }
        )
    }

    /// Ends a session that has given its last answer, when the user has heard it.
    pub(super) fn note_last_answer(&mut self, heard_at: Duration) {
        if self.spending.open_response.is_none()
            && let SpendingStage::Finishing { progress: progress @ FinishProgress::Requested, .. } =
                &mut self.spending.stage
        {
            *progress = FinishProgress::HeardAt(heard_at);
        }
    }

    fn record(&mut self, entry: RealtimeEntry) {
        self.pending_effects.push(SessionEffect::AppendJournal(entry));
    }
}

/// Returns a request without tools.
fn without_tools(body: Option<RequestBody>) -> RequestBody {
    match body {
        Some(RequestBody::Raw(mut raw)) => {
            if !raw["response"].is_object() {
                raw["response"] = serde_json::json!({});
            }
            raw["response"]["tool_choice"] = "none".into();
            RequestBody::Raw(raw)
        }
        Some(RequestBody::Options(mut options)) => {
            options.tool_choice = Some(ToolChoice::None);
            RequestBody::Options(options)
        }
        None => {
            let options =
                ResponseOptions { tool_choice: Some(ToolChoice::None), ..ResponseOptions::default() };
            RequestBody::Options(Box::new(options))
        }
    }
}
