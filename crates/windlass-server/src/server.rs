//! The server: its settings, its state and its life.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use futures_util::future::OptionFuture;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass::core::id::{AgentName, RunId, Timestamp};
use windlass::core::item::Item;
use windlass::error::StoreError;
use windlass::fleet::{AgentRegistry, QueuedRun, RunQueue, RunSubmission, Worker};
use windlass::price::PriceList;
use windlass::store::{SqliteStore, Store};

use crate::access::{AccessPolicy, AccessRole, PersonIdentity, TokenDigest, new_access_token};
use crate::agent_catalogue::AgentCatalogue;
use crate::api::{self, ApiError, BodyTimeout, InboxItem, inbox_item};
use crate::call_sheet::PreviewFunction;
use crate::compat::{self, LiveText, RecentRequests};
use crate::connections::accept_connections;
use crate::login_sessions::LoginSessions;
use crate::metrics::ServerMetrics;
use crate::pages;
use crate::rate_limit::RateLimiter;
use crate::request_guard::guard_request;
use crate::served_queue::ServedQueue;
use crate::spending::SpendingCache;
use crate::store_watch::StoreWatch;

/// Address that a server listens on unless it is told otherwise.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:4816";
/// File of the store of a server that is given none.
const DEFAULT_STORE: &str = "windlass.db";
/// Requests per second and address that name nobody.
const MAX_FAILURES_PER_SECOND: u32 = 10;

/// The limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Maximum size of a body in bytes.
    pub body_bytes: usize,
    /// Requests per second and person, with a burst of twice as many.
    pub requests_per_second: u32,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum number of open streams of events.
    pub streams: usize,
    /// Maximum number of open streams of events of one person.
    pub streams_per_person: usize,
    /// Time that a client has to send the body of a request.
    pub body_timeout: Duration,
    /// Time after which a connection is closed whose client does not read what is sent to it.
    pub write_timeout: Duration,
    /// Number of runs that the worker of the server drives at a time; 0 for a server that drives none.
    pub concurrent_runs: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            requests_per_second: 300,
            connections: 4096,
            streams: 2048,
            streams_per_person: 1024,
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            concurrent_runs: 16,
        }
    }
}

/// An error that prevents a server from starting, or that ends it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("the server cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The address is not a loopback one, and the server knows nobody.
    #[error("the server would answer anybody on {address}: give it an access policy, or a loopback address")]
    OpenToAnybody {
        /// The address.
        address: SocketAddr,
    },
    /// No token can be made, or it cannot be printed.
    #[error("the server has no access policy, and no token can be made: {0}")]
    Token(std::io::Error),
    /// The store cannot be opened, or the worker cannot be registered.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The worker of the server has panicked.
    #[error("the worker of the server has ended")]
    WorkerEnded,
}

/// Stops a server. Clones stop the same server.
#[derive(Clone, Debug, Default)]
pub struct ServerStop {
    token: CancellationToken,
}

impl ServerStop {
    /// Stops the server: it accepts no more connections, ends its streams, lets open requests end, and leaves its runs.
    pub fn stop(&self) {
        self.token.cancel();
    }
}

/// Serves agents on the loopback interface, with a store in the file `windlass.db`, until the process is stopped. It prints
/// the token that its one user needs.
///
/// # Errors
///
/// Returns an error if the store cannot be opened or the address cannot be listened on.
pub async fn serve<C: Send + Sync + 'static>(agents: impl Into<AgentRegistry<C>>) -> Result<(), ServerError> {
    AgentServer::new(agents).open_store(DEFAULT_STORE)?.serve().await
}

/// A server of agents: its settings.
pub struct AgentServer<C = ()> {
    registry: AgentRegistry<C>,
    queue: Option<Arc<dyn RunQueue>>,
    address: String,
    access: Option<AccessPolicy>,
    prices: Arc<PriceList>,
    limits: ServerLimits,
    hosts: Vec<String>,
    preview: Option<PreviewFunction>,
    live_journals: Option<PathBuf>,
    stop: ServerStop,
}

