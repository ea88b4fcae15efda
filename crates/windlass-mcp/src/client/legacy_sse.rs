//! The transport of servers from before streamable HTTP: one event stream for everything that the server says, and a
//! URL for everything that the client says.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use sse_stream::{Error as SseError, Sse};
use url::Url;
use windlass_net::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use windlass_net::http::{Method, StatusCode};
use windlass_net::{ReplaySafety, TransportError};

use super::event_stream::read_events;
use super::framing::decode_message;
use super::http::{McpAuth, McpHttpClient, McpHttpError, bearer_value, configured_headers, new_request};
use crate::config::HttpTransportConfig;

/// Maximum number of events before the server must have named its URL.
const MAX_EVENTS_BEFORE_ENDPOINT: usize = 16;

/// Maximum number of bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// A transport over an event stream and a URL.
pub(super) struct LegacySseTransport {
    client: Arc<LegacySseClient>,
    endpoint: Url,
    events: BoxStream<'static, Result<Sse, SseError>>,
}

struct LegacySseClient {
    http: McpHttpClient,
    headers: HeaderMap,
}

impl LegacySseTransport {
    /// Opens the event stream and waits for the server's URL.
    ///
    /// # Errors
    ///
    /// Returns the reason if there is no event stream, or if its URL has another origin.
    pub(super) async fn open(config: &HttpTransportConfig, http: &McpHttpClient) -> Result<Self, String> {
        let base = Url::parse(&config.url).map_err(|error| error.to_string())?;
        let mut headers = HeaderMap::new();
        headers.extend(configured_headers(config)?);
        if let Some(McpAuth::Bearer(token)) = &config.auth {
            headers.insert(AUTHORIZATION, bearer_value(token).map_err(|error| error.to_string())?);
        }
        let client = LegacySseClient { http: http.clone(), headers };
        let mut headers = client.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let request = new_request(Method::GET, base.as_str(), headers, Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let response = client.http.send(request, ReplaySafety::Safe).await;
        let response = response.map_err(|error| error.to_string())?;
        let kind = response.headers.get(CONTENT_TYPE);
        let has_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if response.status != StatusCode::OK || !has_events {
            return Err(format!("HTTP {} without an event stream", response.status));
        }
        let mut events = read_events(response.body, None);
        for _ in 0..MAX_EVENTS_BEFORE_ENDPOINT {
            let event = events.next().await.ok_or("the event stream ended before it named its URL")?;
            let event = event.map_err(|error| error.to_string())?;
            if event.event.as_deref() != Some("endpoint") {
                continue;
            }
            let place = event.data.unwrap_or_default();
            let endpoint = base.join(place.trim()).map_err(|error| error.to_string())?;
            if endpoint.origin() != base.origin() {
                return Err(format!("the event stream names a URL of another origin: {endpoint}"));
            }
            return Ok(Self { client: Arc::new(client), endpoint, events });
        }
        Err("the event stream does not name its URL".to_owned())
    }
}

impl Transport<RoleClient> for LegacySseTransport {
    type Error = McpHttpError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (client, endpoint) = (self.client.clone(), self.endpoint.clone());
        async move {
            let unusable =
                |error| TransportError::Unusable(format!("the message cannot be written: {error}"));
            let body = serde_json::to_vec(&message).map_err(unusable)?;
            let mut headers = client.headers.clone();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let request = new_request(Method::POST, endpoint.as_str(), headers, body)?;
            let mut response = client.http.send(request, ReplaySafety::Unsafe).await?;
            let status = response.status;
            if status.is_success() {
                response.body.drain().await;
                return Ok(());
            }
            let body = response.body.read_all(MAX_REFUSAL_BYTES).await.unwrap_or_default();
            let body = String::from_utf8_lossy(&body).into_owned();
            Err(McpHttpError::from_status(status, body))
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let event = match self.events.next().await? {
                Ok(event) => event,
                Err(error) => {
                    tracing::debug!(%error, "an event stream of a server ended");
                    return None;
                }
            };
            if let Some(message) = event.data.and_then(|data| decode_message(data.as_bytes())) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.events = futures_util::stream::empty().boxed();
        Ok(())
    }
}
