//! The REST API of vector stores, compatible with the hosted service: a client of one works with the other.
//!
//! [`respond`] answers one request, independent of any web framework and without access control; [`RestServer`] is a
//! small HTTP server around it. The server requires its API key as a bearer token, and refuses requests for other
//! hosts and from web pages of other origins, so that neither DNS rebinding nor a page in the user's browser reaches
//! it. It has no TLS: bind it to the loopback interface, or put a reverse proxy in front.

mod access;
mod json;
mod multipart;
mod paging;
mod routes;
mod uploads;

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

use self::access::AccessRules;
use crate::Index;

/// Maximum number of concurrent connections; further connections wait.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of requests processed concurrently; further requests wait.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Maximum number of MiB that the bodies of all requests have in memory; further requests wait.
const MAX_BODY_MIB: u32 = 1536;
/// Number of bytes that a request may have beyond the maximum file size.
const REQUEST_OVERHEAD_BYTES: u64 = 1 << 20;
/// Maximum time for a client to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for a client to send the first byte of a body, or the next one.
const BODY_PAUSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum number of bytes of a body that a client must send in each second, on average after the first pause.
const MIN_BODY_RATE: u64 = 16 * 1024;

/// An HTTP request, reduced to the parts that the API uses.
#[derive(Clone, Debug, Default)]
pub struct RestRequest {
    /// Method: `GET`, `POST` or `DELETE`.
    pub method: String,
    /// Path, with or without the prefix `/v1`.
    pub path: String,
    /// Query string, without the `?`.
    pub query: String,
    /// Value of the `content-type` header.
    pub content_type: String,
    /// Body of the request.
    pub body: Vec<u8>,
}

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestResponse {
    /// Status code, such as 200.
    pub status: u16,
    /// Value of the `content-type` header.
    pub content_type: &'static str,
    /// Body of the response.
    pub body: Vec<u8>,
}

/// Returns the response to a request. Blocks while it indexes or searches.
pub fn respond(index: &Index, request: &RestRequest) -> RestResponse {
    routes::route_request(index, request)
}

/// An HTTP server of an index.
///
/// ```no_run
/// # async fn run(index: windlass_search::Index) -> std::io::Result<()> {
/// use windlass_search::rest::RestServer;
///
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// let key = std::env::var("SEARCH_API_KEY").unwrap_or_default();
/// RestServer::new(index, key).serve(listener).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RestServer {
    index: Index,
    access: Arc<AccessRules>,
}

impl RestServer {
    /// Creates a server that requires this API key, as `Authorization: Bearer KEY`. Without a key, every request is
    /// refused. The hosts `localhost`, `127.0.0.1` and `[::1]` are accepted.
    pub fn new(index: Index, api_key: impl Into<String>) -> Self {
        Self { index, access: Arc::new(AccessRules::new(api_key.into())) }
    }

    /// Accepts requests for another host, as in the `Host` header without a port.
    #[must_use]
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.access).allow_host(host.into());
        self
    }

    /// Accepts requests of web pages of an origin, such as `https://example.org`. By default pages of no origin are
    /// accepted.
    #[must_use]
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.access).allow_origin(origin.into());
        self
    }

    /// Serves the index until the future is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener fails permanently.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connections. Requests in progress complete on their blocking threads, but
    /// their responses are not sent.
    pub async fn serve(self, listener: TcpListener) -> io::Result<()> {
        serve_connections(listener, self.index, self.access).await
    }
}

async fn serve_connections(listener: TcpListener, index: Index, access: Arc<AccessRules>) -> io::Result<()> {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let work = Arc::new(RequestSlots {
        requests: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
        body_mib: Arc::new(Semaphore::new(MAX_BODY_MIB as usize)),
    });
    let mut open = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return Ok(()) };
        let (socket, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The client has disconnected, or the process has reached its limit of open files.
            Err(error) if is_transient(&error) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (index, work, access) = (index.clone(), work.clone(), access.clone());
        open.spawn(async move {
            let service =
                service_fn(|request| handle_request(index.clone(), work.clone(), access.clone(), request));
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(socket), service);
            // A broken connection affects only its client.
            let _ = served.await;
            drop(permit);
        });
        while open.try_join_next().is_some() {}
    }
}

/// Returns true if `accept` may succeed again later.
fn is_transient(error: &io::Error) -> bool {
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    error.kind() == io::ErrorKind::ConnectionAborted
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}

/// The resources that the requests of all connections share.
struct RequestSlots {
    requests: Arc<Semaphore>,
    body_mib: Arc<Semaphore>,
}

/// Reads a request, answers it on a blocking thread and returns the response.
async fn handle_request(
    index: Index,
    work: Arc<RequestSlots>,
    access: Arc<AccessRules>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<FullBody>, Infallible> {
    let (head, body) = request.into_parts();
    // The body of a refused request is not read.
    if let Err((status, reason)) = access.check_request(&head.headers, &head.uri) {
        return Ok(http_response(json::error_response(status, reason)));
    }
    let limit = index.max_upload_bytes().saturating_add(REQUEST_OVERHEAD_BYTES);
    // A body of unknown length may be as long as the limit.
    let length = body.size_hint().exact().unwrap_or(limit).min(limit);
    let mib = u32::try_from(length >> 20).unwrap_or(MAX_BODY_MIB).saturating_add(1).min(MAX_BODY_MIB);
    let memory = work.body_mib.clone().acquire_many_owned(mib).await;
    let response = match read_body(body, limit).await {
        Ok(body) => {
            let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
            let request = RestRequest {
                method: head.method.as_str().to_owned(),
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                content_type: content_type.unwrap_or_default().to_owned(),
                body,
            };
            let permit = work.requests.clone().acquire_owned().await;
            let came = tokio::task::spawn_blocking(move || {
                let _permit = (permit, memory);
                respond(&index, &request)
            });
            came.await.unwrap_or_else(|_| json::error_response(500, "the request could not be carried out"))
        }
        Err(response) => response,
    };
    Ok(http_response(response))
}

fn http_response(response: RestResponse) -> hyper::Response<FullBody> {
    let mut answer = hyper::Response::new(FullBody(Some(Bytes::from(response.body))));
    *answer.status_mut() =
        hyper::StatusCode::from_u16(response.status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    answer
        .headers_mut()
        .insert("content-type", hyper::header::HeaderValue::from_static(response.content_type));
    answer
}

/// Reads a request's body; returns an error response if it exceeds the limit, or if the client sends it too slowly: the
/// memory that it occupies is not available to other requests.
async fn read_body(body: Incoming, limit: u64) -> Result<Vec<u8>, RestResponse> {
    let mut body = pin!(body);
    let mut whole = Vec::new();
    let start = tokio::time::Instant::now();
    let too_slow = || json::error_response(408, "the body of the request arrives too slowly");
    loop {
        let earned = Duration::from_secs(whole.len() as u64 / MIN_BODY_RATE);
        let next = poll_fn(|context| body.as_mut().poll_frame(context));
        let deadline = start + BODY_PAUSE_TIMEOUT + earned;
        let Some(frame) = tokio::time::timeout_at(deadline, next).await.map_err(|_| too_slow())? else {
            break;
        };
        let frame =
            frame.map_err(|error| json::error_response(400, &format!("the body cannot be read: {error}")))?;
        if let Ok(data) = frame.into_data() {
            if (whole.len() + data.len()) as u64 > limit {
                return Err(json::error_response(413, &format!("a request has {limit} bytes at most")));
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole)
}

/// A response body of a single frame.
struct FullBody(Option<Bytes>);

impl Body for FullBody {
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
