//! The connection to one server: established on demand, re-established when lost, with a cached tool listing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use rmcp::model::{ProtocolVersion, SubscriptionFilter};
use rmcp::service::{ClientCacheConfig, Peer, RoleClient, RunningService, ServiceError};
use tokio::sync::{Mutex, RwLock};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::child::{ServerProcess, StderrTail};
use super::connect::{AuthorisedClient, OpenedConnection, open_connection};
use super::handler::McpClientHandler;
use super::http::McpHttpClient;
use super::in_flight::InFlightCalls;
use super::list::{self, ToolListing};
use super::{KEYED_CALLS_EXTENSION, McpAuth, ProtocolEra, oauth};
use crate::config::{HttpTransportConfig, McpServerConfig, McpTransport};

/// Wait before the first retry of a failed connection; it doubles with each failure.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum wait between two connection attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Maximum time that a turn waits for a new tool listing while there is an earlier one.
const REFRESH_GRACE: Duration = Duration::from_secs(2);
/// Maximum time for an orderly close before the connection is dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// An error of connecting to an MCP server.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpConnectError {
    /// The server's program cannot be started.
    #[error("`{command}` cannot be started: {reason}")]
    Spawn {
        /// The program.
        command: String,
        /// The reason.
        reason: String,
    },
    /// The server did not respond within the connect timeout.
    #[error("it did not answer within {} ms{}", .timeout.as_millis(), stderr_suffix(.stderr))]
    TimedOut {
        /// The timeout.
        timeout: Duration,
        /// The tail of the server's standard error.
        stderr: String,
    },
    /// The server responded, but the handshake or the authorisation failed.
    #[error("{reason}{}", stderr_suffix(.stderr))]
    Handshake {
        /// The reason.
        reason: String,
        /// The tail of the server's standard error.
        stderr: String,
    },
    /// The configuration has no server of this name.
    #[error("there is no MCP server `{server}`")]
    UnknownServer {
        /// The name.
        server: String,
    },
    /// The application closed the connection.
    #[error("the connection was closed")]
    Closed,
}

fn stderr_suffix(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; stderr: {text}") }
}

/// The connection to one configured server, live or not.
pub(crate) struct McpConnection {
    pub(crate) config: McpServerConfig,
    state: Mutex<McpConnectionState>,
    next_generation: AtomicU64,
    /// The attempt to connect that is under way, in which a person may have to consent. All callers share it, and it
    /// outlives the callers that do not wait for it.
    opening: std::sync::Mutex<Option<ConnectionOpening>>,
    /// Cancelled when the application closes the connection.
    closing: CancellationToken,
    /// The listing request that is under way. All callers share it, and it outlives the callers that go on without it.
    refresh: std::sync::Mutex<Option<ListingRefresh>>,
}

type ConnectionOpening = Shared<BoxFuture<'static, Result<Arc<LiveConnection>, McpConnectError>>>;

type ListingRefresh = Shared<BoxFuture<'static, Result<Arc<ToolListing>, String>>>;

#[derive(Default)]
struct McpConnectionState {
    live: Option<Arc<LiveConnection>>,
    cached_listing: Option<CachedListing>,
    backoff: Option<ConnectBackoff>,
    /// The authorised HTTP client, if the server required authorisation.
    auth_client: Option<AuthorisedClient>,
}

/// A server's demand for an authorisation that the client does not have.
#[derive(Clone)]
pub(super) struct AuthChallenge {
    /// The `WWW-Authenticate` header.
    pub(super) header: String,
    /// The generation of the connection that it came on.
    generation: u64,
}

/// A tool listing and the connection state that it is valid for.
struct CachedListing {
    listing: Arc<ToolListing>,
    generation: u64,
    list_changed_count: u64,
    expires_at: Option<Instant>,
}

