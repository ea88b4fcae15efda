//! Scheduling of response requests. Invariant: at most one response is requested or active at a time; demands
//! that arrive meanwhile are merged into one request. Requests that the application worded itself wait for their turn
//! one by one.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::Value;

use crate::id::{CommandId, ItemId, ResponseId};
use crate::model::ResponseOptions;

/// A request that the application worded itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestBody {
    /// A request with options.
    Options(Box<ResponseOptions>),
    /// A request in the provider's own format.
    Raw(Value),
}

/// Unmet reasons for a response, merged, or one request that the application worded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResponseDemand {
    /// Items that the response must be able to see.
    required_items: BTreeSet<ItemId>,
    /// Time of the first demand.
    since: Duration,
    /// True if the provider rejected the request, so that an unrequested response cannot be its result.
    was_rejected: bool,
    /// The application's wording of the request. Such a demand is not merged with others.
    body: Option<RequestBody>,
}

/// The state of the current response.
#[derive(Clone, Debug, PartialEq)]
enum ResponseState {
    Idle,
    /// Requested and not started.
    Requested {
        command: CommandId,
        demand: ResponseDemand,
        requested_at: Duration,
    },
    /// Active. `open_request` is a request that this response may or may not belong to.
    Active {
        response: ResponseId,
        open_request: Option<(CommandId, ResponseDemand)>,
        last_activity: Duration,
        cancelled_at: Option<Duration>,
    },
}

/// The action that a timeout requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResponseTimeoutAction {
    /// Report that a requested response did not start.
    ReportNotStarted,
    /// Report that the demand is dropped after this many requests.
    ReportAbandoned { attempts: u32 },
    /// Cancel a response that stopped sending.
    Cancel(ResponseId),
    /// Abandon a response that did not acknowledge its cancellation.
    Abandon(ResponseId),
}

/// The effect of a rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequeueResult {
    /// The rejected command is not the open request.
    NotOpen,
    /// The request is repeated later.
    Requeued,
    /// The request was rejected this many times and is dropped.
    GivenUp { attempts: u32 },
}

/// Timeouts of the phases of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseTimeouts {
    pub(crate) start: Duration,
    pub(crate) silence: Duration,
    pub(crate) cancel: Duration,
}

/// The scheduler of response requests.
#[derive(Debug)]
pub(crate) struct ResponseScheduler {
    state: ResponseState,
    demand: Option<ResponseDemand>,
    /// Requests that the application worded, oldest first.
    worded_requests: VecDeque<ResponseDemand>,
    timeouts: ResponseTimeouts,
    /// True if the provider reports which request a response belongs to.
    reports_requester: bool,
    /// A request was rejected because of a response not yet reported: wait until this time before the next
    /// request.
    retry_not_before: Option<Duration>,
    /// Number of consecutive requests without a complete response.
    failed_requests: u32,
    /// Number of consecutive rejections because of another response, since the last request that was met.
    rejected_requests: u32,
}

/// Delay before a rejected request is repeated, if no event gives an earlier time.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Number of consecutive requests without a complete response after which the demand is dropped.
const MAX_FAILED_REQUESTS: u32 = 3;
/// Number of consecutive rejections after which the demand is dropped.
const MAX_REJECTED_REQUESTS: u32 = 6;
/// Maximum number of waiting requests that the application worded.
const MAX_WORDED_REQUESTS: usize = 64;

impl ResponseScheduler {
    pub(crate) fn new(timeouts: ResponseTimeouts) -> Self {
        Self {
            state: ResponseState::Idle,
            demand: None,
            worded_requests: VecDeque::new(),
            timeouts,
            reports_requester: false,
            retry_not_before: None,
            failed_requests: 0,
            rejected_requests: 0,
        }
    }

    /// Demands a response that can see the item `after`.
    pub(crate) fn demand_response(&mut self, now: Duration, after: Option<ItemId>) {
        let demand =
            self.demand.get_or_insert_with(|| ResponseDemand { since: now, ..ResponseDemand::default() });
        demand.required_items.extend(after);
    }

    /// Queues a request that the application worded. Returns false if too many are waiting.
    pub(crate) fn queue_request(&mut self, now: Duration, body: RequestBody) -> bool {
        let has_room = self.worded_requests.len() < MAX_WORDED_REQUESTS;
        if has_room {
            let demand = ResponseDemand { since: now, body: Some(body), ..ResponseDemand::default() };
            self.worded_requests.push_back(demand);
        }
        has_room
    }

    /// Demands a response again after its connection was lost. Returns the number of attempts if that was too often
    /// and the demand is dropped.
    pub(crate) fn demand_after_loss(&mut self, now: Duration) -> Option<u32> {
        self.restore_after_failure(ResponseDemand { since: now, ..ResponseDemand::default() })
    }

    /// Returns the time of the oldest unmet demand.
    pub(crate) fn oldest_demand(&self) -> Option<Duration> {
        self.demand.iter().chain(self.worded_requests.front()).map(|demand| demand.since).min()
    }

