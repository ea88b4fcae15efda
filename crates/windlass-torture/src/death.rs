//! The worst moments: a worker asks its parent to kill it, and waits for that. The kill is a real SIGKILL, so
//! nothing of this process gets to tidy up.

use std::future::pending;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use windlass::core::{AgentName, Line, OutputContent, RunId, Timestamp};
use windlass::store::{
    Durability, Lease, LeaseClaim, Posted, ReceiptClaim, ReceiptKey, RunStatus, Store, StoreResult, StoredRun,
};

/// What a worker says when it is ready to die.
pub const READY: &str = "kill me now";

/// When a worker dies: after so many moments.
#[derive(Clone, Debug)]
pub struct Death {
    moments_left: Arc<AtomicI64>,
}

impl Death {
    /// Death after so many moments; never, where there are none.
    pub fn after(moments: Option<u64>) -> Self {
        let moments = moments.and_then(|moments| i64::try_from(moments).ok()).unwrap_or(i64::MAX);
        Self { moments_left: Arc::new(AtomicI64::new(moments)) }
    }

    /// A moment in which a process may die. When its time has come this does not return.
    pub async fn moment(&self) {
        if self.moments_left.fetch_sub(1, Ordering::SeqCst) == 0 {
            let mut out = std::io::stdout();
            if writeln!(out, "{READY}").and_then(|()| out.flush()).is_ok() {
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
    fn create<'a>(&'a self, run: &'a RunId, agent: &'a AgentName, claim: LeaseClaim<'a>) -> StoreResult<'a, Lease> {
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

    fn append<'a>(&'a self, lease: &'a Lease, at: u64, lines: Vec<Line>, durability: Durability) -> StoreResult<'a, ()> {
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

    fn runs(&self) -> StoreResult<'_, Vec<StoredRun>> {
        self.inner.runs()
    }

    fn post<'a>(&'a self, run: &'a RunId, posted: Posted) -> StoreResult<'a, ()> {
        self.inner.post(run, posted)
    }

    fn posted<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Vec<Posted>> {
        self.inner.posted(run)
    }

    fn claim_receipt<'a>(&'a self, key: &'a ReceiptKey, claim: LeaseClaim<'a>) -> StoreResult<'a, ReceiptClaim> {
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
