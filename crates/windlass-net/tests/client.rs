//! The HTTP client against servers on this machine: versions, TLS, compression, reuse of connections and replays.

#![cfg(feature = "testing")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::Write;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use support::{EchoProtocol, EchoServer, ScriptedServer, direct_client, post, post_safely, response};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use windlass_net::http::Request;
use windlass_net::{
    AddressGuard, Bytes, DecodedBody, HttpClient, HttpTransport, HttpVersionPolicy, ProxySettings,
    ReplaySafety, TransportError, TransportOptions, is_public_address,
};

#[tokio::test]
async fn connections_are_reused_by_both_versions() {
    for (protocol, scheme, version) in [
        (EchoProtocol::Http1, "http", "HTTP/1.1"),
        (EchoProtocol::Http1OverTls, "https", "HTTP/1.1"),
        (EchoProtocol::Http2OverTls, "https", "HTTP/2.0"),
    ] {
        let server = EchoServer::start(protocol).await;
        let client = direct_client();
        for _ in 0..5 {
            let said = post_safely(&client, &server.url(scheme, "localhost", "/a?b")).await;
            assert_eq!(said, Ok(format!("POST /a {version}")));
        }
        assert_eq!(server.connections(), 1, "{version} over {scheme}");
    }
}

#[tokio::test]
async fn http2_without_tls_is_spoken_by_setting() {
    let server = EchoServer::start(EchoProtocol::Http2).await;
    let url = server.url("http", "127.0.0.1", "/");
    let client = direct_client().version(HttpVersionPolicy::Http2);
    assert_eq!(post_safely(&client, &url).await.as_deref(), Ok("POST / HTTP/2.0"));
    let refused = post_safely(&direct_client(), &url).await.expect_err("HTTP/1.1");
    assert!(
        matches!(&refused, TransportError::OtherProtocol(why) if why.contains("HttpVersionPolicy::Http2"))
    );
    assert!(!refused.is_unsent());
}

#[tokio::test]
async fn a_port_without_tls_and_an_unknown_certificate_are_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let refused = post_safely(&direct_client(), &format!("https://localhost:{port}/")).await;
    let refused = refused.expect_err("no TLS");
    assert!(matches!(&refused, TransportError::Unusable(_)) && refused.is_unsent(), "{refused:?}");
    assert!(refused.to_string().contains("does not speak TLS at this port"), "{refused}");

    let server = EchoServer::start(EchoProtocol::Http1OverTls).await;
    let stranger = HttpClient::new().proxies(ProxySettings::none());
    let refused =
        post_safely(&stranger, &server.url("https", "localhost", "/")).await.expect_err("untrusted");
    let text = refused.to_string();
    // A machine without certificates says so instead.
    let is_named =
        text.contains("the certificate of localhost is not trusted") || text.contains("SSL_CERT_FILE");
    assert!(is_named && refused.is_unsent(), "{text}");
}

fn compress(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

#[tokio::test]
async fn gzip_is_decoded_whole_and_streamed() {
    let server =
        ScriptedServer::start(|_, _| Some(response("content-encoding: gzip\r\n", &compress("hello")))).await;
    assert_eq!(post_safely(&direct_client(), &server.url()).await.as_deref(), Ok("hello"));

    // The first event is readable before the second is sent.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (go_on, may_go_on) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        support::read_request(&mut stream).await.expect("a request");
        let head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n";
        stream.write_all(head).await.expect("it is there");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"data: one\n\n").and_then(|()| encoder.flush()).expect("memory");
        stream.write_all(&std::mem::take(encoder.get_mut())).await.expect("it is there");
        may_go_on.await.expect("the first event was read");
        encoder.write_all(b"data: two\n\n").expect("memory");
        stream.write_all(&encoder.finish().expect("memory")).await.expect("it is there");
    });
    let request = Request::get(url).body(Bytes::new()).expect("a request");
    let sent = direct_client().send(request, TransportOptions::new(ReplaySafety::Safe)).await;
    let (head, body) = sent.expect("a response").into_parts();
    let mut body = DecodedBody::new(body, &head.headers);
    assert_eq!(body.next_chunk().await.expect("a chunk").as_deref(), Some(&b"data: one\n\n"[..]));
    go_on.send(()).expect("the server waits");
    assert_eq!(body.next_chunk().await.expect("a chunk").as_deref(), Some(&b"data: two\n\n"[..]));
    assert_eq!(body.next_chunk().await, Ok(None));
}