impl<C: Send + Sync + 'static> AgentServer<C> {
    /// Creates a server of these agents, for the one user of this machine. Unless it is given an access policy, it makes a
    /// token when it starts and prints it: every process of the machine reaches the loopback interface.
    pub fn new(agents: impl Into<AgentRegistry<C>>) -> Self {
        Self {
            registry: agents.into(),
            queue: None,
            address: DEFAULT_ADDRESS.to_owned(),
            access: None,
            prices: PriceList::shipped(),
            limits: ServerLimits::default(),
            hosts: Vec::new(),
            preview: None,
            live_journals: None,
            stop: ServerStop::default(),
        }
    }

    /// Sets the store and queue of the runs.
    #[must_use]
    pub fn store(mut self, queue: Arc<dyn RunQueue>) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Opens the store in a file.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub fn open_store(self, path: impl AsRef<Path>) -> Result<Self, ServerError> {
        let store = SqliteStore::open(PathBuf::from(path.as_ref()))?;
        Ok(self.store(Arc::new(store)))
    }

    /// Sets the address to listen on. An address that is not a loopback one needs an access policy with people.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = address.into();
        self
    }

    /// Sets who may use the server.
    #[must_use]
    pub fn access(mut self, policy: AccessPolicy) -> Self {
        self.access = Some(policy);
        self
    }

    /// Sets the prices of models for the costs of requests that have none in the journal, in place of the shipped ones.
    #[must_use]
    pub fn prices(mut self, prices: impl Into<Arc<PriceList>>) -> Self {
        self.prices = prices.into();
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Adds a name that the server answers for, beside its address and the names of the loopback interface.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// Sets a function that previews the changes of calls for approvers.
    #[must_use]
    pub fn preview(mut self, preview: PreviewFunction) -> Self {
        self.preview = Some(preview);
        self
    }

    /// Sets the folder with the journals of live sessions (`FolderJournal` of `windlass-realtime`), which the inspector shows.
    #[must_use]
    pub fn live_journals(mut self, folder: impl Into<PathBuf>) -> Self {
        self.live_journals = Some(folder.into());
        self
    }

    /// Returns a handle that stops the server.
    pub fn stop_handle(&self) -> ServerStop {
        self.stop.clone()
    }

    /// Serves until the server is stopped.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be listened on, or if the server would answer anybody.
    pub async fn serve(self) -> Result<(), ServerError> {
        let listener = self.listen().await?;
        self.serve_on(listener).await
    }

    /// Listens on the address.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be listened on.
    pub async fn listen(&self) -> Result<TcpListener, ServerError> {
        let listening = TcpListener::bind(&self.address).await;
        listening.map_err(|source| ServerError::Listen { address: self.address.clone(), source })
    }

    /// Serves on a listener until the server is stopped.
    ///
    /// # Errors
    ///
    /// Returns an error if the server would answer anybody, or if its worker ends, for example because the store fails.
    pub async fn serve_on(self, listener: TcpListener) -> Result<(), ServerError> {
        let listen_error = |source| ServerError::Listen { address: self.address.clone(), source };
        let address = listener.local_addr().map_err(listen_error)?;
        let is_open = self.access.as_ref().is_none_or(|access| access.local_user.is_some());
        if !address.ip().is_loopback() && is_open {
            return Err(ServerError::OpenToAnybody { address });
        }
        let access = match self.access {
            Some(access) => access,
            None => access_by_new_token(address)?,
        };
        let inner: Arc<dyn RunQueue> = match self.queue {
            Some(queue) => queue,
            None => Arc::new(SqliteStore::open(PathBuf::from(DEFAULT_STORE))?),
        };
        let queue = Arc::new(ServedQueue::new(inner));
        let stop = self.stop.token.clone();
        let state = Arc::new(ServerState {
            watch: Arc::new(StoreWatch::new(queue.clone())),
            queue: queue.clone(),
            catalogue: AgentCatalogue::of_registry(&self.registry),
            access,
            prices: self.prices,
            spending: Arc::default(),
            metrics: ServerMetrics::default(),
            request_limiter: RateLimiter::new(self.limits.requests_per_second),
            failure_limiter: RateLimiter::new(MAX_FAILURES_PER_SECOND),
            stream_slots: Arc::new(Semaphore::new(self.limits.streams)),
            person_streams: Default::default(),
            limits: self.limits,
            looks: Default::default(),
            live_text: LiveText::default(),
            recent_requests: RecentRequests::default(),
            uploads: Default::default(),
            logins: Default::default(),
            preview: self.preview,
            live_journals: self.live_journals,
            hosts: self.hosts,
            address,
            stop: stop.clone(),
        });
        let router = make_router(&state, self.limits.body_bytes);
        let watching = tokio::spawn(state.watch.clone().run(stop.clone()));
        let watched = state.clone();
        let worker = Worker::new(queue, self.registry)
            .concurrency(self.limits.concurrent_runs)
            .event_watcher(move |run, event| {
                watched.metrics.observe(event);
                watched.live_text.publish(run, event);
            });
        let worker_stop = worker.stop_handle();
        let is_driving = self.limits.concurrent_runs > 0;
        let mut working = is_driving.then(|| tokio::spawn(worker.run()));
        let mut accepting = std::pin::pin!(accept_connections(listener, router, self.limits, stop.clone()));
        // A server without its worker would accept runs that nobody drives.
        let worked = tokio::select! {
            () = &mut accepting => {
                worker_stop.drain();
                OptionFuture::from(working).await
            }
            Some(worked) = OptionFuture::from(working.as_mut()) => {
                tracing::error!("the server stops: its worker has ended");
                stop.cancel();
                accepting.await;
                Some(worked)
            }
        };
        watching.await.ok();
        match worked {
            None | Some(Ok(Ok(_))) => Ok(()),
            Some(Ok(Err(error))) => Err(error.into()),
            Some(Err(_)) => Err(ServerError::WorkerEnded),
        }
    }
}

