//! Helpers for tests: a TLS server with test-only certificates, client processes that trust it or do not, and a proxy.

mod test_proxy;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use test_proxy::TestProxy;

use crate::tls::TrustedRoots;

/// The certificate issuer that a client process trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTrust {
    /// The issuer of the server's certificate.
    ServerIssuer,
    /// Another certificate, which did not issue the server's.
    UnrelatedIssuer,
}

/// Returns a TLS acceptor for a server named `localhost` or `….windlass.test`.
pub fn test_acceptor() -> io::Result<TlsAcceptor> {
    test_acceptor_with_alpn(&[])
}

/// Returns a TLS acceptor for the same names that offers these protocols, such as `h2`.
pub fn test_acceptor_with_alpn(protocols: &[&str]) -> io::Result<TlsAcceptor> {
    let certificate = CertificateDer::from_pem_file(fixture_path("server.pem")).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(fixture_path("server.key")).map_err(io::Error::other)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns trusted certificates that include the issuer of the test server's.
pub fn test_roots() -> io::Result<TrustedRoots> {
    TrustedRoots::with_pem(&std::fs::read(fixture_path("ca.pem"))?)
}

/// Starts a server that terminates TLS and forwards the connections to `server`, and returns its address. It runs as
/// long as the runtime.
pub async fn start_tls_front(server: SocketAddr) -> io::Result<SocketAddr> {
    let acceptor = test_acceptor()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust the certificate disconnects.
                let mut outer = acceptor.accept(stream).await?;
                let mut inner = TcpStream::connect(server).await?;
                copy_bidirectional(&mut outer, &mut inner).await
            });
        }
    });
    Ok(address)
}

/// Runs one test of this test binary in a new process, with `address` in the environment variable `variable`, and
/// returns its standard output. The certificates of the machine are read from the environment once, so each client
/// needs a process.
pub async fn run_test_process(
    test: &str,
    variable: &str,
    address: &str,
    trust: ClientTrust,
) -> io::Result<String> {
    let trusted = match trust {
        ClientTrust::ServerIssuer => fixture_path("ca.pem"),
        ClientTrust::UnrelatedIssuer => fixture_path("server.pem"),
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", test, "--nocapture"]);
    command.env(variable, address).env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
    let output = tokio::task::spawn_blocking(move || command.output()).await.map_err(io::Error::other)??;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}
