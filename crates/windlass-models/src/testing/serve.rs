//! The HTTP server of a fake provider. It is written by hand because tests control every byte and every pause.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::render::{RenderedReply, render_reply};
use super::reply::{DeliveryFault, FakeReply};
use super::{FakeProviderState, ReceivedRequest};

/// Maximum length of a request in bytes.
const MAX_REQUEST_LEN: usize = 64 * 1024 * 1024;

pub(super) async fn accept_connections(listener: TcpListener, script: Arc<Mutex<FakeProviderState>>) {
    // Dropping the set ends the connections with their server.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        script.lock().unwrap_or_else(PoisonError::into_inner).connections += 1;
        connections.spawn(serve_connection(stream, script.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(mut stream: TcpStream, script: Arc<Mutex<FakeProviderState>>) {
    let _ = stream.set_nodelay(true);
    let mut buffer = Vec::new();
    while let Ok(Some(request)) = read_request(&mut stream, &mut buffer).await {
        let (reply, number) = {
            let mut script = script.lock().unwrap_or_else(PoisonError::into_inner);
            script.requests.push(request.clone());
            (script.replies.pop_front(), script.requests.len())
        };
        let reply = reply.unwrap_or_else(|| FakeReply::status(500).header("x-should-retry", "false"));
        let rendered = render_reply(&reply, &request, number);
        match deliver_reply(&mut stream, &reply, &rendered).await {
            Ok(ConnectionOutcome::KeptOpen) => {}
            Ok(ConnectionOutcome::Closed) | Err(_) => return,
        }
    }
}

#[derive(PartialEq, Eq)]
enum ConnectionOutcome {
    KeptOpen,
    Closed,
}

async fn deliver_reply(
    stream: &mut TcpStream,
    reply: &FakeReply,
    rendered: &RenderedReply,
) -> io::Result<ConnectionOutcome> {
    let delivery = &reply.delivery;
    if let Some(delay) = delivery.delay {
        tokio::time::sleep(delay).await;
    }
    let mut head = format!("HTTP/1.1 {} Fake\r\ncontent-type: {}\r\n", reply.status, rendered.content_type);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("x-request-id")) {
        head.push_str(&format!("x-request-id: {}\r\n", rendered.request_id));
    }
    head.push_str("transfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let (end, fault) = match delivery.fault {
        Some((at, fault @ DeliveryFault::KeepAlive(_))) => {
            (complete_events_end(&rendered.body, at), Some(fault))
        }
        Some((at, fault)) => (at.min(rendered.body.len()), Some(fault)),
        None => (rendered.body.len(), None),
    };
    let split = delivery.chunk_bytes.unwrap_or(end.max(1));
    for piece in rendered.body[..end].chunks(split) {
        write_chunk(stream, piece).await?;
    }
    match fault {
        None | Some(DeliveryFault::End) => {
            stream.write_all(b"0\r\n\r\n").await?;
            Ok(ConnectionOutcome::KeptOpen)
        }
        Some(DeliveryFault::Stall) => {
            wait_for_close(stream).await;
            Ok(ConnectionOutcome::Closed)
        }
        Some(DeliveryFault::KeepAlive(every)) => loop {
            write_chunk(stream, b": keep-alive\n\n").await?;
            tokio::time::sleep(every.max(Duration::from_millis(1))).await;
        },
        Some(DeliveryFault::Reset) => {
            // The socket is closed with RST if the system supports it; the body has no end either way.
            reset_on_close(stream);
            Ok(ConnectionOutcome::Closed)
        }
    }
}

/// Returns the end of the last event that is complete within `at` bytes; a comment inside an event would corrupt
/// it.
fn complete_events_end(body: &[u8], at: usize) -> usize {
    let body = &body[..at.min(body.len())];
    body.windows(2).rposition(|window| window == b"\n\n").map_or(0, |end| end + 2)
}

fn reset_on_close(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn write_chunk(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
    chunk.extend_from_slice(piece);
    chunk.extend_from_slice(b"\r\n");
    stream.write_all(&chunk).await
}

async fn wait_for_close(stream: &mut TcpStream) {
    let mut rest = [0; 256];
    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<ReceivedRequest>> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if !read_more(stream, buffer).await? {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let mut lines = head.split("\r\n");
    let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let end = head_end + 4 + length;
    while buffer.len() < end {
        if !read_more(stream, buffer).await? {
            return Ok(None);
        }
    }
    let rest = buffer.split_off(end);
    let body: Value = serde_json::from_slice(&buffer[head_end + 4..]).unwrap_or_default();
    *buffer = rest;
    Ok(Some(ReceivedRequest { path, headers, body }))
}

/// Reads more bytes into the buffer. Returns false at the end of the stream.
async fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<bool> {
    if buffer.len() > MAX_REQUEST_LEN {
        return Err(io::Error::other("the request is too long"));
    }
    Ok(stream.read_buf(buffer).await? > 0)
}