/// Makes a token for the one user of this machine and prints it. Only who started the program sees it.
fn access_by_new_token(address: SocketAddr) -> Result<AccessPolicy, ServerError> {
    let user = std::env::var("USER").ok().filter(|name| !name.is_empty());
    let token = new_access_token().map_err(ServerError::Token)?;
    let text = format!(
        "windlass: serving on http://{address}\nwindlass: token of this server, shown once: {token}\n"
    );
    std::io::stderr().write_all(text.as_bytes()).map_err(ServerError::Token)?;
    let user = user.unwrap_or_else(|| "local".to_owned());
    let digest = TokenDigest::of_token(&token);
    Ok(AccessPolicy::default().with_person(user, digest, [("*", AccessRole::Administer)]))
}

/// Makes the router of the server, with its guard.
fn make_router(state: &Arc<ServerState>, body_bytes: usize) -> Router {
    Router::new()
        .merge(api::api_router())
        .merge(compat::compat_router())
        .merge(pages::page_router())
        .fallback(api::not_found)
        .method_not_allowed_fallback(api::method_not_allowed)
        .layer(DefaultBodyLimit::max(body_bytes))
        .layer(axum::Extension(BodyTimeout(state.limits.body_timeout)))
        .layer(from_fn_with_state(state.clone(), guard_request))
        .with_state(state.clone())
}

