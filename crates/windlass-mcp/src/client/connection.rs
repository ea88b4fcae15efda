//! One server: connected when it is needed, again where it was lost, and its list of tools kept while it holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::model::{ProtocolVersion, SubscriptionFilter};
use rmcp::service::{
    ClientCacheConfig, ClientLifecycleMode, ClientServiceExt, Peer, RoleClient, RunningService, ServiceError,
};
use rmcp::transport::auth::AuthClient;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::child::{self, Child, Tail};
use super::flight::Flights;
use super::handler::Handler;
use super::list::{self, Listing};
use super::{Auth, Era, http, oauth};
use crate::config::{HttpConfig, ServerConfig, Transport};

/// How long to wait before a server that could not be reached is tried again. Twice as long each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long the end of a connection may take before it is dropped.
const CLOSING: Duration = Duration::from_secs(3);

/// Why a server cannot be spoken to.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Its program cannot be started.
    #[error("`{command}` cannot be started: {why}")]
    Spawn {
        /// The program.
        command: String,
        /// Why not.
        why: String,
    },
    /// It did not come up in time.
    #[error("it did not answer within {} ms{}", .after.as_millis(), also(.said))]
    TooSlow {
        /// How long it was waited for.
        after: Duration,
        /// What it last said on its standard error.
        said: String,
    },
    /// It came up and does not speak as it should.
    #[error("{why}{}", also(.said))]
    Handshake {
        /// What was wrong.
        why: String,
        /// What it last said on its standard error.
        said: String,
    },
    /// There is none of that name.
    #[error("there is no MCP server `{server}`")]
    Unknown {
        /// The name.
        server: String,
    },
    /// It was closed here.
    #[error("it was closed")]
    Closed,
}

fn also(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; it said: {text}") }
}

pub(crate) struct Connection {
    pub(crate) config: ServerConfig,
    state: Mutex<State>,
    generations: AtomicU64,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    listed: Option<Listed>,
    failed: Option<Failed>,
    /// What lets us in, where the address asks for it.
    let_in: Option<AuthClient<reqwest::Client>>,
    is_closed: bool,
}

/// A list, and for what it holds.
struct Listed {
    listing: Arc<Listing>,
    generation: u64,
    changes: u64,
    until: Option<Instant>,
}

struct Failed {
    error: ConnectError,
    times: u32,
    not_before: Instant,
}

/// A connection that stands.
pub(crate) struct Live {
    pub(super) peer: Peer<RoleClient>,
    pub(super) flights: Arc<Flights>,
    pub(crate) era: Era,
    generation: u64,
    changes: Arc<AtomicU64>,
    /// Whether the server tells of changes to its list.
    tells: bool,
    said: Option<Tail>,
    listener: Option<AbortHandle>,
    held: Mutex<Held>,
}

struct Held {
    service: Option<RunningService<RoleClient, Handler>>,
    child: Option<Child>,
}

impl Connection {
    pub(crate) fn new(config: ServerConfig) -> Self {
        Self { config, state: Mutex::default(), generations: AtomicU64::new(0) }
    }

    /// The connection, made now where there is none.
    pub(crate) async fn live(&self) -> Result<Arc<Live>, ConnectError> {
        self.live_in(&mut *self.state.lock().await).await
    }

    async fn live_in(&self, state: &mut State) -> Result<Arc<Live>, ConnectError> {
        if state.is_closed {
            return Err(ConnectError::Closed);
        }
        if let Some(live) = &state.live {
            if !live.is_lost() {
                return Ok(live.clone());
            }
            if let Some(lost) = state.live.take() {
                lost.close().await;
            }
        }
        if let Some(failed) = &state.failed
            && Instant::now() < failed.not_before
        {
            return Err(failed.error.clone());
        }
        match self.connect(&mut state.let_in).await {
            Ok(live) => {
                state.failed = None;
                Ok(state.live.insert(Arc::new(live)).clone())
            }
            Err(error) => {
                let times = state.failed.as_ref().map_or(0, |failed| failed.times);
                let wait = FIRST_WAIT.saturating_mul(1 << times.min(16)).min(LONGEST_WAIT);
                let not_before = Instant::now() + wait;
                state.failed = Some(Failed { error: error.clone(), times: times + 1, not_before });
                Err(error)
            }
        }
    }

