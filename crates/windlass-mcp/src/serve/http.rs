//! The streamable HTTP transport of the server.
//!
//! **Invariant:** serving ends only when the application says so. Too many connections, streams, sessions or
//! descriptors cost the clients that cause them first, and everything recovers when they go away.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::common::http_header::HEADER_SESSION_ID;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::handler::McpServerHandler;
use super::http_auth::{McpAuthRefusal, McpClientIdentity, McpHttpRequest};
use super::http_connections::{ConnectionTable, OpenConnection, TrackedBody};
use super::http_sessions::{BoundedSessionManager, SessionLimits};
use super::{McpServeError, McpServer, SharedMcpServer};

/// Maximum size of a request body, in bytes.
const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// Maximum time for the head of a request, also of the next one on the same connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for the application's authentication.
const AUTH_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait after a failed accept, in which other connections may close.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Interval in which idle sessions are closed, unless their timeout is shorter.
const SESSION_SWEEP: Duration = Duration::from_secs(30);

/// The limits of serving over HTTP. A client is an authenticated identity, or else an IP address.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HttpLimits {
    /// Maximum number of connections. Above it, the oldest idle connection is closed, or else the oldest stream of
    /// messages; if all of them have requests, further ones wait. Default: 512.
    pub max_connections: usize,
    /// Maximum number of requests of one client at the same time; further ones are refused with status 429. A client
    /// may never have more requests than there are connections without one, so that some are left for others.
    /// Default: 256.
    pub max_requests_per_client: usize,
    /// Maximum number of streams of messages (GET) of one client; above it, its oldest one is closed. Default: 64.
    pub max_streams_per_client: usize,
    /// Maximum number of sessions of legacy clients; above it, the oldest idle one is closed, and if none is idle, new
    /// ones are refused with status 503. Default: 4096.
    pub max_sessions: usize,
    /// Maximum number of sessions of one client; above it, its oldest idle one is closed. Default: 1024.
    pub max_sessions_per_client: usize,
    /// Time without an open request or stream after which a session is closed. Default: 30 minutes.
    pub session_idle_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_connections: 512,
            max_requests_per_client: 256,
            max_streams_per_client: 64,
            max_sessions: 4096,
            max_sessions_per_client: 1024,
            session_idle_timeout: Duration::from_secs(30 * 60),
        }
    }
}

type HttpBody = BoxBody<Bytes, Infallible>;

/// The HTTP service of all connections.
struct HttpServer<C: Send + Sync + 'static> {
    server: Arc<SharedMcpServer<C>>,
    service: StreamableHttpService<McpServerHandler<C>, BoundedSessionManager>,
    sessions: Arc<BoundedSessionManager>,
    connections: ConnectionTable,
    limits: HttpLimits,
}

impl<C: Send + Sync + 'static> McpServer<C> {
    /// Serves clients over streamable HTTP until `stop` completes, on every path of the listener's address.
    ///
    /// Only requests with a loopback `Host`, or one of [`McpServer::allowed_hosts`], are accepted, and browser requests
    /// only with a loopback `Origin` of the same port. To serve remote clients, set [`McpServer::authenticate`] and put
    /// a TLS proxy in front.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener has no address.
    pub async fn serve_http(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), McpServeError> {
        let served = Arc::new(self.into_shared());
        let stopping = CancellationToken::new();
        let _stopped = stopping.clone().drop_guard();
        let port = listener.local_addr()?.port();
        let limits = served.http_limits;
        let mut config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stopping.clone())
            .with_allowed_origins(
                ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:{port}")),
            )
            .enforce_origin_validation();
        config.allowed_hosts.extend(served.allowed_hosts.iter().cloned());
        let sessions = Arc::new(BoundedSessionManager::new(SessionLimits {
            max_sessions: limits.max_sessions,
            max_per_client: limits.max_sessions_per_client,
            idle_timeout: limits.session_idle_timeout,
        }));
        let handlers = served.clone();
        let service = StreamableHttpService::new(
            move || Ok(McpServerHandler::new(handlers.clone())),
            sessions.clone(),
            config,
        );
        let http = Arc::new(HttpServer {
            server: served,
            service,
            sessions,
            connections: ConnectionTable::default(),
            limits,
        });
        tokio::select! {
            () = stop => {}
            () = http.clone().accept_connections(listener, stopping.clone()) => {}
            () = http.sweep_sessions() => {}
        }
        Ok(())
    }
}

