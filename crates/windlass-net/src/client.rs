//! The HTTP client: HTTP/1.1 and HTTP/2 with a pool of connections. It does not follow redirects and has no cookies.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::{TrySendError, http1};
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::time::{Instant, timeout, timeout_at};

use crate::address::AddressGuard;
use crate::connect::{OpenConnection, open_connection};
use crate::dial::{NetworkDialer, PlainAddresses, ServerRoute};
use crate::pool::ConnectionPool;
use crate::proxy::ProxySettings;
#[cfg(feature = "tls")]
use crate::tls::TrustedRoots;
use crate::transport::{
    BoxFuture, HttpTransport, ReplaySafety, TransportBody, TransportError, TransportOptions, error_chain_text,
};

/// Longest time limit that is waited for: a longer one never ends in practice.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

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
/// It uses the proxies of this process's environment unless [`HttpClient::proxies`] sets others. A request that fails
/// on a reused connection is sent again once, on a new connection, if nothing of it was sent or its
/// [`ReplaySafety`] allows it.
#[derive(Clone)]
pub struct HttpClient {
    dialer: NetworkDialer,
    version: HttpVersionPolicy,
    pool: ConnectionPool,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("version", &self.version)
            .field("dialer", &self.dialer)
            .finish_non_exhaustive()
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
        Self::with_dialer(NetworkDialer::new())
    }

    /// Creates a client that opens its connections with `dialer`.
    pub fn with_dialer(dialer: NetworkDialer) -> Self {
        Self { dialer, version: HttpVersionPolicy::default(), pool: ConnectionPool::default() }
    }

    /// Sets the proxies, in place of those of the environment. The client has a pool of its own afterwards.
    #[must_use]
    pub fn proxies(self, proxies: ProxySettings) -> Self {
        Self { dialer: self.dialer.proxies(proxies), pool: ConnectionPool::default(), ..self }
    }

    /// Sets a guard: connections are made only to addresses that it admits. The client has a pool of its own
    /// afterwards.
    #[must_use]
    pub fn address_guard(self, guard: AddressGuard) -> Self {
        Self { dialer: self.dialer.address_guard(guard), pool: ConnectionPool::default(), ..self }
    }

    /// Sets the trusted certificates, in place of those of the machine. The client has a pool of its own afterwards.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn trusted_roots(self, roots: TrustedRoots) -> Self {
        Self { dialer: self.dialer.trusted_roots(roots), pool: ConnectionPool::default(), ..self }
    }

    /// Sets the versions of HTTP. The client has a pool of its own afterwards.
    #[must_use]
    pub fn version(self, version: HttpVersionPolicy) -> Self {
        Self { version, pool: ConnectionPool::default(), ..self }
    }

    async fn send_request(
        &self,
        request: Request<Bytes>,
        options: TransportOptions,
    ) -> Result<Response<Box<dyn TransportBody>>, TransportError> {
        let until = Instant::now() + options.head_timeout.min(MAX_TIMEOUT);
        // A forward proxy speaks HTTP/1.1.
        let plain = match self.version {
            HttpVersionPolicy::Http2 => PlainAddresses::Tunnelled,
            HttpVersionPolicy::Negotiated | HttpVersionPolicy::Http1 => PlainAddresses::Forwarded,
        };
        let route = self.dialer.find_route(request.uri(), plain)?;
        let server = server_name(request.uri());
        let mut request = to_outgoing(request)?;
        if let Some(pooled) = self.pool.take(&server, options.replay_safety) {
            let copy = (options.replay_safety == ReplaySafety::Safe).then(|| request.clone());
            match self.try_send(pooled, request, &route, &server, until, options.head_timeout).await {
                Ok(response) => return Ok(response),
                // The server had closed the connection; nothing was sent.
                Err(SendFailure::Unsent(unsent, _)) => request = *unsent,
                Err(SendFailure::Failed(error)) => match (error, copy) {
                    // The server closed the connection while the request was on its way. It may have arrived, and
                    // the caller has declared that it may be sent again.
                    (TransportError::ConnectionLost(_), Some(copy)) => request = copy,
                    (error, _) => return Err(error),
                },
            }
        }
        let connecting = open_connection(&self.dialer, request.uri(), &route, self.version);
        let connection = timeout(options.connect_timeout, connecting).await.map_err(|_| {
            let seconds = options.connect_timeout.as_secs_f32();
            let through =
                route.proxy.as_ref().map_or(String::new(), |proxy| format!(" through the proxy {proxy}"));
            TransportError::Unreachable(format!("no connection{through} within {seconds} seconds"))
        })??;
        self.try_send(connection, request, &route, &server, until, options.head_timeout).await.map_err(
            |failure| match failure {
                // The server of a fresh connection spoke first, as HTTP/2 does.
                SendFailure::Unsent(_, why) if why.contains("unexpected message") => {
                    other_protocol_error(&why)
                }
                SendFailure::Unsent(_, why) => TransportError::Unreachable(why),
                SendFailure::Failed(error) => error,
            },
        )
    }

    async fn try_send(
        &self,
        connection: OpenConnection,
        request: Request<OutgoingBody>,
        route: &ServerRoute,
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
                let request = to_http1_form(request, route);
                let sent = timeout_at(until, sender.try_send_request(request)).await;
                let response = sent_response(sent, limit).map_err(|failure| failure.with_uri(original))?;
                if let (true, Some(proxy)) = (route.is_forwarded, &route.proxy)
                    && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED
                {
                    return Err(SendFailure::Failed(proxy.login_error()));
                }
                Ok(response.map(|incoming| {
                    let lease = Some((self.pool.clone(), server.to_owned(), sender));
                    Box::new(IncomingBody { lease, incoming }) as Box<dyn TransportBody>
                }))
            }
            OpenConnection::Http2(mut sender) => {
                self.pool.share_http2(server, &sender);
                let sent = timeout_at(until, sender.try_send_request(request)).await;
                if sent.is_err() {
                    // The connection may be dead; later requests open another.
                    self.pool.forget_http2(server);
                }
                let response = sent_response(sent, limit)?;
                self.pool.share_http2(server, &sender);
                Ok(response.map(|incoming| {
                    Box::new(IncomingBody { lease: None, incoming }) as Box<dyn TransportBody>
                }))
            }
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

    fn with_address_guard(&self, guard: AddressGuard) -> Option<Arc<dyn HttpTransport>> {
        Some(Arc::new(self.clone().address_guard(guard)))
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
    TransportError::OtherProtocol(format!(
        "the server does not speak HTTP/1.1: {why}; hint: for HTTP/2 without TLS set `HttpVersionPolicy::Http2`"
    ))
}

