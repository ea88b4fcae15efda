//! Requests over TLS: to a server whose certificate this machine trusts, and to one whose certificate it does not.
//!
//! Which certificates are trusted is read from the environment, so the asking is done by processes of its own.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use windlass::Agent;
use windlass::run::ModelRetry;
use windlass_models::OpenAi;

const ADDRESS: &str = "WINDLASS_TEST_TLS_ADDRESS";
const ANSWER: &str =
    r#"{"id":"1","choices":[{"index":0,"message":{"content":"Sealed."},"finish_reason":"stop"}]}"#;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A server that answers every connection once.
async fn serve(listener: TcpListener) {
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
        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
        let mut request = Vec::new();
        while !request.windows(8).any(|end| end == b"messages") {
            if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                break;
            }
        }
        let length = ANSWER.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{ANSWER}");
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

/// What the asking process says, with these certificates trusted.
async fn asked(address: &str, trusted: PathBuf) -> String {
    let address = address.to_owned();
    let run = move || {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "asks_where_it_is_told_to", "--nocapture"])
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
async fn trusted_servers_are_asked_and_others_are_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = tokio::spawn(serve(listener));
    let address = format!("https://localhost:{port}/v1");

    let said = asked(&address, fixture("ca.pem")).await;
    assert!(said.contains("said: Sealed."), "{said}");
    // Another certificate, which did not sign the server's.
    let said = asked(&address, fixture("server.pem")).await;
    assert!(said.contains("failed: ") && said.contains("certificate"), "{said}");
    server.abort();
}

/// The asking process. Run by itself it has nobody to ask.
#[tokio::test]
async fn asks_where_it_is_told_to() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let model = OpenAi::at(&address).chat("m").expect("a model");
    let once = ModelRetry { attempts: 1, ..ModelRetry::default() };
    match Agent::new("host").model(model).run("Hello.").model_retry(once).await {
        Ok(outcome) => println!("said: {}", outcome.text()),
        Err(error) => println!("failed: {error}"),
    }
}
