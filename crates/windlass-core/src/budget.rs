//! Budgets: limits on what a run may spend on models, and the ledger of what it has reserved and spent.
//!
//! Invariant: a request is reserved in the journal before it is sent. A reservation whose answer never came counts as
//! spent, so that no crash makes a budget larger.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{AgentName, CallId};
use crate::usage::Usage;

/// A limit on what models may cost, and the reaction when it is reached. Resources without a limit are free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpendingBudget {
    /// Maximum number of model requests, failed ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Maximum number of tokens, input plus output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Maximum cost, in billionths of a currency unit. A request of unknown cost reaches the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_nanos: Option<u64>,
    /// Maximum time in milliseconds that drivers work on the run. Waits of a parked run do not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_ms: Option<u64>,
    /// The reaction when a limit is reached.
    #[serde(skip_serializing_if = "OnBudgetReached::is_fail")]
    pub on_reached: OnBudgetReached,
}

impl SpendingBudget {
    /// Creates a budget without limits, which fails the run when it is reached.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of model requests.
    #[must_use]
    pub fn requests(mut self, limit: u64) -> Self {
        self.requests = Some(limit);
        self
    }

    /// Sets the maximum number of tokens, input plus output.
    #[must_use]
    pub fn tokens(mut self, limit: u64) -> Self {
        self.tokens = Some(limit);
        self
    }

    /// Sets the maximum cost in currency units, such as dollars. Negative amounts and amounts that are not numbers are 0.
    #[must_use]
    pub fn cost(mut self, units: f64) -> Self {
        self.cost_nanos = Some(nanos_of(units));
        self
    }

    /// Sets the maximum time that drivers work on the run.
    #[must_use]
    pub fn time(mut self, limit: std::time::Duration) -> Self {
        self.active_ms = Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the reaction when a limit is reached.
    #[must_use]
    pub fn on_reached(mut self, reaction: OnBudgetReached) -> Self {
        self.on_reached = reaction;
        self
    }

    /// Asks a person for more when a limit is reached.
    #[must_use]
    pub fn ask_person(self) -> Self {
        self.on_reached(OnBudgetReached::AskPerson)
    }

    /// Ends the run with one last answer, without tools, when a limit is reached.
    #[must_use]
    pub fn finish(self) -> Self {
        self.on_reached(OnBudgetReached::Finish)
    }

    /// Returns the limit on a resource.
    pub fn limit_of(&self, resource: BudgetResource) -> Option<u64> {
        match resource {
            BudgetResource::Requests => self.requests,
            BudgetResource::Tokens => self.tokens,
            BudgetResource::Cost => self.cost_nanos,
            BudgetResource::Time => self.active_ms,
        }
    }

    /// Returns true if no resource has a limit.
    pub fn is_unlimited(&self) -> bool {
        BudgetResource::ALL.iter().all(|resource| self.limit_of(*resource).is_none())
    }
}

/// Returns an amount of currency units in billionths.
pub fn nanos_of(units: f64) -> u64 {
    // A conversion with `as` saturates, and makes 0 of what is not a number.
    (units * 1e9).round() as u64
}

/// The reaction when a budget is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBudgetReached {
    /// The run fails.
    #[default]
    Fail,
    /// The model gives one last answer without tools, for which room is kept.
    Finish,
    /// A person is asked for more, and the run waits.
    AskPerson,
}

impl OnBudgetReached {
    fn is_fail(&self) -> bool {
        *self == Self::Fail
    }
}

/// A resource that a budget limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetResource {
    /// Model requests.
    Requests,
    /// Tokens.
    Tokens,
    /// Money, in billionths of a currency unit.
    Cost,
    /// Time of drivers, in milliseconds.
    Time,
}

impl BudgetResource {
    /// All resources.
    pub const ALL: [Self; 4] = [Self::Requests, Self::Tokens, Self::Cost, Self::Time];

    /// Returns the unit of amounts that people read and grant.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Cost => "currency units",
            Self::Time => "seconds",
        }
    }

    /// Writes an amount in the unit of the resource.
    pub fn format_amount(self, amount: u64) -> String {
        match self {
            Self::Requests | Self::Tokens => amount.to_string(),
            Self::Cost => format!("{:.4}", amount as f64 / 1e9),
            Self::Time => format!("{:.1}", amount as f64 / 1e3),
        }
    }
}

