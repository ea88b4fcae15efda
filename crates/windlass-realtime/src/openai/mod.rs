//! OpenAI's Realtime API over a WebSocket, in its GA form (no beta header). Other servers implement the
//! protocol too.

mod decode;
mod dial;
mod encode;
mod socket;

pub use decode::{RealtimeEventDecoder, decode_item};
pub use dial::{ReadWriteStream, StreamDialer, TcpDialer};
pub use encode::{encode_command, encode_item, encode_session};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, Request, Uri};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::model::{RealtimeConnection, RealtimeConnectionError, RealtimeModel};
use crate::settings::SessionConfiguration;

/// URL of OpenAI's Realtime API.
const DEFAULT_URL: &str = "wss://api.openai.com/v1/realtime";
/// The model used if none is named.
const DEFAULT_MODEL: &str = "gpt-realtime";
/// Maximum size of a received message.
const MAX_MESSAGE_SIZE: usize = 16 * 1024 * 1024;

/// Size of the read buffer. It is held for the whole session, and a chunk of speech is a few kilobytes.
const READ_BUFFER_SIZE: usize = 16 * 1024;

/// A realtime model behind OpenAI's Realtime API.
#[derive(Clone)]
pub struct OpenAiRealtime {
    url: String,
    model: Option<String>,
    api_key: Option<ApiKeySource>,
    headers: Vec<(String, String)>,
    dialer: Arc<dyn StreamDialer>,
    keep_alive_interval: Duration,
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
            dialer: Arc::new(TcpDialer),
            keep_alive_interval: Duration::from_secs(20),
        }
    }

    /// Sets the model's name.
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

    /// Sets the transport of the connection.
    #[must_use]
    pub fn dialer(mut self, dialer: impl StreamDialer) -> Self {
        self.dialer = Arc::new(dialer);
        self
    }

    /// Sets the interval after which a silent connection is pinged. After twice the interval without a message,
    /// the connection counts as lost.
    #[must_use]
    pub fn keep_alive_interval(mut self, interval: Duration) -> Self {
        self.keep_alive_interval = interval.max(Duration::from_millis(10));
        self
    }

    async fn build_request(&self) -> Result<Request<()>, RealtimeConnectionError> {
        let address = match (&self.model, self.url.contains('?')) {
            (None, _) => self.url.clone(),
            (Some(model), false) => format!("{}?model={model}", self.url),
            (Some(model), true) => format!("{}&model={model}", self.url),
        };
        let uri: Uri = address.parse().map_err(|error| {
            RealtimeConnectionError::permanent(format!("`{address}` is not a valid URL: {error}"))
        })?;
        let mut request = uri
            .into_client_request()
            .map_err(|error| RealtimeConnectionError::permanent(error.to_string()))?;
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
    fn connect<'a>(
        &'a self,
        _: &'a SessionConfiguration,
    ) -> BoxFuture<'a, Result<RealtimeConnection, RealtimeConnectionError>> {
        async move {
            let request = self.build_request().await?;
            let stream = self.dialer.open_stream(request.uri()).await?;
            let config = WebSocketConfig::default()
                .read_buffer_size(READ_BUFFER_SIZE)
                .max_message_size(Some(MAX_MESSAGE_SIZE))
                .max_frame_size(Some(MAX_MESSAGE_SIZE));
            let joined = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
            let (socket, _) = joined.map_err(|error| socket::to_connect_error(&error))?;
            Ok(socket::into_connection(socket, self.model.clone(), self.keep_alive_interval))
        }
        .boxed()
    }
}

impl fmt::Debug for OpenAiRealtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenAiRealtime({})", self.url)
    }
}
