//! Connection to a browser that runs already, here or on another machine.

use std::time::Duration;

use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use windlass_net::http::{Request, Uri};
use windlass_net::{
    ByteStream, Bytes, DecodedBody, HttpClient, HttpTransport, NetworkDialer, ReplaySafety, StreamDialer,
    TransportOptions,
};

use crate::computer::ComputerError;

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a message, such as a screenshot.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// Maximum size of the description of a browser.
const MAX_DESCRIPTION_BYTES: usize = 1 << 20;

fn failed(endpoint: &str, why: impl std::fmt::Display) -> ComputerError {
    ComputerError::Failed(format!("the browser at {endpoint} could not be reached: {why}"))
}

/// Connects to the DevTools endpoint of a browser: its WebSocket (`ws`, `wss`), or the address that it was
/// started with (`http`, `https`), which tells the WebSocket.
pub(super) async fn connect_websocket(
    endpoint: &str,
) -> Result<WebSocketStream<Box<dyn ByteStream>>, ComputerError> {
    let connecting = async {
        let socket_url = match endpoint.split_once("://") {
            Some(("http" | "https", _)) => find_websocket_url(endpoint).await?,
            _ => endpoint.to_owned(),
        };
        let address = parse_endpoint(&socket_url)?;
        let stream = NetworkDialer::new().open_stream(&address).await;
        let stream = stream.map_err(|error| failed(endpoint, error))?;
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

/// Parses the address of an endpoint.
fn parse_endpoint(endpoint: &str) -> Result<Uri, ComputerError> {
    let uri: Uri = endpoint.parse().map_err(|error| failed(endpoint, error))?;
    match uri.scheme_str() {
        Some("ws" | "http" | "wss" | "https") => Ok(uri),
        _ => Err(failed(endpoint, "the address must begin with ws, wss, http or https")),
    }
}

/// Asks a browser for the URL of its WebSocket.
async fn find_websocket_url(endpoint: &str) -> Result<String, ComputerError> {
    let url = parse_endpoint(endpoint)?;
    let authority = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let (scheme, path) = (url.scheme_str().unwrap_or_default(), url.path().trim_end_matches('/'));
    let request = Request::get(format!("{scheme}://{authority}{path}/json/version"));
    let request = request.body(Bytes::new()).map_err(|error| failed(endpoint, error))?;
    let options = TransportOptions::new(ReplaySafety::Safe);
    let options = options.connect_timeout(CONNECT_TIMEOUT).head_timeout(CONNECT_TIMEOUT);
    let response = HttpClient::new().send(request, options).await.map_err(|error| failed(endpoint, error))?;
    let (head, body) = response.into_parts();
    let body = DecodedBody::new(body, &head.headers).read_all(MAX_DESCRIPTION_BYTES).await;
    let body = body.map_err(|error| failed(endpoint, error))?;
    let described: Value = serde_json::from_slice(&body).unwrap_or_default();
    let found = described["webSocketDebuggerUrl"].as_str();
    let found = found.ok_or_else(|| failed(endpoint, "it did not tell its WebSocket address"))?;
    // The browser may know itself by another name, or without TLS, behind a proxy.
    let found = parse_endpoint(found)?;
    let scheme = if scheme == "https" { "wss" } else { "ws" };
    Ok(format!("{scheme}://{authority}{}", found.path()))
}
