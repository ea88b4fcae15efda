//! A small HTTP/1.1 client for one server, with a pool of idle connections. It does not follow redirects and has
//! no cookies. Every error states whether the request may have reached the server.

mod connect;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HOST, HeaderMap};
use hyper::{Request, Response, Uri};
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use connect::HttpTarget;

/// Maximum number of idle connections in the pool.
const MAX_IDLE_CONNECTIONS: usize = 64;
/// Maximum time that a connection stays idle in the pool.
const IDLE_CONNECTION_TTL: Duration = Duration::from_secs(50);
/// Maximum idle time of a connection that is reused for a request that must not be replayed. If the server closed
/// an older connection, it would be unknown whether the request arrived.
const UNSAFE_REUSE_WINDOW: Duration = Duration::from_secs(2);
/// Maximum time to drain a complete response, so that its connection can return to the pool.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// A failure in transport.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// No connection was made; nothing was sent.
    #[error("{0}")]
    Unreachable(String),
    /// The connection broke; the request may have arrived.
    #[error("the connection ended: {0}")]
    ConnectionLost(String),
    /// No data arrived in time; the request may have arrived.
    #[error("no data for {} seconds", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The response body exceeds the limit.
    #[error("the response is longer than {0} bytes")]
    BodyTooLong(usize),
}

/// The safety of sending a request twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplaySafety {
    /// The request changes no state that other requests depend on.
    Safe,
    /// The request advances a conversation that the provider stores.
    Unsafe,
}

/// A client for one server.
#[derive(Debug)]
pub(crate) struct HttpClient {
    target: HttpTarget,
    connect_timeout: Duration,
    idle_connections: Mutex<Vec<IdleConnection>>,
}

#[derive(Debug)]
struct IdleConnection {
    sender: SendRequest<OutgoingBody>,
    idle_since: Instant,
}

impl HttpClient {
    pub(crate) fn new(target: HttpTarget, connect_within: Duration) -> Self {
        Self { target, connect_timeout: connect_within, idle_connections: Mutex::default() }
    }

    /// Sends a POST request and returns the head and the body of the response. The head must arrive within
    /// `limit`.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        replay: ReplaySafety,
        limit: Duration,
    ) -> Result<(Response<()>, IncomingBody<'_>), HttpError> {
        let until = Instant::now() + limit;
        let mut request = self.build_request(path, headers, body)?;
        // A connection whose body was just drained may need a moment; a closed one fails here.
        if let Some(mut sender) = self.take_idle(replay)
            && let Ok(Ok(())) = timeout_at(until, sender.ready()).await
        {
            match timeout_at(until, sender.try_send_request(request)).await {
                Err(_) => return Err(HttpError::TimedOut(limit)),
                Ok(Ok(response)) => return Ok(self.split_response(sender, response)),
                Ok(Err(mut error)) => match error.take_message() {
                    // The server had closed the connection; nothing was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(HttpError::ConnectionLost(error_chain_text(&error.into_error()))),
                },
            }
        }
        let connecting = connect::open_connection(&self.target);
        let mut sender = timeout(self.connect_timeout, connecting).await.map_err(|_| {
            let seconds = self.connect_timeout.as_secs_f32();
            HttpError::Unreachable(format!("no connection within {seconds} seconds"))
        })??;
        match timeout_at(until, sender.try_send_request(request)).await {
            Err(_) => Err(HttpError::TimedOut(limit)),
            Ok(Ok(response)) => Ok(self.split_response(sender, response)),
            Ok(Err(mut error)) => Err(match error.take_message() {
                Some(_) => HttpError::Unreachable(error_chain_text(&error.into_error())),
                None => HttpError::ConnectionLost(error_chain_text(&error.into_error())),
            }),
        }
    }

    fn build_request(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Request<OutgoingBody>, HttpError> {
        let path = format!("{}{path}", self.target.path_prefix);
        let uri: Uri = path.parse().map_err(|error| HttpError::Unreachable(format!("`{path}`: {error}")))?;
        let mut request = Request::post(uri)
            .body(OutgoingBody(Some(body)))
            .map_err(|error| HttpError::Unreachable(error.to_string()))?;
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(HOST, self.target.host_header.clone());
        Ok(request)
    }

    fn take_idle(&self, replay: ReplaySafety) -> Option<SendRequest<OutgoingBody>> {
        let mut idle = self.idle_connections.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        idle.retain(|kept| {
            now.duration_since(kept.idle_since) < IDLE_CONNECTION_TTL && !kept.sender.is_closed()
        });
        let freshest = idle.last()?;
        let is_fresh =
            replay == ReplaySafety::Safe || now.duration_since(freshest.idle_since) < UNSAFE_REUSE_WINDOW;
        if is_fresh { idle.pop().map(|kept| kept.sender) } else { None }
    }

    fn return_idle(&self, sender: SendRequest<OutgoingBody>) {
        let mut idle = self.idle_connections.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_CONNECTIONS && !sender.is_closed() {
            idle.push(IdleConnection { sender, idle_since: Instant::now() });
        }
    }

    fn split_response(
        &self,
        sender: SendRequest<OutgoingBody>,
        response: Response<Incoming>,
    ) -> (Response<()>, IncomingBody<'_>) {
        let (head, incoming) = response.into_parts();
        let body = IncomingBody { client: self, sender: Some(sender), incoming };
        (Response::from_parts(head, ()), body)
    }
}

/// The body of a response from the network. Reading it to the end returns its connection to the pool.
pub(crate) struct IncomingBody<'a> {
    client: &'a HttpClient,
    sender: Option<SendRequest<OutgoingBody>>,
    incoming: Incoming,
}

impl IncomingBody<'_> {
    /// Returns the next non-empty chunk, or `None` at the end of the body.
    pub(crate) async fn next_chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            match poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx)).await {
                None => {
                    if let Some(sender) = self.sender.take() {
                        self.client.return_idle(sender);
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
                Some(Err(error)) => return Err(HttpError::ConnectionLost(error_chain_text(&error))),
            }
        }
    }

    /// Reads the rest of a response that is already complete, for at most [`DRAIN_TIMEOUT`].
    pub(crate) async fn drain(&mut self) {
        let rest = async { while let Ok(Some(_)) = self.next_chunk().await {} };
        // The response is complete; a failure only costs the connection.
        let _ = timeout(DRAIN_TIMEOUT, rest).await;
    }
}

/// A request body in one piece.
#[derive(Debug)]
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

/// Returns the text of an error with the texts of its causes that it does not already contain.
fn error_chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}
