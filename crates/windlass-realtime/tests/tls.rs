//! Live sessions over TLS: with a server whose certificate this machine trusts, and with one whose it does not.
//!
//! Which certificates are trusted is read from the environment, so the talking is done by processes of its own.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use windlass::prelude::*;
use windlass_realtime::openai::OpenAi;
use windlass_realtime::testing::{Loopback, Reply as Said};
use windlass_realtime::{LiveEvent, Realtime};

const ADDRESS: &str = "WINDLASS_TEST_WSS_ADDRESS";

/// Certificates that are good for nothing but tests.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../windlass-models/tests/fixtures").join(name)
}

/// Takes TLS off what comes in, and passes it on.
async fn unseal(listener: TcpListener, inner: std::net::SocketAddr) {
    let certificate = CertificateDer::from_pem_file(fixture("server.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("they fit");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    while let Ok((stream, _)) = listener.accept().await {
        // A client that does not trust us hangs up.
        let Ok(mut outer) = acceptor.accept(stream).await else { continue };
        tokio::spawn(async move {
            let mut inner = TcpStream::connect(inner).await.expect("the server is there");
            drop(tokio::io::copy_bidirectional(&mut outer, &mut inner).await);
        });
    }
}

/// What the talking process says, with these certificates trusted.
async fn talked(address: &str, trusted: PathBuf) -> String {
    let address = address.to_owned();
    let run = move || {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "talks_where_it_is_told_to", "--nocapture"])
            .env(ADDRESS, address)
            .env("SSL_CERT_FILE", trusted)
            .env_remove("SSL_CERT_DIR")
            .output()
            .expect("it runs")
    };
    let output = tokio::task::spawn_blocking(run).await.expect("it ends");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trusted_servers_are_talked_to_and_others_are_not() {
    let server = Loopback::new([Said::say("Sealed.")]);
    let (inner, serving) = server.listen().await.expect("a port");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let unsealing = tokio::spawn(unseal(listener, inner));
    let address = format!("wss://localhost:{port}/v1/realtime");

    let said = talked(&address, fixture("ca.pem")).await;
    assert!(said.contains("said: Sealed."), "{said}");
    // Another certificate, which did not sign the server's.
    let said = talked(&address, fixture("server.pem")).await;
    assert!(said.contains("failed: ") && said.contains("not trusted"), "{said}");
    unsealing.abort();
    serving.abort();
}

/// The talking process. Run by itself it has nobody to talk to.
#[tokio::test]
async fn talks_where_it_is_told_to() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let session = match Realtime::new(Agent::new("desk"), OpenAi::at(address).model("m")).connect().await {
        Ok(session) => session,
        Err(error) => return println!("failed: {error}"),
    };
    let mut events = session.events();
    session.say("Hello?").await.expect("it is said");
    while let Some(event) = events.next().await {
        if matches!(event, LiveEvent::TurnEnded { .. }) {
            break;
        }
    }
    let report = session.close().await;
    println!("said: {}", report.history.items().last().map(|item| item.text()).unwrap_or_default());
}
