//! The sessions of legacy HTTP clients: bounded in number, and closed when nobody has used them for a while.
//!
//! **Invariant:** a session with an open stream is never closed for being idle, so that a call can wait for a person as
//! long as its client waits.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::server_side_http::{ServerSseMessage, SessionId};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::{RestoreOutcome, SessionManager};
use tokio::time::Instant;

/// A session manager with limits.
pub(super) struct BoundedSessionManager {
    local: LocalSessionManager,
    limits: SessionLimits,
    uses: Arc<Mutex<HashMap<SessionId, SessionUse>>>,
}

/// The limits of sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionLimits {
    pub(super) max_sessions: usize,
    pub(super) max_per_client: usize,
    /// Time without an open stream after which a session is closed.
    pub(super) idle_timeout: Duration,
}

/// The use of one session.
struct SessionUse {
    /// The client that opened the session, once it is known.
    client: Option<Arc<str>>,
    last_used: Instant,
    open_streams: usize,
}

impl BoundedSessionManager {
    pub(super) fn new(limits: SessionLimits) -> Self {
        let mut local = LocalSessionManager::default();
        // rmcp's own timeout counts from the last message, also while a call waits for a person.
        local.session_config.keep_alive = None;
        Self { local, limits, uses: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, SessionUse>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the client that opened a session. Closes the least recently used idle session of the client if it has
    /// too many.
    pub(super) async fn set_client(&self, id: &str, client: &Arc<str>) {
        let surplus = {
            let mut uses = self.lock();
            if let Some(used) = uses.get_mut(id) {
                used.client = Some(client.clone());
            }
            let mine = uses.iter().filter(|(_, used)| used.client.as_ref() == Some(client));
            if mine.count() > self.limits.max_per_client {
                oldest_idle(&uses, |other, used| other != id && used.client.as_ref() == Some(client))
            } else {
                None
            }
        };
        if let Some(surplus) = surplus {
            self.forget(&surplus).await;
        }
    }

    /// Returns true if the session belongs to this client, or to nobody yet.
    pub(super) fn belongs_to(&self, id: &str, client: &Arc<str>) -> bool {
        self.lock().get(id).and_then(|used| used.client.as_ref()).is_none_or(|owner| owner == client)
    }

    /// Returns true if another session can be opened, now or by closing an idle one.
    pub(super) fn has_room(&self) -> bool {
        let uses = self.lock();
        uses.len() < self.limits.max_sessions || oldest_idle(&uses, |_, _| true).is_some()
    }

    /// Closes the sessions that nobody has used for too long.
    pub(super) async fn close_idle(&self) {
        let now = Instant::now();
        let expired: Vec<SessionId> = {
            let uses = self.lock();
            let idle = uses.iter().filter(|(_, used)| {
                used.open_streams == 0 && now.duration_since(used.last_used) > self.limits.idle_timeout
            });
            idle.map(|(id, _)| id.clone()).collect()
        };
        for id in expired {
            self.forget(&id).await;
        }
    }

    async fn forget(&self, id: &SessionId) {
        self.lock().remove(id);
        let closed = self.local.close_session(id).await;
        tracing::debug!(?closed, "an idle session was closed");
    }

    fn touch(&self, id: &SessionId) {
        if let Some(used) = self.lock().get_mut(id) {
            used.last_used = Instant::now();
        }
    }

    fn track<S>(&self, id: &SessionId, stream: S) -> TrackedStream<S> {
        if let Some(used) = self.lock().get_mut(id) {
            used.open_streams += 1;
        }
        TrackedStream {
            stream: Box::pin(stream),
            _open: OpenStream { id: id.clone(), uses: self.uses.clone() },
        }
    }
}

fn oldest_idle(
    uses: &HashMap<SessionId, SessionUse>,
    is_candidate: impl Fn(&str, &SessionUse) -> bool,
) -> Option<SessionId> {
    let idle = uses.iter().filter(|(id, used)| used.open_streams == 0 && is_candidate(id, used));
    idle.min_by_key(|(_, used)| used.last_used).map(|(id, _)| id.clone())
}

/// A guard that counts an open stream of a session.
struct OpenStream {
    id: SessionId,
    uses: Arc<Mutex<HashMap<SessionId, SessionUse>>>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = uses.get_mut(&self.id) {
            used.open_streams -= 1;
            used.last_used = Instant::now();
        }
    }
}

/// A stream that keeps its session in use.
pub(super) struct TrackedStream<S> {
    stream: Pin<Box<S>>,
    _open: OpenStream,
}

impl<S: Stream> Stream for TrackedStream<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.stream.as_mut().poll_next(cx)
    }
}

impl SessionManager for BoundedSessionManager {
    type Error = <LocalSessionManager as SessionManager>::Error;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let surplus = {
            let uses = self.lock();
            if uses.len() >= self.limits.max_sessions { oldest_idle(&uses, |_, _| true) } else { None }
        };
        if let Some(surplus) = surplus {
            self.forget(&surplus).await;
        }
        let (id, transport) = self.local.create_session().await?;
        let used = SessionUse { client: None, last_used: Instant::now(), open_streams: 0 };
        self.lock().insert(id.clone(), used);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.lock().remove(id);
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.track(id, self.local.create_stream(id, message).await?))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.touch(id);
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.track(id, self.local.create_standalone_stream(id).await?))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        Ok(self.track(id, self.local.resume(id, last_event_id).await?))
    }

    async fn restore_session(&self, id: SessionId) -> Result<RestoreOutcome<Self::Transport>, Self::Error> {
        self.local.restore_session(id).await
    }
}
