//! The follower's side: deltas of a run as other processes write them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use windlass_core::id::RunId;

use super::{BatchBody, DeltaPosition, LiveDelta};
use crate::store::Store;

/// The processes whose deltas a follower wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaOrigin {
    /// All processes.
    AnyProcess,
    /// All but this one, whose own drivers the follower watches.
    OtherProcesses,
}

/// The deltas of a run's responses while the models write them.
///
/// While a feed exists, whoever drives the run writes its deltas to the store in batches. They are a preview: the store may
/// lack some, and those of a response end with the record of the response. [`EventFeed`](crate::store::EventFeed) puts both
/// together.
pub struct DeltaFeed {
    store: Arc<dyn Store>,
    run: RunId,
    origin: DeltaOrigin,
    position: Option<DeltaPosition>,
    /// Index of the next delta of each response, in the last epoch; `None` if one is missing.
    next_indexes: BTreeMap<u64, Option<u64>>,
}

impl DeltaFeed {
    /// Creates a feed; `None` if the store carries no deltas. Drivers know of it after the first
    /// [`DeltaFeed::register`] or [`DeltaFeed::read`].
    pub fn new(store: Arc<dyn Store>, run: impl Into<RunId>, origin: DeltaOrigin) -> Option<Self> {
        let run = run.into();
        store.deltas()?.followers().follow(&run, origin);
        Some(Self { store, run, origin, position: None, next_indexes: BTreeMap::new() })
    }

    /// Makes the feed known to drivers, so that a model request which begins afterwards is relayed. A store that fails is
    /// asked again with the next read.
    pub async fn register(&self) {
        if let Some(deltas) = self.store.deltas() {
            deltas.followers().renew(deltas).await;
        }
    }

    /// Reads the deltas that were written since the last read, and keeps the feed alive: call it at least every few seconds.
    /// If the store fails there are none.
    ///
    /// # Cancel safety
    ///
    /// No delta is lost if the future is dropped.
    pub async fn read(&mut self) -> Vec<LiveDelta> {
        self.register().await;
        let Some(deltas) = self.store.deltas() else { return Vec::new() };
        let batches = match deltas.load_deltas(&self.run, self.position).await {
            Ok(batches) => batches,
            Err(error) => {
                tracing::debug!(run = %self.run, %error, "deltas could not be read");
                return Vec::new();
            }
        };
        let own_id = deltas.followers().id().to_owned();
        let mut found = Vec::new();
        for batch in batches {
            if self.position.is_none_or(|position| position.epoch < batch.position.epoch) {
                self.next_indexes.clear();
            }
            self.position = Some(batch.position);
            let Ok(body) = serde_json::from_str::<BatchBody>(&batch.body) else { continue };
            if self.origin == DeltaOrigin::OtherProcesses && body.publisher == own_id {
                continue;
            }
            for mut delta in body.deltas {
                let next = self.next_indexes.entry(delta.response).or_insert(Some(0));
                if *next == Some(delta.index) {
                    *next = Some(delta.index + 1);
                    delta.epoch = batch.position.epoch;
                    found.push(delta);
                } else {
                    *next = None;
                }
            }
        }
        found
    }

    /// Removes the deltas that were read from the store. Call it when the run has ended: a driver that ended without notice
    /// has left them.
    pub async fn remove_read(&self) {
        if let (Some(deltas), Some(position)) = (self.store.deltas(), self.position) {
            deltas.remove_deltas(&self.run, position.epoch).await.ok();
        }
    }
}

impl Drop for DeltaFeed {
    fn drop(&mut self) {
        if let Some(deltas) = self.store.deltas() {
            deltas.followers().unfollow(&self.run, self.origin);
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let store = self.store.clone();
            runtime.spawn(async move {
                if let Some(deltas) = store.deltas() {
                    deltas.followers().renew(deltas).await;
                }
            });
        }
    }
}

impl fmt::Debug for DeltaFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeltaFeed")
            .field("run", &self.run)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