impl CachedListing {
    fn is_valid_for(&self, live: &LiveConnection) -> bool {
        let changes = live.list_changed_count.load(Ordering::Relaxed);
        (self.generation, self.list_changed_count) == (live.generation, changes)
            && self.expires_at.is_none_or(|until| Instant::now() < until)
    }
}

/// The last connection failure and the time of the next attempt.
struct ConnectBackoff {
    error: McpConnectError,
    attempts: u32,
    retry_at: Instant,
}

/// An established connection.
pub(crate) struct LiveConnection {
    pub(super) peer: Peer<RoleClient>,
    pub(super) in_flight: Arc<InFlightCalls>,
    /// Held for writing by a call that must be the only one in flight.
    pub(super) call_gate: RwLock<()>,
    /// The server's instructions for its use.
    pub(crate) instructions: Option<String>,
    pub(crate) era: ProtocolEra,
    /// True if a lost connection does not cancel a call that has an idempotency key. Then the key cancels it.
    pub(super) cancels_by_key: bool,
    generation: u64,
    list_changed_count: Arc<AtomicU64>,
    /// True if the server announces `list_changed` for its tools.
    notifies_list_changed: bool,
    stderr: Option<StderrTail>,
    listener: Option<AbortHandle>,
    resources: Mutex<ConnectionResources>,
}

/// The service and the child process that a connection closes.
struct ConnectionResources {
    service: Option<RunningService<RoleClient, McpClientHandler>>,
    process: Option<ServerProcess>,
}

impl McpConnection {
    pub(crate) fn new(config: McpServerConfig) -> Self {
        Self {
            config,
            state: Mutex::default(),
            next_generation: AtomicU64::new(0),
            opening: std::sync::Mutex::default(),
            closing: CancellationToken::new(),
            refresh: std::sync::Mutex::default(),
        }
    }

    /// Returns the live connection, connecting first if necessary.
    pub(crate) async fn live_connection(self: &Arc<Self>) -> Result<Arc<LiveConnection>, McpConnectError> {
        let current = self.current_connection(&mut *self.state.lock().await).await?;
        match current {
            Some(live) => Ok(live),
            None => self.start_opening(None).await,
        }
    }

    /// Returns the live connection, or `None` if it is time to connect.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection was closed, or the last failure if the next attempt has to wait.
    async fn current_connection(
        &self,
        state: &mut McpConnectionState,
    ) -> Result<Option<Arc<LiveConnection>>, McpConnectError> {
        if self.closing.is_cancelled() {
            return Err(McpConnectError::Closed);
        }
        if let Some(live) = &state.live {
            if !live.is_disconnected() {
                return Ok(Some(live.clone()));
            }
            if let Some(lost) = state.live.take() {
                lost.close().await;
            }
        }
        match &state.backoff {
            Some(failed) if Instant::now() < failed.retry_at => Err(failed.error.clone()),
            Some(_) | None => Ok(None),
        }
    }

    /// Starts to connect, unless that is under way.
    fn start_opening(self: &Arc<Self>, challenge: Option<AuthChallenge>) -> ConnectionOpening {
        let mut current = self.opening.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(opening) = &*current
            && opening.peek().is_none()
        {
            return opening.clone();
        }
        let connection = self.clone();
        let opening = async move {
            tokio::select! {
                biased;
                () = connection.closing.cancelled() => Err(McpConnectError::Closed),
                opened = connection.open(challenge) => opened,
            }
        };
        let opening = opening.boxed().shared();
        *current = Some(opening.clone());
        tokio::spawn(opening.clone());
        opening
    }

