//! The rows that a request for work has found, of which some may be unreadable.
//!
//! Invariant: a value that cannot be read costs its run and no other. The worker does not get the run, and of the
//! orders of a run that it drives it gets none that follow the unreadable one, so that none of them counts as carried
//! out.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::id::RunId;

use super::queue::{PostedOrder, QueueOrder, TakenRun, TakenWork};
use crate::error::StoreError;

/// The runs and orders that a request for work has found: each value, or the error of reading it.
#[derive(Clone, Debug, Default)]
pub struct WorkRows {
    /// The taken runs.
    pub runs: Vec<(RunId, Result<TakenRun, StoreError>)>,
    /// The orders for runs of the worker, with their numbers, in their order.
    pub orders: Vec<(RunId, u64, Result<QueueOrder, StoreError>)>,
}

/// A taken run that the worker does not get, because its submission or one of its orders cannot be read.
#[derive(Clone, Debug)]
pub struct UnreadableRun {
    /// The run.
    pub run: RunId,
    /// The error of reading it.
    pub error: StoreError,
}

impl WorkRows {
    /// Splits the rows into the work that the worker gets and the taken runs that it does not get. A run that is
    /// cancelled needs no other order, so it is taken without them.
    pub fn split(self) -> (TakenWork, Vec<UnreadableRun>) {
        let Self { runs, orders } = self;
        let mut cancelled = BTreeSet::new();
        let mut held_up: BTreeMap<RunId, StoreError> = BTreeMap::new();
        let mut readable = Vec::new();
        for (run, number, order) in orders {
            match order {
                Ok(QueueOrder::Cancel) => {
                    cancelled.insert(run.clone());
                    readable.push(PostedOrder { run, number, order: QueueOrder::Cancel });
                }
                Ok(_) if held_up.contains_key(&run) => {}
                Ok(order) => readable.push(PostedOrder { run, number, order }),
                Err(error) => {
                    tracing::error!(%run, number, %error, "an order cannot be read");
                    held_up.entry(run).or_insert(error);
                }
            }
        }
        let mut work = TakenWork::default();
        let mut unreadable: Vec<UnreadableRun> = Vec::new();
        for (run, taken) in runs {
            let taken = match held_up.remove(&run).filter(|_| !cancelled.contains(&run)) {
                Some(error) => Err(error),
                None => taken,
            };
            match taken {
                Ok(taken) => work.runs.push(taken),
                Err(error) => {
                    tracing::error!(%run, %error, "a submitted run cannot be read");
                    unreadable.push(UnreadableRun { run, error });
                }
            }
        }
        readable.retain(|posted| unreadable.iter().all(|gone| gone.run != posted.run));
        work.orders = readable;
        (work, unreadable)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass_core::item::Item;

    use super::*;
    use crate::fleet::RunSubmission;

    fn taken(run: &str) -> (RunId, Result<TakenRun, StoreError>) {
        let submission = RunSubmission::new(run, "agent", "go");
        (RunId::from(run), Ok(TakenRun { submission, attempt: 1, signals: 0 }))
    }

    fn damaged<T>() -> Result<T, StoreError> {
        Err(StoreError::new("damaged"))
    }

    #[test]
    fn an_unreadable_value_costs_its_run_only() {
        let input = || Ok(QueueOrder::AddInput { items: vec![Arc::new(Item::user("more"))] });
        let rows = WorkRows {
            runs: vec![taken("whole"), ("broken".into(), damaged()), taken("unordered"), taken("cancelled")],
            orders: vec![
                ("driven".into(), 1, input()),
                ("unordered".into(), 2, damaged()),
                ("cancelled".into(), 3, damaged()),
                ("driven".into(), 4, damaged()),
                ("driven".into(), 5, Ok(QueueOrder::HandOver)),
                ("driven".into(), 6, Ok(QueueOrder::Cancel)),
                ("broken".into(), 7, Ok(QueueOrder::Cancel)),
                ("cancelled".into(), 8, Ok(QueueOrder::Cancel)),
                ("whole".into(), 9, input()),
            ],
        };
        let (work, unreadable) = rows.split();
        let runs: Vec<&str> = work.runs.iter().map(|taken| taken.submission.run.as_str()).collect();
        assert_eq!(runs, ["whole", "cancelled"]);
        let orders: Vec<u64> = work.orders.iter().map(|posted| posted.number).collect();
        assert_eq!(orders, [1, 6, 8, 9]);
        let unreadable: Vec<&str> = unreadable.iter().map(|gone| gone.run.as_str()).collect();
        assert_eq!(unreadable, ["broken", "unordered"]);
    }
}
