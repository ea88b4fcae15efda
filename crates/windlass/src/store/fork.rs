//! Forks of stored runs, in the same store.

use windlass_core::inspect::{ForkChange, ForkError, fork as forked};
use windlass_core::{
    id::{CallPath, RunId},
    journal::{HashChain, JournalEntry, JournalRecord, authenticate_records},
};

use super::open::{OpenRunError, load_paused};
use super::{DEFAULT_LEASE_DURATION, Lease, LeaseClaim, LeaseOwner, RunStatus, Store, StoredLease};
use crate::clock::RunClock;
use crate::error::StoreError;
use crate::journal::save_announced_mark;
use crate::run::{PausedRun, new_key_nonce};

/// An error that prevents the fork of a stored run. Nothing has changed, unless the store says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredForkError {
    /// The run could not be opened.
    #[error(transparent)]
    Open(#[from] OpenRunError),
    /// The fork is not possible.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// The store could not be written, or already has a run of that id.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Forks a stored run at one of its records and stores the fork in the same store, with the full texts of
/// truncated outputs. The fork has no driver: [`crate::agent::Agent::recover`] continues it. Calls that had started
/// before the record and not ended are as after a crash, and keep their idempotency keys until it is known that they had
/// no effect ([`windlass_core::inspect::fork`]).
pub async fn fork_run(
    store: &dyn Store,
    run: &RunId,
    at: u64,
    new_run: RunId,
    change: ForkChange,
) -> Result<PausedRun, StoredForkError> {
    let origin = load_paused(store, run).await?;
    let mut records = forked(origin.record().read_journal()?, at, new_run.clone(), change)?;
    let agent = match records.first_mut().map(|record| &mut record.entry) {
        Some(JournalEntry::RunStarted(started)) => {
            started.key_nonce = Some(new_key_nonce());
            started.agent.clone()
        }
        _ => origin.record().last_agent().clone(),
    };
    let clock = RunClock::start();
    let owner = LeaseOwner::for_new_driver().to_string();
    // The origin's decisions were verified when it was loaded; their MACs are of the origin.
    records.iter_mut().for_each(|record| record.entry.set_decision_mac(None));
    if let Some(approvers) = store.approvers() {
        // Signatures are of the origin too, and nobody can renew them.
        let unreadable = |source| OpenRunError::JournalFormat { run: new_run.clone(), source };
        approvers.verify_records(&new_run, &records).map_err(unreadable)?;
    }
    let keys = store.mac_keys().map(|keys| &**keys);
    let lines = authenticate_records(HashChain::default(), &new_run, &mut records, keys);
    let claim = LeaseClaim { owner: &owner, now: clock.now(), duration: DEFAULT_LEASE_DURATION };
    let lease = store.create_run(&new_run, &agent, claim, lines).await?;
    match complete_fork(store, run, &lease, records, clock).await {
        Ok(fork) => Ok(fork),
        Err(error) => {
            discard_fork(store, &lease).await;
            Err(error)
        }
    }
}

/// Writes what a fork has beside its journal, and releases it. Nobody drives it before.
async fn complete_fork(
    store: &dyn Store,
    origin: &RunId,
    lease: &Lease,
    records: Vec<JournalRecord>,
    clock: RunClock,
) -> Result<PausedRun, StoredForkError> {
    copy_full_outputs(store, origin, lease, &records).await?;
    // The records were announced as those of the run that is forked.
    if let Some(last) = records.last() {
        save_announced_mark(store, lease, last.seq).await;
    }
    let mut fork = PausedRun::from_records(records)
        .map_err(|source| OpenRunError::Replay { run: lease.run.clone(), source })?;
    let status = if fork.pending_calls().is_empty() { RunStatus::Running } else { RunStatus::Paused };
    store.set_status(lease, status, clock.now()).await?;
    store.release_lease(lease).await?;
    fork.set_keys(store.mac_keys().cloned());
    fork.set_approvers(store.approvers().cloned());
    Ok(fork)
}

/// Forgets a fork that was not completed, unless somebody else drives it.
async fn discard_fork(store: &dyn Store, fork: &Lease) {
    let is_ours = |lease: &StoredLease| lease.owner == fork.owner && lease.epoch == fork.epoch;
    let forgotten = match store.load_lease(&fork.run).await {
        Ok(lease) => store.forget_run(&fork.run, lease.filter(is_ours).as_ref()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = forgotten {
        tracing::warn!(run = %fork.run, %error, "a fork that was not completed could not be forgotten");
    }
}

/// Copies full outputs to the fork, because they are stored per run. Media need no copy: their URLs contain the
/// run id.
async fn copy_full_outputs(
    store: &dyn Store,
    from: &RunId,
    to: &Lease,
    records: &[JournalRecord],
) -> Result<(), StoreError> {
    for record in records {
        let JournalEntry::CallSettled(settled) = &record.entry else { continue };
        let name = CallPath::new(&record.path, settled.call.clone()).to_string();
        if let Some(body) = store.load_artefact(from, &name).await? {
            store.save_artefact(to, &name, &body).await?;
        }
    }
    Ok(())
}
