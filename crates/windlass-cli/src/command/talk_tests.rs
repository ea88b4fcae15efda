use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::http::Uri;
use windlass::prelude::Agent;
use windlass_realtime::RealtimeSessionBuilder;
use windlass_realtime::net::{ByteStream, StreamDialer, TransportError};

use super::select_backend;
use crate::agent_file::AgentFile;
use crate::args::TalkArgs;

/// A dialer that reports the address and the handshake request, and answers nothing.
struct HandshakeReport(mpsc::UnboundedSender<(String, String)>);

impl StreamDialer for HandshakeReport {
    fn open_stream<'a>(&'a self, uri: &'a Uri) -> BoxFuture<'a, Result<Box<dyn ByteStream>, TransportError>> {
        let (client, mut server) = tokio::io::duplex(16 * 1024);
        let (report, address) = (self.0.clone(), uri.to_string());
        tokio::spawn(async move {
            let (mut text, mut part) = (Vec::new(), [0; 1024]);
            while !text.ends_with(b"\r\n\r\n") {
                let Ok(count @ 1..) = server.read(&mut part).await else { return };
                text.extend_from_slice(&part[..count]);
            }
            let _ = report.send((address, String::from_utf8_lossy(&text).to_lowercase()));
        });
        std::future::ready(Ok(Box::new(client) as Box<dyn ByteStream>)).boxed()
    }
}

fn talk_args() -> TalkArgs {
    TalkArgs {
        agent: None,
        scripted: false,
        url: None,
        model: None,
        voice: None,
        resume: None,
        port: 0,
        no_open: true,
    }
}

/// Selects a voice with the key `k1`, and returns its kind, and the address and the handshake request of its connection.
async fn selected(talk: &TalkArgs) -> (&'static str, String, String) {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("agent.toml");
    std::fs::write(&path, "name = \"desk\"\nmodel = \"gpt-5\"\ninstructions = \"Help.\"\n")
        .expect("it can be written");
    let file = AgentFile::read(&path).expect("it is an agent");
    let backend = select_backend(talk, &file, Some("k1".to_owned())).expect("there is a voice");
    if backend.kind == "scripted" {
        return (backend.kind, String::new(), String::new());
    }
    let (sender, mut reports) = mpsc::unbounded_channel();
    let model = backend.model.dialer(HandshakeReport(sender));
    let refused = RealtimeSessionBuilder::new(Agent::new("desk"), model).connect().await;
    assert!(refused.is_err());
    let (address, request) = reports.recv().await.expect("it connects");
    (backend.kind, address, request)
}

#[tokio::test]
async fn a_key_selects_openai() {
    let (kind, address, request) = selected(&talk_args()).await;
    assert_eq!(kind, "openai");
    assert_eq!(address, "wss://api.openai.com/v1/realtime?model=gpt-realtime-2.1");
    assert!(request.contains("authorization: bearer k1\r\n"), "{request}");
    let named = TalkArgs { model: Some("gpt-realtime-mini".to_owned()), ..talk_args() };
    assert!(selected(&named).await.1.ends_with("?model=gpt-realtime-mini"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scripted_voice_precedes_a_key() {
    let (kind, ..) = selected(&TalkArgs { scripted: true, ..talk_args() }).await;
    assert_eq!(kind, "scripted");
}

#[tokio::test]
async fn another_server_gets_the_key_on_an_encrypted_connection_only() {
    for (scheme, is_sent) in [("wss", true), ("ws", false)] {
        let url = format!("{scheme}://example.test/v1/realtime");
        let (kind, _, request) = selected(&TalkArgs { url: Some(url), ..talk_args() }).await;
        assert_eq!((kind, request.contains("authorization")), ("server", is_sent), "{request}");
        assert!(is_sent || !request.contains("k1"), "{request}");
    }
}
