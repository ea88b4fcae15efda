//! Connections: TCP, and TLS over it where the address asks for it.

use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderValue;
use hyper::rt::{Read, Write};
use hyper::{Uri, http};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{HttpError, Whole, deepest};

/// Where requests go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    scheme: Scheme,
    host: String,
    port: u16,
    /// What every path begins with.
    pub(super) prefix: String,
    pub(super) host_header: HeaderValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Target {
    /// Reads an address such as `http://localhost:11434/v1`; an error says what is wrong with it.
    pub(crate) fn parse(base_url: &str) -> Result<Self, String> {
        let uri: Uri = base_url.trim_end_matches('/').parse().map_err(|error| format!("{error}"))?;
        let scheme = match uri.scheme() {
            Some(scheme) if *scheme == http::uri::Scheme::HTTP => Scheme::Http,
            Some(scheme) if *scheme == http::uri::Scheme::HTTPS => Scheme::Https,
            _ => return Err("it must begin with http:// or https://".to_owned()),
        };
        if scheme == Scheme::Https && !cfg!(feature = "tls") {
            return Err("https needs the feature `tls` of windlass-models, which is switched off".to_owned());
        }
        let authority = uri.authority().ok_or("it names no host")?;
        if authority.as_str().contains('@') {
            return Err("it must not hold a name or a password; give the key apart".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let usual = if scheme == Scheme::Http { 80 } else { 443 };
        let host_header = HeaderValue::from_str(authority.as_str()).map_err(|error| error.to_string())?;
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { scheme, host, port: authority.port_u16().unwrap_or(usual), prefix, host_header })
    }

    /// The name of the host.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }
}

/// Opens a connection.
pub(super) async fn open(target: &Target) -> Result<SendRequest<Whole>, HttpError> {
    let unreachable =
        |error: &dyn std::error::Error| HttpError::Unreachable(format!("no connection: {}", deepest(error)));
    let stream =
        TcpStream::connect((target.host.as_str(), target.port)).await.map_err(|e| unreachable(&e))?;
    // Requests are written whole: waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    match target.scheme {
        Scheme::Http => speak(TokioIo::new(stream)).await,
        #[cfg(feature = "tls")]
        Scheme::Https => {
            let stream = windlass_tls::over(stream, &target.host).await.map_err(|e| unreachable(&e))?;
            speak(TokioIo::new(stream)).await
        }
        #[cfg(not(feature = "tls"))]
        Scheme::Https => Err(HttpError::Unreachable("https is switched off".to_owned())),
    }
}

async fn speak(io: impl Read + Write + Unpin + Send + 'static) -> Result<SendRequest<Whole>, HttpError> {
    let (sender, connection) =
        handshake(io).await.map_err(|error| HttpError::Unreachable(deepest(&error)))?;
    // It ends when the sender and the body are gone; what went wrong is told where the answer is read.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}
