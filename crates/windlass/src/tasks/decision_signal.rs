//! The wake-ups of a run's drivers for decisions about its held calls: the outermost driver looks for posted decisions when
//! the store hints at one, and at intervals, and announces recorded ones to the drivers of nested agents.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Sleep;

use crate::journal::AppendTarget;
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
struct SignalState {
    announcements: AtomicU64,
    next_listener: AtomicU64,
    /// The waker of each driver that waits, by the number of its listener.
    wakers: Mutex<BTreeMap<u64, Waker>>,
}

/// A driver's wait for decisions, during one turn.
pub(crate) enum DecisionWatch {
    /// The outermost driver looks for decisions in the store.
    Polls(StorePoll),
    /// The driver of a nested agent waits for announcements.
    Listens(DecisionListener),
}

/// The wait of a nested agent's driver. It has one waker at a time, and none after it ends.
pub(crate) struct DecisionListener {
    shared: Arc<SignalState>,
    number: u64,
    seen: u64,
}

/// The times at which the outermost driver looks for decisions.
pub(crate) struct StorePoll {
    /// None if the run has no store, in which decisions could be posted.
    target: Option<Arc<AppendTarget>>,
    hint: Option<BoxFuture<'static, ()>>,
    timer: Option<Pin<Box<Sleep>>>,
    interval: Duration,
}

impl DecisionSignal {
    /// Announces that decisions were recorded.
    pub(crate) fn announce(&self) {
        self.shared.announcements.fetch_add(1, Ordering::AcqRel);
        let wakers = std::mem::take(&mut *lock_unpoisoned(&self.shared.wakers));
        wakers.into_values().for_each(Waker::wake);
    }

    /// Begins the wait of the outermost driver. `target` is the run's store and lease.
    pub(crate) fn poll_store(target: Option<Arc<AppendTarget>>) -> DecisionWatch {
        DecisionWatch::Polls(StorePoll { target, hint: None, timer: None, interval: MIN_DECISION_POLL })
    }

    /// Begins the wait of a nested agent's driver.
    pub(crate) fn subscribe(&self) -> DecisionWatch {
        let seen = self.shared.announcements.load(Ordering::Acquire);
        let number = self.shared.next_listener.fetch_add(1, Ordering::Relaxed);
        DecisionWatch::Listens(DecisionListener { shared: self.shared.clone(), number, seen })
    }
}

impl DecisionWatch {
    /// Returns true if the driver should look at its held calls now. `has_held_calls` is false if no decision can matter;
    /// a timer that runs already still ends.
    pub(crate) fn poll_due(&mut self, has_held_calls: bool, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Polls(poll) => poll.poll_due(has_held_calls, cx),
            Self::Listens(listener) => listener.poll_due(cx),
        }
    }
}

impl DecisionListener {
    fn poll_due(&mut self, cx: &Context<'_>) -> bool {
        // An announcement increases the count before it takes the wakers, so one of the two sees the other.
        let mut wakers = lock_unpoisoned(&self.shared.wakers);
        let announced = self.shared.announcements.load(Ordering::Acquire);
        let is_due = announced != self.seen;
        self.seen = announced;
        if !is_due && !wakers.get(&self.number).is_some_and(|waker| waker.will_wake(cx.waker())) {
            wakers.insert(self.number, cx.waker().clone());
        }
        is_due
    }
}

impl Drop for DecisionListener {
    fn drop(&mut self) {
        lock_unpoisoned(&self.shared.wakers).remove(&self.number);
    }
}

impl StorePoll {
    fn poll_due(&mut self, has_held_calls: bool, cx: &mut Context<'_>) -> bool {
        let Some(target) = &self.target else { return false };
        if has_held_calls && self.timer.is_none() {
            self.timer = Some(Box::pin(tokio::time::sleep(self.interval)));
            self.interval = (self.interval * 2).min(MAX_DECISION_POLL);
        }
        let wait = || target.store.wait_for_decision(&target.lease.run);
        if has_held_calls && self.hint.is_none() {
            self.hint = Some(wait());
        }
        let mut is_due = false;
        if let Some(hint) = &mut self.hint
            && hint.poll_unpin(cx).is_ready()
        {
            is_due = true;
            // The next wait begins before the driver looks, so no decision is between the two.
            *hint = wait();
        }
        if self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
            is_due = true;
            self.timer = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// A waker that counts its wake-ups.
    #[derive(Default)]
    struct CountingWaker(AtomicU64);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_listener_has_one_waker_and_none_after_it_ends() {
        let signal = DecisionSignal::default();
        let count = || lock_unpoisoned(&signal.shared.wakers).len();
        let poll = |watch: &mut DecisionWatch, waker: &Arc<CountingWaker>| {
            watch.poll_due(true, &mut Context::from_waker(&waker.clone().into()))
        };
        let (mut one, mut other) = (signal.subscribe(), signal.subscribe());
        let wakers: Vec<Arc<CountingWaker>> = (0..9).map(|_| Arc::default()).collect();
        for waker in &wakers {
            assert!(!poll(&mut one, waker) && !poll(&mut other, waker));
        }
        assert_eq!(count(), 2);
        drop(other);
        assert_eq!(count(), 1);
        signal.announce();
        let woken: Vec<u64> = wakers.iter().map(|waker| waker.0.load(Ordering::Relaxed)).collect();
        assert_eq!(woken, [0, 0, 0, 0, 0, 0, 0, 0, 1], "the waker of the last poll");
        assert!(poll(&mut one, &wakers[0]) && !poll(&mut one, &wakers[0]));
        drop(one);
        assert_eq!(count(), 0);
    }
}
