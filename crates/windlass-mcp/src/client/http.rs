//! The HTTP client of the streamable HTTP transport.
//!
//! **Invariant:** a request is sent again only if the server said that it did not process it: with status 429, or with
//! 503 and a time to come back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::http_header::{HEADER_LAST_EVENT_ID, HEADER_SESSION_ID};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, InsufficientScopeError, StreamableHttpClient, StreamableHttpClientTransportConfig,
    StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Error as SseError, Sse};

use super::OAuthConfig;
use super::event_stream::read_events;
use super::framing::{MAX_MESSAGE_BYTES, decode_message, oversize_reason, unreadable_response};
use crate::config::HttpTransportConfig;

/// Maximum number of redirects. Only 307 and 308 to the same origin are followed, because they keep method
/// and body.
const MAX_REDIRECTS: usize = 5;
/// Time after which an idle connection is closed. It is below the idle timeouts of common servers: a connection that the
/// server closes while a call is sent leaves the outcome of the call unknown.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of times a request is sent again after the server asked to come back later.
const MAX_RETRIES: u32 = 4;
/// Maximum total time that a request waits for an overloaded server.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);
/// Wait before the first retry if the server gives no time; it doubles with each retry.
const DEFAULT_RETRY_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of bytes of a refusal's body that an error shows.
const MAX_SHOWN_BODY: usize = 512;
/// The media types that the client accepts.
const ACCEPTED_TYPES: &str = "text/event-stream, application/json";

/// Headers of the protocol, which a configuration cannot set.
const RESERVED_HEADERS: [&str; 4] = ["accept", "mcp-session-id", "mcp-protocol-version", "last-event-id"];

/// The authorisation of an HTTP server.
#[derive(Clone)]
#[non_exhaustive]
pub enum McpAuth {
    /// A bearer token that is sent with every request.
    Bearer(String),
    /// OAuth, when the server requires it.
    OAuth(OAuthConfig),
}

impl McpAuth {
    /// Creates the authorisation with a bearer token.
    pub fn bearer(token: impl Into<String>) -> Self {
        Self::Bearer(token.into())
    }
}

/// An error of the HTTP client.
#[derive(Debug, thiserror::Error)]
pub(super) enum McpHttpError {
    /// The server refused the request with a status; it did not process it.
    #[error("HTTP {status}{}", shown_body(.body))]
    Refused { status: StatusCode, body: String },
    /// The server is overloaded and did not process the request.
    #[error("HTTP {status}: the server asks to come back in {} s", .retry_after.as_secs())]
    Overloaded { status: StatusCode, retry_after: Duration },
    /// The server failed while it processed the request.
    #[error("HTTP {status}{}", shown_body(.body))]
    ServerFailed { status: StatusCode, body: String },
    /// The connection failed.
    #[error("{}", super::connection::error_chain_text(.0))]
    Connection(#[source] reqwest::Error),
}

fn shown_body(body: &str) -> String {
    let body = body.trim();
    if body.is_empty() {
        return String::new();
    }
    format!(": {}", &body[..body.floor_char_boundary(MAX_SHOWN_BODY)])
}

impl McpHttpError {
    /// Returns true if the server certainly did not process the request.
    pub(super) fn is_unprocessed(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Overloaded { .. } => true,
            Self::ServerFailed { .. } => false,
            Self::Connection(error) => error.is_connect() || error.is_builder(),
        }
    }
}

impl From<reqwest::Error> for McpHttpError {
    fn from(error: reqwest::Error) -> Self {
        Self::Connection(error.without_url())
    }
}

type HttpResult<T> = Result<T, StreamableHttpError<McpHttpError>>;

fn failed(error: impl Into<McpHttpError>) -> StreamableHttpError<McpHttpError> {
    StreamableHttpError::Client(error.into())
}

/// The HTTP client of one server. Connections are kept and reused.
#[derive(Clone)]
pub(super) struct McpHttpClient {
    client: reqwest::Client,
}

impl McpHttpClient {
    /// Creates the client.
    ///
    /// # Errors
    ///
    /// Returns the reason if the TLS configuration of the machine cannot be read.
    pub(super) fn new() -> Result<Self, String> {
        // The call fails if the application has installed a crypto provider already, which works as well.
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let same_place = reqwest::redirect::Policy::custom(|attempt| {
            let from = attempt.previous().last();
            let stays = from.is_some_and(|from| {
                let to = attempt.url();
                (from.scheme(), from.host_str(), from.port_or_known_default())
                    == (to.scheme(), to.host_str(), to.port_or_known_default())
            });
            let keeps = matches!(attempt.status().as_u16(), 307 | 308);
            if attempt.previous().len() > MAX_REDIRECTS {
                attempt.error("there are too many redirects")
            } else if stays && keeps {
                attempt.follow()
            } else {
                attempt.stop()
            }
        });
        let client = reqwest::Client::builder()
            .redirect(same_place)
            .tcp_nodelay(true)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .build();
        Ok(Self { client: client.map_err(|error| error.to_string())? })
    }

