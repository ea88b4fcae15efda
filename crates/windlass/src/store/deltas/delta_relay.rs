//! The driver's side: deltas on their way to followers in other processes.
//!
//! Invariant: a driver only adds to a buffer of limited size. A task writes it to the store, and whatever happens there
//! only ends the preview of the responses that are open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::id::{CallId, RunId};

use super::{BatchBody, DeltaBatch, DeltaContent, DeltaPosition, LiveDelta};
use crate::event::RunEventKind;
use crate::lock_unpoisoned;
use crate::store::{Lease, Store};

/// Time between two batches of a run.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which a batch that the store does not take is given up.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the text that waits to be written.
const MAX_WAITING_BYTES: usize = 256 * 1024;
/// Maximum size of the text of a response that is relayed.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;

/// The way of a run's deltas to its followers.
pub(crate) struct DeltaRelay {
    store: Arc<dyn Store>,
    lease: Lease,
    state: Mutex<RelayState>,
}

#[derive(Default)]
struct RelayState {
    next_number: u64,
    last_response: u64,
    open: BTreeMap<u64, OpenResponse>,
    waiting: Vec<LiveDelta>,
    waiting_bytes: usize,
    is_writing: bool,
    has_published: bool,
}

/// A response that a model is writing.
#[derive(Default)]
struct OpenResponse {
    next_index: u64,
    bytes: usize,
    /// Number of the batch with its first delta.
    first_batch: Option<u64>,
    /// True if a delta was left out: those after it are, too.
    is_cut: bool,
}

impl DeltaRelay {
    /// Creates the relay of a run; `None` if its store carries no deltas.
    pub(crate) fn new(store: &Arc<dyn Store>, lease: &Lease) -> Option<Arc<Self>> {
        store.deltas()?;
        Some(Arc::new(Self { store: store.clone(), lease: lease.clone(), state: Mutex::default() }))
    }

    /// Begins a response, if somebody follows the run. `base` is the sequence number of the last record.
    pub(crate) async fn begin_response(
        self: &Arc<Self>,
        path: &[CallId],
        base: u64,
    ) -> Option<Arc<RelayedResponse>> {
        let followers = self.store.deltas()?.followers();
        followers.prepare(&self.store).await;
        if !followers.is_followed(&self.lease.run) {
            return None;
        }
        let mut state = lock_unpoisoned(&self.state);
        state.last_response += 1;
        let number = state.last_response;
        state.open.insert(number, OpenResponse::default());
        drop(state);
        Some(Arc::new(RelayedResponse { relay: self.clone(), number, base, path: path.to_vec() }))
    }

    /// Takes the waiting deltas as a batch, with the number of the first batch that is still needed. Deltas of responses
    /// that are complete are left out: the journal has them.
    fn take_batch(&self) -> Option<(DeltaBatch, u64)> {
        let mut state = lock_unpoisoned(&self.state);
        let RelayState { open, waiting, next_number, .. } = &mut *state;
        let mut deltas = std::mem::take(waiting);
        deltas.retain(|delta| open.contains_key(&delta.response));
        let number = *next_number;
        for delta in &deltas {
            if let Some(response) = open.get_mut(&delta.response) {
                response.first_batch.get_or_insert(number);
            }
        }
        let first_kept = open.values().filter_map(|response| response.first_batch).min().unwrap_or(number);
        state.waiting_bytes = 0;
        if deltas.is_empty() {
            state.is_writing = false;
            return None;
        }
        state.next_number += 1;
        state.has_published = true;
        let publisher = self.store.deltas()?.followers().id().to_owned();
        let body = serde_json::to_string(&BatchBody { publisher, deltas }).unwrap_or_default();
        let position = DeltaPosition { epoch: self.lease.epoch, number };
        Some((DeltaBatch { position, body }, first_kept))
    }

    async fn write_batches(self: Arc<Self>) {
        while let Some((batch, first_kept)) = self.take_batch() {
            let Some(deltas) = self.store.deltas() else { return };
            let publishing = deltas.publish_deltas(&self.lease, batch, first_kept);
            let published = tokio::time::timeout(PUBLISH_TIMEOUT, publishing).await;
            if !matches!(published, Ok(Ok(()))) {
                tracing::debug!(run = %self.lease.run, ?published, "deltas could not be relayed");
                for response in lock_unpoisoned(&self.state).open.values_mut() {
                    response.is_cut = true;
                }
            }
            tokio::time::sleep(BATCH_INTERVAL).await;
        }
    }
}

impl Drop for DeltaRelay {
    fn drop(&mut self) {
        let has_published = lock_unpoisoned(&self.state).has_published;
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && has_published
        {
            let (store, run, epoch) = (self.store.clone(), self.lease.run.clone(), self.lease.epoch);
            runtime.spawn(remove_deltas(store, run, epoch));
        }
    }
}

/// Removes the deltas of a driver that has left its run.
async fn remove_deltas(store: Arc<dyn Store>, run: RunId, epoch: u64) {
    if let Some(deltas) = store.deltas()
        && let Err(error) = deltas.remove_deltas(&run, epoch).await
    {
        tracing::debug!(%run, %error, "relayed deltas could not be removed");
    }
}

/// A response whose deltas are relayed. Dropping it says that the response is complete, or was given up.
pub(crate) struct RelayedResponse {
    relay: Arc<DeltaRelay>,
    number: u64,
    base: u64,
    path: Vec<CallId>,
}

impl RelayedResponse {
    /// Adds a delta to those that wait for the next batch. Other events are ignored.
    pub(crate) fn push(&self, kind: &RunEventKind) {
        let Some(content) = DeltaContent::of_event(kind) else { return };
        let mut state = lock_unpoisoned(&self.relay.state);
        let RelayState { open, waiting, waiting_bytes, is_writing, .. } = &mut *state;
        let Some(response) = open.get_mut(&self.number) else { return };
        let size = content.text().len();
        response.bytes += size;
        response.is_cut |= response.bytes > MAX_RESPONSE_BYTES || *waiting_bytes + size > MAX_WAITING_BYTES;
        if response.is_cut {
            return;
        }
        *waiting_bytes += size;
        let rest = match waiting.last_mut().filter(|last| last.response == self.number) {
            Some(last) => last.content.append(content),
            None => Some(content),
        };
        if let Some(content) = rest {
            let index = response.next_index;
            response.next_index += 1;
            let (response, base, path) = (self.number, self.base, self.path.clone());
            waiting.push(LiveDelta { epoch: self.relay.lease.epoch, response, index, base, path, content });
        }
        if !*is_writing && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            *is_writing = true;
            runtime.spawn(self.relay.clone().write_batches());
        }
    }
}

impl Drop for RelayedResponse {
    fn drop(&mut self) {
        lock_unpoisoned(&self.relay.state).open.remove(&self.number);
    }
}

impl std::fmt::Debug for DeltaRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeltaRelay").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RelayedResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayedResponse").field("number", &self.number).finish_non_exhaustive()
    }
}
