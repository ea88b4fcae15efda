use rmcp::model::{ClientConfig, DiscoverRequest, DiscoverRequestParams, InitializeRequest, NumberOrString};
use tokio::io::AsyncWriteExt;

use super::*;

/// The reply to a probe that was given up arrives after the next request of the handshake.
#[tokio::test]
async fn a_late_reply_to_a_probe_is_not_taken_for_the_next_one() {
    let (ours, theirs) = tokio::io::duplex(4096);
    let (read, write) = tokio::io::split(ours);
    let filter = HandshakeFilter::default();
    let late = filter.late_discovery();
    let mut transport = LineTransport::new(read, write, filter);
    let probe = ClientRequest::DiscoverRequest(DiscoverRequest::new(DiscoverRequestParams {}));
    transport
        .send(ClientJsonRpcMessage::request(probe, NumberOrString::Number(0)))
        .await
        .expect("it is sent");
    let hello = ClientRequest::InitializeRequest(InitializeRequest::new(ClientConfig::default()));
    transport
        .send(ClientJsonRpcMessage::request(hello, NumberOrString::Number(1)))
        .await
        .expect("it is sent");
    let (_, mut theirs) = tokio::io::split(theirs);
    let lines = concat!(
        r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no such method"}}"#,
        "\n",
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"the reply"}}"#,
        "\n",
        r#"{"jsonrpc":"2.0","id":0,"error":{"code":-2,"message":"after the handshake"}}"#,
        "\n",
    );
    theirs.write_all(lines.as_bytes()).await.expect("it is written");
    let mut said = async || match transport.receive().await {
        Some(JsonRpcMessage::Error(error)) => error.error.message.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(said().await, "the reply");
    assert_eq!(said().await, "after the handshake");
    assert!(!late.load(Ordering::Relaxed));
}