    /// Returns the underlying client.
    pub(super) fn inner(&self) -> &reqwest::Client {
        &self.client
    }

    /// Sends a request until the server processes it, refuses it, or asks to come back too often.
    async fn send_when_ready(
        &self,
        request: reqwest::Request,
        is_tool_call: bool,
    ) -> HttpResult<reqwest::Response> {
        let mut waited = Duration::ZERO;
        for attempt in 0.. {
            let Some(copy) = request.try_clone() else { break };
            let response = self.client.execute(copy).await.map_err(failed)?;
            let status = response.status();
            let given = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let given = given.and_then(parse_retry_after);
            let wait = match (status, given) {
                (StatusCode::TOO_MANY_REQUESTS, None) => default_wait(attempt),
                (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(given)) => given,
                // A gateway answers 503 also if it lost a server that was at work, so a call is not repeated.
                (StatusCode::SERVICE_UNAVAILABLE, None) if !is_tool_call => default_wait(attempt),
                _ => return Ok(response),
            };
            if attempt == MAX_RETRIES || waited + wait > MAX_RETRY_WAIT {
                return Err(failed(McpHttpError::Overloaded { status, retry_after: wait }));
            }
            tracing::debug!(%status, ?wait, "an MCP server asks to come back later");
            waited += wait;
            tokio::time::sleep(wait).await;
        }
        self.client.execute(request).await.map_err(failed)
    }
}

fn default_wait(attempt: u32) -> Duration {
    DEFAULT_RETRY_WAIT.saturating_mul(1 << attempt.min(16))
}

/// Parses the seconds of a `Retry-After` header. A date is not worth a date parser: the default wait applies.
fn parse_retry_after(value: &str) -> Option<Duration> {
    let seconds: f64 = value.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Returns the challenge of a response that requires authorisation.
fn auth_challenge(response: &reqwest::Response) -> Option<StreamableHttpError<McpHttpError>> {
    let header = response.headers().get(WWW_AUTHENTICATE)?.to_str().ok()?.to_owned();
    match response.status() {
        StatusCode::UNAUTHORIZED => Some(StreamableHttpError::AuthRequired(AuthRequiredError::new(header))),
        StatusCode::FORBIDDEN => {
            let scope = header.split_once("scope=\"").and_then(|(_, rest)| rest.split_once('"'));
            let scope = scope.map(|(scope, _)| scope.to_owned());
            Some(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(header, scope)))
        }
        _ => None,
    }
}

/// Reads a body of at most the maximum size of a message.
async fn read_body(mut response: reqwest::Response) -> HttpResult<Result<Vec<u8>, String>> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(failed)? {
        if body.len() + piece.len() > MAX_MESSAGE_BYTES {
            return Ok(Err(oversize_reason(body.len() + piece.len())));
        }
        body.extend_from_slice(&piece);
    }
    Ok(Ok(body))
}

fn request_id(message: &ClientJsonRpcMessage) -> Option<&RequestId> {
    match message {
        JsonRpcMessage::Request(request) => Some(&request.id),
        JsonRpcMessage::Response(_) | JsonRpcMessage::Notification(_) | JsonRpcMessage::Error(_) => None,
    }
}

impl StreamableHttpClient for McpHttpClient {
    type Error = McpHttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> HttpResult<StreamableHttpPostResponse> {
        let body = serde_json::to_vec(&message)?;
        let mut request = self.client.post(&*uri).header(ACCEPT, ACCEPTED_TYPES);
        request = request.header(CONTENT_TYPE, "application/json").body(body);
        let had_session = session_id.is_some();
        request = with_headers(request, session_id, auth_header, custom_headers);
        let is_tool_call = matches!(
            &message,
            JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::CallToolRequest(_))
        );
        let response = self.send_when_ready(request.build().map_err(failed)?, is_tool_call).await?;
        if let Some(challenge) = auth_challenge(&response) {
            return Err(challenge);
        }
        let status = response.status();
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let session = header(HEADER_SESSION_ID).map(str::to_owned);
        let content_type = header(CONTENT_TYPE.as_str()).map(str::to_owned);
        let has_type = |name: &str| content_type.as_deref().is_some_and(|kind| kind.starts_with(name));
        let id = request_id(&message);
        if !status.is_success() {
            let body = read_body(response).await?.unwrap_or_else(|reason| reason.into_bytes());
            return refusal(&message, status, &body, had_session);
        }
        if has_type("text/event-stream") {
            return Ok(StreamableHttpPostResponse::Sse(read_events(response, id.cloned()), session));
        }
        let body = read_body(response).await?;
        let Some(id) = id else { return Ok(StreamableHttpPostResponse::Accepted) };
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let answer = match body {
            Err(reason) => unreadable_response(id.clone(), &reason),
            Ok(body) if has_type("application/json") => decode_message(&body).unwrap_or_else(|| {
                unreadable_response(id.clone(), &format!("it is not a message{}", preview(&body)))
            }),
            Ok(_) => return Err(StreamableHttpError::UnexpectedContentType(content_type)),
        };
        Ok(StreamableHttpPostResponse::Json(answer, session))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> HttpResult<()> {
        let request = with_headers(self.client.delete(&*uri), Some(session_id), auth_header, custom_headers);
        request.send().await.map_err(failed)?;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> HttpResult<BoxStream<'static, Result<Sse, SseError>>> {
        let mut request = self.client.get(&*uri).header(ACCEPT, ACCEPTED_TYPES);
        if let Some(last) = last_event_id {
            request = request.header(HEADER_LAST_EVENT_ID, last);
        }
        let request = with_headers(request, session_id, auth_header, custom_headers);
        let response = request.send().await.map_err(failed)?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if let Some(challenge) = auth_challenge(&response) {
            return Err(challenge);
        }
        let status = response.status();
        if !status.is_success() {
            return Err(failed(McpHttpError::Refused { status, body: String::new() }));
        }
        Ok(read_events(response, None))
    }
}

