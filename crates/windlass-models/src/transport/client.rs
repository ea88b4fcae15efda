//! The HTTP client: HTTP/1.1 and HTTP/2 with a pool of connections. It does not follow redirects and has no cookies.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Request, Response, Uri};
use tokio::time::{Instant, timeout, timeout_at};

use super::connect::{OpenConnection, open_connection};
use super::proxy::{ProxyRules, ProxyServer};
use super::{BoxFuture, HttpTransport, TransportBody, TransportError, TransportOptions, error_chain_text};
use crate::protocol::ReplaySafety;

/// Maximum number of idle HTTP/1.1 connections to one server in the pool.
const MAX_IDLE_CONNECTIONS: usize = 64;
/// Maximum time that a connection stays idle in the pool.
const IDLE_CONNECTION_TTL: Duration = Duration::from_secs(50);
/// Maximum idle time of a connection that is reused for a request that must not be replayed. If the server closed
/// an older connection, it would be unknown whether the request arrived.
const UNSAFE_REUSE_WINDOW: Duration = Duration::from_secs(2);

/// The versions of HTTP that a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersionPolicy {
    /// HTTP/2 over TLS if the server offers it, otherwise HTTP/1.1.
    #[default]
    Negotiated,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, also without TLS.
    Http2,
}

/// An HTTP client with a pool of connections. Clones share the pool, so one client can serve all providers.
///
/// Proxies are those of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`. Addresses of this machine are
/// reached without a proxy.
#[derive(Clone)]
pub struct HttpClient {
    proxies: Arc<ProxyRules>,
    version: HttpVersionPolicy,
    pools: Arc<Mutex<BTreeMap<String, ServerPool>>>,
}

/// The connections to one server.
#[derive(Default)]
struct ServerPool {
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

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpClient {
    /// Creates a client with the proxies of this process's environment.
    pub fn new() -> Self {
        Self::with_proxy_vars(|name| std::env::var(name).ok())
    }

    /// Creates a client with the proxies of the variables that `var` returns.
    pub fn with_proxy_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            proxies: Arc::new(ProxyRules::from_vars(var)),
            version: HttpVersionPolicy::default(),
            pools: Arc::default(),
        }
    }

    /// Sets the versions of HTTP. The client has a pool of its own afterwards.
    #[must_use]
    pub fn version(mut self, version: HttpVersionPolicy) -> Self {
        self.version = version;
        self.pools = Arc::default();
        self
    }

    async fn send_request(
        &self,
        request: Request<Bytes>,
        options: TransportOptions,
    ) -> Result<Response<Box<dyn TransportBody>>, TransportError> {
        let until = Instant::now() + options.head_timeout;
        let proxy = self.proxies.find(request.uri())?;
        let server = server_name(request.uri());
        let mut request = prepare_request(request)?;
        if let Some(pooled) = self.take_pooled(&server, options.replay_safety) {
            match self.try_send(pooled, request, proxy.as_ref(), &server, until, options.head_timeout).await {
                Ok(response) => return Ok(response),
                // The server had closed the connection; nothing was sent.
                Err(SendFailure::Unsent(unsent, _)) => request = *unsent,
                Err(SendFailure::Failed(error)) => return Err(error),
            }
        }
        let connecting = open_connection(request.uri(), proxy.as_ref(), self.version);
        let connection = timeout(options.connect_timeout, connecting).await.map_err(|_| {
            let seconds = options.connect_timeout.as_secs_f32();
            TransportError::Unreachable(format!("no connection within {seconds} seconds"))
        })??;
        self.try_send(connection, request, proxy.as_ref(), &server, until, options.head_timeout)
            .await
            .map_err(|failure| match failure {
                // The server of a fresh connection spoke first, as HTTP/2 does.
                SendFailure::Unsent(_, why) if why.contains("unexpected message") => {
                    other_protocol_error(&why)
                }
                SendFailure::Unsent(_, why) => TransportError::Unreachable(why),
                SendFailure::Failed(error) => error,
            })
    }

    async fn try_send(
        &self,
        connection: OpenConnection,
        request: Request<OutgoingBody>,
        proxy: Option<&ProxyServer>,
        server: &str,
        until: Instant,
        limit: Duration,
    ) -> Result<Response<Box<dyn TransportBody>>, SendFailure> {
        match connection {
            OpenConnection::Http1(mut sender) => {
                // A connection whose body was just drained may need a moment; a closed one fails here.
                match timeout_at(until, sender.ready()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        return Err(SendFailure::Unsent(Box::new(request), error_chain_text(&error)));
                    }
                    Err(_) => return Err(SendFailure::Failed(TransportError::TimedOut(limit))),
                }
                let original = request.uri().clone();
                let request = to_http1_form(request, proxy);
                let sent = timeout_at(until, sender.try_send_request(request)).await;
                let response = sent_response(sent, limit).map_err(|failure| failure.with_uri(original))?;
                Ok(response.map(|incoming| {
                    let lease = Some((self.clone(), server.to_owned(), sender));
                    Box::new(IncomingBody { lease, incoming }) as Box<dyn TransportBody>
                }))
            }
            OpenConnection::Http2(mut sender) => {
                self.share_http2(server, &sender);
                let sent = timeout_at(until, sender.try_send_request(request)).await;
                if sent.is_err() {
                    // The connection may be dead; later requests open another.
                    self.forget_http2(server);
                }
                let response = sent_response(sent, limit)?;
                self.share_http2(server, &sender);
                Ok(response.map(|incoming| {
                    Box::new(IncomingBody { lease: None, incoming }) as Box<dyn TransportBody>
                }))
            }
        }
    }

    fn take_pooled(&self, server: &str, replay: ReplaySafety) -> Option<OpenConnection> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.get_mut(server)?;
        let now = Instant::now();
        let is_fresh =
            |since: Instant| replay == ReplaySafety::Safe || now.duration_since(since) < UNSAFE_REUSE_WINDOW;
        pool.http2.take_if(|shared| {
            shared.sender.is_closed() || now.duration_since(shared.last_used) >= IDLE_CONNECTION_TTL
        });
        if let Some(shared) = &pool.http2
            && is_fresh(shared.last_used)
        {
            return Some(OpenConnection::Http2(shared.sender.clone()));
        }
        pool.idle_http1.retain(|kept| {
            now.duration_since(kept.idle_since) < IDLE_CONNECTION_TTL && !kept.sender.is_closed()
        });
        let freshest = pool.idle_http1.last()?;
        if is_fresh(freshest.idle_since) {
            pool.idle_http1.pop().map(|kept| OpenConnection::Http1(kept.sender))
        } else {
            None
        }
    }

    fn share_http2(&self, server: &str, sender: &http2::SendRequest<OutgoingBody>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(server.to_owned()).or_default();
        pool.http2 = Some(SharedConnection { sender: sender.clone(), last_used: Instant::now() });
    }

    fn forget_http2(&self, server: &str) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get_mut(server) {
            pool.http2 = None;
        }
    }

    fn return_idle(&self, server: &str, sender: http1::SendRequest<OutgoingBody>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(server.to_owned()).or_default();
        if pool.idle_http1.len() < MAX_IDLE_CONNECTIONS && !sender.is_closed() {
            pool.idle_http1.push(IdleConnection { sender, idle_since: Instant::now() });
        }
    }
}

