//! The signal that wakes the drivers of a run when decisions about its held calls were recorded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::lock_unpoisoned;

/// The signal of one run, shared by the drivers of nested agents.
#[derive(Default)]
pub(crate) struct DecisionSignal {
    shared: Arc<SignalState>,
}

#[derive(Default)]
struct SignalState {
    announcements: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
}

/// A driver's view of the signal.
pub(crate) struct DecisionListener {
    shared: Arc<SignalState>,
    seen: u64,
}

impl DecisionSignal {
    /// Announces that decisions were recorded.
    pub(crate) fn announce(&self) {
        self.shared.announcements.fetch_add(1, Ordering::AcqRel);
        for waker in std::mem::take(&mut *lock_unpoisoned(&self.shared.wakers)) {
            waker.wake();
        }
    }

    pub(crate) fn subscribe(&self) -> DecisionListener {
        let seen = self.shared.announcements.load(Ordering::Acquire);
        DecisionListener { shared: self.shared.clone(), seen }
    }
}

impl DecisionListener {
    /// Polls for an announcement since the last one that was seen.
    pub(crate) fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let announced = self.shared.announcements.load(Ordering::Acquire);
        if announced != self.seen {
            self.seen = announced;
            return Poll::Ready(());
        }
        let mut wakers = lock_unpoisoned(&self.shared.wakers);
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
