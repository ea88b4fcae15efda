//! OpenAI's Realtime API over a WebSocket, in its GA form (no beta header). Other servers implement the
//! protocol too.

mod decode;
mod encode;
mod sent_configurations;
mod socket;

pub use decode::{RealtimeEventDecoder, decode_item};
pub use encode::{encode_command, encode_item, encode_session};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, Request, Uri};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use windlass_net::{NetworkDialer, StreamDialer, TransportError};

use crate::model::{ConversationLifetime, RealtimeConnection, RealtimeConnectionError, RealtimeModel};
use crate::settings::SessionConfiguration;
use crate::sync::clamp_duration;

use self::socket::SocketSettings;

/// URL of OpenAI's Realtime API.
const DEFAULT_URL: &str = "wss://api.openai.com/v1/realtime";
/// The model used if none is named.
const DEFAULT_MODEL: &str = "gpt-realtime-2.1";
/// Maximum size of a received message, by default.
const MAX_MESSAGE_SIZE: usize = 16 * 1024 * 1024;
/// The user agent of the handshake request.
const USER_AGENT: &str = concat!("windlass-realtime/", env!("CARGO_PKG_VERSION"));

/// Silence after which the server is pinged, by default.
const DEFAULT_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Shortest silence after which the server is pinged.
const MIN_PING_INTERVAL: Duration = Duration::from_millis(10);

/// Size of the read buffer. It is held for the whole session, and every poll of the socket clears the free part of it. A
/// message with 100 ms of speech has 6.6 kilobytes.
const READ_BUFFER_SIZE: usize = 8 * 1024;

/// A realtime model behind OpenAI's Realtime API.
#[derive(Clone)]
pub struct OpenAiRealtime {
    url: String,
    model: Option<String>,
    api_key: Option<ApiKeySource>,
    headers: Vec<(String, String)>,
    dialer: Arc<dyn StreamDialer>,
    call_id: Option<String>,
    ping_interval: Duration,
    ping_timeout: Option<Duration>,
    max_message_size: usize,
    has_raw_events: bool,
}

/// A function that provides the API key.
type ApiKeySource = Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

impl OpenAiRealtime {
    /// Creates a model at OpenAI, with an API key.
    pub fn new(key: impl Into<String>) -> Self {
        let key = key.into();
        Self::with_url(DEFAULT_URL).model(DEFAULT_MODEL).api_key_from(move || {
            let key = key.clone();
            async move { Ok(key) }
        })
    }