    async fn connect(&self, let_in: &mut Option<AuthClient<reqwest::Client>>) -> Result<Live, ConnectError> {
        let handler = Handler::default();
        let (flights, changes) = (handler.flights.clone(), handler.changes.clone());
        let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
        let mode = match self.config.era {
            None => ClientLifecycleMode::Auto { preferred_versions, legacy_version: None },
            Some(Era::Modern) => ClientLifecycleMode::Discover { preferred_versions },
            Some(Era::Legacy) => ClientLifecycleMode::Initialize,
        };
        let after = self.config.connect_timeout;
        let handshake = |why: String, said: String| ConnectError::Handshake { why, said };
        let (service, child) = match &self.config.transport {
            Transport::Stdio(stdio) => {
                let (child, output, input) = child::spawn(stdio).map_err(|error| ConnectError::Spawn {
                    command: stdio.command.clone(),
                    why: error.to_string(),
                })?;
                let said = child.said();
                // Where this does not come to a connection, dropping the child ends it.
                let serving = handler.serve_with_lifecycle((output, input), mode);
                match tokio::time::timeout(after, serving).await {
                    Ok(Ok(service)) => (service, Some(child)),
                    Ok(Err(error)) => return Err(handshake(in_full(&error), said.last().await)),
                    Err(_) => return Err(ConnectError::TooSlow { after, said: said.text() }),
                }
            }
            Transport::Http(http) => {
                let wrong = |why: String| handshake(why, String::new());
                let late = |_| ConnectError::TooSlow { after, said: String::new() };
                let serve = |let_in: Option<AuthClient<reqwest::Client>>| {
                    let (handler, mode) = (handler.clone(), mode.clone());
                    async move {
                        let served = match let_in {
                            Some(client) => {
                                handler
                                    .serve_with_lifecycle(http::transport(http, client).map_err(wrong)?, mode)
                                    .await
                            }
                            None => {
                                let client = http::client().map_err(wrong)?;
                                handler
                                    .serve_with_lifecycle(http::transport(http, client).map_err(wrong)?, mode)
                                    .await
                            }
                        };
                        Ok::<_, ConnectError>(served)
                    }
                };
                let mut served = tokio::time::timeout(after, serve(let_in.clone())).await.map_err(late)??;
                if let (Err(error), Some(Auth::OAuth(oauth))) = (&served, &http.auth)
                    && let Some(challenge) = error.auth_challenge()
                {
                    // A person may have to say yes, which takes as long as it takes: that is the visit's to bound.
                    let before = let_in.take();
                    *let_in =
                        Some(oauth.authorise(&http.url, challenge, before.as_ref()).await.map_err(wrong)?);
                    served = tokio::time::timeout(after, serve(let_in.clone())).await.map_err(late)??;
                }
                (served.map_err(|error| wrong(in_full(&error)))?, None)
            }
        };
        let peer = service.peer().clone();
        // One cache is enough, and this one must never be the one that serves what is stale.
        peer.set_response_cache_config(ClientCacheConfig::disabled()).await;
        let info = peer.peer_info();
        let era = match &info {
            Some(info) if info.protocol_version >= ProtocolVersion::V_2026_07_28 => Era::Modern,
            Some(_) | None => Era::Legacy,
        };
        let tools = info.as_ref().and_then(|info| info.capabilities.tools.as_ref());
        let tells = tools.is_some_and(|tools| tools.list_changed == Some(true));
        let listener = match era {
            Era::Modern if tells => Some(listen(peer.clone(), changes.clone())),
            Era::Modern | Era::Legacy => None,
        };
        Ok(Live {
            peer,
            flights,
            era,
            generation: self.generations.fetch_add(1, Ordering::Relaxed),
            changes,
            tells,
            said: child.as_ref().map(Child::said),
            listener,
            held: Mutex::new(Held { service: Some(service), child }),
        })
    }

    /// The server's tools, asked for only where what is known does not hold any more. The same list is the same
    /// value, so that whoever works with it sees that nothing has changed.
    pub(crate) async fn listing(&self) -> Result<Arc<Listing>, String> {
        let mut state = self.state.lock().await;
        let live = self.live_in(&mut state).await.map_err(|error| error.to_string())?;
        let changes = live.changes.load(Ordering::Relaxed);
        if let Some(listed) = &state.listed
            && (listed.generation, listed.changes) == (live.generation, changes)
            && listed.until.is_none_or(|until| Instant::now() < until)
        {
            return Ok(listed.listing.clone());
        }
        let late = |_| "it did not list its tools in time".to_owned();
        let asking = list::list(&live.peer, &self.config.name);
        let mut listed = tokio::time::timeout(self.config.connect_timeout, asking).await.map_err(late)?;
        let mut live = live;
        if let Some(challenge) = listed.as_ref().err().and_then(oauth::challenge) {
            live = self.let_in_again(&mut state, &challenge).await.map_err(|error| error.to_string())?;
            let asking = list::list(&live.peer, &self.config.name);
            listed = tokio::time::timeout(self.config.connect_timeout, asking).await.map_err(late)?;
        }
        let (mut new, lasting) =
            listed.map_err(|error| format!("it did not list its tools: {}", self.explain(&live, &error)))?;
        new.tools.retain(|tool| self.config.takes(&tool.name));
        let until = match (live.era, live.tells) {
            (_, true) | (Era::Legacy, false) => None,
            (Era::Modern, false) => Some(Instant::now() + lasting.unwrap_or_default()),
        };
        let listing = match state.listed.take() {
            Some(old) if *old.listing == new => old.listing,
            _ => Arc::new(new),
        };
        state.listed = Some(Listed { listing: listing.clone(), generation: live.generation, changes, until });
        Ok(listing)
    }

