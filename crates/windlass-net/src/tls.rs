//! TLS client connections. Trusted are the machine's certificates, or those in the file that `SSL_CERT_FILE` names, and
//! those that the application adds. ALPN offers HTTP/1.1, which also carries WebSockets, and HTTP/2 on request.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

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

/// The certificates that a client trusts. The default is those of the machine.
#[derive(Clone, Default)]
pub struct TrustedRoots {
    /// The configurations with added certificates; `None` for those of the machine.
    own: Option<Arc<ClientConfigs>>,
}

/// One client configuration for each set of protocols. They share the certificates and the session cache.
struct ClientConfigs {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    postgresql: Arc<ClientConfig>,
}

impl TrustedRoots {
    /// Adds certificates in PEM to those of the machine, for servers with a private certificate authority.
    ///
    /// # Errors
    ///
    /// Returns an error if the text contains no usable certificate.
    pub fn with_pem(pem: &[u8]) -> io::Result<Self> {
        let mut roots = machine_roots();
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(io::Error::other)?;
            roots.add(certificate).map_err(io::Error::other)?;
        }
        if roots.len() == before {
            return Err(io::Error::other("the text contains no certificate in PEM"));
        }
        Ok(Self { own: Some(Arc::new(ClientConfigs::new(roots)?)) })
    }

    /// Performs the TLS handshake with `host` over any byte stream, such as the tunnel of a proxy.
    ///
    /// # Errors
    ///
    /// Returns an error if the host's certificate is not trusted, or this machine has no trusted certificates.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &str,
        alpn: Alpn,
    ) -> io::Result<TlsStream<S>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let configs = match &self.own {
            Some(own) => own.clone(),
            None => machine_configs()?,
        };
        let config = match alpn {
            Alpn::Http1 => &configs.http1,
            Alpn::Http2OrHttp1 => &configs.http2,
            Alpn::Postgresql => &configs.postgresql,
        };
        TlsConnector::from(config.clone()).connect(name, stream).await
    }
}

impl fmt::Debug for TrustedRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.own.is_some() { "TrustedRoots(added)" } else { "TrustedRoots(machine)" })
    }
}

/// Returns true if the server chose HTTP/2.
pub fn has_chosen_http2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// Returns true if a handshake failed because of the server's certificate.
pub fn is_certificate_error(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

impl ClientConfigs {
    fn new(roots: RootCertStore) -> io::Result<Self> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let offering = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self {
            http1: offering(&[b"http/1.1"]),
            http2: offering(&[b"h2", b"http/1.1"]),
            postgresql: offering(&[b"postgresql"]),
        })
    }
}

fn machine_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Returns the configurations of the machine. They are loaded once, because the certificates are some hundred
/// kilobytes.
fn machine_configs() -> io::Result<Arc<ClientConfigs>> {
    static CONFIGS: OnceLock<Arc<ClientConfigs>> = OnceLock::new();
    if let Some(configs) = CONFIGS.get() {
        return Ok(configs.clone());
    }
    let roots = machine_roots();
    if roots.is_empty() {
        return Err(io::Error::other(
            "this machine has no trusted certificates; hint: install `ca-certificates`, or name a \
             file in SSL_CERT_FILE",
        ));
    }
    let configs = Arc::new(ClientConfigs::new(roots)?);
    Ok(CONFIGS.get_or_init(|| configs).clone())
}
