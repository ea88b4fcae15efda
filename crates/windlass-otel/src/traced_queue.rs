//! Live traces of the runs of a queue: a worker and a server need a store that is a queue, too.

use std::fmt;
use std::sync::Arc;

use windlass::core::journal::JournalLine;
use windlass::fleet::{QueueWrapper, RunQueue};
use windlass::session::SessionStore;
use windlass::store::{JournalAppend, Store, StoreFuture, StoreWrapper};

use crate::export::SpanSender;
use crate::traced_store::TracedStore;

/// A queue that sends the spans of its runs while they are written, as [`TracedStore`] does for a store.
pub struct TracedQueue {
    queue: Arc<dyn RunQueue>,
    traced: TracedStore,
}

impl TracedQueue {
    /// Creates a queue that wraps `queue` and sends spans with `sender`. It must be called within a tokio runtime.
    pub fn new(queue: Arc<dyn RunQueue>, sender: SpanSender) -> Self {
        Self { traced: TracedStore::new(queue.clone(), sender), queue }
    }

    /// Waits until the completed spans of everything that was written before have been exported, or failed to be.
    pub async fn flush(&self) {
        self.traced.flush().await;
    }
}

impl fmt::Debug for TracedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracedQueue").finish_non_exhaustive()
    }
}

impl StoreWrapper for TracedQueue {
    fn inner(&self) -> &dyn Store {
        &*self.queue
    }

    fn wrap_append<'a, T: Send + 'a>(
        &'a self,
        append: JournalAppend<'a>,
        operation: impl FnOnce(Vec<JournalLine>) -> StoreFuture<'a, T> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        self.traced.wrap_append(append, operation)
    }

    fn sessions(&self) -> Option<&dyn SessionStore> {
        self.queue.sessions()
    }
}

impl QueueWrapper for TracedQueue {
    fn inner_queue(&self) -> &dyn RunQueue {
        &*self.queue
    }
}
