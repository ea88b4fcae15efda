//! How bytes reach the server.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::http::Uri;

use crate::model::ConnectError;

/// A stream of bytes in both directions.
pub trait ReadWrite: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ReadWrite for S {}

/// A way to reach a server: TCP, a proxy, or a pipe in a test.
pub trait Dial: Send + Sync + 'static {
    /// Reaches it.
    fn dial<'a>(&'a self, address: &'a Uri) -> BoxFuture<'a, Result<Box<dyn ReadWrite>, ConnectError>>;
}

/// TCP, with TLS over it for `wss` addresses (feature `tls`, on by default).
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial<'a>(&'a self, address: &'a Uri) -> BoxFuture<'a, Result<Box<dyn ReadWrite>, ConnectError>> {
        async move {
            let is_secret = match address.scheme_str() {
                Some("ws") => false,
                Some("wss") => true,
                _ => {
                    return Err(ConnectError::fatal(format!(
                        "`{address}` does not begin with ws:// or wss://"
                    )));
                }
            };
            let host = address.host().ok_or_else(|| ConnectError::fatal("the address has no host"))?;
            let port = address.port_u16().unwrap_or(if is_secret { 443 } else { 80 });
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, port))
                .await
                .map_err(|error| ConnectError::new(format!("`{host}:{port}` is not reached: {error}")))?;
            // Speech comes in small pieces, and each of them is waited for.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "small pieces may be held back");
            }
            if is_secret { secret(host, stream).await } else { Ok(Box::new(stream) as Box<dyn ReadWrite>) }
        }
        .boxed()
    }
}

#[cfg(feature = "tls")]
async fn secret(host: &str, stream: TcpStream) -> Result<Box<dyn ReadWrite>, ConnectError> {
    match windlass_tls::over(stream, host).await {
        Ok(stream) => Ok(Box::new(stream)),
        // A certificate does not come to be trusted by asking again.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(ConnectError::fatal(format!("`{host}` is not trusted: {error}")))
        }
        Err(error) => Err(ConnectError::new(format!("there is no safe connection to `{host}`: {error}"))),
    }
}

#[cfg(not(feature = "tls"))]
async fn secret(_: &str, _: TcpStream) -> Result<Box<dyn ReadWrite>, ConnectError> {
    Err(ConnectError::fatal("wss:// needs the feature `tls` of windlass-realtime, which is switched off"))
}
