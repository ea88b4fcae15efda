//! TLS client connections over TCP. Trusted are the machine's certificates, or those in the file that
//! `SSL_CERT_FILE` names. ALPN offers only HTTP/1.1, which also carries WebSockets.

#[cfg(feature = "testing")]
pub mod testing;

use std::io;
use std::sync::{Arc, OnceLock};

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
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(client_config()?).connect(name, stream).await
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
