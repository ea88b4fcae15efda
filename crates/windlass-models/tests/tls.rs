//! Requests over TLS: to a server whose certificate this machine trusts, and to one whose certificate it does not.
//!
//! Which certificates are trusted is read from the environment, so the asking is done by processes of its own.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::Agent;
use windlass::run::ModelRetry;
use windlass_models::OpenAi;
use windlass_tls::testing::{Trust, acceptor, said_by};

const ADDRESS: &str = "WINDLASS_TEST_TLS_ADDRESS";
const ANSWER: &str =
    r#"{"id":"1","choices":[{"index":0,"message":{"content":"Sealed."},"finish_reason":"stop"}]}"#;

/// A server that answers every connection once.
async fn serve(listener: TcpListener) {
    let acceptor = acceptor().expect("certificates");
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

/// What the asking process says.
async fn asked(address: &str, trust: Trust) -> String {
    said_by("asks_where_it_is_told_to", ADDRESS, address, trust).await.expect("it runs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trusted_servers_are_asked_and_others_are_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = tokio::spawn(serve(listener));
    let address = format!("https://localhost:{port}/v1");

    let said = asked(&address, Trust::TheSigner).await;
    assert!(said.contains("said: Sealed."), "{said}");
    let said = asked(&address, Trust::SomebodyElse).await;
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
