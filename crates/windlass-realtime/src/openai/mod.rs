//! OpenAI's realtime protocol over a WebSocket, in its general form (no beta header). Other servers speak it too.

mod dial;
mod read;
mod socket;
mod write;

pub use dial::{Dial, ReadWrite, Tcp};
pub use read::{Reader, read_item};
pub use write::{session_update, write_command, write_item};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, Request, Uri};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::model::{ConnectError, Connection, RealtimeModel};
use crate::settings::Configuration;

/// Where OpenAI's realtime models are.
const ADDRESS: &str = "wss://api.openai.com/v1/realtime";
/// The model that is asked for, unless another one is named.
const MODEL: &str = "gpt-realtime";
/// The longest message that is taken.
const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;

/// How much is read at once. It is held for as long as a session lives, and a piece of speech is a few kilobytes.
const READ_AT_ONCE: usize = 16 * 1024;

/// A model that speaks OpenAI's realtime protocol.
#[derive(Clone)]
pub struct OpenAi {
    address: String,
    model: Option<String>,
    key: Option<Key>,
    headers: Vec<(String, String)>,
    dial: Arc<dyn Dial>,
    keep_alive: Duration,
}

type Key = Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

impl OpenAi {
    /// OpenAI itself, with a key.
    pub fn new(key: impl Into<String>) -> Self {
        let key = key.into();
        Self::at(ADDRESS).model(MODEL).key_from(move || {
            let key = key.clone();
            async move { Ok(key) }
        })
    }

    /// Another server, at a `ws://` or `wss://` address.
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            model: None,
            key: None,
            headers: Vec::new(),
            dial: Arc::new(Tcp),
            keep_alive: Duration::from_secs(20),
        }
    }

    /// The model's name.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// The key, asked for anew for every connection.
    #[must_use]
    pub fn key_from<Fut>(mut self, key: impl Fn() -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<String, String>> + Send + 'static,
    {
        self.key = Some(Arc::new(move || key().boxed()));
        self
    }

    /// A header of the first request.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// How the bytes travel.
    #[must_use]
    pub fn dial(mut self, dial: impl Dial) -> Self {
        self.dial = Arc::new(dial);
        self
    }

    /// How often a silent connection is asked whether it is still there. Twice that without a word, and it is lost.
    #[must_use]
    pub fn keep_alive(mut self, every: Duration) -> Self {
        self.keep_alive = every.max(Duration::from_millis(10));
        self
    }

    async fn request(&self) -> Result<Request<()>, ConnectError> {
        let address = match (&self.model, self.address.contains('?')) {
            (None, _) => self.address.clone(),
            (Some(model), false) => format!("{}?model={model}", self.address),
            (Some(model), true) => format!("{}&model={model}", self.address),
        };
        let uri: Uri = address
            .parse()
            .map_err(|error| ConnectError::fatal(format!("`{address}` is no address: {error}")))?;
        let mut request =
            uri.into_client_request().map_err(|error| ConnectError::fatal(error.to_string()))?;
        if let Some(key) = &self.key {
            let key = key().await.map_err(|error| ConnectError::new(format!("there is no key: {error}")))?;
            let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| {
                ConnectError::fatal("the key cannot be sent: it has letters that no header may have")
            })?;
            value.set_sensitive(true);
            request.headers_mut().insert("authorization", value);
        }
        for (name, value) in &self.headers {
            let bad = || ConnectError::fatal(format!("header `{name}` cannot be sent"));
            let header = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
            request.headers_mut().insert(header, HeaderValue::try_from(value.as_str()).map_err(|_| bad())?);
        }
        Ok(request)
    }
}

impl RealtimeModel for OpenAi {
    fn connect<'a>(&'a self, _: &'a Configuration) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        async move {
            let request = self.request().await?;
            let stream = self.dial.dial(request.uri()).await?;
            let config = WebSocketConfig::default()
                .read_buffer_size(READ_AT_ONCE)
                .max_message_size(Some(LONGEST_MESSAGE))
                .max_frame_size(Some(LONGEST_MESSAGE));
            let joined = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
            let (socket, _) = joined.map_err(|error| socket::connect_error(&error))?;
            Ok(socket::connection(socket, self.model.clone(), self.keep_alive))
        }
        .boxed()
    }
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenAi({})", self.address)
    }
}
