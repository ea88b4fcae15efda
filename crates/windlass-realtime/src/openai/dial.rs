//! Transports to the server: TCP, with or without TLS, and those of the application.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::http::Uri;

use crate::model::RealtimeConnectionError;

/// A bidirectional byte stream.
pub trait ReadWriteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ReadWriteStream for S {}

/// A transport to a server: TCP, a proxy, or a pipe in a test.
pub trait StreamDialer: Send + Sync + 'static {
    /// Opens a stream to the server.
    fn open_stream<'a>(
        &'a self,
        address: &'a Uri,
    ) -> BoxFuture<'a, Result<Box<dyn ReadWriteStream>, RealtimeConnectionError>>;
}

/// The TCP transport, with TLS for `wss` URLs (feature `tls`, on by default).
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

impl StreamDialer for TcpDialer {
    fn open_stream<'a>(
        &'a self,
        address: &'a Uri,
    ) -> BoxFuture<'a, Result<Box<dyn ReadWriteStream>, RealtimeConnectionError>> {
        async move {
            let is_tls = match address.scheme_str() {
                Some("ws") => false,
                Some("wss") => true,
                _ => {
                    return Err(RealtimeConnectionError::permanent(format!(
                        "`{address}` does not begin with ws:// or wss://"
                    )));
                }
            };
            let host = address
                .host()
                .ok_or_else(|| RealtimeConnectionError::permanent("the address has no host"))?;
            let port = address.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, port)).await.map_err(|error| {
                RealtimeConnectionError::new(format!("cannot connect to `{host}:{port}`: {error}"))
            })?;
            // Speech arrives in small chunks that must not be delayed.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot set TCP_NODELAY; small messages may be delayed");
            }
            if is_tls {
                wrap_tls(host, stream).await
            } else {
                Ok(Box::new(stream) as Box<dyn ReadWriteStream>)
            }
        }
        .boxed()
    }
}

#[cfg(feature = "tls")]
async fn wrap_tls(
    host: &str,
    stream: TcpStream,
) -> Result<Box<dyn ReadWriteStream>, RealtimeConnectionError> {
    match windlass_tls::connect(stream, host).await {
        Ok(stream) => Ok(Box::new(stream)),
        // A retry does not make a certificate trusted.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(RealtimeConnectionError::permanent(format!(
                "the certificate of `{host}` is not trusted: {error}"
            )))
        }
        Err(error) => {
            Err(RealtimeConnectionError::new(format!("the TLS handshake with `{host}` failed: {error}")))
        }
    }
}

#[cfg(not(feature = "tls"))]
async fn wrap_tls(_: &str, _: TcpStream) -> Result<Box<dyn ReadWriteStream>, RealtimeConnectionError> {
    Err(RealtimeConnectionError::permanent(
        "wss:// needs the feature `tls` of windlass-realtime, which is disabled",
    ))
}
