//! Cancelling: now, or after the turn; from anywhere; any number of times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;
use windlass_core::CallId;

/// A cancel of a run, shared by those who may ask and those who must stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel {
    pub(crate) now: CancellationToken,
    asked: Arc<Asked>,
}

/// What was asked for besides.
#[derive(Debug, Default)]
struct Asked {
    after_turn: AtomicBool,
    keep_approvals: AtomicBool,
    hand_over: AtomicBool,
    lost: AtomicBool,
}

impl Cancel {
    pub(crate) fn is_due_after_turn(&self) -> bool {
        self.asked.after_turn.load(Ordering::Relaxed)
    }

    pub(crate) fn keeps_approvals(&self) -> bool {
        self.asked.keep_approvals.load(Ordering::Relaxed)
    }

    /// This driver has lost the run: it stops, and leaves the run as it is.
    pub(crate) fn lose(&self) {
        self.asked.lost.store(true, Ordering::Relaxed);
        self.asked.hand_over.store(true, Ordering::Relaxed);
        self.now.cancel();
    }

    /// Whether this driver has lost the run, and nothing of it may go on here.
    pub(crate) fn is_lost(&self) -> bool {
        self.asked.lost.load(Ordering::Relaxed)
    }

    /// Whether the run is to be left as it is, for another driver to go on with.
    pub(crate) fn hands_over(&self) -> bool {
        self.asked.hand_over.load(Ordering::Relaxed)
    }
}

/// What becomes of approvals that are waited for when a run is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approvals {
    /// They are withdrawn, with the run.
    #[default]
    Withdraw,
    /// They stay answerable: the run ends paused instead of cancelled.
    Keep,
}

/// Cancels a run.
#[derive(Clone, Debug)]
pub struct CancelHandle {
    pub(crate) cancel: Cancel,
}

impl CancelHandle {
    /// Stops the run now. Calls that have finished keep their outputs; those that run are stopped, and waited
    /// for within the run's drain.
    pub fn now(&self) {
        self.cancel.now.cancel();
    }

    /// As [`CancelHandle::now`], with a word on what waits for a person.
    pub fn now_with(&self, approvals: Approvals) {
        self.cancel.asked.keep_approvals.store(approvals == Approvals::Keep, Ordering::Relaxed);
        self.now();
    }

    /// Leaves the run for another driver, now or later, here or elsewhere. Calls that run get the run's drain
    /// to finish; those that do not are left as started, as a crash would leave them. Nothing is cancelled.
    pub fn hand_over(&self) {
        self.cancel.asked.hand_over.store(true, Ordering::Relaxed);
        self.now();
    }

    /// Lets the turn that is under way settle, and stops then.
    pub fn after_turn(&self) {
        self.cancel.asked.after_turn.store(true, Ordering::Relaxed);
    }
}

/// What became of the calls of the last turn of a run that was cancelled, in the model's order. A call of an agent
/// counts as in doubt where something inside the agent is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// They had finished, and keep their outputs.
    pub finished: Vec<CallId>,
    /// They were stopped, or never started.
    pub stopped: Vec<CallId>,
    /// They were stopped inside a body that must not happen twice: it may have taken effect.
    pub in_doubt: Vec<CallId>,
    /// Their bodies were still running when the wait for them ended.
    pub draining: Vec<CallId>,
}