    /// Returns true if a response was requested and has not started.
    pub(crate) fn is_requested(&self) -> bool {
        matches!(self.state, ResponseState::Requested { .. })
    }

    /// Returns true if a request would be sent now.
    pub(crate) fn is_request_due(&self, now: Duration) -> bool {
        self.state == ResponseState::Idle
            && self.retry_not_before.is_none_or(|before| now >= before)
            && self.oldest_demand().is_some()
    }

    /// Returns the command of a new request, with the application's wording, if one is due now; the state is then
    /// `Requested`.
    pub(crate) fn next_request(
        &mut self,
        now: Duration,
        command: impl FnOnce() -> CommandId,
    ) -> Option<(CommandId, Option<RequestBody>)> {
        if !self.is_request_due(now) {
            return None;
        }
        let worded_since = self.worded_requests.front().map(|request| request.since);
        let is_worded_older = match (&self.demand, worded_since) {
            (Some(demand), Some(since)) => since < demand.since,
            (None, _) => true,
            (Some(_), None) => false,
        };
        let demand = if is_worded_older { self.worded_requests.pop_front() } else { self.demand.take() }?;
        let (command, body) = (command(), demand.body.clone());
        self.state = ResponseState::Requested { command: command.clone(), demand, requested_at: now };
        Some((command, body))
    }

