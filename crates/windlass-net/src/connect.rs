//! Opening HTTP connections: the handshake of either version over a dialled stream.

use std::time::Duration;

use hyper::Uri;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use crate::client::{HttpVersionPolicy, OutgoingBody};
use crate::dial::{NetworkDialer, ServerRoute};
use crate::transport::{TransportError, error_chain_text};

/// Interval of the pings on an HTTP/2 connection with open requests.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time without an answer to a ping after which an HTTP/2 connection counts as broken.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// An open connection of either version.
pub(crate) enum OpenConnection {
    Http1(http1::SendRequest<OutgoingBody>),
    Http2(http2::SendRequest<OutgoingBody>),
}

/// Opens a connection to the server of `address`, and performs the handshakes of TLS and HTTP.
pub(crate) async fn open_connection(
    dialer: &NetworkDialer,
    address: &Uri,
    route: &ServerRoute,
    version: HttpVersionPolicy,
) -> Result<OpenConnection, TransportError> {
    let offers_http2 = version != HttpVersionPolicy::Http1;
    let (stream, is_http2) = dialer.open_route(address, route, offers_http2).await?;
    let io = TokioIo::new(stream);
    if is_http2 || version == HttpVersionPolicy::Http2 {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(HTTP2_PING_INTERVAL)
            .keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .handshake(io)
            .await
            .map_err(handshake_error)?;
        // The task ends when the senders and the bodies are dropped. Errors reach the reader of the response.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        return Ok(OpenConnection::Http2(sender));
    }
    let (sender, connection) = http1::handshake(io).await.map_err(handshake_error)?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(OpenConnection::Http1(sender))
}

fn handshake_error(error: hyper::Error) -> TransportError {
    TransportError::Unreachable(error_chain_text(&error))
}
