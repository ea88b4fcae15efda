//! A live session through a proxy that requires CONNECT, a user name and a password.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use windlass::prelude::*;
use windlass_realtime::net::testing::{TestProxy, start_tls_front, test_roots};
use windlass_realtime::net::{NetworkDialer, ProxySettings};
use windlass_realtime::openai::OpenAiRealtime;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer};
use windlass_realtime::{RealtimeEvent, RealtimeSessionBuilder};

fn model_behind(proxy: &str, scheme: &str) -> OpenAiRealtime {
    let dialer = NetworkDialer::new()
        .proxies(ProxySettings::everywhere(proxy).expect("an address"))
        .trusted_roots(test_roots().expect("certificates"));
    OpenAiRealtime::with_url(format!("{scheme}://live.windlass.test/v1/realtime")).model("m").dialer(dialer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_through_a_proxy_with_a_login() {
    for scheme in ["wss", "ws"] {
        let server = LoopbackServer::new([LoopbackReply::message("Through.")]);
        let (inner, serving) = server.listen().await.expect("a port");
        let address = if scheme == "wss" { start_tls_front(inner).await.expect("a port") } else { inner };
        let proxy = TestProxy::start([("live.windlass.test", address)]).await.expect("a proxy");
        let model = model_behind(&proxy.url(), scheme);
        let session =
            RealtimeSessionBuilder::new(Agent::new("desk"), model).connect().await.expect("a session");
        let mut events = session.events();
        session.send_text("Hello?").await.expect("it is said");
        while let Some(event) = events.next().await {
            if matches!(event, RealtimeEvent::TurnEnded { .. }) {
                break;
            }
        }
        let report = session.close().await;
        assert_eq!(report.history.items().last().map(|item| item.text()).as_deref(), Some("Through."));
        let port = if scheme == "wss" { 443 } else { 80 };
        assert_eq!(proxy.requests(), [format!("CONNECT live.windlass.test:{port} HTTP/1.1")]);
        serving.abort();
    }
}

#[tokio::test]
async fn a_wrong_password_ends_the_session_at_once_and_is_not_shown() {
    let proxy = TestProxy::start([]).await.expect("a proxy");
    let model = model_behind(&proxy.url_with_login("worker:guessed"), "wss");
    let refused = RealtimeSessionBuilder::new(Agent::new("desk"), model).connect().await;
    let said = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(said.contains(&proxy.place()) && said.contains("user name and password"), "{said}");
    assert!(!said.contains("guessed"), "{said}");
}