/// The server closes a kept connection when the second request has arrived, without an answer.
#[tokio::test]
async fn a_request_that_may_have_arrived_is_sent_again_only_if_it_is_safe() {
    let drops_second = |connection: usize, number: usize| match (connection, number) {
        (1, 2) => None,
        _ => Some(response("", b"ok")),
    };
    let server = ScriptedServer::start(drops_second).await;
    let client = direct_client();
    assert_eq!(post_safely(&client, &server.url()).await.as_deref(), Ok("ok"));
    let lost = post(&client, &server.url(), ReplaySafety::Unsafe).await.expect_err("it is lost");
    assert!(matches!(&lost, TransportError::ConnectionLost(_)) && !lost.is_unsent(), "{lost:?}");
    assert_eq!(server.request_count(), 2, "it is not sent again");

    let server = ScriptedServer::start(drops_second).await;
    assert_eq!(post_safely(&client, &server.url()).await.as_deref(), Ok("ok"));
    assert_eq!(post_safely(&client, &server.url()).await.as_deref(), Ok("ok"));
    assert_eq!(server.request_count(), 3, "it is sent again once");

    // A fresh connection that is lost is not a stale one, so even a safe request is left to its caller.
    let server = ScriptedServer::start(|_, _| None).await;
    post_safely(&client, &server.url()).await.expect_err("it is lost");
    assert_eq!(server.request_count(), 1);
}

/// A connection may be closed by the server while it is idle. A request that must not be repeated is not risked on one
/// that has been idle for long.
#[tokio::test]
async fn a_request_that_must_not_be_repeated_uses_a_fresh_connection() {
    let server = EchoServer::start(EchoProtocol::Http1).await;
    let (client, url) = (direct_client(), server.url("http", "127.0.0.1", "/"));
    post_safely(&client, &url).await.expect("a response");
    post(&client, &url, ReplaySafety::Unsafe).await.expect("a response");
    assert_eq!(server.connections(), 1, "it was used a moment ago");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5)).await;
    tokio::time::resume();
    post_safely(&client, &url).await.expect("a response");
    assert_eq!(server.connections(), 1, "it is idle for five seconds, and the request may be repeated");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5)).await;
    tokio::time::resume();
    post(&client, &url, ReplaySafety::Unsafe).await.expect("a response");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_guard_is_asked_before_anybody_is_connected_to() {
    let server = EchoServer::start(EchoProtocol::Http1).await;
    let client = direct_client()
        .address_guard(AddressGuard::new(|host, address| host == "127.0.0.1" || is_public_address(address)));
    for host in ["localhost", "127.1", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]"] {
        let refused = post_safely(&client, &server.url("http", host, "/")).await.expect_err(host);
        let is_kept_out =
            matches!(&refused, TransportError::AddressRefused(_) | TransportError::Unreachable(_));
        assert!(is_kept_out && refused.is_unsent(), "{host}: {refused:?}");
    }
    assert_eq!(server.connections(), 0);
    post_safely(&client, &server.url("http", "127.0.0.1", "/")).await.expect("it is admitted");
}

#[tokio::test]
async fn addresses_that_cannot_be_used_are_refused() {
    for (address, why) in
        [("/path", "not an absolute address"), ("ftp://a/", "http, https"), ("http://u:hidden@a/", "header")]
    {
        let refused = post_safely(&direct_client(), address).await.expect_err(address);
        assert!(matches!(&refused, TransportError::Unusable(text) if text.contains(why)), "{refused:?}");
        assert!(!refused.to_string().contains("hidden"));
    }
}
