//! The HTTP client of the streamable HTTP transport.
//!
//! **Invariant:** a request is sent again only if the server said that it did not process it: with status 429, or with
//! 503 and a time to come back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, JsonRpcMessage, RequestId,
    ServerJsonRpcMessage,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::http_header::{HEADER_LAST_EVENT_ID, HEADER_SESSION_ID};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, InsufficientScopeError, StreamableHttpClient, StreamableHttpClientTransportConfig,
    StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Error as SseError, Sse};
use url::Url;
use windlass_net::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, WWW_AUTHENTICATE,
};
use windlass_net::http::{Method, Request, StatusCode};
use windlass_net::{
    Bytes, DecodedBody, HttpClient, HttpTransport, ReplaySafety, TransportError, TransportOptions,
};

use super::OAuthConfig;
use super::call::UNPROCESSED_CODES;
use super::elicitation::URL_ELICITATION_REQUIRED;
use super::event_stream::read_events;
use super::framing::{MAX_MESSAGE_BYTES, decode_message, oversize_reason, unreadable_response};
use crate::config::HttpTransportConfig;

/// Maximum number of redirects. Only 307 and 308 to the same origin are followed, because they keep method
/// and body.
const MAX_REDIRECTS: usize = 5;
/// Maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time until the head of a response. Calls and handshakes have shorter deadlines of their own.
const HEAD_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
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
    /// The server refused the request with a status from 400 to 499; it did not process it.
    #[error("HTTP {status}{}", shown_body(.body))]
    Refused { status: StatusCode, body: String },
    /// The server is overloaded and did not process the request.
    #[error("HTTP {status}: the server asks to come back in {} s", .retry_after.as_secs())]
    Overloaded { status: StatusCode, retry_after: Duration },
    /// The response is no success, and its status does not say that the server did not process the request: the server
    /// failed, it redirects to where the result is or to another origin, or a gateway stopped to wait for it (408).
    #[error("HTTP {status}{}", shown_body(.body))]
    OutcomeUnknown { status: StatusCode, body: String },
    /// The connection failed.
    #[error("{0}")]
    Connection(TransportError),
}

fn shown_body(body: &str) -> String {
    let body = body.trim();
    if body.is_empty() {
        return String::new();
    }
    format!(": {}", &body[..body.floor_char_boundary(MAX_SHOWN_BODY)])
}

impl McpHttpError {
    /// Returns the error of a response that is no success.
    pub(super) fn from_status(status: StatusCode, body: String) -> Self {
        if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT {
            Self::Refused { status, body }
        } else {
            Self::OutcomeUnknown { status, body }
        }
    }

    /// Returns true if the server certainly did not process the request.
    pub(super) fn is_unprocessed(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Overloaded { .. } => true,
            Self::OutcomeUnknown { .. } => false,
            Self::Connection(error) => error.is_unsent(),
        }
    }
}

impl From<TransportError> for McpHttpError {
    fn from(error: TransportError) -> Self {
        Self::Connection(error)
    }
}

type HttpResult<T> = Result<T, StreamableHttpError<McpHttpError>>;

fn failed(error: impl Into<McpHttpError>) -> StreamableHttpError<McpHttpError> {
    StreamableHttpError::Client(error.into())
}

/// The HTTP client of one server, over the network layer or a client of the application.
#[derive(Clone)]
pub(super) struct McpHttpClient {
    transport: Arc<dyn HttpTransport>,
}

/// A response whose body is still to be read.
pub(super) struct McpResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: DecodedBody,
}

impl McpHttpClient {
    /// Creates the client of a configured server.
    pub(super) fn new(config: &HttpTransportConfig) -> Self {
        Self { transport: config.http_client.clone().unwrap_or_else(|| Arc::new(HttpClient::new())) }
    }

    /// Returns the underlying client.
    pub(super) fn transport(&self) -> &Arc<dyn HttpTransport> {
        &self.transport
    }

