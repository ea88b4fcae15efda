//! One HTTP request to one of the checked addresses.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::rt::{Read, Write};
use hyper::{HeaderMap, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::url::{PageUrl, PageUrlScheme};

/// An HTTP response, with a bounded body.
pub(super) struct FetchResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    /// True if the body is complete, false if it was truncated.
    pub(super) is_complete: bool,
}

pub(super) async fn send_get(
    url: &PageUrl,
    addresses: &[SocketAddr],
    most: usize,
) -> Result<FetchResponse, String> {
    let failed =
        |error: &io::Error| format!("cannot be reached ({}): try later, or another page", error.kind());
    let stream = TcpStream::connect(addresses).await.map_err(|error| failed(&error))?;
    match url.scheme {
        PageUrlScheme::Http => exchange(TokioIo::new(stream), url, most).await,
        PageUrlScheme::Https => {
            let stream = windlass_tls::connect(stream, url.host())
                .await
                .map_err(|error| format!("is not safe to talk to: {error}"))?;
            exchange(TokioIo::new(stream), url, most).await
        }
    }
}

async fn exchange(
    io: impl Read + Write + Unpin + Send + 'static,
    url: &PageUrl,
    most: usize,
) -> Result<FetchResponse, String> {
    let failed = |error: hyper::Error| format!("answered in a way that is not understood: {error}");
    let (mut sender, connection) = handshake(io).await.map_err(failed)?;
    let _connection = AbortOnDrop(tokio::spawn(async move { connection.await.ok() }));
    let request = Request::get(url.path.as_str())
        .header(header::HOST, url.authority())
        .header(header::USER_AGENT, concat!("windlass/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1")
        .header(header::ACCEPT_ENCODING, "identity")
        .body(String::new())
        .map_err(|error| format!("cannot be asked for: {error}"))?;
    let (head, body) = sender.send_request(request).await.map_err(failed)?.into_parts();
    let (body, is_whole) = read_body(body, most).await.map_err(failed)?;
    Ok(FetchResponse { status: head.status, headers: head.headers, body, is_complete: is_whole })
}

async fn read_body(mut body: Incoming, most: usize) -> Result<(Vec<u8>, bool), hyper::Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame?.into_data() else { continue };
        let room = most - bytes.len();
        if data.len() > room {
            bytes.extend_from_slice(&data[..room]);
            return Ok((bytes, false));
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, true))
}

/// A task that is aborted on drop.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