impl<C: Send + Sync + 'static> HttpServer<C> {
    async fn sweep_sessions(&self) {
        let mut sweeps =
            tokio::time::interval(self.limits.session_idle_timeout.min(SESSION_SWEEP).max(ACCEPT_BACKOFF));
        loop {
            sweeps.tick().await;
            self.sessions.close_idle().await;
        }
    }

    async fn accept_connections(self: Arc<Self>, listener: TcpListener, stopping: CancellationToken) {
        loop {
            // A closed connection leaves the table when its task ends.
            while self.connections.len() >= self.limits.max_connections && !self.connections.close_one() {
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, or a connection that was reset before it was accepted.
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.connections.close_one();
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            tokio::spawn(self.clone().serve_connection(stream, address, stopping.clone()));
        }
    }

    async fn serve_connection(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        stopping: CancellationToken,
    ) {
        let _slow = stream.set_nodelay(true);
        let open = Arc::new(self.connections.open(address.ip().to_string().into()));
        let close = open.close.clone();
        let service = service_fn(move |request| {
            let (http, open) = (self.clone(), open.clone());
            async move { Ok::<_, Infallible>(http.handle(request, &open, address).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            () = stopping.cancelled() => {}
            () = close.cancelled() => {}
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
            }
        }
    }

    async fn handle(
        &self,
        request: Request<Incoming>,
        open: &OpenConnection,
        address: SocketAddr,
    ) -> Response<TrackedBody<HttpBody>> {
        let is_stream = request.method() == Method::GET;
        let identity = match self.authenticate(&request, address).await {
            Ok(identity) => identity,
            Err(refusal) => return untracked(refusal_response(&refusal)),
        };
        let client = match &identity {
            Some(identity) => identity.shared_name(),
            None => address.ip().to_string().into(),
        };
        open.set_client(&client);
        let limits = &self.limits;
        let in_use = match is_stream {
            true => open.begin_stream(&client, limits.max_streams_per_client),
            false => open.begin_request(&client, limits.max_requests_per_client, limits.max_connections),
        };
        let Some(in_use) = in_use else {
            return untracked(later_response(
                StatusCode::TOO_MANY_REQUESTS,
                "too many requests at the same time",
            ));
        };
        let response = self.respond(request, identity, &client).await;
        response.map(|body| TrackedBody { body, in_use: Some(in_use) })
    }

    async fn authenticate(
        &self,
        request: &Request<Incoming>,
        peer_address: SocketAddr,
    ) -> Result<Option<McpClientIdentity>, McpAuthRefusal> {
        let Some(authenticate) = &self.server.authenticator else { return Ok(None) };
        let head = McpHttpRequest {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            headers: request.headers().clone(),
            peer_address,
        };
        match tokio::time::timeout(AUTH_TIMEOUT, authenticate(head)).await {
            Ok(answer) => answer.map(Some),
            Err(_) => Err(McpAuthRefusal::Forbidden),
        }
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        identity: Option<McpClientIdentity>,
        client: &Arc<str>,
    ) -> Response<HttpBody> {
        let session = request.headers().get(HEADER_SESSION_ID).and_then(|id| id.to_str().ok());
        let has_session = session.is_some();
        if session.is_some_and(|id| identity.is_some() && !self.sessions.belongs_to(id, client)) {
            return text_response(StatusCode::NOT_FOUND, "there is no such session");
        }
        if !has_session && !self.sessions.has_room() {
            return later_response(StatusCode::SERVICE_UNAVAILABLE, "too many sessions");
        }
        let (mut parts, body) = request.into_parts();
        if let Some(identity) = identity {
            parts.extensions.insert(identity);
        }
        let collecting = Limited::new(body, MAX_BODY_BYTES).collect();
        let body = match tokio::time::timeout(BODY_TIMEOUT, collecting).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                return text_response(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
            }
            Ok(Err(_)) => return text_response(StatusCode::BAD_REQUEST, "the body cannot be read"),
            Err(_) => return text_response(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        };
        let response = self.service.handle(Request::from_parts(parts, Full::new(body))).await;
        if !has_session
            && let Some(id) = response.headers().get(HEADER_SESSION_ID).and_then(|id| id.to_str().ok())
        {
            self.sessions.set_client(id, client).await;
        }
        response
    }
}

fn untracked(response: Response<HttpBody>) -> Response<TrackedBody<HttpBody>> {
    response.map(|body| TrackedBody { body, in_use: None })
}

fn text_response(status: StatusCode, text: &'static str) -> Response<HttpBody> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

fn later_response(status: StatusCode, text: &'static str) -> Response<HttpBody> {
    let mut response = text_response(status, text);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

fn refusal_response(refusal: &McpAuthRefusal) -> Response<HttpBody> {
    match refusal {
        McpAuthRefusal::Unauthenticated { challenge } => {
            let mut response = text_response(StatusCode::UNAUTHORIZED, "this server requires authorisation");
            let challenge = HeaderValue::try_from(challenge).unwrap_or(HeaderValue::from_static("Bearer"));
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            response
        }
        McpAuthRefusal::Forbidden => text_response(StatusCode::FORBIDDEN, "this is not allowed"),
    }
}