    /// Connects, after the authorisation if the server demands one. Meanwhile the calls in flight go on with the
    /// connection that there is, and keep it when another one takes its place.
    async fn open(&self, challenge: Option<AuthChallenge>) -> Result<Arc<LiveConnection>, McpConnectError> {
        let mut auth_client = {
            let mut state = self.state.lock().await;
            match (&challenge, self.current_connection(&mut state).await?) {
                // Another call has connected, or has answered the challenge.
                (None, Some(live)) => return Ok(live),
                (Some(challenge), Some(live)) if live.generation != challenge.generation => return Ok(live),
                (_, _) => state.auth_client.clone(),
            }
        };
        if let Some(challenge) = challenge {
            let authorised = self.authorise(&challenge.header, auth_client.as_ref()).await?;
            self.state.lock().await.auth_client = Some(authorised.clone());
            auth_client = Some(authorised);
        }
        let connected = self.connect(&mut auth_client).await;
        let mut state = self.state.lock().await;
        state.auth_client = auth_client;
        match connected {
            Ok(live) => {
                state.backoff = None;
                Ok(state.live.insert(Arc::new(live)).clone())
            }
            Err(error) => {
                let times = state.backoff.as_ref().map_or(0, |failed| failed.attempts);
                let wait = INITIAL_BACKOFF.saturating_mul(1 << times.min(16)).min(MAX_BACKOFF);
                let not_before = Instant::now() + wait;
                state.backoff =
                    Some(ConnectBackoff { error: error.clone(), attempts: times + 1, retry_at: not_before });
                Err(error)
            }
        }
    }

    async fn connect(
        &self,
        auth_client: &mut Option<AuthorisedClient>,
    ) -> Result<LiveConnection, McpConnectError> {
        let handler = McpClientHandler::new(self.config.name.clone(), self.config.server_requests.clone());
        let (flights, changes) = (handler.in_flight.clone(), handler.list_changed_count.clone());
        let OpenedConnection { service, process: child } =
            open_connection(&self.config, &handler, auth_client).await?;
        let peer = service.peer().clone();
        // rmcp's response cache is disabled because listings are cached here, and two caches could serve
        // stale data.
        peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
        let info = peer.peer_info();
        let era = match &info {
            Some(info) if info.protocol_version >= ProtocolVersion::V_2026_07_28 => ProtocolEra::Modern,
            Some(_) | None => ProtocolEra::Legacy,
        };
        let tools = info.as_ref().and_then(|info| info.capabilities.tools.as_ref());
        let tells = tools.is_some_and(|tools| tools.list_changed == Some(true));
        let extensions = info.as_ref().and_then(|info| info.capabilities.extensions.as_ref());
        let keeps_keyed_calls =
            extensions.is_some_and(|extensions| extensions.contains_key(KEYED_CALLS_EXTENSION));
        let is_http = matches!(self.config.transport, McpTransport::Http(_));
        let listener = match era {
            ProtocolEra::Modern if tells => Some(watch_list_changed(peer.clone(), changes.clone())),
            ProtocolEra::Modern | ProtocolEra::Legacy => None,
        };
        Ok(LiveConnection {
            peer,
            in_flight: flights,
            call_gate: RwLock::new(()),
            instructions: info.as_ref().and_then(|info| info.instructions.clone()),
            era,
            cancels_by_key: keeps_keyed_calls && is_http && era == ProtocolEra::Modern,
            generation: self.next_generation.fetch_add(1, Ordering::Relaxed),
            list_changed_count: changes,
            notifies_list_changed: tells,
            stderr: child.as_ref().map(ServerProcess::stderr_tail),
            listener,
            resources: Mutex::new(ConnectionResources { service: Some(service), process: child }),
        })
    }

