//! The REST surface of vector stores, as the hosted service has it: a client of one works with the other.
//!
//! [`respond`] answers one request and knows no web framework; [`serve`] is a small server around it. There is no key
//! and no encryption here: listen on the loopback, or put something in front.

mod json;
mod multipart;
mod routes;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::Index;

/// How many connections are served at once; others wait.
const CONNECTIONS: usize = 256;
/// How many requests are worked on at once; others wait.
const AT_ONCE: usize = 16;
/// How much a request may be beyond a file.
const AROUND_A_FILE: u64 = 1 << 20;
/// How long a client may take for its headers.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request, as far as it matters here.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `GET`, `POST` or `DELETE`.
    pub method: String,
    /// The path, with or without `/v1`.
    pub path: String,
    /// What stands after the `?`.
    pub query: String,
    /// The header `content-type`.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status, such as 200.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

/// Answers one request. It blocks while it indexes or searches.
pub fn respond(index: &Index, request: &Request) -> Response {
    routes::respond(index, request)
}

/// Serves an index until the future is dropped. Requests that are worked on then are finished, and nobody is told.
pub async fn serve(listener: TcpListener, index: Index) -> io::Result<()> {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let work = Arc::new(Semaphore::new(AT_ONCE));
    let mut open = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return Ok(()) };
        let (socket, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The one who knocked is gone, or there are too many files open for the moment.
            Err(error) if is_passing(&error) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (index, work) = (index.clone(), work.clone());
        open.spawn(async move {
            let service = service_fn(|request| answer(index.clone(), work.clone(), request));
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(socket), service);
            // A connection that breaks is its client's affair.
            let _ = served.await;
            drop(permit);
        });
        while open.try_join_next().is_some() {}
    }
}

fn is_passing(error: &io::Error) -> bool {
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    error.kind() == io::ErrorKind::ConnectionAborted
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}

async fn answer(
    index: Index,
    work: Arc<Semaphore>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Whole>, Infallible> {
    let (head, body) = request.into_parts();
    let limit = index.file_limit().saturating_add(AROUND_A_FILE);
    let response = match collect(body, limit).await {
        Ok(body) => {
            let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
            let request = Request {
                method: head.method.as_str().to_owned(),
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                content_type: content_type.unwrap_or_default().to_owned(),
                body,
            };
            let permit = work.acquire_owned().await;
            let came = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                respond(&index, &request)
            });
            came.await.unwrap_or_else(|_| json::failure(500, "the request could not be carried out"))
        }
        Err(response) => response,
    };
    let mut answer = hyper::Response::new(Whole(Some(Bytes::from(response.body))));
    *answer.status_mut() =
        hyper::StatusCode::from_u16(response.status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    answer
        .headers_mut()
        .insert("content-type", hyper::header::HeaderValue::from_static(response.content_type));
    Ok(answer)
}

/// A request's body, within the limit.
async fn collect(body: Incoming, limit: u64) -> Result<Vec<u8>, Response> {
    let mut body = pin!(body);
    let mut whole = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let frame =
            frame.map_err(|error| json::failure(400, &format!("the body cannot be read: {error}")))?;
        if let Ok(data) = frame.into_data() {
            if (whole.len() + data.len()) as u64 > limit {
                return Err(json::failure(413, &format!("a request has {limit} bytes at most")));
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole)
}

/// A body that is there at once.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
