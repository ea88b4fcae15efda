//! Requests over TLS to a server with a trusted certificate, and to one with an untrusted certificate.
//!
//! The trusted certificates are read from the environment once per process, so each client runs in its own
//! process.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::service::service_fn;
use hyper::{Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::agent::Agent;
use windlass::run::ModelRetryPolicy;
use windlass_models::OpenAi;
use windlass_net::testing::{ClientTrust, run_test_process, test_acceptor, test_acceptor_with_alpn};

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

/// Serves HTTP/2 only, and counts connections and requests.
async fn serve_http2(listener: TcpListener, counts: Arc<[AtomicUsize; 2]>) {
    let acceptor = test_acceptor_with_alpn(&["h2"]).expect("certificates");
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(stream) = acceptor.accept(stream).await else { continue };
        counts[0].fetch_add(1, Ordering::Relaxed);
        let counts = counts.clone();
        let service = service_fn(move |request| {
            assert_eq!(hyper::Request::<hyper::body::Incoming>::version(&request), Version::HTTP_2);
            counts[1].fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, std::convert::Infallible>(Response::new(RESPONSE_BODY.to_owned())) }
        });
        tokio::spawn(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_is_spoken_where_the_server_offers_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let server = tokio::spawn(serve_http2(listener, counts.clone()));
    let said = run_client_process(&format!("https://localhost:{port}/v1"), ClientTrust::ServerIssuer).await;
    assert!(said.contains("said: Sealed."), "{said}");
    assert_eq!(
        counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
        [1, 2],
        "one connection, two requests"
    );
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_told_apart_and_not_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let counted = Arc::new(AtomicUsize::new(0));
    let count = counted.clone();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let said = run_client_process(&format!("https://localhost:{port}/v1"), ClientTrust::ServerIssuer).await;
    assert!(said.contains("failed: ") && said.contains("is its address http://"), "{said}");
    assert_eq!(
        counted.load(Ordering::Relaxed),
        2,
        "one connection for each run, for a retry is useless: {said}"
    );
    server.abort();
}

/// The client process. Without the environment variable, as in a normal test run, it does nothing.
#[tokio::test]
async fn asks_where_it_is_told_to() {
    let Ok(address) = std::env::var(ADDRESS_VARIABLE) else { return };
    let model = OpenAi::at(&address).chat("m").expect("a model");
    let retry = ModelRetryPolicy { max_attempts: 2, ..ModelRetryPolicy::default() };
    let agent = Agent::new("host").model(model);
    // The second request shows whether the connection is used again.
    let _ = agent.run("Good morning.").model_retry(ModelRetryPolicy { max_attempts: 1, ..retry }).await;
    match agent.run("Hello.").model_retry(retry).await {
        Ok(outcome) => println!("said: {}", outcome.output_text().expect("the run finished")),
        Err(error) => println!("failed: {error}"),
    }
}
