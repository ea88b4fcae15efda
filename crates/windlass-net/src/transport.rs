//! The transport trait: one HTTP request and its response. [`HttpClient`](crate::HttpClient) implements it; an
//! application can supply its own.
//!
//! Every error states whether the request may have reached the server, because that decides about a retry.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};

use crate::address::AddressGuard;

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A transport for HTTP requests.
pub trait HttpTransport: fmt::Debug + Send + Sync + 'static {
    /// Sends a request and waits for the head of the response. The URI of the request is absolute. Redirects are not
    /// followed, and a response with an error status is not an error.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no response. It must state whether the request may have reached the server.
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
        options: TransportOptions,
    ) -> BoxFuture<'a, Result<Response<Box<dyn TransportBody>>, TransportError>>;

    /// Returns a transport like this one that connects only to addresses that `guard` admits, or `None` if this
    /// transport cannot check addresses. The tool `fetch_url` refuses to work without this check.
    fn with_address_guard(&self, guard: AddressGuard) -> Option<Arc<dyn HttpTransport>> {
        let _ = guard;
        None
    }
}

/// The body of a response.
pub trait TransportBody: Send {
    /// Returns the next non-empty chunk, or `None` at the end of the body.
    fn next_chunk(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, TransportError>>;
}

/// The safety of sending a request twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaySafety {
    /// The request changes no state that other requests depend on.
    Safe,
    /// The request must not take effect twice: it calls a tool, or advances a conversation that a provider stores.
    Unsafe,
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

    /// Sets the maximum time to open a connection.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Sets the maximum time until the head of the response.
    #[must_use]
    pub fn head_timeout(self, head_timeout: Duration) -> Self {
        Self { head_timeout, ..self }
    }
}

/// A failure in transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No connection was made; nothing was sent. A later attempt may succeed.
    #[error("{0}")]
    Unreachable(String),
    /// The server or its proxy cannot be used in this way: its certificate is not trusted, or it refuses the client.
    /// Nothing was sent. A later attempt fails as well.
    #[error("{0}")]
    Unusable(String),
    /// The address guard does not admit the server's address; nothing was sent.
    #[error("{0}")]
    AddressRefused(String),
    /// Connections to the server are banned in this process ([`ban_network`](crate::ban_network)); nothing was sent. A
    /// later attempt fails as well.
    #[error("{0}")]
    Banned(String),
    /// The server does not answer with HTTP of the expected version; the request may have arrived. A later attempt
    /// fails as well.
    #[error("{0}")]
    OtherProtocol(String),
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

impl TransportError {
    /// Returns true if the request certainly did not reach the server.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unusable(_) | Self::AddressRefused(_) | Self::Banned(_) => true,
            Self::OtherProtocol(_)
            | Self::ConnectionLost(_)
            | Self::TimedOut(_)
            | Self::InvalidBody(_)
            | Self::BodyTooLong(_) => false,
        }
    }
}

/// Returns the text of an error with the texts of its causes that it does not already contain.
pub(crate) fn error_chain_text(error: &dyn std::error::Error) -> String {
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
