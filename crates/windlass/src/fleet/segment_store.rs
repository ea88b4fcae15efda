//! The store as the driver of a worker's run sees it: its lease lives with the worker's heartbeat, and the lease and the
//! status at the end are left with the segment.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use windlass_core::{
    id::{AgentName, RunId, Timestamp},
    journal::JournalLine,
};

use super::queue::RunQueue;
use super::worker_pulse::WorkerPulse;
use crate::lock_unpoisoned;
use crate::session::SessionStore;
use crate::store::{Lease, LeaseClaim, RunStatus, Store, StoreFuture, StoreWrapper, StoredLease};

/// A store that grants leases in the name of a worker. The driver's status and release are kept for the transaction that
/// ends the segment.
pub(super) struct SegmentStore {
    queue: Arc<dyn RunQueue>,
    pulse: Arc<WorkerPulse>,
    /// Owner of the lease: the worker, and the number of its run.
    owner: String,
    departure: Mutex<LeaseRecord>,
}

/// The lease of a segment and the status that its driver has set.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseRecord {
    pub(super) lease: Option<Lease>,
    pub(super) status: Option<RunStatus>,
}

impl SegmentStore {
    pub(super) fn new(queue: Arc<dyn RunQueue>, pulse: Arc<WorkerPulse>, owner: String) -> Self {
        Self { queue, pulse, owner, departure: Mutex::default() }
    }

    /// Returns the lease that the driver got, and the status that it has set.
    pub(super) fn lease_record(&self) -> LeaseRecord {
        lock_unpoisoned(&self.departure).clone()
    }

    fn keep_lease(&self, lease: Lease) -> Lease {
        lock_unpoisoned(&self.departure).lease = Some(lease.clone());
        lease
    }
}

impl StoreWrapper for SegmentStore {
    fn inner(&self) -> &dyn Store {
        &*self.queue
    }

    fn create_run<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
        lines: Vec<JournalLine>,
    ) -> StoreFuture<'a, Lease> {
        async move {
            let claim = LeaseClaim { owner: &self.owner, ..claim };
            Ok(self.keep_lease(self.queue.create_run(run, agent, claim, lines).await?))
        }
        .boxed()
    }

    fn acquire_lease<'a>(
        &'a self,
        run: &'a RunId,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, Lease> {
        async move {
            let claim = LeaseClaim { owner: &self.owner, ..claim };
            Ok(self.keep_lease(self.queue.acquire_lease(run, claim, abandoned).await?))
        }
        .boxed()
    }

    fn renew_lease<'a>(&'a self, _: &'a Lease, _: Timestamp) -> StoreFuture<'a, ()> {
        self.pulse.wait_for_beat().boxed()
    }

    fn release_lease<'a>(&'a self, _: &'a Lease) -> StoreFuture<'a, ()> {
        std::future::ready(Ok(())).boxed()
    }

    fn set_status<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreFuture<'a, ()> {
        lock_unpoisoned(&self.departure).status = Some(status);
        match status {
            // The run goes on: lists say so at once.
            RunStatus::Running => self.queue.set_status(lease, status, now),
            RunStatus::Paused | RunStatus::Finished | RunStatus::Failed | RunStatus::Cancelled => {
                std::future::ready(Ok(())).boxed()
            }
        }
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.queue.sessions()
    }
}
