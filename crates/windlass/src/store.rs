//! Stores: where journals are kept.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{Record, RunId};

use crate::error::StoreError;

/// Where journals are kept. Records of one run come in the order of their numbers.
pub trait Store: Send + Sync + 'static {
    /// Adds records to a run's journal, all or none. With [`Durability::Now`] they must survive the loss of
    /// the process when the future resolves.
    fn append<'a>(
        &'a self,
        run: &'a RunId,
        records: &'a [Record],
        durability: Durability,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// All records of a run, in order; none for a run that is not known.
    fn load<'a>(&'a self, run: &'a RunId) -> BoxFuture<'a, Result<Vec<Record>, StoreError>>;
}

/// How soon a record must survive the loss of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// With the next record that must.
    Later,
    /// Before anything else happens.
    Now,
}

/// A store in memory: it survives a run, not the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    runs: Mutex<BTreeMap<RunId, Vec<Record>>>,
}

impl Store for MemoryStore {
    fn append<'a>(
        &'a self,
        run: &'a RunId,
        records: &'a [Record],
        _: Durability,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.entry(run.clone()).or_default().extend_from_slice(records);
        std::future::ready(Ok(())).boxed()
    }

    fn load<'a>(&'a self, run: &'a RunId) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        std::future::ready(Ok(runs.get(run).cloned().unwrap_or_default())).boxed()
    }
}