/// The requests that a budget covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// All requests of the run, nested agents included.
    Run,
    /// All requests of the session's runs.
    Session,
    /// The requests of an agent in the run, and of the agents that it calls.
    Agent(AgentName),
}

impl std::fmt::Display for BudgetScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run => f.write_str("the run"),
            Self::Session => f.write_str("the session"),
            Self::Agent(agent) => write!(f, "agent `{agent}`"),
        }
    }
}

/// The budget of a session, with what its earlier runs have spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionBudget {
    /// The budget.
    pub budget: SpendingBudget,
    /// The spending of the session's runs before this one.
    #[serde(default)]
    pub spent_before: BudgetSpending,
}

/// An amount of the resources that budgets limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetSpending {
    /// Model requests.
    pub requests: u64,
    /// Tokens, input plus output.
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// Cost in billionths of a currency unit, of the requests whose cost is known.
    #[serde(skip_serializing_if = "is_zero")]
    pub cost_nanos: u64,
    /// Requests of unknown cost.
    #[serde(skip_serializing_if = "is_zero")]
    pub unpriced_requests: u64,
    /// Time of drivers in milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub active_ms: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl BudgetSpending {
    /// Returns the amount of a resource.
    pub fn amount_of(&self, resource: BudgetResource) -> u64 {
        match resource {
            BudgetResource::Requests => self.requests,
            BudgetResource::Tokens => self.tokens,
            BudgetResource::Cost => self.cost_nanos,
            BudgetResource::Time => self.active_ms,
        }
    }

    /// Adds another amount. Amounts saturate.
    pub fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.cost_nanos = self.cost_nanos.saturating_add(other.cost_nanos);
        self.unpriced_requests = self.unpriced_requests.saturating_add(other.unpriced_requests);
        self.active_ms = self.active_ms.saturating_add(other.active_ms);
    }

    /// Returns the spending of a usage. What the provider did not report counts as it was estimated.
    pub fn of_usage(usage: &Usage, estimate: Option<&Self>) -> Self {
        let mut spent = Self {
            requests: usage.requests,
            tokens: usage.total_tokens(),
            cost_nanos: usage.cost_nanos,
            unpriced_requests: usage.requests.saturating_sub(usage.priced_requests),
            active_ms: 0,
        };
        if let Some(estimate) = estimate.filter(|_| usage.unknown_requests > 0) {
            spent.tokens = spent.tokens.max(estimate.tokens);
            spent.cost_nanos = spent.cost_nanos.max(estimate.cost_nanos);
            // A price that is known may be nothing.
            if estimate.unpriced_requests == 0 {
                spent.unpriced_requests = 0;
            }
        }
        spent
    }
}

/// A budget that does not allow the next request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedBudget {
    /// The requests that the budget covers.
    pub scope: BudgetScope,
    /// The resource whose limit is reached.
    pub resource: BudgetResource,
    /// The limit, with everything that people have granted.
    pub limit: u64,
    /// The amount that is spent.
    pub spent: u64,
    /// Number of requests of unknown cost; a limit on money is reached if there are any.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unpriced_requests: u64,
}

impl std::fmt::Display for ReachedBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { scope, resource, limit, spent, unpriced_requests } = self;
        write!(
            f,
            "the budget of {scope} is reached: {} of {} {}",
            resource.format_amount(*spent),
            resource.format_amount(*limit),
            resource.unit()
        )?;
        if *unpriced_requests > 0 {
            write!(f, ", and the cost of {unpriced_requests} requests is unknown")?;
        }
        Ok(())
    }
}

/// The answer of a ledger to a request that is about to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetVerdict {
    /// The request may be reserved and sent.
    Allowed,
    /// The request fits only if requests that are under way cost less than was reserved for them.
    WaitForOthers,
    /// A budget does not allow the request.
    Reached(ReachedBudget, OnBudgetReached),
}