    /// Returns the server's tools, listing them again only if the cached listing is no longer valid.
    ///
    /// An unchanged listing is returned as the same `Arc`, so that callers can detect that nothing changed. While a
    /// new listing is slow or fails, the last one stays valid.
    pub(crate) async fn tool_listing(self: &Arc<Self>) -> Result<Arc<ToolListing>, String> {
        let live = self.live_connection().await.map_err(|error| error.to_string())?;
        let last = {
            let state = self.state.lock().await;
            match &state.cached_listing {
                Some(listed) if listed.is_valid_for(&live) => return Ok(listed.listing.clone()),
                Some(listed) if listed.generation == live.generation => Some(listed.listing.clone()),
                Some(_) | None => None,
            }
        };
        let refresh = self.start_refresh();
        let Some(last) = last else { return refresh.await };
        match tokio::time::timeout(REFRESH_GRACE, refresh).await {
            Ok(Ok(listing)) => Ok(listing),
            Ok(Err(why)) => {
                tracing::warn!(server = %self.config.name, %why, "an MCP server did not list its tools; the last list stays");
                Ok(last)
            }
            Err(_) => {
                tracing::warn!(server = %self.config.name, "an MCP server is slow to list its tools; the last list stays");
                Ok(last)
            }
        }
    }

    /// Starts a listing request, unless one is under way.
    fn start_refresh(self: &Arc<Self>) -> ListingRefresh {
        let mut current = self.refresh.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(refresh) = &*current
            && refresh.peek().is_none()
        {
            return refresh.clone();
        }
        let connection = self.clone();
        let refresh = async move { connection.fetch_listing().await }.boxed().shared();
        *current = Some(refresh.clone());
        tokio::spawn(refresh.clone());
        refresh
    }

    async fn fetch_listing(self: &Arc<Self>) -> Result<Arc<ToolListing>, String> {
        let mut live = self.live_connection().await.map_err(|error| error.to_string())?;
        let mut changes = live.list_changed_count.load(Ordering::Relaxed);
        let late = |_| "it did not list its tools in time".to_owned();
        let asking = list::list_tools(&live.peer, &self.config.name);
        let mut listed = tokio::time::timeout(self.config.connect_timeout, asking).await.map_err(late)?;
        if let Some(challenge) = listed.as_ref().err().and_then(|error| live.auth_challenge(error)) {
            live = self.answer_challenge(challenge).await.map_err(|error| error.to_string())?;
            changes = live.list_changed_count.load(Ordering::Relaxed);
            let asking = list::list_tools(&live.peer, &self.config.name);
            listed = tokio::time::timeout(self.config.connect_timeout, asking).await.map_err(late)?;
        }
        let (mut new, lasting) = listed
            .map_err(|error| format!("it did not list its tools: {}", self.describe_error(&live, &error)))?;
        new.tools.retain(|tool| self.config.allows_tool(&tool.name));
        let until = match (live.era, live.notifies_list_changed) {
            (_, true) | (ProtocolEra::Legacy, false) => None,
            (ProtocolEra::Modern, false) => Some(Instant::now() + lasting.unwrap_or_default()),
        };
        let mut state = self.state.lock().await;
        let listing = match state.cached_listing.take() {
            Some(old) if *old.listing == new => old.listing,
            _ => Arc::new(new),
        };
        state.cached_listing = Some(CachedListing {
            listing: listing.clone(),
            generation: live.generation,
            list_changed_count: changes,
            expires_at: until,
        });
        Ok(listing)
    }

    /// Answers the challenge of a server, and returns the connection to use now. One authorisation answers the
    /// challenges of all calls on a connection.
    pub(super) async fn answer_challenge(
        self: &Arc<Self>,
        challenge: AuthChallenge,
    ) -> Result<Arc<LiveConnection>, McpConnectError> {
        self.start_opening(Some(challenge)).await
    }

    /// Runs the authorisation flow from a challenge, and returns the authorised HTTP client.
    async fn authorise(
        &self,
        challenge: &str,
        before: Option<&AuthorisedClient>,
    ) -> Result<AuthorisedClient, McpConnectError> {
        let failed = |why| McpConnectError::Handshake { reason: why, stderr: String::new() };
        match &self.config.transport {
            McpTransport::Http(http @ HttpTransportConfig { auth: Some(McpAuth::OAuth(oauth)), .. }) => {
                let client = McpHttpClient::new(http);
                oauth.authorise(&http.url, &client, challenge, before).await.map_err(failed)
            }
            McpTransport::Http(_) | McpTransport::Stdio(_) => Err(failed(
                "the server requires authorisation; hint: call `.auth(…)` on its configuration".to_owned(),
            )),
        }
    }

