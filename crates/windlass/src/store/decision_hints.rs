//! Hints that a decision about a run was posted, for the drivers of this process that wait for one.
//!
//! A hint may be missing or needless: the posted decisions in the store are the truth.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use windlass_core::id::RunId;

use crate::lock_unpoisoned;

/// The waits of drivers for decisions about their runs: what a store needs for [`Store::wait_for_decision`].
///
/// [`Store::wait_for_decision`]: super::Store::wait_for_decision
#[derive(Clone, Default)]
pub struct DecisionHints {
    waiting: Arc<Mutex<HashMap<RunId, WaitingRun>>>,
}

/// A run whose drivers wait.
#[derive(Default)]
struct WaitingRun {
    notify: Arc<Notify>,
    wait_count: usize,
}

impl DecisionHints {
    /// Waits for a hint about a run that is given after this call, also before the future is polled.
    pub fn wait(&self, run: &RunId) -> BoxFuture<'static, ()> {
        let mut waiting = lock_unpoisoned(&self.waiting);
        let waiting_run = waiting.entry(run.clone()).or_default();
        waiting_run.wait_count += 1;
        let given = waiting_run.notify.clone().notified_owned();
        let wait = DecisionWait { hints: self.clone(), run: run.clone() };
        async move {
            given.await;
            drop(wait);
        }
        .boxed()
    }

    /// Tells the driver of a run that a decision was posted.
    pub fn give(&self, run: &RunId) {
        if let Some(waiting_run) = lock_unpoisoned(&self.waiting).get(run) {
            waiting_run.notify.notify_waiters();
        }
    }

    /// Tells all drivers that decisions may have been posted.
    pub fn give_to_all(&self) {
        for waiting_run in lock_unpoisoned(&self.waiting).values() {
            waiting_run.notify.notify_waiters();
        }
    }
}

impl fmt::Debug for DecisionHints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionHints").field("waiting", &lock_unpoisoned(&self.waiting).len()).finish()
    }
}

/// One wait. Dropping the last one of a run removes the run.
struct DecisionWait {
    hints: DecisionHints,
    run: RunId,
}

impl Drop for DecisionWait {
    fn drop(&mut self) {
        let mut waiting = lock_unpoisoned(&self.hints.waiting);
        let Some(waiting_run) = waiting.get_mut(&self.run) else { return };
        waiting_run.wait_count -= 1;
        if waiting_run.wait_count == 0 {
            waiting.remove(&self.run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_given_before_the_first_poll_counts() {
        let hints = DecisionHints::default();
        let (mine, others) = (hints.wait(&"mine".into()), hints.wait(&"other".into()));
        hints.give(&"mine".into());
        assert_eq!(mine.now_or_never(), Some(()));
        assert_eq!(others.now_or_never(), None, "the hint was about another run");
    }

    #[test]
    fn no_run_is_kept_after_its_waits_end() {
        let hints = DecisionHints::default();
        let waits: Vec<_> = (0..3).map(|_| hints.wait(&"r".into())).collect();
        hints.give_to_all();
        for (place, wait) in waits.into_iter().enumerate() {
            assert_eq!(lock_unpoisoned(&hints.waiting).len(), 1, "wait {place} is still there");
            match place {
                0 => drop(wait),
                _ => assert_eq!(wait.now_or_never(), Some(())),
            }
        }
        assert!(lock_unpoisoned(&hints.waiting).is_empty());
    }
}
