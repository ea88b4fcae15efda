//! For tests of what is spoken over TLS: the server's side of it, with certificates that are good for nothing else, and
//! processes that trust them or do not.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What a process trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Whoever signed the certificate of the server.
    TheSigner,
    /// Another certificate, which did not sign the server's.
    SomebodyElse,
}

/// The side of a server that is called `localhost`.
pub fn acceptor() -> io::Result<TlsAcceptor> {
    let certificate = CertificateDer::from_pem_file(fixture("server.pem")).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What a test of this program says that is run by itself, in a process of its own, with an address in its environment.
/// What is trusted is read from the environment once, so each needs a process.
pub async fn said_by(test: &str, variable: &str, address: &str, trust: Trust) -> io::Result<String> {
    let trusted = match trust {
        Trust::TheSigner => fixture("ca.pem"),
        Trust::SomebodyElse => fixture("server.pem"),
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", test, "--nocapture"]);
    command.env(variable, address).env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
    let output = tokio::task::spawn_blocking(move || command.output()).await.map_err(io::Error::other)??;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}