    pub(super) fn describe_error(&self, live: &LiveConnection, error: &ServiceError) -> String {
        format!(
            "{}{}",
            error_chain_text(error),
            stderr_suffix(&live.stderr.as_ref().map(StderrTail::text).unwrap_or_default())
        )
    }

    /// Returns the ids of the connection's child processes.
    pub(crate) async fn process_ids(&self) -> Vec<u32> {
        let state = self.state.lock().await;
        match &state.live {
            Some(live) => live
                .resources
                .lock()
                .await
                .process
                .as_ref()
                .map(ServerProcess::process_ids)
                .unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Returns the server's protocol era, if it is connected.
    pub(crate) async fn era(&self) -> Option<ProtocolEra> {
        self.state.lock().await.live.as_ref().filter(|live| !live.is_disconnected()).map(|live| live.era)
    }

    /// Closes the live connection and clears the backoff, so that the next use reconnects.
    pub(crate) async fn reset(&self) {
        let mut state = self.state.lock().await;
        state.backoff = None;
        if let Some(live) = state.live.take() {
            live.close().await;
        }
    }

    /// Closes the connection permanently. Idempotent.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        let opening = self.opening.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some(opening) = opening {
            let _closed = opening.await;
        }
        let mut state = self.state.lock().await;
        if let Some(live) = state.live.take() {
            live.close().await;
        }
    }
}

impl LiveConnection {
    /// Returns the challenge of an error on this connection, if it is one.
    pub(super) fn auth_challenge(&self, error: &ServiceError) -> Option<AuthChallenge> {
        let header = oauth::auth_challenge(error)?;
        Some(AuthChallenge { header, generation: self.generation })
    }

    pub(super) fn is_disconnected(&self) -> bool {
        self.peer.is_transport_closed()
    }

    /// Returns true if the server offers prompts.
    pub(super) fn offers_prompts(&self) -> bool {
        self.peer.peer_info().is_some_and(|info| info.capabilities.prompts.is_some())
    }

    /// Returns true if the server offers resources.
    pub(super) fn offers_resources(&self) -> bool {
        self.peer.peer_info().is_some_and(|info| info.capabilities.resources.is_some())
    }

    async fn close(&self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
        let mut held = self.resources.lock().await;
        if let Some(mut service) = held.service.take() {
            let closed = service.close_with_timeout(CLOSE_TIMEOUT).await;
            tracing::debug!(?closed, "a connection was closed");
        }
        if let Some(child) = held.process.take() {
            child.shut_down().await;
        }
    }
}

impl Drop for LiveConnection {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// Spawns a task that counts the server's `list_changed` notifications.
fn watch_list_changed(peer: Peer<RoleClient>, changes: Arc<AtomicU64>) -> AbortHandle {
    let listening = async move {
        let wanted = SubscriptionFilter::builder().tools_list_changed().build();
        let Ok(mut subscription) = peer.listen(wanted).await else { return };
        // Notifications sent before the subscription was active are lost, so the listing is invalidated once.
        changes.fetch_add(1, Ordering::Relaxed);
        while let Ok(Some(_)) = subscription.next().await {
            changes.fetch_add(1, Ordering::Relaxed);
        }
        changes.fetch_add(1, Ordering::Relaxed);
    };
    tokio::spawn(listening).abort_handle()
}

/// Formats an error with its whole source chain, because rmcp's own message often omits the cause.
pub(super) fn error_chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    // rmcp's transport type name does not help the operator.
    match (text.find("Transport ["), text.find("] error: ")) {
        (Some(from), Some(to)) if from < to => {
            text.replace_range(from..to + "] error: ".len(), "");
            text
        }
        _ => text,
    }
}
