//! The page's server, as a browser or an attacker reaches it.

use std::io::{Read, Write};
use std::net::TcpStream;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;

use crate::process::TalkProcess;
use crate::support::TestProject;

const SCRIPT: &str = r#"
[[answer]]
text = "I will write it."
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "order.txt", content = "rope\n<b>\u202e</b>\n" }

[[answer]]
text = "Done."
"#;

fn order_project() -> TestProject {
    TestProject::new("tools = [\"files\"]", SCRIPT)
}

/// Returns the host and the path of an address.
fn split_url(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").expect("an address");
    rest.split_at(rest.find('/').expect("a path"))
}

/// Sends a request, and returns the whole response.
fn request(host: &str, head: &str) -> String {
    let mut stream = TcpStream::connect(host).expect("it listens");
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("it responds");
    response
}

#[test]
fn the_page_needs_its_token_and_its_name() {
    let project = order_project();
    let talk = TalkProcess::start(&project, &[]);
    let (host, path) = split_url(talk.url());
    assert!(host.starts_with("127.0.0.1:") && path.len() > 60, "{}", talk.url());
    let page = request(host, &format!("GET {path} HTTP/1.1\r\nHost: {host}"));
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("<!doctype html>"), "{page}");
    assert!(page.contains("Content-Security-Policy: default-src 'none'; script-src 'self';"), "{page}");
    for (head, status) in [
        (format!("GET / HTTP/1.1\r\nHost: {host}"), "404"),
        (format!("GET /talk.js HTTP/1.1\r\nHost: {host}"), "404"),
        (format!("GET {path} HTTP/1.1\r\nHost: evil.example"), "403"),
        (format!("GET {path}socket HTTP/1.1\r\nHost: {host}"), "403"),
        (format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example"), "403"),
        ("nonsense".to_owned(), "400"),
    ] {
        let response = request(host, &head);
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {response}");
    }
}

type PageSocket = tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>;

/// Opens the socket as the page does.
async fn open_socket(url: &str) -> PageSocket {
    let (host, path) = split_url(url);
    let mut request = format!("ws://{host}{path}socket").into_client_request().expect("an address");
    request.headers_mut().insert("origin", HeaderValue::try_from(format!("http://{host}")).expect("valid"));
    let stream = tokio::net::TcpStream::connect(host).await.expect("it listens");
    tokio_tungstenite::client_async(request, stream).await.expect("it opens").0
}

/// Returns the first object of this type.
async fn expect(socket: &mut PageSocket, kind: &str) -> Value {
    loop {
        match socket.next().await.expect("it goes on").expect("it is readable") {
            Message::Text(text) => {
                let value: Value = serde_json::from_str(text.as_str()).expect("it is JSON");
                if value["type"] == kind {
                    return value;
                }
            }
            Message::Close(_) => panic!("closed before {kind}"),
            _ => {}
        }
    }
}