/// Returns the part of an address that identifies a server.
fn server_name(address: &Uri) -> String {
    let authority = address.authority().map(|authority| authority.as_str()).unwrap_or_default();
    format!("{}://{authority}", address.scheme_str().unwrap_or_default())
}

fn to_outgoing(request: Request<Bytes>) -> Result<Request<OutgoingBody>, TransportError> {
    if request.uri().authority().is_some_and(|authority| authority.as_str().contains('@')) {
        let text = "the address must not contain a user name or a password; hint: send them in a header";
        return Err(TransportError::Unusable(text.to_owned()));
    }
    let has_body = !request.body().is_empty() || matches!(*request.method(), Method::POST | Method::PUT);
    Ok(request.map(|body| OutgoingBody(has_body.then_some(body))))
}

/// Returns a request in the form of HTTP/1.1: with a host header, and with the absolute address only for a proxy that
/// forwards it.
fn to_http1_form(mut request: Request<OutgoingBody>, route: &ServerRoute) -> Request<OutgoingBody> {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    if let Some(host) = authority.and_then(|authority| HeaderValue::from_str(&authority).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    match &route.proxy {
        Some(proxy) if route.is_forwarded => {
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
    lease: Option<(ConnectionPool, String, http1::SendRequest<OutgoingBody>)>,
    incoming: Incoming,
}

impl TransportBody for IncomingBody {
    fn next_chunk(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, TransportError>> {
        Box::pin(async move {
            loop {
                match poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx)).await {
                    None => {
                        if let Some((pool, server, sender)) = self.lease.take() {
                            pool.return_idle(&server, sender);
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

/// A request body in one piece, or none.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingBody(Option<Bytes>);

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
