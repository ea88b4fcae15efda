//! The ban on live requests, for every part that can reach a server. It holds for the whole process, so this file has a
//! process of its own and one test.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass::prelude::*;
#[cfg(feature = "mcp")]
use windlass_mcp::{McpConfig, McpConnections, McpServerConfig};
use windlass_models::OpenAi;
use windlass_models::net::{NetworkBan, ban_network};
use windlass_realtime::RealtimeSessionBuilder;
use windlass_realtime::openai::OpenAiRealtime;
use windlass_tools::{BuiltInApprovalPolicy, WebFetcher};

const BAN: &str = "live requests are banned in this process";

/// Listens on a loopback port and counts the connections.
async fn start_counting_server() -> (u16, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (port, connections)
}

#[tokio::test]
async fn models_mcp_tools_and_live_sessions_obey_the_ban() {
    ban_network(NetworkBan::Everything);
    // A milder ban does not lift it.
    ban_network(NetworkBan::ExceptLoopback);
    let (port, connections) = start_counting_server().await;
    let base = format!("http://localhost:{port}");

    let provider = OpenAi::new("key").base_url(&format!("{base}/v1"));
    let asker = Agent::new("asker");
    for agent in [
        asker.clone().model(provider.responses("m").expect("a model")),
        asker.model(provider.chat("m").expect("a model")),
    ] {
        let failed = agent.run("Hello.").await.expect_err("no request is sent");
        assert!(failed.to_string().contains(BAN), "{failed}");
    }
    let embeddings = provider.embeddings("e").expect("a model").embed(&["text"]).await;
    let failed = embeddings.expect_err("no request is sent").to_string();
    assert!(failed.contains(BAN), "{failed}");

    #[cfg(feature = "mcp")]
    for server in [
        McpServerConfig::http("tickets", format!("{base}/mcp")),
        McpServerConfig::http("public", "https://tickets.example/mcp"),
    ] {
        let connecting = McpConnections::connect_strict(McpConfig::new().server(server)).await;
        let failed = connecting.err().expect("no connection is opened").to_string();
        assert!(failed.contains(BAN), "{failed}");
    }

    let web = WebFetcher::new().approve(BuiltInApprovalPolicy::Never).allow_private_host("localhost");
    for url in [format!("{base}/page"), "https://example.org/".to_owned()] {
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "fetch_url", json!({ "url": url })),
            ScriptedResponse::text("done"),
        ]);
        let reader = Agent::new("reader").model(model.clone()).tool(web.tool());
        reader.run("Read it.").await.expect("the model is told");
        let told = model.requests()[1].input_text().pop().expect("an output");
        assert!(told.contains(BAN), "{told}");
    }

    for url in [format!("ws://localhost:{port}/v1/realtime"), "wss://live.example/v1".to_owned()] {
        let live = OpenAiRealtime::with_url(url).model("m");
        let refused = RealtimeSessionBuilder::new(Agent::new("guide"), live).connect().await;
        let Err(failed) = refused else { panic!("a connection was opened") };
        assert!(failed.to_string().contains(BAN), "{failed}");
    }

    assert_eq!(connections.load(Ordering::SeqCst), 0, "nobody was connected to");
}
