//! Connection to a browser that runs already, here or on another machine.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::computer::ComputerError;

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a message, such as a screenshot.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Maximum size of the description of a browser.
const MAX_DESCRIPTION_BYTES: usize = 1 << 20;

/// A stream to the browser, plain or with TLS.
pub(super) trait RemoteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> RemoteStream for S {}

/// The parts of an endpoint's URL.
struct EndpointUrl {
    is_secure: bool,
    host: String,
    port: u16,
    authority: String,
    path: String,
}

fn failed(endpoint: &str, why: impl std::fmt::Display) -> ComputerError {
    ComputerError::Failed(format!("the browser at {endpoint} could not be reached: {why}"))
}

/// Connects to the DevTools endpoint of a browser: its WebSocket (`ws`, `wss`), or the address that it was
/// started with (`http`, `https`), which tells the WebSocket.
pub(super) async fn connect_websocket(
    endpoint: &str,
) -> Result<WebSocketStream<Box<dyn RemoteStream>>, ComputerError> {
    let connecting = async {
        let socket_url = match endpoint.split_once("://") {
            Some(("http" | "https", _)) => find_websocket_url(endpoint).await?,
            _ => endpoint.to_owned(),
        };
        let stream = open_stream(&socket_url).await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let joined =
            tokio_tungstenite::client_async_with_config(socket_url.as_str(), stream, Some(config)).await;
        joined.map(|(socket, _)| socket).map_err(|error| failed(endpoint, error))
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(failed(endpoint, "it did not answer in time")),
    }
}

fn parse_endpoint(endpoint: &str) -> Result<EndpointUrl, ComputerError> {
    let unknown = || failed(endpoint, "the address must begin with ws, wss, http or https");
    let (scheme, rest) = endpoint.split_once("://").ok_or_else(unknown)?;
    let is_secure = match scheme {
        "ws" | "http" => false,
        "wss" | "https" => true,
        _ => return Err(unknown()),
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let default_port = if is_secure { 443 } else { 80 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| failed(endpoint, "its port is no number"))?)
        }
        _ => (authority, default_port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Ok(EndpointUrl { is_secure, host, port, authority: authority.to_owned(), path: path.to_owned() })
}

async fn open_stream(url: &str) -> Result<Box<dyn RemoteStream>, ComputerError> {
    let EndpointUrl { is_secure, host, port, .. } = parse_endpoint(url)?;
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|error| failed(url, error))?;
    let _ = stream.set_nodelay(true);
    Ok(match is_secure {
        true => Box::new(windlass_tls::connect(stream, &host).await.map_err(|error| failed(url, error))?),
        false => Box::new(stream),
    })
}

/// Asks a browser for the URL of its WebSocket.
async fn find_websocket_url(endpoint: &str) -> Result<String, ComputerError> {
    let url = parse_endpoint(endpoint)?;
    let mut stream = open_stream(endpoint).await?;
    let path = url.path.trim_end_matches('/');
    let request =
        format!("GET {path}/json/version HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", url.authority);
    stream.write_all(request.as_bytes()).await.map_err(|error| failed(endpoint, error))?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    let described: Value = loop {
        let read = stream.read(&mut buffer).await.map_err(|error| failed(endpoint, error))?;
        answer.extend_from_slice(&buffer[..read]);
        // The browser keeps the connection open. The body is one JSON object, and headers contain no braces.
        let text = String::from_utf8_lossy(&answer);
        let body = text.find('{').zip(text.rfind('}')).and_then(|(from, until)| text.get(from..=until));
        match body.and_then(|body| serde_json::from_str(body).ok()) {
            Some(described) => break described,
            None if read == 0 || answer.len() > MAX_DESCRIPTION_BYTES => break Value::Null,
            None => {}
        }
    };
    let found = described["webSocketDebuggerUrl"].as_str();
    let found = found.ok_or_else(|| failed(endpoint, "it did not tell its WebSocket address"))?;
    // The browser may know itself by another name, or without TLS, behind a proxy.
    let path = parse_endpoint(found)?.path;
    let scheme = if url.is_secure { "wss" } else { "ws" };
    Ok(format!("{scheme}://{}{path}", url.authority))
}