async fn send(socket: &mut PageSocket, value: Value) {
    socket.send(Message::text(value.to_string())).await.expect("it takes messages");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_approved_on_the_page() {
    let project = order_project();
    let talk = TalkProcess::start(&project, &[]);
    assert_eq!(talk.greeting["voice"], "scripted", "without a key");
    assert!(talk.greeting["notice"].as_str().is_some_and(|notice| notice.contains("scripted test server")));
    let mut socket = open_socket(talk.url()).await;
    let ready = expect(&mut socket, "ready").await;
    assert!(
        ready["notice"].as_str().is_some_and(|notice| notice.contains("scripted test server")),
        "{ready}"
    );
    expect(&mut socket, "live").await;
    // A second page is sent away.
    let mut second = open_socket(talk.url()).await;
    expect(&mut second, "busy").await;

    send(&mut socket, json!({ "type": "text", "text": "Order rope." })).await;
    let held = expect(&mut socket, "call_held").await;
    let lines: Vec<&str> =
        held["lines"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    assert_eq!(lines[0], "helper would like to call write_file:");
    let text = lines.join("\n");
    assert!(text.contains("creates order.txt, 2 lines") && text.contains("+<b>\\u{202e}</b>"), "{text}");
    assert!(!project.file("order.txt").exists());
    // The digest is the one that `windlass show` prints.
    assert_eq!(
        project.digest_of(held["run"].as_str().expect("a run")),
        held["digest"].as_str().expect("a digest")
    );
    send(
        &mut socket,
        json!({ "type": "decide", "digest": held["digest"], "decision": { "kind": "approve" } }),
    )
    .await;
    assert_eq!(expect(&mut socket, "call_settled").await["status"], "succeeded");
    assert_eq!(
        std::fs::read_to_string(project.file("order.txt")).expect("is there"),
        "rope\n<b>\u{202e}</b>\n"
    );
    loop {
        let item = expect(&mut socket, "item").await;
        if item["text"] == "Done." {
            break;
        }
    }
    assert_eq!(talk.interrupt(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_approved_from_another_terminal() {
    let project = order_project();
    let mut talk = TalkProcess::start(&project, &[]);
    let mut socket = open_socket(talk.url()).await;
    expect(&mut socket, "live").await;
    send(&mut socket, json!({ "type": "text", "text": "Order rope." })).await;
    let held = expect(&mut socket, "call_held").await;
    let line = talk.expect("call_held");
    assert_eq!(line["run"], held["run"]);
    let run = held["run"].as_str().expect("a run");
    let digest = project.digest_of(run);
    // The conversation goes on with its calls, and not the model of another process.
    let resumed = project.run_windlass(&["resume", run]);
    assert_eq!(resumed.code, Some(2), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("windlass talk"), "{}", resumed.stderr);
    let approved = project.run_windlass(&["approve", run, "w1", "--digest", &digest, "--resume"]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    assert!(approved.stderr.contains("goes on with the call"), "{}", approved.stderr);
    assert_eq!(expect(&mut socket, "call_settled").await["status"], "succeeded");
    assert!(project.file("order.txt").exists());
    // The page that displayed the call comes too late.
    send(
        &mut socket,
        json!({ "type": "decide", "digest": held["digest"], "decision": { "kind": "reject" } }),
    )
    .await;
    expect(&mut socket, "refused").await;
}

/// A conversation goes on after its process was stopped or killed, with the call that waits and not a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_conversation_goes_on() {
    for is_killed in [false, true] {
        let project = order_project();
        let talk = TalkProcess::start(&project, &[]);
        let session = talk.greeting["session"].as_str().expect("an id").to_owned();
        let mut socket = open_socket(talk.url()).await;
        expect(&mut socket, "live").await;
        send(&mut socket, json!({ "type": "text", "text": "Order rope." })).await;
        let held = expect(&mut socket, "call_held").await;
        // The pause of the run is in the store.
        project.digest_of(held["run"].as_str().expect("a run"));
        match is_killed {
            true => talk.kill(),
            false => assert_ne!(talk.terminate(), Some(0)),
        }

        let talk = TalkProcess::start(&project, &["--resume", &session]);
        assert_eq!(talk.greeting["session"], session.as_str());
        let mut socket = open_socket(talk.url()).await;
        let again = expect(&mut socket, "call_held").await;
        assert_eq!((&again["run"], &again["path"]), (&held["run"], &held["path"]));
        send(
            &mut socket,
            json!({ "type": "decide", "digest": again["digest"], "decision": { "kind": "approve" } }),
        )
        .await;
        assert_eq!(expect(&mut socket, "call_settled").await["status"], "succeeded");
        assert!(project.file("order.txt").exists());
        assert_eq!(talk.interrupt(), Some(0));
    }
    let project = order_project();
    let unknown = project.run_windlass(&["talk", ".", "--scripted", "--resume", "voice-unknown"]);
    assert!(unknown.stderr.contains("there is no record of the conversation"), "{}", unknown.stderr);
}
