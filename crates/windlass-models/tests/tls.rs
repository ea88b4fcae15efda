//! Requests over TLS to a server with a trusted certificate, and to one with an untrusted certificate.
//!
//! The trusted certificates are read from the environment once per process, so each client runs in its own
//! process.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::agent::Agent;
use windlass::run::ModelRetryPolicy;
use windlass_models::OpenAi;
use windlass_tls::testing::{ClientTrust, run_test_process, test_acceptor};

const ADDRESS_VARIABLE: &str = "WINDLASS_TEST_TLS_ADDRESS";
const RESPONSE_BODY: &str =
    r#"{"id":"1","choices":[{"index":0,"message":{"content":"Sealed."},"finish_reason":"stop"}]}"#;

/// Serves one response on every connection.
async fn serve_tls(listener: TcpListener) {
    let acceptor = test_acceptor().expect("certificates");
    while let Ok((stream, _)) = listener.accept().await {
        // A client that does not trust the certificate closes the connection.
        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
        let mut request = Vec::new();
        while !request.windows(8).any(|end| end == b"messages") {
            if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                break;
            }
        }
        let length = RESPONSE_BODY.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{RESPONSE_BODY}"
        );
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

/// Runs the client process and returns its output.
async fn run_client_process(address: &str, trust: ClientTrust) -> String {
    run_test_process("asks_where_it_is_told_to", ADDRESS_VARIABLE, address, trust).await.expect("it runs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trusted_servers_are_asked_and_others_are_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = tokio::spawn(serve_tls(listener));
    let address = format!("https://localhost:{port}/v1");

    let said = run_client_process(&address, ClientTrust::ServerIssuer).await;
    assert!(said.contains("said: Sealed."), "{said}");
    let said = run_client_process(&address, ClientTrust::UnrelatedIssuer).await;
    assert!(said.contains("failed: ") && said.contains("certificate"), "{said}");
    server.abort();
}

/// The client process. Without the environment variable, as in a normal test run, it does nothing.
#[tokio::test]
async fn asks_where_it_is_told_to() {
    let Ok(address) = std::env::var(ADDRESS_VARIABLE) else { return };
    let model = OpenAi::at(&address).chat("m").expect("a model");
    let once = ModelRetryPolicy { max_attempts: 1, ..ModelRetryPolicy::default() };
    match Agent::new("host").model(model).run("Hello.").model_retry(once).await {
        Ok(outcome) => println!("said: {}", outcome.output_text().expect("the run finished")),
        Err(error) => println!("failed: {error}"),
    }
}
