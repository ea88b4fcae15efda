//! Opening connections: TCP, with TLS on top for `https` addresses.

use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderValue;
use hyper::rt::{Read, Write};
use hyper::{Uri, http};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{HttpError, OutgoingBody, error_chain_text};

/// The parsed address of a server.
#[derive(Clone, Debug)]
pub(crate) struct HttpTarget {
    scheme: UrlScheme,
    host: String,
    port: u16,
    /// The prefix of every request path.
    pub(super) path_prefix: String,
    pub(super) host_header: HeaderValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UrlScheme {
    Http,
    Https,
}

impl HttpTarget {
    /// Parses a base URL such as `http://localhost:11434/v1`.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if the URL is not usable.
    pub(crate) fn parse(base_url: &str) -> Result<Self, String> {
        let uri: Uri = base_url.trim_end_matches('/').parse().map_err(|error| format!("{error}"))?;
        let scheme = match uri.scheme() {
            Some(scheme) if *scheme == http::uri::Scheme::HTTP => UrlScheme::Http,
            Some(scheme) if *scheme == http::uri::Scheme::HTTPS => UrlScheme::Https,
            _ => return Err("it must begin with http:// or https://".to_owned()),
        };
        if scheme == UrlScheme::Https && !cfg!(feature = "tls") {
            return Err("https needs the feature `tls` of windlass-models, which is switched off".to_owned());
        }
        let authority = uri.authority().ok_or("it names no host")?;
        if authority.as_str().contains('@') {
            return Err("it must not contain a user name or a password; set the key separately".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let usual = if scheme == UrlScheme::Http { 80 } else { 443 };
        let host_header = HeaderValue::from_str(authority.as_str()).map_err(|error| error.to_string())?;
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self {
            scheme,
            host,
            port: authority.port_u16().unwrap_or(usual),
            path_prefix: prefix,
            host_header,
        })
    }

    /// Returns the host name.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

/// Opens a connection and performs the HTTP/1.1 handshake.
pub(super) async fn open_connection(target: &HttpTarget) -> Result<SendRequest<OutgoingBody>, HttpError> {
    let unreachable = |error: &dyn std::error::Error| {
        HttpError::Unreachable(format!("no connection: {}", error_chain_text(error)))
    };
    let stream =
        TcpStream::connect((target.host.as_str(), target.port)).await.map_err(|e| unreachable(&e))?;
    // A request is written in one piece, so Nagle's algorithm would only delay it.
    let _ = stream.set_nodelay(true);
    match target.scheme {
        UrlScheme::Http => start_http1(TokioIo::new(stream)).await,
        #[cfg(feature = "tls")]
        UrlScheme::Https => {
            let stream = windlass_tls::connect(stream, &target.host).await.map_err(|e| unreachable(&e))?;
            start_http1(TokioIo::new(stream)).await
        }
        #[cfg(not(feature = "tls"))]
        UrlScheme::Https => Err(HttpError::Unreachable("https is switched off".to_owned())),
    }
}

async fn start_http1(
    io: impl Read + Write + Unpin + Send + 'static,
) -> Result<SendRequest<OutgoingBody>, HttpError> {
    let (sender, connection) =
        handshake(io).await.map_err(|error| HttpError::Unreachable(error_chain_text(&error)))?;
    // The task ends when the sender and the body are dropped. Errors are reported to the reader of the response.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
