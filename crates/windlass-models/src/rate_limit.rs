//! Client-side rate limiting: a maximum of requests and tokens in every sliding minute, shared by all clones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::HeaderMap;
use tokio::time::{Instant, sleep_until};
use windlass::model::RateLimitBudget;

use crate::retry;

/// The sliding window of the limits.
const WINDOW: Duration = Duration::from_secs(60);
/// Interval within which spends are merged into one, so that the memory for a window is bounded.
const MERGE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time that a provider's headers block requests. A request sent earlier than the provider asked fails
/// with the provider's error.
const MAX_HOLD: Duration = Duration::from_secs(120);

/// A maximum of requests and tokens per minute. Clones share one budget, so one limit can cover all models of a
/// provider.
///
/// Waiting requests proceed in first-in, first-out order. Rate-limit headers and `retry-after` of the provider
/// block all requests that share the budget.
#[derive(Clone, Debug, Default)]
pub struct RateLimit {
    max_requests: Option<u32>,
    max_tokens: Option<u64>,
    budget: Arc<SharedBudget>,
}

#[derive(Debug, Default)]
struct SharedBudget {
    /// Queue of the waiting requests, in first-in, first-out order.
    queue: tokio::sync::Mutex<()>,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    spends: VecDeque<BudgetSpend>,
    blocked_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct BudgetSpend {
    at: Instant,
    requests: u32,
    tokens: u64,
}

impl RateLimit {
    /// Creates a limit that only follows the provider's headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum number of requests per minute.
    #[must_use]
    pub fn requests_per_minute(mut self, requests: u32) -> Self {
        self.max_requests = Some(requests.max(1));
        self
    }

    /// Sets the maximum number of tokens per minute. A request's tokens are estimated from its length and
    /// corrected by the usage in its response.
    #[must_use]
    pub fn tokens_per_minute(mut self, tokens: u64) -> Self {
        self.max_tokens = Some(tokens.max(1));
        self
    }

    /// Waits until the budget allows a request of `tokens`, and spends it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is spent if the future is dropped before it completes.
    pub(crate) async fn acquire(&self, tokens: u64) {
        let _turn = self.budget.queue.lock().await;
        while let Some(until) = self.try_acquire(tokens) {
            sleep_until(until).await;
        }
    }

    /// Spends the budget and returns `None`, or returns the time at which to try again.
    fn try_acquire(&self, tokens: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock_state();
        if let Some(until) = state.blocked_until {
            if until > now {
                return Some(until);
            }
            state.blocked_until = None;
        }
        while state.spends.front().is_some_and(|spent| now >= spent.at + WINDOW) {
            state.spends.pop_front();
        }
        let (mut requests, mut spent) = (1, tokens);
        for past in &state.spends {
            requests = past.requests.saturating_add(requests);
            spent = spent.saturating_add(past.tokens);
        }
        for past in &state.spends {
            let is_over = self.max_requests.is_some_and(|most| requests > most)
                || self.max_tokens.is_some_and(|most| spent > most);
            if !is_over {
                break;
            }
            requests = requests.saturating_sub(past.requests);
            spent = spent.saturating_sub(past.tokens);
            let later = past.at + WINDOW;
            let fits = self.max_requests.is_none_or(|most| requests <= most)
                && self.max_tokens.is_none_or(|most| spent <= most);
            if fits || (requests == 1 && spent == tokens) {
                return Some(later);
            }
        }
        state.add_spend(BudgetSpend { at: now, requests: 1, tokens });
        None
    }

    /// Spends the tokens by which a request exceeded its estimate.
    pub(crate) fn record_actual_tokens(&self, estimate: u64, actual: u64) {
        if let Some(more) = actual.checked_sub(estimate).filter(|more| *more > 0) {
            self.lock_state().add_spend(BudgetSpend { at: Instant::now(), requests: 0, tokens: more });
        }
    }

    /// Blocks all requests for as long as the rate-limit headers of a successful response ask.
    pub(crate) fn observe_success(&self, headers: &HeaderMap) {
        self.hold_for(budget_reset(headers));
    }

    /// Blocks all requests for as long as the rate-limit headers or `retry-after` of a rejection ask.
    pub(crate) fn observe_rejection(&self, headers: &HeaderMap) {
        self.hold_for(budget_reset(headers).max(retry::retry_after(headers)));
    }

    /// Blocks all requests for this long, up to [`MAX_HOLD`].
    fn hold_for(&self, hold: Option<Duration>) {
        if let Some(hold) = hold {
            let until = Instant::now() + hold.min(MAX_HOLD);
            let mut state = self.lock_state();
            state.blocked_until = Some(state.blocked_until.map_or(until, |held| held.max(until)));
        }
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, BudgetState> {
        self.budget.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BudgetState {
    fn add_spend(&mut self, spent: BudgetSpend) {
        match self.spends.back_mut() {
            Some(last) if spent.at.duration_since(last.at) < MERGE_INTERVAL => {
                last.requests += spent.requests;
                last.tokens = last.tokens.saturating_add(spent.tokens);
            }
            _ => self.spends.push_back(spent),
        }
    }
}

/// Returns the time until a used-up budget is reset, from OpenAI's `x-ratelimit-…` headers.
fn budget_reset(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let reset = |budget: &str| {
        let remaining = text(&format!("x-ratelimit-remaining-{budget}"))?;
        let reset = text(&format!("x-ratelimit-reset-{budget}"))?;
        if remaining == "0" { retry::parse_duration(reset) } else { None }
    };
    reset("requests").max(reset("tokens"))
}

/// Returns the budgets that a provider reports in its headers: `x-ratelimit-limit-requests` and the like (OpenAI),
/// or `anthropic-ratelimit-requests-limit` and the like.
pub(crate) fn read_budgets(headers: &HeaderMap) -> BTreeMap<String, RateLimitBudget> {
    let mut budgets: BTreeMap<String, RateLimitBudget> = BTreeMap::new();
    for (name, value) in headers {
        let field = match (name.as_str().strip_prefix("x-ratelimit-"), name.as_str()) {
            (Some(rest), _) => rest.split_once('-'),
            (None, name) => {
                let rest = name.strip_prefix("anthropic-ratelimit-").and_then(|rest| rest.rsplit_once('-'));
                rest.map(|(budget, field)| (field, budget))
            }
        };
        let (Some((field, budget)), Ok(value)) = (field, value.to_str()) else { continue };
        match field {
            "limit" => budgets.entry(budget.to_owned()).or_default().limit = value.parse().ok(),
            "remaining" => budgets.entry(budget.to_owned()).or_default().remaining = value.parse().ok(),
            "reset" => budgets.entry(budget.to_owned()).or_default().reset = Some(value.to_owned()),
            _ => {}
        }
    }
    budgets
}

#[cfg(test)]
#[path = "rate_limit_tests.rs"]
mod tests;
