//! Rate limits of this side: so many requests and tokens in any minute, shared by whoever holds a clone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::HeaderMap;
use tokio::time::{Instant, sleep_until};

use crate::retry;

/// The span that limits are for.
const MINUTE: Duration = Duration::from_secs(60);
/// What happened within so short a time counts as one, so that the memory of a minute is bounded.
const GRAIN: Duration = Duration::from_millis(100);
/// The longest that a provider's word holds everybody up. A run that meets it sooner fails with the provider's error.
const LONGEST_HOLD: Duration = Duration::from_secs(120);

/// So many requests and tokens in any minute. Clones share one account, so one limit can stand for a provider.
///
/// Who must wait does so in the order of asking. What a provider says of its own limits, in its headers and with
/// its refusals, holds everybody up who shares the account.
#[derive(Clone, Debug, Default)]
pub struct RateLimit {
    requests: Option<u32>,
    tokens: Option<u64>,
    account: Arc<Account>,
}

#[derive(Debug, Default)]
struct Account {
    /// Who waits, waits here: first come, first served.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    spent: VecDeque<Spent>,
    held_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Spent {
    at: Instant,
    requests: u32,
    tokens: u64,
}

impl RateLimit {
    /// No limit but what the provider says.
    pub fn new() -> Self {
        Self::default()
    }

    /// At most so many requests in any minute.
    #[must_use]
    pub fn requests_per_minute(mut self, requests: u32) -> Self {
        self.requests = Some(requests.max(1));
        self
    }

    /// At most so many tokens in any minute. What a request will take is estimated from its length, and put right
    /// when its answer says.
    #[must_use]
    pub fn tokens_per_minute(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens.max(1));
        self
    }

    /// Waits until there is room, and takes it.
    pub(crate) async fn take(&self, tokens: u64) {
        let _turn = self.account.turn.lock().await;
        while let Some(until) = self.try_take(tokens) {
            sleep_until(until).await;
        }
    }

    /// Takes room; where there is none, says when to look again.
    fn try_take(&self, tokens: u64) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.locked();
        if let Some(until) = state.held_until {
            if until > now {
                return Some(until);
            }
            state.held_until = None;
        }
        while state.spent.front().is_some_and(|spent| now >= spent.at + MINUTE) {
            state.spent.pop_front();
        }
        let (mut requests, mut spent) = (1, tokens);
        for past in &state.spent {
            requests += past.requests;
            spent = spent.saturating_add(past.tokens);
        }
        for past in &state.spent {
            let is_over = self.requests.is_some_and(|most| requests > most)
                || self.tokens.is_some_and(|most| spent > most);
            if !is_over {
                break;
            }
            requests -= past.requests;
            spent -= past.tokens;
            let later = past.at + MINUTE;
            let fits = self.requests.is_none_or(|most| requests <= most)
                && self.tokens.is_none_or(|most| spent <= most);
            if fits || (requests == 1 && spent == tokens) {
                return Some(later);
            }
        }
        state.spend(Spent { at: now, requests: 1, tokens });
        None
    }

    /// Puts an estimate right.
    pub(crate) fn correct(&self, estimate: u64, actual: u64) {
        if let Some(more) = actual.checked_sub(estimate).filter(|more| *more > 0) {
            self.locked().spend(Spent { at: Instant::now(), requests: 0, tokens: more });
        }
    }

    /// Holds everybody up for as long as the provider says.
    pub(crate) fn heed(&self, headers: &HeaderMap, is_refused: bool) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let used_up = |what: &str| {
            let left = text(&format!("x-ratelimit-remaining-{what}"))?;
            if left == "0" { retry::span(text(&format!("x-ratelimit-reset-{what}"))?) } else { None }
        };
        let told = if is_refused { retry::wait(headers) } else { None };
        let hold = [told, used_up("requests"), used_up("tokens")].into_iter().flatten().max();
        if let Some(hold) = hold {
            let until = Instant::now() + hold.min(LONGEST_HOLD);
            let mut state = self.locked();
            state.held_until = Some(state.held_until.map_or(until, |held| held.max(until)));
        }
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.account.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn spend(&mut self, spent: Spent) {
        match self.spent.back_mut() {
            Some(last) if spent.at.duration_since(last.at) < GRAIN => {
                last.requests += spent.requests;
                last.tokens = last.tokens.saturating_add(spent.tokens);
            }
            _ => self.spent.push_back(spent),
        }
    }
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
