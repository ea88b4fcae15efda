//! The TCP connections of HTTP clients: bounded in number. If there are too many, the least useful one is closed.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
use tokio_util::sync::CancellationToken;

/// The open connections of a server.
#[derive(Clone, Default)]
pub(super) struct ConnectionTable(Arc<Mutex<ConnectionEntries>>);

#[derive(Default)]
struct ConnectionEntries {
    connections: BTreeMap<u64, ConnectionEntry>,
    next_id: u64,
    /// Counts every change of use, so that the oldest one is known without a clock.
    next_use: u64,
}

struct ConnectionEntry {
    client: Arc<str>,
    activity: ConnectionActivity,
    last_use: u64,
    close: CancellationToken,
}

/// The current use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionActivity {
    /// It waits for a request.
    Idle,
    /// It has a stream of messages that no request waits for.
    Stream,
    /// It has a request.
    Request,
}

/// A connection in the table, until it is dropped.
pub(super) struct OpenConnection {
    id: u64,
    table: ConnectionTable,
    /// Cancelled if the connection must close.
    pub(super) close: CancellationToken,
}

impl ConnectionTable {
    fn lock(&self) -> MutexGuard<'_, ConnectionEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().connections.len()
    }

    /// Adds a connection.
    pub(super) fn open(&self, client: Arc<str>) -> OpenConnection {
        let mut entries = self.lock();
        let (id, last_use) = (entries.next_id, entries.next_use);
        entries.next_id += 1;
        entries.next_use += 1;
        let close = CancellationToken::new();
        let entry =
            ConnectionEntry { client, activity: ConnectionActivity::Idle, last_use, close: close.clone() };
        entries.connections.insert(id, entry);
        OpenConnection { id, table: self.clone(), close }
    }

    /// Closes the connection that is missed least: the oldest idle one, or else the oldest stream. Returns false if
    /// all of them have a request.
    pub(super) fn close_one(&self) -> bool {
        self.lock().close_oldest(|entry| entry.activity < ConnectionActivity::Request)
    }
}

impl ConnectionEntries {
    fn set_activity(&mut self, id: u64, activity: ConnectionActivity) {
        let now = self.next_use;
        self.next_use += 1;
        if let Some(entry) = self.connections.get_mut(&id) {
            (entry.activity, entry.last_use) = (activity, now);
        }
    }

    fn close_oldest(&mut self, is_candidate: impl Fn(&ConnectionEntry) -> bool) -> bool {
        let candidates = self.connections.iter().filter(|(_, entry)| is_candidate(entry));
        let oldest = candidates.min_by_key(|(_, entry)| (entry.activity, entry.last_use)).map(|(id, _)| *id);
        let Some(closed) = oldest.and_then(|id| self.connections.remove(&id)) else { return false };
        closed.close.cancel();
        true
    }

    fn count(&self, is_counted: impl Fn(&ConnectionEntry) -> bool) -> usize {
        self.connections.values().filter(|entry| is_counted(entry)).count()
    }
}

impl OpenConnection {
    /// Names the client of the connection, once it is known.
    pub(super) fn set_client(&self, client: &Arc<str>) {
        if let Some(entry) = self.table.lock().connections.get_mut(&self.id) {
            entry.client = client.clone();
        }
    }

    /// Marks the connection as in use by a request until the guard is dropped; `None` if the client has as many requests
    /// as it may have: `max_per_client`, or as many as `max_connections` leave for others. So a client that takes all
    /// it can leaves as much room as it takes, and several of them share all but a part for one more.
    pub(super) fn begin_request(
        &self,
        client: &str,
        max_per_client: usize,
        max_connections: usize,
    ) -> Option<ConnectionUse> {
        let mut entries = self.table.lock();
        let requests = entries.count(|entry| entry.activity == ConnectionActivity::Request);
        let own =
            entries.count(|entry| entry.activity == ConnectionActivity::Request && *entry.client == *client);
        let free = max_connections.saturating_sub(requests);
        if own >= max_per_client.min(free.max(1)) {
            return None;
        }
        entries.set_activity(self.id, ConnectionActivity::Request);
        drop(entries);
        Some(ConnectionUse { id: self.id, table: self.table.clone() })
    }

    /// Marks the connection as in use by a stream until the guard is dropped. If the client has `max_per_client` streams,
    /// its oldest one is closed; `None` if it may have none.
    pub(super) fn begin_stream(&self, client: &str, max_per_client: usize) -> Option<ConnectionUse> {
        let mut entries = self.table.lock();
        let is_own = |entry: &ConnectionEntry| {
            entry.activity == ConnectionActivity::Stream && *entry.client == *client
        };
        if entries.count(is_own) >= max_per_client && !entries.close_oldest(is_own) {
            return None;
        }
        entries.set_activity(self.id, ConnectionActivity::Stream);
        drop(entries);
        Some(ConnectionUse { id: self.id, table: self.table.clone() })
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.table.lock().connections.remove(&self.id);
    }
}

/// A guard of a connection in use.
pub(super) struct ConnectionUse {
    id: u64,
    table: ConnectionTable,
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        self.table.lock().set_activity(self.id, ConnectionActivity::Idle);
    }
}

/// A response body that keeps its connection in use until it has been sent.
pub(super) struct TrackedBody<B> {
    pub(super) body: B,
    pub(super) in_use: Option<ConnectionUse>,
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None)) {
            self.in_use = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