/// A request that is about to be sent.
#[derive(Clone, Debug)]
pub struct BudgetQuery<'a> {
    /// The calls that lead to the agent that makes the request.
    pub path: &'a [CallId],
    /// The budgets of the agent and of those that called it.
    pub agent_budgets: &'a [(AgentName, SpendingBudget)],
    /// Estimate of the request: one request, its input and the longest output that was asked for.
    pub estimate: BudgetSpending,
    /// Time in milliseconds that drivers have worked on the run.
    pub active_ms: u64,
    /// Paths of the agents whose requests this process has sent and that are not answered. Reservations of others were
    /// left behind by a process that died, and count as spent.
    pub under_way: &'a [Vec<CallId>],
    /// The spending of the session's other runs, if it was read after the run had started. It replaces
    /// [`SessionBudget::spent_before`].
    pub spent_by_others: Option<BudgetSpending>,
    /// True for a summary, which is made beside the reserved request of its agent: the unknown cost of that request is no
    /// reason to refuse it.
    pub is_summary: bool,
}

/// The place of a request among the agents that share a budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct BudgetPosition<'a> {
    /// The agents whose calls lead to the agent of the request, outermost first. Each of them may have to give a last
    /// answer, for which room is kept.
    pub callers: &'a [AgentName],
    /// The budget that the agent of the request has reached, if the request is for its last answer.
    pub last_answer: Option<&'a ReachedBudget>,
}

impl BudgetPosition<'_> {
    /// Returns the number of callers that a budget covers.
    fn callers_in(&self, scope: &BudgetScope) -> u64 {
        let outside = match scope {
            BudgetScope::Run | BudgetScope::Session => 0,
            BudgetScope::Agent(agent) => {
                self.callers.iter().position(|caller| caller == agent).unwrap_or(self.callers.len())
            }
        };
        (self.callers.len() - outside) as u64
    }
}

/// The amounts that a run and its nested agents have reserved and spent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetLedger {
    budget: Option<SpendingBudget>,
    session_budget: Option<SessionBudget>,
    spent: BudgetSpending,
    agents: BTreeMap<AgentName, AgentSpending>,
    reservations: Vec<OpenReservation>,
    grants: Vec<BudgetGrant>,
    /// The model that responded last, as its provider names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_model: Option<String>,
}

/// The spending of an agent and of those that it called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct AgentSpending {
    spent: BudgetSpending,
    /// Time of the run at the first request.
    first_active_ms: u64,
}

/// A request that was reserved and is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OpenReservation {
    path: Vec<CallId>,
    agents: Vec<AgentName>,
    estimate: BudgetSpending,
}

/// An amount that a person has granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BudgetGrant {
    scope: BudgetScope,
    resource: BudgetResource,
    amount: u64,
    /// Number of requests of unknown cost that the person knew of.
    #[serde(default, skip_serializing_if = "is_zero")]
    accepted_unpriced: u64,
}

impl BudgetLedger {
    /// Creates the ledger of a run.
    pub(crate) fn new(budget: Option<SpendingBudget>, session_budget: Option<SessionBudget>) -> Self {
        Self { budget, session_budget, ..Self::default() }
    }

    /// Sets the budget of a session whose requests are all in this ledger.
    pub fn cover_session(&mut self, budget: SpendingBudget) {
        self.session_budget = Some(SessionBudget { budget, spent_before: BudgetSpending::default() });
    }

    /// Notes the time that drivers have worked.
    pub fn note_time(&mut self, active_ms: u64) {
        self.spent.active_ms = self.spent.active_ms.max(active_ms);
    }

    /// Notes the model that responded, for the estimates of a driver that takes over.
    pub(crate) fn note_model(&mut self, model: Option<&str>) {
        if model.is_some() && self.last_model.as_deref() != model {
            self.last_model = model.map(str::to_owned);
        }
    }

    /// Returns the model that responded last, as its provider names it.
    pub fn last_model(&self) -> Option<&str> {
        self.last_model.as_deref()
    }

    /// Returns what the run and its nested agents have spent. Open reservations are not part of it.
    pub fn spent(&self) -> &BudgetSpending {
        &self.spent
    }

    /// Returns what the runs of the session have spent, this one included.
    pub fn spent_by_session(&self) -> BudgetSpending {
        let mut spent = self.session_budget.as_ref().map(|session| session.spent_before).unwrap_or_default();
        spent.add(&self.committed());
        spent
    }

    /// Returns what is reserved for requests that are not answered.
    pub fn reserved(&self) -> BudgetSpending {
        let mut sum = BudgetSpending::default();
        self.reservations.iter().for_each(|open| sum.add(&open.estimate));
        sum
    }