    /// Answers a server that wants to see more before it takes a request, and connects anew.
    pub(super) async fn answer_challenge(&self, challenge: &str) -> Result<Arc<Live>, ConnectError> {
        self.let_in_again(&mut *self.state.lock().await, challenge).await
    }

    async fn let_in_again(&self, state: &mut State, challenge: &str) -> Result<Arc<Live>, ConnectError> {
        let failed = |why| ConnectError::Handshake { why, said: String::new() };
        match &self.config.transport {
            Transport::Http(HttpConfig { url, auth: Some(Auth::OAuth(oauth)), .. }) => {
                let before = state.let_in.take();
                state.let_in = Some(oauth.authorise(url, challenge, before.as_ref()).await.map_err(failed)?);
            }
            Transport::Http(_) | Transport::Stdio(_) => {
                return Err(failed("it asks to be let in; hint: `.auth(…)` on the server".to_owned()));
            }
        }
        if let Some(live) = state.live.take() {
            live.close().await;
        }
        self.live_in(state).await
    }

    pub(super) fn explain(&self, live: &Live, error: &ServiceError) -> String {
        format!("{}{}", in_full(error), also(&live.said.as_ref().map(Tail::text).unwrap_or_default()))
    }

    /// The processes that belong to it.
    pub(crate) async fn processes(&self) -> Vec<u32> {
        let state = self.state.lock().await;
        match &state.live {
            Some(live) => live.held.lock().await.child.as_ref().map(Child::processes).unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Which protocol it speaks, where it is connected.
    pub(crate) async fn era(&self) -> Option<Era> {
        self.state.lock().await.live.as_ref().filter(|live| !live.is_lost()).map(|live| live.era)
    }

    /// Lets go of a connection and of the memory of failures, so that the next use connects anew.
    pub(crate) async fn reset(&self) {
        let mut state = self.state.lock().await;
        state.failed = None;
        if let Some(live) = state.live.take() {
            live.close().await;
        }
    }

    /// Ends it for good. Doing it again does nothing.
    pub(crate) async fn close(&self) {
        let mut state = self.state.lock().await;
        state.is_closed = true;
        if let Some(live) = state.live.take() {
            live.close().await;
        }
    }
}

impl Live {
    pub(super) fn is_lost(&self) -> bool {
        self.peer.is_transport_closed()
    }

    async fn close(&self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
        let mut held = self.held.lock().await;
        if let Some(mut service) = held.service.take() {
            let closed = service.close_with_timeout(CLOSING).await;
            tracing::debug!(?closed, "a connection was closed");
        }
        if let Some(child) = held.child.take() {
            child.end().await;
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// Waits for the server to say that its tools have changed.
fn listen(peer: Peer<RoleClient>, changes: Arc<AtomicU64>) -> AbortHandle {
    let listening = async move {
        let wanted = SubscriptionFilter::builder().tools_list_changed().build();
        let Ok(mut subscription) = peer.listen(wanted).await else { return };
        // Whatever came before it stood was not heard.
        changes.fetch_add(1, Ordering::Relaxed);
        while let Ok(Some(_)) = subscription.next().await {
            changes.fetch_add(1, Ordering::Relaxed);
        }
        changes.fetch_add(1, Ordering::Relaxed);
    };
    tokio::spawn(listening).abort_handle()
}

/// An error with all that it came from: rmcp's own text often leaves out what matters.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    // Which of its types it was is of no use to anybody.
    match (text.find("Transport ["), text.find("] error: ")) {
        (Some(from), Some(to)) if from < to => {
            text.replace_range(from..to + "] error: ".len(), "");
            text
        }
        _ => text,
    }
}
