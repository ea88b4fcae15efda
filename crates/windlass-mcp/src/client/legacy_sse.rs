//! The transport of servers from before streamable HTTP: one event stream for everything that the server says, and a
//! URL for everything that the client says.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{ACCEPT, HeaderName, HeaderValue};
use reqwest::{StatusCode, Url};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use sse_stream::{Error as SseError, Sse};

use super::event_stream::read_events;
use super::framing::decode_message;
use super::http::{McpAuth, McpHttpClient, McpHttpError, configured_headers};
use crate::config::HttpTransportConfig;

/// Maximum number of events before the server must have named its URL.
const MAX_EVENTS_BEFORE_ENDPOINT: usize = 16;

/// A transport over an event stream and a URL.
pub(super) struct LegacySseTransport {
    client: Arc<LegacySseClient>,
    endpoint: Url,
    events: BoxStream<'static, Result<Sse, SseError>>,
}

struct LegacySseClient {
    client: reqwest::Client,
    headers: HashMap<HeaderName, HeaderValue>,
    bearer: Option<String>,
}

impl LegacySseClient {
    fn prepare(&self, mut request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        match &self.bearer {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

impl LegacySseTransport {
    /// Opens the event stream and waits for the server's URL.
    ///
    /// # Errors
    ///
    /// Returns the reason if there is no event stream, or if its URL has another origin.
    pub(super) async fn open(config: &HttpTransportConfig, http: &McpHttpClient) -> Result<Self, String> {
        let base = Url::parse(&config.url).map_err(|error| error.to_string())?;
        let bearer = match &config.auth {
            Some(McpAuth::Bearer(token)) => Some(token.clone()),
            Some(McpAuth::OAuth(_)) | None => None,
        };
        let client =
            LegacySseClient { client: http.inner().clone(), headers: configured_headers(config)?, bearer };
        let request = client.prepare(client.client.get(base.clone()).header(ACCEPT, "text/event-stream"));
        let response = request.send().await.map_err(|error| McpHttpError::from(error).to_string())?;
        let kind = response.headers().get(reqwest::header::CONTENT_TYPE);
        let has_events = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if response.status() != StatusCode::OK || !has_events {
            return Err(format!("HTTP {} without an event stream", response.status()));
        }
        let mut events = read_events(response, None);
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
            let response = client.prepare(client.client.post(endpoint).json(&message)).send().await?;
            let status = response.status();
            if status.is_success() {
                return Ok(());
            }
            let body = response.text().await.unwrap_or_default();
            Err(if status.is_server_error() {
                McpHttpError::ServerFailed { status, body }
            } else {
                McpHttpError::Refused { status, body }
            })
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
