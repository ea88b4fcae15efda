//! The worst moments: a worker asks its parent to end it. A kill is a real SIGKILL, so nothing of the process
//! gets to tidy up; a stop is a real SIGTERM, upon which it hands its run over.

use std::future::pending;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use windlass::core::{AgentName, Line, OutputContent, RunId, Timestamp};
use windlass::store::{
    Durability, Lease, LeaseClaim, Posted, ReceiptClaim, ReceiptKey, RunStatus, Snapshot, Store, StoreResult,
    StoredRun,
};

/// What a worker says when it is ready to be killed.
pub const KILL: &str = "kill me now";
/// What a worker says when it is ready to be told to stop.
pub const STOP: &str = "stop me now";

/// When and how a worker dies: after so many moments.
#[derive(Clone, Debug)]
pub struct Death {
    moments_left: Arc<AtomicI64>,
    how: How,
}

/// How a worker dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By SIGKILL, in the very moment.
    Killed,
    /// By SIGTERM, soon after: it has time to hand over.
    Stopped,
}

impl Death {
    /// Death after so many moments; never, where there are none.
    pub fn after(moments: Option<u64>, how: How) -> Self {
        let moments = moments.and_then(|moments| i64::try_from(moments).ok()).unwrap_or(i64::MAX);
        Self { moments_left: Arc::new(AtomicI64::new(moments)), how }
    }

    /// A moment in which a process may die. Where it is to be killed, this does not return.
    pub async fn moment(&self) {
        if self.moments_left.fetch_sub(1, Ordering::SeqCst) == 0 {
            let word = match self.how {
                How::Killed => KILL,
                How::Stopped => STOP,
            };
            let mut out = std::io::stdout();
            let is_said = writeln!(out, "{word}").and_then(|()| out.flush()).is_ok();
            if is_said && self.how == How::Killed {
                pending::<()>().await;
            }
        }
    }
}

/// A store in which a process may die before and after everything that it writes.
pub struct DeadlyStore {
    /// The store.
    pub inner: Arc<dyn Store>,
    /// When.
    pub death: Death,
}

impl Store for DeadlyStore {
    fn create<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, Lease> {
        self.inner.create(run, agent, claim)
    }

    fn acquire<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreResult<'a, Lease> {
        self.inner.acquire(run, claim)
    }

    fn renew<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreResult<'a, ()> {
        self.inner.renew(lease, until)
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreResult<'a, ()> {
        self.inner.release(lease)
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<Line>,
        durability: Durability,
    ) -> StoreResult<'a, ()> {
        // The write is on its way before anything is waited for, as the trait asks; dying before it is dying
        // before it is called, which the moments inside bodies and after the last write stand for.
        let written = self.inner.append(lease, at, lines, durability);
        Box::pin(async move {
            self.death.moment().await;
            written.await?;
            self.death.moment().await;
            Ok(())
        })
    }

    fn mark<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreResult<'a, ()> {
        self.inner.mark(lease, status, now)
    }

    fn load<'a>(&'a self, run: &'a RunId, from: u64) -> StoreResult<'a, Vec<Line>> {
        self.inner.load(run, from)
    }

    fn snapshot_every(&self) -> Option<u64> {
        self.inner.snapshot_every()
    }

    fn keep_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: Snapshot) -> StoreResult<'a, ()> {
        let kept = self.inner.keep_snapshot(lease, snapshot);
        Box::pin(async move {
            self.death.moment().await;
            kept.await?;
            self.death.moment().await;
            Ok(())
        })
    }

    fn snapshot<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Option<Snapshot>> {
        self.inner.snapshot(run)
    }

    fn runs(&self) -> StoreResult<'_, Vec<StoredRun>> {
        self.inner.runs()
    }

    fn post<'a>(&'a self, run: &'a RunId, posted: Posted) -> StoreResult<'a, ()> {
        self.inner.post(run, posted)
    }

    fn posted<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Vec<Posted>> {
        self.inner.posted(run)
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, ReceiptClaim> {
        self.inner.claim_receipt(key, claim)
    }

    fn keep_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreResult<'a, ()> {
        self.inner.keep_receipt(key, owner, output, expires)
    }

    fn give_up_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreResult<'a, ()> {
        self.inner.give_up_receipt(key, owner)
    }

    fn keep_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreResult<'a, ()> {
        self.inner.keep_artefact(run, name, text)
    }

    fn artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreResult<'a, Option<String>> {
        self.inner.artefact(run, name)
    }
}
