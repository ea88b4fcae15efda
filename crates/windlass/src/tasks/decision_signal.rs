//! The wake-ups of a run's drivers for decisions about its held calls: the outermost driver looks for posted decisions at
//! intervals, and announces recorded ones to the drivers of nested agents.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Sleep;

use crate::lock_unpoisoned;

/// First interval at which a driver with running calls looks for decisions about held ones. It doubles up to
/// [`MAX_DECISION_POLL`] while there are none.
const MIN_DECISION_POLL: Duration = Duration::from_millis(50);

/// Longest interval at which a driver with running calls looks for decisions.
const MAX_DECISION_POLL: Duration = Duration::from_secs(1);

/// The signal of one run, shared by the drivers of nested agents.
#[derive(Default)]
pub(crate) struct DecisionSignal {
    shared: Arc<SignalState>,
}

#[derive(Default)]
pub(crate) struct SignalState {
    announcements: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
}

/// A driver's wait for decisions, during one turn.
pub(crate) enum DecisionWatch {
    /// The outermost driver looks for decisions in the store.
    Polls { timer: Option<Pin<Box<Sleep>>>, interval: Duration },
    /// The driver of a nested agent waits for announcements.
    Listens { shared: Arc<SignalState>, seen: u64 },
}

impl DecisionSignal {
    /// Announces that decisions were recorded.
    pub(crate) fn announce(&self) {
        self.shared.announcements.fetch_add(1, Ordering::AcqRel);
        for waker in std::mem::take(&mut *lock_unpoisoned(&self.shared.wakers)) {
            waker.wake();
        }
    }

    /// Begins the wait of the outermost driver.
    pub(crate) fn poll_store() -> DecisionWatch {
        DecisionWatch::Polls { timer: None, interval: MIN_DECISION_POLL }
    }

    /// Begins the wait of a nested agent's driver.
    pub(crate) fn subscribe(&self) -> DecisionWatch {
        let seen = self.shared.announcements.load(Ordering::Acquire);
        DecisionWatch::Listens { shared: self.shared.clone(), seen }
    }
}

impl DecisionWatch {
    /// Returns true if the driver should look at its held calls now. `has_held_calls` is false if no decision can matter;
    /// a timer that runs already still ends.
    pub(crate) fn poll_due(&mut self, has_held_calls: bool, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Polls { timer, interval } => {
                if timer.is_none() && has_held_calls {
                    *timer = Some(Box::pin(tokio::time::sleep(*interval)));
                    *interval = (*interval * 2).min(MAX_DECISION_POLL);
                }
                let is_due = timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
                if is_due {
                    *timer = None;
                }
                is_due
            }
            Self::Listens { shared, seen } => {
                // An announcement increases the count before it takes the wakers, so one of the two sees the other.
                let mut wakers = lock_unpoisoned(&shared.wakers);
                let announced = shared.announcements.load(Ordering::Acquire);
                let is_due = announced != *seen;
                *seen = announced;
                if !is_due && !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
                is_due
            }
        }
    }
}