impl HttpTransport for HttpClient {
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
        options: TransportOptions,
    ) -> BoxFuture<'a, Result<Response<Box<dyn TransportBody>>, TransportError>> {
        Box::pin(self.send_request(request, options))
    }
}

/// The failure to send a request.
enum SendFailure {
    /// The request was not sent.
    Unsent(Box<Request<OutgoingBody>>, String),
    Failed(TransportError),
}

impl SendFailure {
    /// Restores the absolute URI of a request that was not sent.
    fn with_uri(mut self, uri: Uri) -> Self {
        if let Self::Unsent(request, _) = &mut self {
            *request.uri_mut() = uri;
        }
        self
    }
}

type SendResult = Result<Response<Incoming>, TrySendError<Request<OutgoingBody>>>;

fn sent_response(
    sent: Result<SendResult, tokio::time::error::Elapsed>,
    limit: Duration,
) -> Result<Response<Incoming>, SendFailure> {
    let mut error = match sent {
        Err(_) => return Err(SendFailure::Failed(TransportError::TimedOut(limit))),
        Ok(Ok(response)) => return Ok(response),
        Ok(Err(error)) => error,
    };
    let unsent = error.take_message();
    let error = error.into_error();
    let text = error_chain_text(&error);
    Err(match unsent {
        Some(request) => SendFailure::Unsent(Box::new(request), text),
        None if error.is_parse() => SendFailure::Failed(other_protocol_error(&text)),
        None => SendFailure::Failed(TransportError::ConnectionLost(text)),
    })
}

fn other_protocol_error(why: &str) -> TransportError {
    TransportError::Unusable(format!(
        "the server does not speak HTTP/1.1: {why}; hint: for HTTP/2 without TLS set `HttpVersionPolicy::Http2`"
    ))
}

/// Returns the part of an address that identifies a server.
fn server_name(address: &Uri) -> String {
    let authority = address.authority().map(|authority| authority.as_str()).unwrap_or_default();
    format!("{}://{authority}", address.scheme_str().unwrap_or_default())
}

fn prepare_request(request: Request<Bytes>) -> Result<Request<OutgoingBody>, TransportError> {
    if request.uri().authority().is_none() {
        return Err(TransportError::Unusable(format!("`{}` is not an absolute address", request.uri())));
    }
    Ok(request.map(|body| OutgoingBody(Some(body))))
}

/// Returns a request in the form of HTTP/1.1: with a host header, and with the absolute address only for a proxy.
fn to_http1_form(mut request: Request<OutgoingBody>, proxy: Option<&ProxyServer>) -> Request<OutgoingBody> {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    if let Some(host) = authority.and_then(|authority| HeaderValue::from_str(&authority).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    match proxy {
        Some(proxy) if request.uri().scheme_str() == Some("http") => {
            if let Some(authorization) = &proxy.authorization {
                request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
            }
        }
        _ => {
            let target = request.uri().path_and_query().cloned();
            *request.uri_mut() = target.map(Uri::from).unwrap_or_default();
        }
    }
    request
}

/// The body of a response from the network. Reading it to the end returns an HTTP/1.1 connection to the pool.
struct IncomingBody {
    lease: Option<(HttpClient, String, http1::SendRequest<OutgoingBody>)>,
    incoming: Incoming,
}

impl TransportBody for IncomingBody {
    fn next_chunk(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, TransportError>> {
        Box::pin(async move {
            loop {
                match poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx)).await {
                    None => {
                        if let Some((client, server, sender)) = self.lease.take() {
                            client.return_idle(&server, sender);
                        }
                        return Ok(None);
                    }
                    Some(Ok(frame)) => {
                        if let Ok(bytes) = frame.into_data()
                            && !bytes.is_empty()
                        {
                            return Ok(Some(bytes));
                        }
                    }
                    Some(Err(error)) => {
                        return Err(TransportError::ConnectionLost(error_chain_text(&error)));
                    }
                }
            }
        })
    }
}

/// A request body in one piece.
#[derive(Debug)]
pub(super) struct OutgoingBody(Option<Bytes>);

impl hyper::body::Body for OutgoingBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