    /// Sends a request, and follows redirects that keep the method, the body and the origin.
    pub(super) async fn send(
        &self,
        request: Request<Bytes>,
        safety: ReplaySafety,
    ) -> Result<McpResponse, McpHttpError> {
        let options =
            TransportOptions::new(safety).connect_timeout(CONNECT_TIMEOUT).head_timeout(HEAD_TIMEOUT);
        let mut request = request;
        for _ in 0..=MAX_REDIRECTS {
            let (head, body) = self.transport.send(request.clone(), options).await?.into_parts();
            let target = redirect_target(&request, head.status, &head.headers);
            let Some(target) = target else {
                let body = DecodedBody::new(body, &head.headers);
                return Ok(McpResponse { status: head.status, headers: head.headers, body });
            };
            *request.uri_mut() = target;
        }
        // Nothing but redirects came back, so the server did not process the request.
        Err(TransportError::Unusable("there are too many redirects".to_owned()).into())
    }

    /// Sends a request until the server processes it, refuses it, or asks to come back too often.
    async fn send_when_ready(&self, request: Request<Bytes>, is_tool_call: bool) -> HttpResult<McpResponse> {
        // Only requests that change nothing could be declared safe, and those are sent again by their callers.
        let safety = ReplaySafety::Unsafe;
        let mut waited = Duration::ZERO;
        let mut attempt = 0;
        loop {
            let response = self.send(request.clone(), safety).await.map_err(failed)?;
            let status = response.status;
            let wait = match (status, windlass_net::retry_after(&response.headers)) {
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
            attempt += 1;
            tokio::time::sleep(wait).await;
        }
    }
}

/// Returns the target of a redirect that is followed: 307 or 308, which keep method and body, to the same origin.
fn redirect_target(
    request: &Request<Bytes>,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<windlass_net::http::Uri> {
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    let from = Url::parse(&request.uri().to_string()).ok()?;
    let to = from.join(headers.get(LOCATION)?.to_str().ok()?).ok()?;
    if from.origin() != to.origin() || to.username() != "" || to.password().is_some() {
        return None;
    }
    to.as_str().split('#').next()?.parse().ok()
}

/// Creates a request to a URL.
pub(super) fn new_request(
    method: Method,
    url: &str,
    headers: HeaderMap,
    body: Vec<u8>,
) -> Result<Request<Bytes>, McpHttpError> {
    // The parser normalises addresses that the header of a request cannot carry, such as those with spaces.
    let unusable =
        |why: &dyn std::fmt::Display| TransportError::Unusable(format!("the URL cannot be used: {why}"));
    let url = Url::parse(url).map_err(|error| unusable(&error))?;
    let address = url.as_str().split('#').next().unwrap_or_default();
    let mut request = Request::new(Bytes::from(body));
    *request.method_mut() = method;
    *request.uri_mut() = address.parse().map_err(|error| unusable(&error))?;
    *request.headers_mut() = headers;
    Ok(request)
}

fn default_wait(attempt: u32) -> Duration {
    DEFAULT_RETRY_WAIT.saturating_mul(1 << attempt.min(16))
}

/// Returns the challenge of a response that requires authorisation.
fn auth_challenge(response: &McpResponse) -> Option<StreamableHttpError<McpHttpError>> {
    let header = response.headers.get(WWW_AUTHENTICATE)?.to_str().ok()?.to_owned();
    match response.status {
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
async fn read_body(mut body: DecodedBody) -> HttpResult<Result<Vec<u8>, String>> {
    let mut whole = Vec::new();
    while let Some(piece) = body.next_chunk().await.map_err(failed)? {
        if whole.len() + piece.len() > MAX_MESSAGE_BYTES {
            return Ok(Err(oversize_reason(whole.len() + piece.len())));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Ok(whole))
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
        let had_session = session_id.is_some();
        let mut headers = request_headers(session_id, auth_header, custom_headers).map_err(failed)?;
        headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED_TYPES));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = new_request(Method::POST, &uri, headers, body).map_err(failed)?;
        let is_tool_call = matches!(
            &message,
            JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::CallToolRequest(_))
        );
        let response = self.send_when_ready(request, is_tool_call).await?;
        if let Some(challenge) = auth_challenge(&response) {
            return Err(challenge);
        }
        let status = response.status;
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let header = |name: &str| response.headers.get(name).and_then(|value| value.to_str().ok());
        let session = header(HEADER_SESSION_ID).map(str::to_owned);
        let content_type = header(CONTENT_TYPE.as_str()).map(str::to_owned);
        let has_type = |name: &str| content_type.as_deref().is_some_and(|kind| kind.starts_with(name));
        let id = request_id(&message);
        if !status.is_success() {
            let body = read_body(response.body).await?.unwrap_or_else(|reason| reason.into_bytes());
            return refusal(&message, status, &body, had_session);
        }
        if has_type("text/event-stream") {
            return Ok(StreamableHttpPostResponse::Sse(read_events(response.body, id.cloned()), session));
        }
        let body = read_body(response.body).await?;
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
        let headers = request_headers(Some(session_id), auth_header, custom_headers).map_err(failed)?;
        let request = new_request(Method::DELETE, &uri, headers, Vec::new()).map_err(failed)?;
        self.send(request, ReplaySafety::Safe).await.map_err(failed)?;
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
        let mut headers = request_headers(session_id, auth_header, custom_headers).map_err(failed)?;
        headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED_TYPES));
        if let Some(last) = last_event_id {
            headers.insert(HEADER_LAST_EVENT_ID, header_value(&last).map_err(failed)?);
        }
        let request = new_request(Method::GET, &uri, headers, Vec::new()).map_err(failed)?;
        let response = self.send(request, ReplaySafety::Safe).await.map_err(failed)?;
        if response.status == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if let Some(challenge) = auth_challenge(&response) {
            return Err(challenge);
        }
        let status = response.status;
        if !status.is_success() {
            return Err(failed(McpHttpError::from_status(status, String::new())));
        }
        Ok(read_events(response.body, None))
    }
}