/// The state of a running server, without the context types of its agents.
pub(crate) struct ServerState {
    pub(crate) queue: Arc<ServedQueue>,
    pub(crate) watch: Arc<StoreWatch>,
    pub(crate) catalogue: AgentCatalogue,
    pub(crate) access: AccessPolicy,
    pub(crate) prices: Arc<PriceList>,
    pub(crate) spending: Arc<SpendingCache>,
    pub(crate) metrics: ServerMetrics,
    pub(crate) request_limiter: RateLimiter,
    pub(crate) failure_limiter: RateLimiter,
    pub(crate) stream_slots: Arc<Semaphore>,
    pub(crate) person_streams: api::PersonStreams,
    pub(crate) limits: ServerLimits,
    pub(crate) looks: api::CallLooks,
    pub(crate) live_text: LiveText,
    pub(crate) recent_requests: RecentRequests,
    pub(crate) uploads: pages::UploadShelf,
    pub(crate) logins: LoginSessions,
    pub(crate) preview: Option<PreviewFunction>,
    pub(crate) live_journals: Option<PathBuf>,
    hosts: Vec<String>,
    address: SocketAddr,
    pub(crate) stop: CancellationToken,
}

impl ServerState {
    /// Returns true if only this machine reaches the server without a proxy.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.address.ip().is_loopback()
    }

    /// Returns true if the server answers for the host of a request.
    pub(crate) fn is_own_host(&self, host: &str) -> bool {
        let name = host_name(host);
        let is_loopback = match name.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        };
        (is_loopback && self.address.ip().is_loopback())
            || name.parse::<IpAddr>().is_ok_and(|address| address == self.address.ip())
            || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Returns the agent that the first record of a stored run names.
    pub(crate) async fn load_first_agent(&self, run: &RunId) -> Result<Option<AgentName>, StoreError> {
        #[derive(Deserialize)]
        struct StartLine {
            run_started: StartAgent,
        }
        #[derive(Deserialize)]
        struct StartAgent {
            agent: AgentName,
        }
        let lines = self.queue.load_journal_page(run, 0, 1).await?;
        let Some(line) = lines.first() else { return Ok(None) };
        let start: Option<StartLine> = serde_json::from_str(&line.body).ok();
        Ok(start.map(|start| start.run_started.agent))
    }

    /// Returns the time of a record in milliseconds since 1970; 0 if there is no such record.
    pub(crate) async fn record_time(&self, run: &RunId, seq: u64) -> Result<u64, StoreError> {
        #[derive(Deserialize)]
        struct TimedLine {
            at: Timestamp,
        }
        let lines = self.queue.load_journal_page(run, seq, 1).await?;
        let line = lines.first().and_then(|line| serde_json::from_str::<TimedLine>(&line.body).ok());
        Ok(line.map_or(0, |line| line.at.0))
    }

    /// Puts a stored run into the queue for a tenant, unless it is there. Returns the run if it was there.
    pub(crate) async fn ensure_queued(
        &self,
        run: &RunId,
        agent: &AgentName,
        tenant: &str,
    ) -> Result<Option<QueuedRun>, ApiError> {
        let queued = self.queue.load_queued_run(run).await?;
        if queued.is_none() {
            let submission = RunSubmission::new(run.clone(), agent.clone(), Vec::<Arc<Item>>::new());
            self.queue.submit_run(&submission.tenant(tenant), wall_clock_now()).await?;
        }
        Ok(queued)
    }

    /// Returns the calls of a run that wait.
    pub(crate) async fn pending_items(&self, run: &RunId) -> Result<Vec<InboxItem>, ApiError> {
        let snapshot = self.watch.snapshot().await?;
        let of_run = snapshot.entries.iter().filter(|entry| entry.run == *run);
        Ok(of_run.map(|entry| inbox_item(self, entry)).collect())
    }

    /// Returns the number of calls that wait and that a person may see, and a page of them.
    pub(crate) async fn inbox_page(
        &self,
        person: &PersonIdentity,
        skip: usize,
        limit: usize,
    ) -> Result<(usize, Vec<InboxItem>), ApiError> {
        let snapshot = self.watch.snapshot().await?;
        let visible: Vec<_> =
            snapshot.entries.iter().filter(|entry| person.may(AccessRole::View, &entry.root_agent)).collect();
        let page = visible.iter().skip(skip).take(limit);
        Ok((visible.len(), page.map(|entry| inbox_item(self, entry)).collect()))
    }
}

/// Returns the name in a host header, without the port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Returns the time of the wall clock.
pub(crate) fn wall_clock_now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
