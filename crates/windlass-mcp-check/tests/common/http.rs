//! A small HTTP client and server without an SDK, for tests of the wire.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Maximum time until the next message of an event stream; only a test that fails waits so long.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(180);

/// A response whose body may still be arriving.
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    reader: BufReader<TcpStream>,
}

/// Sends a request on a connection of its own.
pub(crate) async fn send_raw(
    address: SocketAddr,
    method: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> RawResponse {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let mut head = format!(
        "{method} /mcp HTTP/1.1\r\nhost: {address}\r\naccept: application/json, text/event-stream\r\n"
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let body = body.map(Value::to_string).unwrap_or_default();
    head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    let mut reader = BufReader::new(stream);
    let head = tokio::time::timeout(MESSAGE_TIMEOUT, read_head(&mut reader)).await;
    let (first, headers) = head.expect("the server answers").expect("a response");
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    RawResponse { status, headers, reader }
}

async fn read_head(reader: &mut BufReader<TcpStream>) -> Option<(String, BTreeMap<String, String>)> {
    let mut first = String::new();
    reader.read_line(&mut first).await.ok().filter(|read| *read > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Some((first.trim_end().to_owned(), headers))
}

impl RawResponse {
    /// Returns the next JSON-RPC message of an event stream; `None` at its end.
    pub(crate) async fn next_message(&mut self) -> Option<Value> {
        tokio::time::timeout(MESSAGE_TIMEOUT, self.read_message()).await.expect("the server says something")
    }

    async fn read_message(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let data = line.trim_end().strip_prefix("data:").map(str::trim);
            if let Some(Ok(message)) = data.map(serde_json::from_str) {
                return Some(message);
            }
        }
    }

    /// Returns the message that answers a request.
    pub(crate) async fn answer_to(&mut self, id: u64) -> Value {
        loop {
            let message = self.next_message().await.expect("the stream goes on");
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
        }
    }
}

/// A request that a scripted HTTP server received.
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// The body if it is JSON; null otherwise.
    pub(crate) body: Value,
    pub(crate) body_text: String,
    /// The number of the connection that it came on.
    pub(crate) connection: usize,
}

/// Serves HTTP: `respond` returns the raw response to each request, with its head.
pub(crate) async fn serve_raw(
    respond: impl Fn(ReceivedRequest) -> String + Send + Sync + 'static,
) -> SocketAddr {
    serve_raw_async(move |request| std::future::ready(respond(request))).await
}

/// Serves HTTP as [`serve_raw`] does, with responses that may take their time.
pub(crate) async fn serve_raw_async<Fut>(
    respond: impl Fn(ReceivedRequest) -> Fut + Send + Sync + 'static,
) -> SocketAddr
where
    Fut: Future<Output = String> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let respond = std::sync::Arc::new(respond);
    tokio::spawn(async move {
        let mut connection = 0;
        while let Ok((stream, _)) = listener.accept().await {
            connection += 1;
            tokio::spawn(serve_connection(stream, connection, respond.clone()));
        }
    });
    address
}

async fn serve_connection<Fut: Future<Output = String>>(
    stream: TcpStream,
    connection: usize,
    respond: std::sync::Arc<impl Fn(ReceivedRequest) -> Fut>,
) {
    let mut reader = BufReader::new(stream);
    while let Some((first, headers)) = read_head(&mut reader).await {
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).await.is_err() {
            return;
        }
        let body_text = String::from_utf8_lossy(&body).into_owned();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let response = respond(ReceivedRequest { method, path, headers, body, body_text, connection }).await;
        if reader.get_mut().write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns a response with a body of this type.
pub(crate) fn raw_response(status: &str, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Returns a response with a JSON-RPC result.
pub(crate) fn raw_result(id: &Value, result: &Value) -> String {
    let body = serde_json::json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    raw_response("200 OK", "application/json", &body)
}
