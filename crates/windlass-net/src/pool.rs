//! The pool of reusable connections, by server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use crate::client::OutgoingBody;
use crate::connect::OpenConnection;
use crate::transport::ReplaySafety;

/// Maximum number of idle HTTP/1.1 connections to one server.
const MAX_IDLE_CONNECTIONS: usize = 64;
/// Maximum number of servers with connections.
const MAX_SERVERS: usize = 256;
/// Maximum time that a connection stays idle.
const IDLE_CONNECTION_TTL: Duration = Duration::from_secs(50);
/// Maximum idle time of a connection that is reused for a request that must not be replayed. If the server closed
/// an older connection, it would be unknown whether the request arrived.
const UNSAFE_REUSE_WINDOW: Duration = Duration::from_secs(2);

/// A pool of connections. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ConnectionPool(Arc<Mutex<BTreeMap<String, ServerConnections>>>);

/// The connections to one server.
#[derive(Default)]
struct ServerConnections {
    idle_http1: Vec<IdleConnection>,
    http2: Option<SharedConnection>,
}

struct IdleConnection {
    sender: http1::SendRequest<OutgoingBody>,
    idle_since: Instant,
}

/// An HTTP/2 connection, which serves many requests at once.
struct SharedConnection {
    sender: http2::SendRequest<OutgoingBody>,
    last_used: Instant,
}

impl ServerConnections {
    /// Removes the connections that are closed or were idle for too long.
    fn remove_expired(&mut self, now: Instant) {
        self.http2.take_if(|shared| {
            shared.sender.is_closed() || now.duration_since(shared.last_used) >= IDLE_CONNECTION_TTL
        });
        self.idle_http1.retain(|kept| {
            now.duration_since(kept.idle_since) < IDLE_CONNECTION_TTL && !kept.sender.is_closed()
        });
    }

    /// Returns the time of the last use, or `None` without connections.
    fn last_used(&self) -> Option<Instant> {
        let idle = self.idle_http1.last().map(|kept| kept.idle_since);
        idle.max(self.http2.as_ref().map(|shared| shared.last_used))
    }
}

impl ConnectionPool {
    /// Takes a connection to a server on which a request can be sent.
    pub(crate) fn take(&self, server: &str, replay: ReplaySafety) -> Option<OpenConnection> {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = servers.get_mut(server)?;
        let now = Instant::now();
        connections.remove_expired(now);
        let is_fresh =
            |since: Instant| replay == ReplaySafety::Safe || now.duration_since(since) < UNSAFE_REUSE_WINDOW;
        if let Some(shared) = &connections.http2
            && is_fresh(shared.last_used)
        {
            return Some(OpenConnection::Http2(shared.sender.clone()));
        }
        let freshest = connections.idle_http1.last()?;
        if is_fresh(freshest.idle_since) {
            connections.idle_http1.pop().map(|kept| OpenConnection::Http1(kept.sender))
        } else {
            None
        }
    }

    /// Lets other requests use an HTTP/2 connection.
    pub(crate) fn share_http2(&self, server: &str, sender: &http2::SendRequest<OutgoingBody>) {
        let shared = SharedConnection { sender: sender.clone(), last_used: Instant::now() };
        self.with_server(server, |connections| connections.http2 = Some(shared));
    }

    /// Removes an HTTP/2 connection that may be dead.
    pub(crate) fn forget_http2(&self, server: &str) {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = servers.get_mut(server) {
            connections.http2 = None;
        }
    }

    /// Returns an HTTP/1.1 connection whose response was read to its end.
    pub(crate) fn return_idle(&self, server: &str, sender: http1::SendRequest<OutgoingBody>) {
        self.with_server(server, |connections| {
            if connections.idle_http1.len() < MAX_IDLE_CONNECTIONS && !sender.is_closed() {
                connections.idle_http1.push(IdleConnection { sender, idle_since: Instant::now() });
            }
        });
    }

    fn with_server(&self, server: &str, change: impl FnOnce(&mut ServerConnections)) {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = servers.get_mut(server) {
            return change(connections);
        }
        if servers.len() >= MAX_SERVERS {
            make_room(&mut servers);
        }
        change(servers.entry(server.to_owned()).or_default());
    }
}

/// Removes servers without usable connections, and the one that was not used for the longest time.
fn make_room(servers: &mut BTreeMap<String, ServerConnections>) {
    let now = Instant::now();
    servers.retain(|_, connections| {
        connections.remove_expired(now);
        connections.last_used().is_some()
    });
    if servers.len() >= MAX_SERVERS {
        let oldest = servers.iter().min_by_key(|(_, connections)| connections.last_used());
        if let Some(oldest) = oldest.map(|(server, _)| server.clone()) {
            servers.remove(&oldest);
        }
    }
}
