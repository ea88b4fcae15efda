//! A small HTTP/1.1 client: requests to one provider over connections that are kept. It does not follow
//! redirects and knows no cookies, and says of every failure whether the request may have reached the server.

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

pub(crate) use connect::Target;

/// How many idle connections are kept.
const KEPT: usize = 64;
/// How long an idle connection is kept.
const KEPT_FOR: Duration = Duration::from_secs(50);
/// How long ago a connection must have been used for a request that cannot be sent twice: a server that closes it
/// meanwhile would leave in doubt whether the request arrived.
const FRESH: Duration = Duration::from_secs(2);
/// How long the end of an answer that is complete already is waited for, so that its connection can be kept.
const TAIL: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// Nothing was sent.
    #[error("{0}")]
    Unreachable(String),
    /// The connection ended; the request may have arrived.
    #[error("the connection ended: {0}")]
    Lost(String),
    /// It took too long; the request may have arrived.
    #[error("nothing came for {} seconds", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The answer is longer than is read.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// Whether a request may be sent twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// It changes nothing that another request stands on.
    Safe,
    /// It moves a conversation on that the provider holds.
    Unsafe,
}

/// Requests to one server.
#[derive(Debug)]
pub(crate) struct HttpClient {
    target: Target,
    connect_within: Duration,
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    sender: SendRequest<Whole>,
    since: Instant,
}

impl HttpClient {
    pub(crate) fn new(target: Target, connect_within: Duration) -> Self {
        Self { target, connect_within, idle: Mutex::default() }
    }

    /// Posts `body` and gives the head of the answer, within `limit`.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        replay: Replay,
        limit: Duration,
    ) -> Result<(Response<()>, LiveBody<'_>), HttpError> {
        let until = Instant::now() + limit;
        let mut request = self.request(path, headers, body)?;
        // One that has just been read to its end may need a moment; one that was closed says so.
        if let Some(mut sender) = self.kept(replay)
            && let Ok(Ok(())) = timeout_at(until, sender.ready()).await
        {
            match timeout_at(until, sender.try_send_request(request)).await {
                Err(_) => return Err(HttpError::TimedOut(limit)),
                Ok(Ok(response)) => return Ok(self.answered(sender, response)),
                Ok(Err(mut error)) => match error.take_message() {
                    // The server had closed it: nothing was sent.
                    Some(unsent) => request = unsent,
                    None => return Err(HttpError::Lost(deepest(&error.into_error()))),
                },
            }
        }
        let connecting = connect::open(&self.target);
        let mut sender = timeout(self.connect_within, connecting).await.map_err(|_| {
            let seconds = self.connect_within.as_secs_f32();
            HttpError::Unreachable(format!("no connection within {seconds} seconds"))
        })??;
        match timeout_at(until, sender.try_send_request(request)).await {
            Err(_) => Err(HttpError::TimedOut(limit)),
            Ok(Ok(response)) => Ok(self.answered(sender, response)),
            Ok(Err(mut error)) => Err(match error.take_message() {
                Some(_) => HttpError::Unreachable(deepest(&error.into_error())),
                None => HttpError::Lost(deepest(&error.into_error())),
            }),
        }
    }

    fn request(&self, path: &str, headers: &HeaderMap, body: Bytes) -> Result<Request<Whole>, HttpError> {
        let path = format!("{}{path}", self.target.prefix);
        let uri: Uri = path.parse().map_err(|error| HttpError::Unreachable(format!("`{path}`: {error}")))?;
        let mut request = Request::post(uri)
            .body(Whole(Some(body)))
            .map_err(|error| HttpError::Unreachable(error.to_string()))?;
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(HOST, self.target.host_header.clone());
        Ok(request)
    }

    fn kept(&self, replay: Replay) -> Option<SendRequest<Whole>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        idle.retain(|kept| now.duration_since(kept.since) < KEPT_FOR && !kept.sender.is_closed());
        let freshest = idle.last()?;
        let is_fresh = replay == Replay::Safe || now.duration_since(freshest.since) < FRESH;
        if is_fresh { idle.pop().map(|kept| kept.sender) } else { None }
    }

    fn keep(&self, sender: SendRequest<Whole>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT && !sender.is_closed() {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }

    fn answered(
        &self,
        sender: SendRequest<Whole>,
        response: Response<Incoming>,
    ) -> (Response<()>, LiveBody<'_>) {
        let (head, incoming) = response.into_parts();
        let body = LiveBody { client: self, sender: Some(sender), incoming };
        (Response::from_parts(head, ()), body)
    }
}

/// The body of an answer as it comes. Once it was read to its end, its connection is kept.
pub(crate) struct LiveBody<'a> {
    client: &'a HttpClient,
    sender: Option<SendRequest<Whole>>,
    incoming: Incoming,
}

impl LiveBody<'_> {
    /// The next piece; none at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            match poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx)).await {
                None => {
                    if let Some(sender) = self.sender.take() {
                        self.client.keep(sender);
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
                Some(Err(error)) => return Err(HttpError::Lost(deepest(&error))),
            }
        }
    }

    /// Reads what is left of an answer that is complete already.
    pub(crate) async fn drain(mut self) {
        let rest = async { while let Ok(Some(_)) = self.chunk().await {} };
        // Whatever comes of it: the answer is there, and a connection that is not kept is no loss.
        let _ = timeout(TAIL, rest).await;
    }
}

/// A request's body, in one piece.
#[derive(Debug)]
pub(crate) struct Whole(Option<Bytes>);

impl hyper::body::Body for Whole {
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

/// The words of an error, with those of its causes that say more.
fn deepest(error: &dyn std::error::Error) -> String {
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
