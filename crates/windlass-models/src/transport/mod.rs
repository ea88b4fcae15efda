//! The transport: one HTTP request and its response. [`HttpClient`] implements it with HTTP/1.1 and HTTP/2, proxies
//! and a connection pool; an application can supply a transport of its own.
//!
//! Every error states whether the request may have reached the server, because that decides about a retry.

mod client;
mod connect;
mod gzip;
mod proxy;

use std::fmt;
use std::time::Duration;

pub use bytes::Bytes;
use hyper::{Request, Response};

pub use hyper::http;

pub use client::{HttpClient, HttpVersionPolicy};
pub(crate) use connect::BaseUrl;
pub(crate) use gzip::GzipReader;

use crate::protocol::ReplaySafety;

pub use windlass::BoxFuture;

/// A transport for HTTP requests.
pub trait HttpTransport: fmt::Debug + Send + Sync + 'static {
    /// Sends a request and waits for the head of the response. The URI of the request is absolute. A response with
    /// an error status is not an error.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no response. It must state whether the request may have reached the server.
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
        options: TransportOptions,
    ) -> BoxFuture<'a, Result<Response<Box<dyn TransportBody>>, TransportError>>;
}

/// The body of a response.
pub trait TransportBody: Send {
    /// Returns the next non-empty chunk, or `None` at the end of the body.
    fn next_chunk(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, TransportError>>;
}

/// Options of one request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TransportOptions {
    /// The safety of sending the request twice. A request that is not safe must not be sent on a connection that
    /// the server may have closed.
    pub replay_safety: ReplaySafety,
    /// Maximum time to open a connection.
    pub connect_timeout: Duration,
    /// Maximum time until the head of the response.
    pub head_timeout: Duration,
}

impl TransportOptions {
    /// Creates the options of a request with timeouts of ten seconds each.
    pub fn new(replay_safety: ReplaySafety) -> Self {
        let timeout = Duration::from_secs(10);
        Self { replay_safety, connect_timeout: timeout, head_timeout: timeout }
    }
}

/// A failure in transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No connection was made; nothing was sent. A later attempt may succeed.
    #[error("{0}")]
    Unreachable(String),
    /// The server cannot be used in this way: its certificate is not trusted, or it speaks another protocol. A
    /// later attempt fails as well.
    #[error("{0}")]
    Unusable(String),
    /// The connection broke; the request may have arrived.
    #[error("the connection ended: {0}")]
    ConnectionLost(String),
    /// No data arrived in time; the request may have arrived.
    #[error("no data for {} seconds", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The response body is malformed.
    #[error("{0}")]
    InvalidBody(String),
    /// The response body exceeds the limit in bytes.
    #[error("the response is longer than {0} bytes")]
    BodyTooLong(usize),
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