/// Returns the headers of a request.
fn request_headers(
    session_id: Option<Arc<str>>,
    auth_header: Option<String>,
    custom_headers: HashMap<HeaderName, HeaderValue>,
) -> Result<HeaderMap, McpHttpError> {
    let mut headers = HeaderMap::new();
    headers.extend(custom_headers);
    if let Some(token) = auth_header {
        headers.insert(AUTHORIZATION, bearer_value(&token)?);
    }
    if let Some(session) = session_id {
        headers.insert(HEADER_SESSION_ID, header_value(&session)?);
    }
    Ok(headers)
}

/// Returns the value of an authorisation header with a bearer token.
pub(super) fn bearer_value(token: &str) -> Result<HeaderValue, McpHttpError> {
    let mut value = header_value(&format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn header_value(text: &str) -> Result<HeaderValue, McpHttpError> {
    // The error of the header type would show the value.
    let unusable = |_| TransportError::Unusable("a header has characters that cannot be sent".to_owned());
    Ok(HeaderValue::from_str(text).map_err(unusable)?)
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
        (Some(mut error), Some(id)) => {
            // The status says that the call was not made, whatever code of its own the server has for that. A code that asks
            // a person to visit a URL stays.
            let is_call = matches!(
                message,
                JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::CallToolRequest(_))
            );
            let is_unprocessed = McpHttpError::from_status(status, String::new()).is_unprocessed();
            if is_call
                && is_unprocessed
                && error.code.0 != URL_ELICITATION_REQUIRED
                && !UNPROCESSED_CODES.contains(&error.code)
            {
                error.code = ErrorCode::INVALID_REQUEST;
            }
            let answer = ServerJsonRpcMessage::error(error, Some(id.clone()));
            Ok(StreamableHttpPostResponse::Json(answer, None))
        }
        _ => Err(failed(McpHttpError::from_status(status, text))),
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
