//! Requests and streams through a proxy that requires a user name and a password.

#![cfg(feature = "testing")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::time::Duration;

use support::{EchoProtocol, EchoServer, direct_client, post, post_safely, proxied_client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass_net::testing::{TestProxy, test_roots};
use windlass_net::{
    AddressGuard, GuardBehindProxy, HttpTransport, HttpVersionPolicy, NetworkDialer, ProxySettings,
    ReplaySafety, StreamDialer, TransportError,
};

const NAME: &str = "api.windlass.test";

async fn proxy_to(server: &EchoServer) -> TestProxy {
    TestProxy::start([(NAME, server.address), ("127.0.0.1", server.address)]).await.expect("a proxy")
}

#[tokio::test]
async fn requests_with_tls_go_through_a_tunnel_that_is_reused() {
    for (protocol, version) in
        [(EchoProtocol::Http1OverTls, "HTTP/1.1"), (EchoProtocol::Http2OverTls, "HTTP/2.0")]
    {
        let server = EchoServer::start(protocol).await;
        let proxy = proxy_to(&server).await;
        let client = proxied_client(&proxy.url());
        for _ in 0..3 {
            let answer =
                post(&client, &format!("https://{NAME}/a"), ReplaySafety::Safe).await.expect("an answer");
            assert_eq!(answer.headers()["x-proxy-header"], "false", "the login stays with the proxy");
            assert_eq!(answer.body(), &format!("POST /a {version}"));
        }
        assert_eq!(proxy.requests(), [format!("CONNECT {NAME}:443 HTTP/1.1")]);
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn requests_without_tls_are_forwarded() {
    let server = EchoServer::start(EchoProtocol::Http1).await;
    let proxy = proxy_to(&server).await;
    let client = proxied_client(&proxy.url());
    let answer =
        post(&client, &format!("http://{NAME}:81/a?b=c"), ReplaySafety::Safe).await.expect("an answer");
    assert_eq!(
        (answer.body().as_str(), &answer.headers()["x-host"]),
        ("POST /a HTTP/1.1", &NAME.parse().expect("a name"))
    );
    assert_eq!(proxy.requests(), [format!("POST http://{NAME}:81/a?b=c HTTP/1.1")]);
}

#[tokio::test]
async fn http2_without_tls_goes_through_a_tunnel() {
    let server = EchoServer::start(EchoProtocol::Http2).await;
    let proxy = proxy_to(&server).await;
    let client = proxied_client(&proxy.url()).version(HttpVersionPolicy::Http2);
    assert_eq!(post_safely(&client, &format!("http://{NAME}/")).await.as_deref(), Ok("POST / HTTP/2.0"));
    assert_eq!(proxy.requests(), [format!("CONNECT {NAME}:80 HTTP/1.1")]);
}

#[tokio::test]
async fn a_login_that_is_refused_is_named_without_the_password() {
    let server = EchoServer::start(EchoProtocol::Http1OverTls).await;
    let proxy = proxy_to(&server).await;
    for (address, said) in [
        (proxy.url_with_login("worker:guessed"), "refused the user name and password"),
        (proxy.url_without_login(), "requires a user name and a password"),
    ] {
        let client = proxied_client(&address);
        for scheme in ["http", "https"] {
            let refused = post_safely(&client, &format!("{scheme}://{NAME}/")).await.expect_err("a refusal");
            let text = format!("{refused} {client:?}");
            assert!(matches!(&refused, TransportError::Unusable(_)) && refused.is_unsent(), "{refused:?}");
            assert!(text.contains(said) && text.contains(&proxy.place()), "{text}");
            assert!(!text.contains("guessed") && !text.contains("worker"), "{text}");
        }
    }
    assert_eq!((proxy.requests().len(), server.connections()), (0, 0));
}

#[tokio::test]
async fn servers_and_proxies_that_are_away_are_told_apart() {
    let server = EchoServer::start(EchoProtocol::Http1OverTls).await;
    let proxy = proxy_to(&server).await;
    let away =
        post_safely(&proxied_client(&proxy.url()), "https://other.windlass.test/").await.expect_err("503");
    assert!(matches!(&away, TransportError::Unreachable(why) if why.contains("503")), "{away:?}");
    let url = proxy.url();
    let place = proxy.place();
    drop(proxy);
    let mut away = post_safely(&proxied_client(&url), &format!("https://{NAME}/")).await;
    // The proxy's task ends in its own time.
    while away.is_ok() {
        tokio::task::yield_now().await;
        away = post_safely(&proxied_client(&url), &format!("https://{NAME}/")).await;
    }
    let away = away.expect_err("it is away");
    assert!(matches!(&away, TransportError::Unreachable(why) if why.contains(&place)), "{away:?}");
}

#[tokio::test]
async fn exceptions_are_reached_directly() {
    let server = EchoServer::start(EchoProtocol::Http1).await;
    let proxy = proxy_to(&server).await;
    // Addresses of this machine have no proxy.
    let url = server.url("http", "localhost", "/");
    assert_eq!(post_safely(&proxied_client(&proxy.url()), &url).await.as_deref(), Ok("POST / HTTP/1.1"));
    let variables = |no_proxy: &'static str| {
        let proxy = proxy.url();
        ProxySettings::from_vars(move |name| match name {
            "ALL_PROXY" => Some(proxy.clone()),
            "no_proxy" => Some(no_proxy.to_owned()),
            _ => None,
        })
    };
    // The name has no address, so a direct connection fails.
    let direct =
        post_safely(&direct_client().proxies(variables("windlass.test")), &format!("http://{NAME}/")).await;
    assert!(matches!(&direct, Err(TransportError::Unreachable(_))), "{direct:?}");
    assert_eq!(proxy.requests().len(), 0);
    post_safely(&direct_client().proxies(variables("other.test")), &format!("http://{NAME}/"))
        .await
        .expect("proxied");
    assert_eq!(proxy.requests().len(), 1);
}

#[tokio::test]
async fn streams_always_go_through_a_tunnel() {
    for (protocol, scheme) in [(EchoProtocol::Http1, "ws"), (EchoProtocol::Http1OverTls, "wss")] {
        let server = EchoServer::start(protocol).await;
        let proxy = proxy_to(&server).await;
        let proxies = ProxySettings::everywhere(&proxy.url()).expect("an address");
        let dialer = NetworkDialer::new().proxies(proxies).trusted_roots(test_roots().expect("certificates"));
        let address = format!("{scheme}://{NAME}:444/").parse().expect("an address");
        let mut stream = dialer.open_stream(&address).await.expect("a stream");
        stream
            .write_all(b"GET /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await
            .expect("it is there");
        let mut answer = String::new();
        let reading = tokio::time::timeout(Duration::from_secs(60), stream.read_to_string(&mut answer)).await;
        reading.expect("the server answers").expect("an answer");
        assert!(answer.ends_with("GET /x HTTP/1.1"), "{answer}");
        assert_eq!(proxy.requests(), [format!("CONNECT {NAME}:444 HTTP/1.1")]);
    }
}

/// Behind a proxy, the default guard resolves and checks the name here and pins the tunnel to the checked address.
#[tokio::test]
async fn a_guard_holds_behind_a_proxy() {
    let server = EchoServer::start(EchoProtocol::Http1).await;
    let proxy = proxy_to(&server).await;
    let client = proxied_client(&proxy.url());
    let guarded = |mode: GuardBehindProxy| {
        let guard =
            AddressGuard::new(|_, address| !address.is_loopback() && address.to_string() != "10.1.1.1");
        client.with_address_guard(guard.behind_proxy(mode)).expect("it checks addresses")
    };
    let send = |mode: GuardBehindProxy, url: &'static str| {
        let client = guarded(mode);
        async move {
            let request =
                windlass_net::http::Request::get(url).body(windlass_net::Bytes::new()).expect("a request");
            let options = windlass_net::TransportOptions::new(ReplaySafety::Safe);
            client.send(request, options).await.map(|response| response.status().as_u16())
        }
    };
    let pinned = GuardBehindProxy::PinnedTunnel;
    let refused = send(pinned, "http://10.1.1.1/").await;
    assert!(matches!(&refused, Err(TransportError::AddressRefused(_))), "{refused:?}");
    // A name that only the proxy could resolve is not taken on trust.
    let unknown = send(pinned, "http://api.windlass.test/").await;
    assert!(matches!(&unknown, Err(TransportError::Unreachable(_))), "{unknown:?}");
    assert_eq!(proxy.requests().len(), 0, "the proxy was not asked");
    // The tunnel leads to the number, also without TLS. This proxy does not know it.
    let away = send(pinned, "http://10.2.2.2/").await;
    assert!(matches!(&away, Err(TransportError::Unreachable(_))), "{away:?}");
    assert_eq!(proxy.requests(), ["CONNECT 10.2.2.2:80 HTTP/1.1"]);

    let by_proxy = GuardBehindProxy::ProxyResolves;
    assert_eq!(send(by_proxy, "http://api.windlass.test/").await, Ok(200));
    for number in ["http://10.1.1.1/", "http://10.65793/", "http://0x0a010101/"] {
        let refused = send(by_proxy, number).await;
        assert!(matches!(&refused, Err(TransportError::AddressRefused(_))), "{number}: {refused:?}");
    }
}
