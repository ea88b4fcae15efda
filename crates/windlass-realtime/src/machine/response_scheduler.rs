//! Scheduling of response requests. Invariant: at most one response is requested or active at a time; demands
//! that arrive meanwhile are merged into one request.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::{CommandId, ItemId, ResponseId};

/// Unmet reasons for a response, merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseDemand {
    /// Items that the response must be able to see.
    required_items: BTreeSet<ItemId>,
    /// Time of the first demand.
    since: Duration,
    /// True if the provider rejected the request, so that an unrequested response cannot be its result.
    was_rejected: bool,
}

/// The state of the current response.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Cancel a response that stopped sending.
    Cancel(ResponseId),
    /// Abandon a response that did not acknowledge its cancellation.
    Abandon(ResponseId),
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
    timeouts: ResponseTimeouts,
    /// True if the provider reports which request a response belongs to.
    reports_requester: bool,
    /// A request was rejected because of a response not yet reported: wait until this time before the next
    /// request.
    retry_not_before: Option<Duration>,
    /// Number of consecutive requests without a response.
    failed_requests: u32,
}

/// Delay before a rejected request is repeated, if no event gives an earlier time.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Number of consecutive requests without a response after which the demand is dropped.
const MAX_FAILED_REQUESTS: u32 = 3;

impl ResponseScheduler {
    pub(crate) fn new(timeouts: ResponseTimeouts) -> Self {
        Self {
            state: ResponseState::Idle,
            demand: None,
            timeouts,
            reports_requester: false,
            retry_not_before: None,
            failed_requests: 0,
        }
    }

    /// Demands a response that can see the item `after`.
    pub(crate) fn demand_response(&mut self, now: Duration, after: Option<ItemId>) {
        let demand =
            self.demand.get_or_insert_with(|| ResponseDemand { since: now, ..ResponseDemand::default() });
        demand.required_items.extend(after);
    }

    /// Returns the command of a new request if one is due now; the state is then `Requested`.
    pub(crate) fn next_request(
        &mut self,
        now: Duration,
        command: impl FnOnce() -> CommandId,
    ) -> Option<CommandId> {
        if self.state != ResponseState::Idle || self.retry_not_before.is_some_and(|before| now < before) {
            return None;
        }
        let demand = self.demand.take()?;
        let command = command();
        self.state = ResponseState::Requested { command: command.clone(), demand, requested_at: now };
        Some(command)
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
        (self.retry_not_before, self.failed_requests) = (None, 0);
        let mut since = None;
        let open_request = match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Requested { command, demand, .. } => {
                since = Some(demand.since);
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
    /// ended. Returns true if the rejected command was the open request.
    pub(crate) fn requeue_request(&mut self, now: Duration, command: Option<&CommandId>) -> bool {
        let is_it = |requested: &CommandId| command.is_none_or(|command| command == requested);
        match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Requested { command, demand, .. } if is_it(&command) => {
                self.restore_demand(ResponseDemand { was_rejected: true, ..demand });
                // The active response has not been reported yet, or has just ended.
                self.retry_not_before = Some(now + RETRY_DELAY);
                true
            }
            ResponseState::Active {
                response,
                open_request: Some((command, demand)),
                last_activity,
                cancelled_at,
            } if is_it(&command) => {
                self.restore_demand(ResponseDemand { was_rejected: true, ..demand });
                self.state =
                    ResponseState::Active { response, open_request: None, last_activity, cancelled_at };
                true
            }
            state => {
                self.state = state;
                false
            }
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

    /// Handles the end of a response. Returns true if it was the active one.
    pub(crate) fn on_response_ended(&mut self, now: Duration, response: &ResponseId) -> bool {
        self.retry_not_before = None;
        match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Active { response: active, open_request, .. } if active == *response => {
                if let Some((command, demand)) = open_request.filter(|_| self.reports_requester) {
                    // An unrequested response came first; the requested one has yet to start.
                    self.state = ResponseState::Requested { command, demand, requested_at: now };
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

    /// Handles the loss of the connection. Unmet requests are repeated on the next connection.
    pub(crate) fn on_disconnected(&mut self) {
        match std::mem::replace(&mut self.state, ResponseState::Idle) {
            ResponseState::Requested { demand, .. }
            | ResponseState::Active { open_request: Some((_, demand)), .. } => self.restore_demand(demand),
            ResponseState::Active { open_request: None, .. } | ResponseState::Idle => {}
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
            ResponseState::Idle => self.retry_not_before.filter(|_| self.demand.is_some()),
            ResponseState::Requested { requested_at: at, .. } => Some(*at + self.timeouts.start),
            ResponseState::Active { cancelled_at: Some(at), .. } => Some(*at + self.timeouts.cancel),
            ResponseState::Active { last_activity, .. } => Some(*last_activity + self.timeouts.silence),
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
                self.failed_requests += 1;
                if self.failed_requests < MAX_FAILED_REQUESTS {
                    self.restore_demand(demand);
                }
                Some(ResponseTimeoutAction::ReportNotStarted)
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

    /// Merges an unmet demand into the waiting one.
    fn restore_demand(&mut self, demand: ResponseDemand) {
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
