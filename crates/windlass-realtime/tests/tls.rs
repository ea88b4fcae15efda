//! Sessions over TLS, with a trusted and with an untrusted server certificate.
//!
//! The trusted certificates are read from the environment, so each client runs in its own process.

#![cfg(feature = "tls")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use windlass::prelude::*;
use windlass_net::testing::{ClientTrust, run_test_process, start_tls_front};
use windlass_realtime::openai::OpenAiRealtime;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer};
use windlass_realtime::{RealtimeEvent, RealtimeSessionBuilder};

const ADDRESS_VAR: &str = "WINDLASS_TEST_WSS_ADDRESS";

/// Runs the client process and returns its output.
async fn run_client(address: &str, trust: ClientTrust) -> String {
    run_test_process("talks_where_it_is_told_to", ADDRESS_VAR, address, trust).await.expect("it runs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trusted_servers_are_talked_to_and_others_are_not() {
    let server = LoopbackServer::new([LoopbackReply::message("Sealed.")]);
    let (inner, serving) = server.listen().await.expect("a port");
    let port = start_tls_front(inner).await.expect("a port").port();
    let address = format!("wss://localhost:{port}/v1/realtime");

    let said = run_client(&address, ClientTrust::ServerIssuer).await;
    assert!(said.contains("said: Sealed."), "{said}");
    let said = run_client(&address, ClientTrust::UnrelatedIssuer).await;
    assert!(said.contains("failed: ") && said.contains("not trusted"), "{said}");
    serving.abort();
}

/// The client process. Does nothing without an address in the environment.
#[tokio::test]
async fn talks_where_it_is_told_to() {
    let Ok(address) = std::env::var(ADDRESS_VAR) else { return };
    let session =
        match RealtimeSessionBuilder::new(Agent::new("desk"), OpenAiRealtime::with_url(address).model("m"))
            .connect()
            .await
        {
            Ok(session) => session,
            Err(error) => return println!("failed: {error}"),
        };
    let mut events = session.events();
    session.send_text("Hello?").await.expect("it is said");
    while let Some(event) = events.next().await {
        if matches!(event, RealtimeEvent::TurnEnded { .. }) {
            break;
        }
    }
    let report = session.close().await;
    println!("said: {}", report.history.items().last().map(|item| item.text()).unwrap_or_default());
}