fn with_headers(
    mut request: reqwest::RequestBuilder,
    session_id: Option<Arc<str>>,
    auth_header: Option<String>,
    custom_headers: HashMap<HeaderName, HeaderValue>,
) -> reqwest::RequestBuilder {
    for (name, value) in custom_headers {
        request = request.header(name, value);
    }
    if let Some(token) = auth_header {
        request = request.bearer_auth(token);
    }
    match session_id {
        Some(session) => request.header(HEADER_SESSION_ID, &*session),
        None => request,
    }
}

/// Returns the outcome of a request that was answered with an error status. A JSON-RPC error in the body is kept.
fn refusal(
    message: &ClientJsonRpcMessage,
    status: StatusCode,
    body: &[u8],
    had_session: bool,
) -> HttpResult<StreamableHttpPostResponse> {
    let is_auth_failure = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let error = match decode_message(body) {
        Some(ServerJsonRpcMessage::Error(error)) if !is_auth_failure => Some(error.error),
        _ => None,
    };
    let text = String::from_utf8_lossy(body).into_owned();
    let is_probe = matches!(
        message,
        JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::DiscoverRequest(_))
    );
    // A legacy server refuses the probe for the modern protocol; the handshake goes on with the legacy one.
    if is_probe && !had_session && status.is_client_error() && !is_auth_failure {
        let why = || ErrorData::invalid_request(format!("HTTP {status}{}", shown_body(&text)), None);
        return Ok(StreamableHttpPostResponse::Json(
            ServerJsonRpcMessage::error(error.unwrap_or_else(why), request_id(message).cloned()),
            None,
        ));
    }
    match (error, request_id(message)) {
        (Some(error), Some(id)) => {
            let answer = ServerJsonRpcMessage::error(error, Some(id.clone()));
            Ok(StreamableHttpPostResponse::Json(answer, None))
        }
        _ if status.is_server_error() => Err(failed(McpHttpError::ServerFailed { status, body: text })),
        _ => Err(failed(McpHttpError::Refused { status, body: text })),
    }
}

fn preview(body: &[u8]) -> Cow<'static, str> {
    match shown_body(&String::from_utf8_lossy(body)) {
        text if text.is_empty() => ": it is empty".into(),
        text => text.into(),
    }
}

/// Returns the configured headers.
///
/// # Errors
///
/// Returns the reason if a name or a value cannot be sent.
pub(super) fn configured_headers(
    config: &HttpTransportConfig,
) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let mut headers = HashMap::new();
    for (name, value) in &config.headers {
        let known =
            HeaderName::try_from(name).map_err(|_| format!("`{name}` is not the name of a header"))?;
        if RESERVED_HEADERS.contains(&known.as_str()) {
            return Err(format!("the header `{name}` belongs to the protocol and cannot be set"));
        }
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| format!("the value of header `{name}` cannot be sent"))?;
        value.set_sensitive(true);
        headers.insert(known, value);
    }
    Ok(headers)
}

/// Creates the transport to the configured URL over `client`, with the configured headers.
pub(super) fn build_transport<S: StreamableHttpClient + Send + 'static>(
    config: &HttpTransportConfig,
    client: S,
) -> Result<StreamableHttpClientTransport<S>, String> {
    let mut settings = StreamableHttpClientTransportConfig::with_uri(config.url.as_str());
    settings.custom_headers = configured_headers(config)?;
    settings.allow_stateless = true;
    match &config.auth {
        Some(McpAuth::Bearer(token)) => settings.auth_header = Some(token.clone()),
        Some(McpAuth::OAuth(_)) | None => {}
    }
    Ok(StreamableHttpClientTransport::with_client(client, settings))
}
