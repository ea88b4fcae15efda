//! The ban that excepts this machine. It holds for the whole process, so this file has a process of its own and one test.

#![cfg(feature = "testing")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::{BufRead, BufReader, Write};

use support::{EchoProtocol, EchoServer, direct_client, post_safely};
use windlass_net::{
    HttpClient, NetworkBan, NetworkDialer, ProxySettings, StreamDialer, TransportError, ban_network,
    network_ban,
};

/// A local server that stands for a live one: its host is not called `localhost`, and the client finds it by a proxy.
fn start_proxy() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if line == "\r\n" {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlive");
                    }
                    line.clear();
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_ban_covers_open_connections_proxies_and_streams_and_leaves_this_machine() {
    let proxy = format!("http://127.0.0.1:{}", start_proxy());
    let through = HttpClient::new().proxies(ProxySettings::everywhere(&proxy).expect("an address"));
    assert_eq!(network_ban(), None);
    assert_eq!(post_safely(&through, "http://live.example/").await.as_deref(), Ok("live"));

    ban_network(NetworkBan::ExceptLoopback);
    assert_eq!(network_ban(), Some(NetworkBan::ExceptLoopback));
    // The connection to the proxy is open and in the pool; the proxy itself is on this machine.
    for url in ["http://live.example/", "https://live.example/", "http://10.0.0.1/"] {
        let refused = post_safely(&through, url).await.expect_err("it is banned");
        assert!(matches!(&refused, TransportError::Banned(why) if why.contains("live requests are banned")));
        assert!(refused.is_unsent());
    }
    let uri = "wss://live.example/v1".parse().expect("an address");
    let refused = NetworkDialer::new().open_stream(&uri).await.err().expect("it is banned");
    assert!(matches!(&refused, TransportError::Banned(_)), "{refused:?}");

    let server = EchoServer::start(EchoProtocol::Http1).await;
    for host in ["localhost", "127.0.0.1"] {
        let said = post_safely(&direct_client(), &server.url("http", host, "/a")).await;
        assert_eq!(said.as_deref(), Ok("POST /a HTTP/1.1"), "{host}");
    }
}