    /// Returns the budget of the run.
    pub fn budget(&self) -> Option<&SpendingBudget> {
        self.budget.as_ref()
    }

    /// Returns the budget of the session.
    pub fn session_budget(&self) -> Option<&SessionBudget> {
        self.session_budget.as_ref()
    }

    /// Returns the limit on a resource of the session, with everything that people have granted.
    pub fn session_limit(&self, resource: BudgetResource) -> Option<u64> {
        let limit = self.session_budget.as_ref()?.budget.limit_of(resource)?;
        Some(limit.saturating_add(self.granted(&BudgetScope::Session, resource).0))
    }

    /// Returns what the run and its nested agents have spent, and reserved for requests that are not answered.
    pub fn committed(&self) -> BudgetSpending {
        let mut committed = self.spent;
        committed.add(&self.reserved());
        committed
    }

    /// Checks a request against all budgets.
    pub fn check(&self, query: &BudgetQuery<'_>, position: BudgetPosition<'_>) -> BudgetVerdict {
        let run = self.budget.as_ref().map(|budget| (BudgetScope::Run, budget));
        let session = self.session_budget.as_ref().map(|session| (BudgetScope::Session, &session.budget));
        let agents =
            query.agent_budgets.iter().map(|(agent, budget)| (BudgetScope::Agent(agent.clone()), budget));
        let mut verdict = BudgetVerdict::Allowed;
        for (scope, budget) in run.into_iter().chain(session).chain(agents) {
            for resource in BudgetResource::ALL {
                let Some(limit) = budget.limit_of(resource) else { continue };
                match self.check_limit(&scope, budget.on_reached, (resource, limit), query, position) {
                    BudgetVerdict::Allowed => {}
                    BudgetVerdict::WaitForOthers => verdict = BudgetVerdict::WaitForOthers,
                    reached @ BudgetVerdict::Reached(..) => return reached,
                }
            }
        }
        verdict
    }

    fn check_limit(
        &self,
        scope: &BudgetScope,
        reaction: OnBudgetReached,
        (resource, limit): (BudgetResource, u64),
        query: &BudgetQuery<'_>,
        position: BudgetPosition<'_>,
    ) -> BudgetVerdict {
        let finishes = reaction == OnBudgetReached::Finish;
        if finishes && resource == BudgetResource::Time && position.last_answer.is_some() {
            // Time passes by itself: a limit on it is always reached before the last answer.
            return BudgetVerdict::Allowed;
        }
        let (granted, accepted) = self.granted(scope, resource);
        let limit = limit.saturating_add(granted);
        let mut used = self.spent_in(scope, query);
        let mut under_way = BudgetSpending::default();
        for open in self.reservations.iter().filter(|open| open.is_in(scope)) {
            let is_own = open.path == query.path;
            let is_alive = !is_own && query.under_way.contains(&open.path);
            let mut estimate = open.estimate;
            if is_own && query.is_summary {
                estimate.unpriced_requests = 0;
            }
            if is_alive { &mut under_way } else { &mut used }.add(&estimate);
        }
        // A last answer may be given although the cost of the requests before it is unknown. Another one waits for it.
        let known_before = position.last_answer.filter(|_| finishes);
        let accepted = match known_before {
            Some(reached) if reached.scope == *scope && reached.resource == BudgetResource::Cost => {
                accepted.saturating_add(reached.unpriced_requests)
            }
            // Another limit was reached first, so that nobody counted what was unknown here.
            Some(_) => u64::MAX,
            None => accepted,
        };
        let (unpriced, unpriced_under_way) = match resource {
            BudgetResource::Cost => {
                (used.unpriced_requests.saturating_sub(accepted), under_way.unpriced_requests)
            }
            _ => (0, 0),
        };
        let spent = used.amount_of(resource);
        // Room is kept for the last answer of the agent, and of each caller.
        let answers = match (finishes, position.last_answer) {
            (false, _) => 1,
            (true, None) => 2 + position.callers_in(scope),
            (true, Some(_)) => 1 + position.callers_in(scope),
        };
        let needed = query.estimate.amount_of(resource).max(1).saturating_mul(answers);
        if unpriced > 0 || spent.saturating_add(needed) > limit {
            let reached =
                ReachedBudget { scope: scope.clone(), resource, limit, spent, unpriced_requests: unpriced };
            return BudgetVerdict::Reached(reached, reaction);
        }
        let waits_for_price = known_before.is_some() && unpriced_under_way > 0;
        if waits_for_price
            || spent.saturating_add(under_way.amount_of(resource)).saturating_add(needed) > limit
        {
            return BudgetVerdict::WaitForOthers;
        }
        BudgetVerdict::Allowed
    }

