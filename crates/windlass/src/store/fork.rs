//! Forks of stored runs, kept in the same store.

use windlass_core::time::{Change, ForkError, fork as forked};
use windlass_core::{CallPath, Chain, Entry, Record, RunId};

use super::open::{OpenError, paused};
use super::{Durability, LEASE, LeaseClaim, RunStatus, Store, owner_name};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::run::Paused;

/// Why there is no fork of a stored run. Nothing has changed, unless the store says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoredForkError {
    /// The run cannot be looked at.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There cannot be such a fork.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// The store cannot be written, or has a run of that name.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes a fork of a stored run at one of its records, and keeps it beside the run, with the whole texts of outputs
/// that were cut. Nobody drives it: [`crate::Agent::recover`] goes on with it. What had started by then and had not
/// ended is as it would be after a crash, and keeps its idempotency key.
pub async fn fork(
    store: &dyn Store,
    run: &RunId,
    at: u64,
    new_run: RunId,
    change: Change,
) -> Result<Paused, StoredForkError> {
    let origin = paused(store, run).await?;
    let records = forked(origin.record().journal(), at, new_run.clone(), change)?;
    let agent = match records.first().map(|record| &record.entry) {
        Some(Entry::Started(started)) => started.agent.clone(),
        _ => origin.record().last_agent().clone(),
    };
    let clock = Clock::start();
    let owner = owner_name();
    let lease = store.create(&new_run, &agent, LeaseClaim::lasting(&owner, clock.now(), LEASE)).await?;
    // Before the journal, whose records may be read as soon as they are there.
    keep_whole_outputs(store, run, &new_run, &records).await?;
    let mut chain = Chain::default();
    let lines = records.iter().map(|record| chain.add(record)).collect();
    store.append(&lease, 0, lines, Durability::Now).await?;
    let fork =
        Paused::from_records(records).map_err(|source| OpenError::Replay { run: new_run.clone(), source })?;
    let status = if fork.pending().is_empty() { RunStatus::Running } else { RunStatus::Paused };
    store.mark(&lease, status, clock.now()).await?;
    store.release(&lease).await?;
    Ok(fork)
}

/// Pictures and files are named with the run that has them; whole outputs by their calls alone.
async fn keep_whole_outputs(
    store: &dyn Store,
    from: &RunId,
    to: &RunId,
    records: &[Record],
) -> Result<(), StoreError> {
    for record in records {
        let Entry::CallSettled(settled) = &record.entry else { continue };
        let name = CallPath::new(&record.path, settled.call.clone()).to_string();
        if let Some(text) = store.artefact(from, &name).await? {
            store.keep_artefact(to, &name, &text).await?;
        }
    }
    Ok(())
}