    /// Handles the start of a response. Returns the time of the demand that it meets, if any.
    pub(crate) fn on_response_started(
        &mut self,
        now: Duration,
        response: ResponseId,
        requested_by: Option<&CommandId>,
        is_known: impl Fn(&ItemId) -> bool,
    ) -> Option<Duration> {
        self.reports_requester |= requested_by.is_some();
        self.retry_not_before = None;
        let mut since = None;
        let open_request = match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Requested { command, demand, .. } => {
                since = Some(demand.since);
                if requested_by == Some(&command) {
                    self.rejected_requests = 0;
                }
                // This may not be the requested response. The provider's later report on the request decides;
                // if there is none, the request counts as met.
                (requested_by != Some(&command)).then_some((command, demand))
            }
            ResponseState::Active { open_request, .. } => open_request,
            ResponseState::Idle => None,
        };
        // A response meets every earlier demand whose items it can see, no matter who requested it.
        if self.demand.as_ref().is_some_and(|demand| {
            !demand.was_rejected
                && !demand.required_items.is_empty()
                && demand.required_items.iter().all(is_known)
        }) {
            since = since.or(self.demand.take().map(|demand| demand.since));
        }
        self.state = ResponseState::Active { response, open_request, last_activity: now, cancelled_at: None };
        since
    }

    /// Handles a late report of the request that a known or ended response belongs to.
    pub(crate) fn on_requester_reported(&mut self, requested_by: &CommandId) {
        self.reports_requester = true;
        self.drop_request(requested_by);
    }

    /// Records activity of a response, which restarts its silence timeout.
    pub(crate) fn record_activity(&mut self, now: Duration, response: &ResponseId) {
        if let ResponseState::Active { response: active, last_activity, .. } = &mut self.state
            && active == response
        {
            *last_activity = now;
        }
    }

    /// Handles a rejection because another response is active: the request is repeated when that response has
    /// ended, within a limit.
    pub(crate) fn requeue_request(&mut self, now: Duration, command: Option<&CommandId>) -> RequeueResult {
        let is_it = |requested: &CommandId| command.is_none_or(|command| command == requested);
        match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Requested { command, demand, .. } if is_it(&command) => {
                let result = self.restore_after_rejection(demand);
                if result == RequeueResult::Requeued {
                    // The active response has not been reported yet, or has just ended.
                    let delay = RETRY_DELAY.saturating_mul(1 << (self.rejected_requests - 1).min(16));
                    self.retry_not_before = Some(now.saturating_add(delay));
                }
                result
            }
            ResponseState::Active {
                response,
                open_request: Some((command, demand)),
                last_activity,
                cancelled_at,
            } if is_it(&command) => {
                self.state =
                    ResponseState::Active { response, open_request: None, last_activity, cancelled_at };
                self.restore_after_rejection(demand)
            }
            state => {
                self.state = state;
                RequeueResult::NotOpen
            }
        }
    }

    /// Returns the command of the open request.
    pub(crate) fn open_request(&self) -> Option<&CommandId> {
        match &self.state {
            ResponseState::Requested { command, .. }
            | ResponseState::Active { open_request: Some((command, _)), .. } => Some(command),
            ResponseState::Active { open_request: None, .. } | ResponseState::Idle => None,
        }
    }

    /// Drops the open request without repeating it. Returns true if `command` was the open request.
    pub(crate) fn drop_request(&mut self, command: &CommandId) -> bool {
        match &mut self.state {
            ResponseState::Requested { command: requested, .. } if requested == command => {
                self.state = ResponseState::Idle;
                true
            }
            ResponseState::Active { open_request, .. }
                if open_request.as_ref().is_some_and(|(requested, _)| requested == command) =>
            {
                *open_request = None;
                true
            }
            ResponseState::Requested { .. } | ResponseState::Active { .. } | ResponseState::Idle => false,
        }
    }

    /// Records that a response was complete.
    pub(crate) fn record_complete_response(&mut self) {
        self.failed_requests = 0;
    }

    /// Handles the end of a response. Returns true if it was the active one.
    pub(crate) fn on_response_ended(&mut self, now: Duration, response: &ResponseId) -> bool {
        self.retry_not_before = None;
        match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Active { response: active, open_request, .. } if active == *response => {
                match open_request {
                    // An unrequested response came first; the requested one has yet to start.
                    Some((command, demand)) if self.reports_requester => {
                        self.state = ResponseState::Requested { command, demand, requested_at: now };
                    }
                    Some(_) => self.rejected_requests = 0,
                    None => {}
                }
                true
            }
            state => {
                self.state = state;
                false
            }
        }
    }

    /// Records that the active response was cancelled.
    pub(crate) fn record_cancel(&mut self, now: Duration, response: &ResponseId) {
        if let ResponseState::Active { response: active, cancelled_at, .. } = &mut self.state
            && active == response
        {
            cancelled_at.get_or_insert(now);
        }
    }

    /// Handles the loss of the connection. An unmet request is repeated on the next connection, within a limit:
    /// returns the number of attempts if the demand is dropped.
    pub(crate) fn on_disconnected(&mut self) -> Option<u32> {
        self.retry_not_before = None;
        match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Requested { demand, .. }
            | ResponseState::Active { open_request: Some((_, demand)), .. } => {
                self.restore_after_failure(demand)
            }
            ResponseState::Active { open_request: None, .. } | ResponseState::Idle => None,
        }
    }

    /// Returns the active response.
    pub(crate) fn active_response(&self) -> Option<&ResponseId> {
        match &self.state {
            ResponseState::Active { response, .. } => Some(response),
            ResponseState::Requested { .. } | ResponseState::Idle => None,
        }
    }

    /// Returns the time of the next timeout.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.state {
            ResponseState::Idle => self.retry_not_before.filter(|_| self.oldest_demand().is_some()),
            ResponseState::Requested { requested_at: at, .. } => Some(at.saturating_add(self.timeouts.start)),
            ResponseState::Active { cancelled_at: Some(at), .. } => {
                Some(at.saturating_add(self.timeouts.cancel))
            }
            ResponseState::Active { last_activity, .. } => {
                Some(last_activity.saturating_add(self.timeouts.silence))
            }
        }
    }

    /// Returns the action of a timeout that has elapsed.
    pub(crate) fn elapsed_timeout(&mut self, now: Duration) -> Option<ResponseTimeoutAction> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        match &mut self.state {
            ResponseState::Idle => {
                self.retry_not_before = None;
                None
            }
            ResponseState::Requested { demand, .. } => {
                let demand = std::mem::take(demand);
                self.state = ResponseState::Idle;
                Some(match self.restore_after_failure(demand) {
                    Some(attempts) => ResponseTimeoutAction::ReportAbandoned { attempts },
                    None => ResponseTimeoutAction::ReportNotStarted,
                })
            }
            ResponseState::Active { response, cancelled_at: Some(_), .. } => {
                Some(ResponseTimeoutAction::Abandon(response.clone()))
            }
            ResponseState::Active { response, cancelled_at, .. } => {
                *cancelled_at = Some(now);
                Some(ResponseTimeoutAction::Cancel(response.clone()))
            }
        }
    }

    /// Restores a demand whose request was rejected because of another response, or drops it if that happened too
    /// often.
    fn restore_after_rejection(&mut self, demand: ResponseDemand) -> RequeueResult {
        self.rejected_requests += 1;
        let attempts = self.rejected_requests;
        if attempts >= MAX_REJECTED_REQUESTS {
            self.rejected_requests = 0;
            return RequeueResult::GivenUp { attempts };
        }
        self.restore_demand(ResponseDemand { was_rejected: true, ..demand });
        RequeueResult::Requeued
    }

    /// Restores a demand whose request failed, or drops it and returns the number of attempts.
    fn restore_after_failure(&mut self, demand: ResponseDemand) -> Option<u32> {
        self.failed_requests += 1;
        let attempts = self.failed_requests;
        if attempts >= MAX_FAILED_REQUESTS {
            // A later demand has its own attempts.
            self.failed_requests = 0;
            return Some(attempts);
        }
        self.restore_demand(demand);
        None
    }

    /// Merges an unmet demand into the waiting one. A request that the application worded goes back to its place.
    fn restore_demand(&mut self, demand: ResponseDemand) {
        if demand.body.is_some() {
            return self.worded_requests.push_front(demand);
        }
        match &mut self.demand {
            Some(waiting) => {
                waiting.required_items.extend(demand.required_items);
                waiting.since = waiting.since.min(demand.since);
                waiting.was_rejected |= demand.was_rejected;
            }
            None => self.demand = Some(demand),
        }
    }
}

#[cfg(test)]
#[path = "response_scheduler_tests.rs"]
mod tests;
