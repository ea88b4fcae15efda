//! TLS client connections over TCP. Trusted are the machine's certificates, or those in the file that
//! `SSL_CERT_FILE` names. ALPN offers HTTP/1.1, which also carries WebSockets, and HTTP/2 on request.

#[cfg(feature = "testing")]
pub mod testing;

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Performs the TLS handshake with `host` over an open connection.
///
/// # Errors
///
/// Returns an error if the host's certificate is not trusted, or this machine has no trusted certificates.
pub async fn connect(stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
    connect_over(stream, host, Alpn::Http1).await
}

/// The protocols that a client offers during the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2, or HTTP/1.1.
    Http2OrHttp1,
    /// The protocol of PostgreSQL.
    Postgresql,
}

/// Performs the TLS handshake with `host` over any byte stream, such as the tunnel of a proxy.
///
/// # Errors
///
/// As [`connect`].
pub async fn connect_over<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    host: &str,
    alpn: Alpn,
) -> io::Result<TlsStream<S>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut config = client_config()?;
    let protocols: &[&[u8]] = match alpn {
        Alpn::Http1 => &[],
        Alpn::Http2OrHttp1 => &[b"h2", b"http/1.1"],
        Alpn::Postgresql => &[b"postgresql"],
    };
    if !protocols.is_empty() {
        let mut with_protocols = (*config).clone();
        with_protocols.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config = Arc::new(with_protocols);
    }
    TlsConnector::from(config).connect(name, stream).await
}

/// True if the server chose HTTP/2.
pub fn has_chosen_http2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// Returns the client configuration. It is loaded once, because the certificates are some hundred kilobytes.
fn client_config() -> io::Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(io::Error::other(
            "this machine has no trusted certificates; hint: install `ca-certificates`, or name a \
             file in SSL_CERT_FILE",
        ));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}
