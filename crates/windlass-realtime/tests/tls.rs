//! Live sessions over TLS: with a server whose certificate this machine trusts, and with one whose it does not.
//!
//! Which certificates are trusted is read from the environment, so the talking is done by processes of its own.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use tokio::net::{TcpListener, TcpStream};
use windlass::prelude::*;
use windlass_realtime::openai::OpenAi;
use windlass_realtime::testing::{Loopback, Reply as Said};
use windlass_realtime::{LiveEvent, Realtime};
use windlass_tls::testing::{Trust, acceptor, said_by};

const ADDRESS: &str = "WINDLASS_TEST_WSS_ADDRESS";

/// Takes TLS off what comes in, and passes it on.
async fn unseal(listener: TcpListener, inner: std::net::SocketAddr) {
    let acceptor = acceptor().expect("certificates");
    while let Ok((stream, _)) = listener.accept().await {
        // A client that does not trust us hangs up.
        let Ok(mut outer) = acceptor.accept(stream).await else { continue };
        tokio::spawn(async move {
            let mut inner = TcpStream::connect(inner).await.expect("the server is there");
            drop(tokio::io::copy_bidirectional(&mut outer, &mut inner).await);
        });
    }
}

/// What the talking process says.
async fn talked(address: &str, trust: Trust) -> String {
    said_by("talks_where_it_is_told_to", ADDRESS, address, trust).await.expect("it runs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trusted_servers_are_talked_to_and_others_are_not() {
    let server = Loopback::new([Said::say("Sealed.")]);
    let (inner, serving) = server.listen().await.expect("a port");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let unsealing = tokio::spawn(unseal(listener, inner));
    let address = format!("wss://localhost:{port}/v1/realtime");

    let said = talked(&address, Trust::TheSigner).await;
    assert!(said.contains("said: Sealed."), "{said}");
    let said = talked(&address, Trust::SomebodyElse).await;
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
