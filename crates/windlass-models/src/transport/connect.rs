//! Opening connections: TCP, through a proxy if the rules name one, with TLS on top for `https` addresses.

use std::io;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper::{Uri, http};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::client::{HttpVersionPolicy, OutgoingBody};
use super::proxy::ProxyServer;
use super::{TransportError, error_chain_text};

/// Interval of the pings on an HTTP/2 connection with open requests.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time without an answer to a ping after which an HTTP/2 connection counts as broken.
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The parsed base URL of a provider.
#[derive(Clone, Debug)]
pub(crate) struct BaseUrl {
    scheme: http::uri::Scheme,
    authority: http::uri::Authority,
    /// The prefix of every request path.
    path_prefix: String,
    /// The query of every request.
    query: Option<String>,
}

impl BaseUrl {
    /// Parses a base URL such as `http://localhost:11434/v1`.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if the URL is not usable.
    pub(crate) fn parse(base_url: &str) -> Result<Self, String> {
        let uri: Uri = base_url.trim().parse().map_err(|error| format!("{error}"))?;
        let scheme = match uri.scheme() {
            Some(scheme) if *scheme == http::uri::Scheme::HTTP || *scheme == http::uri::Scheme::HTTPS => {
                scheme.clone()
            }
            _ => return Err("it must begin with http:// or https://".to_owned()),
        };
        if scheme == http::uri::Scheme::HTTPS && !cfg!(feature = "tls") {
            return Err("https needs the feature `tls` of windlass-models, which is switched off".to_owned());
        }
        let authority = uri.authority().ok_or("it names no host")?.clone();
        if authority.as_str().contains('@') {
            return Err("it must not contain a user name or a password; set the key separately".to_owned());
        }
        let path_prefix = uri.path().trim_end_matches('/').to_owned();
        let query = uri.query().filter(|query| !query.is_empty()).map(str::to_owned);
        Ok(Self { scheme, authority, path_prefix, query })
    }

    /// Returns the host name.
    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the address of a path. The base URL's query follows the path's own.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if the path is invalid.
    pub(crate) fn join(&self, path: &str) -> Result<Uri, String> {
        let mut target = format!("{}{path}", self.path_prefix);
        if let Some(query) = &self.query {
            target.push(if path.contains('?') { '&' } else { '?' });
            target.push_str(query);
        }
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        uri.path_and_query(target.as_str()).build().map_err(|error| format!("`{target}`: {error}"))
    }
}

/// An open connection of either version.
pub(super) enum OpenConnection {
    Http1(http1::SendRequest<OutgoingBody>),
    Http2(http2::SendRequest<OutgoingBody>),
}

/// Opens a connection to the server of `address`, and performs the handshakes of TLS and HTTP.
pub(super) async fn open_connection(
    address: &Uri,
    proxy: Option<&ProxyServer>,
    version: HttpVersionPolicy,
) -> Result<OpenConnection, TransportError> {
    let host = address.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_tls = address.scheme() == Some(&http::uri::Scheme::HTTPS);
    let port = address.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let mut stream: Box<dyn ByteStream> = match proxy {
        None => Box::new(dial(host, port).await?),
        Some(proxy) => {
            let stream = dial(&proxy.host, proxy.port).await.map_err(|error| {
                TransportError::Unreachable(format!("the proxy {}:{}: {error}", proxy.host, proxy.port))
            })?;
            if proxy.is_tls {
                start_tls(Box::new(stream), &proxy.host, false).await?.0
            } else {
                Box::new(stream)
            }
        }
    };
    if let (Some(proxy), true) = (proxy, is_tls) {
        let host = address.host().unwrap_or_default();
        proxy.open_tunnel(&mut stream, &format!("{host}:{port}")).await?;
    }
    let (stream, is_http2) = if is_tls {
        start_tls(stream, host, version != HttpVersionPolicy::Http1).await?
    } else {
        (stream, false)
    };
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

/// A byte stream: TCP, or TLS over one.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

async fn dial(host: &str, port: u16) -> Result<TcpStream, TransportError> {
    let stream = TcpStream::connect((host, port)).await.map_err(|error| unreachable(&error))?;
    // A request is written in one piece, so Nagle's algorithm would only delay it.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Performs the TLS handshake. Returns true beside the stream if the server chose HTTP/2.
#[cfg(feature = "tls")]
async fn start_tls(
    stream: Box<dyn ByteStream>,
    host: &str,
    offer_http2: bool,
) -> Result<(Box<dyn ByteStream>, bool), TransportError> {
    let alpn = if offer_http2 { windlass_tls::Alpn::Http2OrHttp1 } else { windlass_tls::Alpn::Http1 };
    let stream =
        windlass_tls::connect_over(stream, host, alpn).await.map_err(|error| tls_error(host, &error))?;
    let is_http2 = windlass_tls::has_chosen_http2(&stream);
    Ok((Box::new(stream), is_http2))
}

#[cfg(not(feature = "tls"))]
async fn start_tls(
    _: Box<dyn ByteStream>,
    host: &str,
    _: bool,
) -> Result<(Box<dyn ByteStream>, bool), TransportError> {
    Err(tls_error(host, &io::Error::other("https is switched off")))
}

/// Returns the error of a TLS handshake. A connection that broke may be opened again; a certificate that is not
/// trusted stays so.
fn tls_error(host: &str, error: &io::Error) -> TransportError {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            let text = error_chain_text(error);
            let hint = if text.contains("InvalidContentType") {
                "; hint: the server does not speak TLS at this port; is its address http:// ?"
            } else {
                ""
            };
            TransportError::Unusable(format!("no TLS connection to {host}: {text}{hint}"))
        }
        io::ErrorKind::Other => TransportError::Unusable(error_chain_text(error)),
        _ => unreachable(error),
    }
}

fn unreachable(error: &dyn std::error::Error) -> TransportError {
    TransportError::Unreachable(format!("no connection: {}", error_chain_text(error)))
}

fn handshake_error(error: hyper::Error) -> TransportError {
    TransportError::Unreachable(error_chain_text(&error))
}
