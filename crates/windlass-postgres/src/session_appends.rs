//! Items that are added to sessions by hand: they get their place when the request is made, not when its future is polled.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use windlass::core::id::SessionId;
use windlass::core::item::Item;
use windlass::error::StoreError;

use crate::database::{Database, TransactionMode, transact};
use crate::history;

/// Maximum number of requests that wait; further ones are rejected. A request cannot wait outside the queue: it would lose
/// its position.
const MAX_QUEUED_REQUESTS: usize = 65_536;

/// Items to add to a session.
struct ItemsRequest {
    session: SessionId,
    items: Vec<Arc<Item>>,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

/// The queue of requests of this process.
#[derive(Clone, Debug)]
pub(crate) struct SessionAppends {
    requests: mpsc::Sender<ItemsRequest>,
}

impl SessionAppends {
    pub(crate) fn start(database: Arc<Database>) -> Self {
        let (requests, mut waiting) = mpsc::channel::<ItemsRequest>(MAX_QUEUED_REQUESTS);
        tokio::spawn(async move {
            while let Some(ItemsRequest { session, items, reply }) = waiting.recv().await {
                let written = transact!(database, TransactionMode::Once, |db| history::append_items(
                    db, &session, &items
                ));
                reply.send(written.map(|_| ())).ok();
            }
        });
        Self { requests }
    }

    /// Queues the items, and returns the receiver of the result.
    pub(crate) fn enqueue(
        &self,
        session: &SessionId,
        items: Vec<Arc<Item>>,
    ) -> Result<oneshot::Receiver<Result<(), StoreError>>, StoreError> {
        let (reply, answer) = oneshot::channel();
        let request = ItemsRequest { session: session.clone(), items, reply };
        let rejected = |_| StoreError::new(format!("session `{session}`: the write queue is full or closed"));
        self.requests.try_send(request).map_err(rejected)?;
        Ok(answer)
    }
}