    fn spent_in(&self, scope: &BudgetScope, query: &BudgetQuery<'_>) -> BudgetSpending {
        let active_ms = query.active_ms;
        let mut spent = match scope {
            BudgetScope::Run => BudgetSpending { active_ms, ..self.spent },
            BudgetScope::Session => BudgetSpending { active_ms, ..self.spent },
            BudgetScope::Agent(agent) => match self.agents.get(agent) {
                Some(of_agent) => BudgetSpending {
                    active_ms: active_ms.saturating_sub(of_agent.first_active_ms),
                    ..of_agent.spent
                },
                None => BudgetSpending::default(),
            },
        };
        if let (BudgetScope::Session, Some(session)) = (scope, &self.session_budget) {
            spent.add(&query.spent_by_others.unwrap_or(session.spent_before));
        }
        spent
    }

    fn granted(&self, scope: &BudgetScope, resource: BudgetResource) -> (u64, u64) {
        let grants = self.grants.iter().filter(|grant| grant.scope == *scope && grant.resource == resource);
        grants.fold((0, 0), |(amount, accepted), grant| {
            (amount.saturating_add(grant.amount), u64::saturating_add(accepted, grant.accepted_unpriced))
        })
    }

    /// Reserves a request. An earlier reservation of the same agent was never answered, and counts as spent.
    pub fn reserve(
        &mut self,
        path: &[CallId],
        agents: Vec<AgentName>,
        estimate: BudgetSpending,
        active_ms: u64,
    ) {
        self.spend_reservations(|open| open.path == path);
        self.note_time(active_ms);
        for agent in &agents {
            self.agents
                .entry(agent.clone())
                .or_insert_with(|| AgentSpending { first_active_ms: active_ms, ..AgentSpending::default() });
        }
        self.reservations.push(OpenReservation { path: path.to_vec(), agents, estimate });
    }

    /// Adds the usage of a request, and closes the reservation of its agent if the request is answered.
    pub fn spend(&mut self, path: &[CallId], agents: &[AgentName], usage: &Usage, is_answered: bool) {
        let open = self.reservations.iter().position(|open| open.path == path);
        let closed = open.filter(|_| is_answered).map(|place| self.reservations.remove(place));
        let spent = BudgetSpending::of_usage(usage, closed.as_ref().map(|closed| &closed.estimate));
        self.add_spending(agents, &spent);
    }

    /// Counts the reservations of the agents inside a call as spent, because nobody waits for their answers any more.
    pub(crate) fn close_call(&mut self, path: &[CallId], call: &CallId) {
        self.spend_reservations(|open| {
            open.path.strip_prefix(path).is_some_and(|rest| rest.first() == Some(call))
        });
    }

    fn spend_reservations(&mut self, is_over: impl Fn(&OpenReservation) -> bool) {
        let mut place = 0;
        while let Some(open) = self.reservations.get(place) {
            if is_over(open) {
                let open = self.reservations.remove(place);
                self.add_spending(&open.agents, &open.estimate);
            } else {
                place += 1;
            }
        }
    }

    fn add_spending(&mut self, agents: &[AgentName], spent: &BudgetSpending) {
        self.spent.add(spent);
        for agent in agents {
            self.agents.entry(agent.clone()).or_default().spent.add(spent);
        }
    }

    /// Adds what a person has granted.
    pub fn grant(&mut self, reached: &ReachedBudget, amount: u64) {
        self.grants.push(BudgetGrant {
            scope: reached.scope.clone(),
            resource: reached.resource,
            amount,
            accepted_unpriced: reached.unpriced_requests,
        });
    }
}

impl OpenReservation {
    fn is_in(&self, scope: &BudgetScope) -> bool {
        match scope {
            BudgetScope::Run | BudgetScope::Session => true,
            BudgetScope::Agent(agent) => self.agents.contains(agent),
        }
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
