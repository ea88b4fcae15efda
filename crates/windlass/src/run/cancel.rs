//! Cancellation of a run: immediate or after the turn, from any task, and idempotent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;
use windlass_core::{id::CallId, run::StopRequest};

/// The cancellation state of a run, shared by its handles and its driver.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelSignal {
    pub(crate) token: CancellationToken,
    requests: Arc<CancelRequests>,
}

/// Further requests besides immediate cancellation.
#[derive(Debug, Default)]
struct CancelRequests {
    after_turn: AtomicBool,
    detach_after_turn: AtomicBool,
    keep_approvals: AtomicBool,
    detach: AtomicBool,
    lease_lost: AtomicBool,
}

impl CancelSignal {
    /// Detaches the driver: see [`CancelHandle::detach`].
    pub(crate) fn detach(&self) {
        self.requests.detach.store(true, Ordering::Relaxed);
        self.token.cancel();
    }

    /// Returns the request for the end of a turn, if there is one.
    pub(crate) fn request_after_turn(&self) -> Option<StopRequest> {
        if self.requests.detach_after_turn.load(Ordering::Relaxed) {
            return Some(StopRequest::LeaveAfterTurn);
        }
        self.requests.after_turn.load(Ordering::Relaxed).then_some(StopRequest::CancelAfterTurn)
    }

    pub(crate) fn keeps_approvals(&self) -> bool {
        self.requests.keep_approvals.load(Ordering::Relaxed)
    }

    /// Marks the lease as lost: the driver stops and leaves the run unchanged.
    pub(crate) fn mark_lease_lost(&self) {
        self.requests.lease_lost.store(true, Ordering::Relaxed);
        self.requests.detach.store(true, Ordering::Relaxed);
        self.token.cancel();
    }

    /// True if this driver has lost the lease, and must execute nothing more of the run.
    pub(crate) fn is_lease_lost(&self) -> bool {
        self.requests.lease_lost.load(Ordering::Relaxed)
    }

    /// True if the driver leaves the run unchanged for another driver.
    pub(crate) fn is_detaching(&self) -> bool {
        self.requests.detach.load(Ordering::Relaxed)
    }

    /// True if calls whose starts are durable may still run and finish after the run was stopped: its driver leaves it,
    /// and holds its lease until then.
    pub(crate) fn lets_calls_finish(&self) -> bool {
        self.is_detaching() && !self.is_lease_lost()
    }

    /// Returns true if the run was stopped so that no body begins any more.
    pub(crate) fn forbids_bodies(&self) -> bool {
        self.token.is_cancelled() && !self.lets_calls_finish()
    }
}

/// The treatment of pending approvals when a run is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PendingApprovals {
    /// Pending approvals are withdrawn with the run.
    #[default]
    Withdraw,
    /// Pending approvals remain open: the run ends paused instead of cancelled. Calls that were stopped stay started, as
    /// after a crash, because a run that goes on must not tell its model of the stop.
    Keep,
}

/// A handle that cancels a run.
#[derive(Clone, Debug)]
pub struct CancelHandle {
    pub(crate) signal: CancelSignal,
}

impl CancelHandle {
    /// Cancels the run immediately. Finished calls keep their outputs; running calls are stopped, and the run
    /// waits for them up to its drain timeout.
    pub fn cancel(&self) {
        self.signal.token.cancel();
    }

    /// Cancels the run as [`CancelHandle::cancel`] does, with this treatment of pending approvals.
    pub fn cancel_with(&self, approvals: PendingApprovals) {
        self.signal.requests.keep_approvals.store(approvals == PendingApprovals::Keep, Ordering::Relaxed);
        self.cancel();
    }

    /// Detaches the driver and leaves the run for another driver, now or later, in this process or another.
    /// Running calls get the run's drain timeout to finish; those that do not finish stay started, as after a
    /// crash. Nothing is cancelled.
    pub fn detach(&self) {
        self.signal.detach();
    }

    /// Detaches the driver as [`CancelHandle::detach`] does, but only when the current turn has settled. No body is
    /// stopped.
    pub fn detach_after_turn(&self) {
        self.signal.requests.detach_after_turn.store(true, Ordering::Relaxed);
    }

    /// Cancels the run after the current turn has settled.
    pub fn cancel_after_turn(&self) {
        self.signal.requests.after_turn.store(true, Ordering::Relaxed);
    }
}

/// The calls of the last turn of a run that was cancelled or failed, by their fate and in the model's order. A call of a nested
/// agent is in doubt if a call inside the agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSettlement {
    /// Calls that had finished. They keep their outputs.
    pub finished: Vec<CallId>,
    /// Calls that were stopped or never started.
    pub stopped: Vec<CallId>,
    /// Calls that were stopped in a body that must execute at most once: it may have taken effect.
    pub in_doubt: Vec<CallId>,
    /// Calls whose bodies were still running when the drain timeout ended.
    pub draining: Vec<CallId>,
}
