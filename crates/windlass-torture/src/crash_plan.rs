//! Crash points: a worker asks its parent process to end it. A kill is a real SIGKILL, so the worker cannot
//! clean up; a stop is a real SIGTERM, after which the worker detaches from its run.

use std::future::pending;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use windlass::core::journal::JournalLine;
use windlass::store::{Durability, Lease, Store, StoreFuture, StoreWrapper, StoredSnapshot};

/// Line by which a worker requests its SIGKILL.
pub const KILL_REQUEST: &str = "kill me now";
/// Line by which a worker requests its SIGTERM.
pub const STOP_REQUEST: &str = "stop me now";

/// A plan that ends a worker at one of its crash points.
#[derive(Clone, Debug)]
pub struct CrashPlan {
    points_left: Arc<AtomicI64>,
    signal: KillSignal,
}

/// The signal that ends a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillSignal {
    /// SIGKILL, immediately at the crash point.
    Sigkill,
    /// SIGTERM, shortly after the crash point: the worker has time to detach.
    Sigterm,
}

impl CrashPlan {
    /// Creates a plan that ends the worker after `points` crash points, or never if absent.
    pub fn after_points(points: Option<u64>, signal: KillSignal) -> Self {
        let points = points.and_then(|points| i64::try_from(points).ok()).unwrap_or(i64::MAX);
        Self { points_left: Arc::new(AtomicI64::new(points)), signal }
    }

    /// Passes a crash point. Never returns if the plan kills the worker here.
    pub async fn crash_point(&self) {
        if self.points_left.fetch_sub(1, Ordering::SeqCst) == 0 {
            let word = match self.signal {
                KillSignal::Sigkill => KILL_REQUEST,
                KillSignal::Sigterm => STOP_REQUEST,
            };
            let mut out = std::io::stdout();
            let is_said = writeln!(out, "{word}").and_then(|()| out.flush()).is_ok();
            if is_said && self.signal == KillSignal::Sigkill {
                pending::<()>().await;
            }
        }
    }
}

/// A store with crash points around every append and snapshot.
pub struct CrashPointStore {
    /// The wrapped store.
    pub inner: Arc<dyn Store>,
    /// Plan that decides where the worker ends.
    pub crash_plan: CrashPlan,
}

impl StoreWrapper for CrashPointStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn append_journal<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<JournalLine>,
        durability: Durability,
    ) -> StoreFuture<'a, ()> {
        // The `Store` trait requires that the write is queued before the first await. A crash before the call
        // is covered by the crash points in bodies and after the previous write.
        let written = self.inner.append_journal(lease, at, lines, durability);
        Box::pin(async move {
            self.crash_plan.crash_point().await;
            written.await?;
            self.crash_plan.crash_point().await;
            Ok(())
        })
    }

    fn save_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: StoredSnapshot) -> StoreFuture<'a, ()> {
        let kept = self.inner.save_snapshot(lease, snapshot);
        Box::pin(async move {
            self.crash_plan.crash_point().await;
            kept.await?;
            self.crash_plan.crash_point().await;
            Ok(())
        })
    }
}