    /// Creates a model at another server with this `ws://` or `wss://` URL.
    pub fn with_url(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            model: None,
            api_key: None,
            headers: Vec::new(),
            dialer: Arc::new(NetworkDialer::new()),
            call_id: None,
            ping_interval: DEFAULT_PING_INTERVAL,
            ping_timeout: Some(DEFAULT_PING_INTERVAL),
            max_message_size: MAX_MESSAGE_SIZE,
            has_raw_events: false,
        }
    }

    /// Attaches to a call that exists already at the provider, such as a telephone call over SIP, in place of a new
    /// session. The model and the audio formats are those of the call; set formats only to change them.
    ///
    /// The provider keeps the conversation of the call: after a lost connection the session sends its configuration and
    /// what the call does not have, and the caller hears the answer that was being played to its end.
    #[must_use]
    pub fn attach_call(mut self, call_id: impl Into<String>) -> Self {
        self.call_id = Some(call_id.into());
        self
    }

    /// Also reports every event of the provider, unchanged, as [`RealtimeEvent::Raw`](crate::RealtimeEvent::Raw).
    #[must_use]
    pub fn raw_events(mut self) -> Self {
        self.has_raw_events = true;
        self
    }

    /// Sets the maximum size of a received message in bytes; 16 MiB by default. A larger message ends the connection.
    #[must_use]
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.max_message_size = bytes;
        self
    }

    /// Sets the model's name. A call has its own: see [`attach_call`](Self::attach_call).
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Sets a function that provides the API key; it is called for each connection.
    #[must_use]
    pub fn api_key_from<Fut>(mut self, key: impl Fn() -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<String, String>> + Send + 'static,
    {
        self.api_key = Some(Arc::new(move || key().boxed()));
        self
    }

    /// Adds a header to the handshake request.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the dialler of the connection. The default is TCP with TLS, through the proxies of the environment.
    #[must_use]
    pub fn dialer(mut self, dialer: impl StreamDialer) -> Self {
        self.dialer = Arc::new(dialer);
        self
    }

    /// Sets the silence after which the server is pinged, and the further silence after which the connection counts as
    /// lost: 20 seconds each by default. Without a timeout, a silent connection never counts as lost.
    #[must_use]
    pub fn pings(mut self, interval: Duration, timeout: Option<Duration>) -> Self {
        self.ping_interval = clamp_duration(interval.max(MIN_PING_INTERVAL));
        self.ping_timeout = timeout.map(clamp_duration);
        self
    }

    /// Returns the model of a new session; `None` for a call, which has its own.
    fn session_model(&self) -> Option<&str> {
        self.model.as_deref().filter(|_| self.call_id.is_none())
    }

    async fn build_request(&self) -> Result<Request<()>, RealtimeConnectionError> {
        let query = match (&self.call_id, self.session_model()) {
            (Some(call), _) => Some(format!("call_id={}", escape_query_value(call))),
            (None, Some(model)) => Some(format!("model={}", escape_query_value(model))),
            (None, None) => None,
        };
        let address = match (query, self.url.contains('?')) {
            (None, _) => self.url.clone(),
            (Some(query), false) => format!("{}?{query}", self.url),
            (Some(query), true) => format!("{}&{query}", self.url),
        };
        let uri: Uri = address.parse().map_err(|error| {
            // The query may have a key.
            let place = self.url.split('?').next().unwrap_or_default();
            RealtimeConnectionError::permanent(format!("`{place}` is not a valid URL: {error}"))
        })?;
        let mut request = uri
            .into_client_request()
            .map_err(|error| RealtimeConnectionError::permanent(error.to_string()))?;
        request.headers_mut().insert("user-agent", HeaderValue::from_static(USER_AGENT));
        if let Some(key) = &self.api_key {
            let key = key()
                .await
                .map_err(|error| RealtimeConnectionError::new(format!("no API key is available: {error}")))?;
            let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| {
                RealtimeConnectionError::permanent(
                    "the API key has characters that are not allowed in a header",
                )
            })?;
            value.set_sensitive(true);
            request.headers_mut().insert("authorization", value);
        }
        for (name, value) in &self.headers {
            let bad = || {
                RealtimeConnectionError::permanent(format!("header `{name}` has an invalid name or value"))
            };
            let header = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
            request.headers_mut().insert(header, HeaderValue::try_from(value.as_str()).map_err(|_| bad())?);
        }
        Ok(request)
    }
}

impl RealtimeModel for OpenAiRealtime {
    fn model_name(&self) -> Option<&str> {
        self.session_model()
    }

    fn conversation_lifetime(&self) -> ConversationLifetime {
        match self.call_id {
            Some(_) => ConversationLifetime::Call,
            None => ConversationLifetime::Connection,
        }
    }

    fn connect<'a>(
        &'a self,
        _: &'a SessionConfiguration,
    ) -> BoxFuture<'a, Result<RealtimeConnection, RealtimeConnectionError>> {
        async move {
            let request = self.build_request().await?;
            let stream = self.dialer.open_stream(request.uri()).await.map_err(to_dial_error)?;
            let config = WebSocketConfig::default()
                .read_buffer_size(READ_BUFFER_SIZE)
                .max_message_size(Some(self.max_message_size))
                .max_frame_size(Some(self.max_message_size));
            let joined = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
            let (socket, _) = joined.map_err(|error| socket::to_connect_error(&error))?;
            let settings = SocketSettings {
                model: self.session_model().map(str::to_owned),
                ping_interval: self.ping_interval,
                ping_timeout: self.ping_timeout,
                has_raw_events: self.has_raw_events,
            };
            Ok(socket::into_connection(socket, settings))
        }
        .boxed()
    }
}

/// Escapes a value for the query of a URL.
fn escape_query_value(value: &str) -> String {
    let mut escaped = String::new();
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' | b'@' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Returns the error of a connection that could not be opened. An untrusted certificate, a refusing proxy or a
/// malformed address stay as they are, so a new attempt is useless.
fn to_dial_error(error: TransportError) -> RealtimeConnectionError {
    match error {
        TransportError::Unreachable(_) | TransportError::ConnectionLost(_) | TransportError::TimedOut(_) => {
            RealtimeConnectionError::new(error.to_string())
        }
        _ => RealtimeConnectionError::permanent(error.to_string()),
    }
}

impl fmt::Debug for OpenAiRealtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenAiRealtime({})", self.url)
    }
}
