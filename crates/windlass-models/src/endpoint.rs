//! One provider at one address: its key, its headers, its limits, and requests to it.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use windlass::model::{ModelError, ModelErrorKind, RetryAdvice};

use crate::cassette::Cassette;
use crate::error::{Fault, SetupError, Told};
use crate::exchange::Body;
use crate::http::{HttpClient, HttpError, Replay, Target};
use crate::limit::RateLimit;
use crate::retry::{self, Stage};
use crate::secret::ApiKey;

/// How long a provider may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To take a connection.
    pub connect: Duration,
    /// Between two events of a stream. Comments and pings that only keep the connection alive do not count.
    pub idle: Duration,
    /// For an answer that is not streamed, all of it.
    pub whole: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            // Models that think may say nothing for minutes.
            idle: Duration::from_secs(300),
            whole: Duration::from_secs(600),
        }
    }
}

/// How a key is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    Bearer,
    XApiKey,
}

/// What a provider is made of, before it is checked.
#[derive(Clone, Debug)]
pub(crate) struct EndpointConfig {
    pub(crate) provider: String,
    pub(crate) base_url: String,
    pub(crate) key: Option<ApiKey>,
    pub(crate) key_header: KeyHeader,
    pub(crate) key_variable: &'static str,
    pub(crate) address_variable: &'static str,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeouts: Timeouts,
    pub(crate) limit: Option<RateLimit>,
    pub(crate) cassette: Option<Cassette>,
}

/// One provider at one address.
#[derive(Debug)]
pub(crate) struct Endpoint {
    provider: String,
    base_url: String,
    key: Option<ApiKey>,
    key_variable: &'static str,
    address_variable: &'static str,
    headers: HeaderMap,
    http: HttpClient,
    pub(crate) timeouts: Timeouts,
    pub(crate) limit: Option<RateLimit>,
    cassette: Option<Cassette>,
    host: String,
}

/// The head of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
}

impl Head {
    pub(crate) fn request_id(&self) -> Option<String> {
        let id = self.headers.get("x-request-id").or_else(|| self.headers.get("request-id"))?;
        id.to_str().ok().map(str::to_owned)
    }

    pub(crate) fn is_event_stream(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        kind.is_some_and(|kind| kind.trim_start().starts_with("text/event-stream"))
    }
}

impl EndpointConfig {
    pub(crate) fn build(&self) -> Result<Endpoint, SetupError> {
        let bad_address = |why| SetupError::BadAddress { url: self.base_url.clone(), why };
        let target = Target::parse(&self.base_url).map_err(bad_address)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("windlass/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &self.key {
            let unusable =
                || SetupError::UnusableKey { provider: self.provider.clone(), variable: self.key_variable };
            let (name, text) = match self.key_header {
                KeyHeader::Bearer => (AUTHORIZATION, format!("Bearer {}", key.reveal())),
                KeyHeader::XApiKey => (HeaderName::from_static("x-api-key"), key.reveal().to_owned()),
            };
            let mut value = HeaderValue::from_str(&text).map_err(|_| unusable())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        for (name, value) in &self.headers {
            let bad = || SetupError::BadHeader { name: name.clone() };
            let key: HeaderName = name.parse().map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        Ok(Endpoint {
            provider: self.provider.clone(),
            base_url: self.base_url.clone(),
            key: self.key.clone(),
            key_variable: self.key_variable,
            address_variable: self.address_variable,
            headers,
            host: target.host().to_owned(),
            http: HttpClient::new(target, self.timeouts.connect),
            timeouts: self.timeouts,
            limit: self.limit.clone(),
            cassette: self.cassette.clone(),
        })
    }
}

impl Endpoint {
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Posts a request and gives the head and the body of the answer, whatever its status.
    pub(crate) async fn post(
        &self,
        path: &str,
        body: Bytes,
        replay: Replay,
        limit: Duration,
    ) -> Result<(Head, Body<'_>), HttpError> {
        if let Some(cassette) = &self.cassette
            && let Some((head, chunks)) = cassette.play(path, &body).map_err(HttpError::Unreachable)?
        {
            return Ok((head, Body::Taped(chunks)));
        }
        let mut headers = self.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let (response, live) = self.http.post(path, &headers, body.clone(), replay, limit).await?;
        let head = Head { status: response.status().as_u16(), headers: response.headers().clone() };
        let live = match &self.cassette {
            Some(cassette) => Body::Recorded(live, cassette.record(path, &body, &head)),
            None => Body::Live(live),
        };
        Ok((head, live))
    }

    /// An error of the connection, in words.
    pub(crate) fn broken(&self, error: &HttpError, head: &Head, replay: Replay) -> ModelError {
        let (provider, url) = (&self.provider, &self.base_url);
        let (kind, text) = match error {
            HttpError::Unreachable(why) => {
                let hint = match self.address_variable {
                    "" => "is the server running?".to_owned(),
                    variable => format!("is the server running? {variable} sets the address"),
                };
                (
                    ModelErrorKind::Unreachable,
                    format!("{provider} cannot be reached at {url}: {why}; hint: {hint}"),
                )
            }
            HttpError::Lost(why) => {
                (ModelErrorKind::CutShort, format!("the answer of {provider} at {url} was cut short: {why}"))
            }
            HttpError::TimedOut(_) => (ModelErrorKind::TimedOut, format!("{provider} at {url}: {error}")),
            HttpError::TooLong(_) => (ModelErrorKind::Unreadable, format!("{provider} at {url}: {error}")),
        };
        let advice = match error {
            HttpError::TooLong(_) => RetryAdvice::Never,
            _ => retry::advice(kind, &HeaderMap::new(), Stage::Sent, replay),
        };
        self.error(kind, text, head).retry(advice)
    }

    /// An error that the provider sent with a status.
    pub(crate) fn refused(&self, head: &Head, body: &[u8], model: &str, replay: Replay) -> ModelError {
        let told = Told::read(body);
        let kind = told.kind(Some(head.status));
        if let Some(limit) = &self.limit {
            limit.heed(&head.headers, true);
        }
        let advice = retry::advice(kind, &head.headers, Stage::Refused, replay);
        let text = format!("{} answered {}{}", self.provider, head.status, self.words(&told, kind, model));
        self.error(kind, text, head).retry(advice)
    }

    /// An answer that is none.
    pub(crate) fn failed(&self, fault: Fault, head: &Head, model: &str, replay: Replay) -> ModelError {
        let (kind, text, usage) = match fault {
            Fault::Unreadable(why) => {
                let text = format!("what {} sent cannot be read: {why}", self.provider);
                (ModelErrorKind::Unreadable, text, None)
            }
            Fault::Told(told) => {
                let kind = told.kind(None);
                (kind, format!("{} failed{}", self.provider, self.words(&told, kind, model)), told.usage)
            }
            Fault::Incomplete { reason, usage } => {
                let kind = if reason.contains("content_filter") {
                    ModelErrorKind::ContentFilter
                } else {
                    ModelErrorKind::Incomplete
                };
                let hint = match reason.as_str() {
                    "max_output_tokens" | "max_tokens" | "length" => {
                        "; hint: raise `max_tokens` in the settings"
                    }
                    _ => "",
                };
                let text =
                    format!("{} stopped before its answer was complete ({reason}){hint}", self.provider);
                (kind, text, usage)
            }
        };
        let advice = retry::advice(kind, &HeaderMap::new(), Stage::Sent, replay);
        self.error(kind, text, head).retry(advice).at_cost(usage)
    }

    /// A stream that ended without saying that it is complete.
    pub(crate) fn cut_short(&self, head: &Head, replay: Replay) -> ModelError {
        let kind = ModelErrorKind::CutShort;
        let text = format!("the stream of {} ended before its answer did", self.provider);
        self.error(kind, text, head).retry(retry::advice(kind, &HeaderMap::new(), Stage::Sent, replay))
    }

    fn words(&self, told: &Told, kind: ModelErrorKind, model: &str) -> String {
        let code = if told.code.is_empty() { String::new() } else { format!(" ({})", told.code) };
        let said = if told.message.is_empty() { String::new() } else { format!(": {}", told.message) };
        let hint = match kind {
            ModelErrorKind::Unauthorised => match (self.key.is_some(), self.key_variable) {
                (false, "") => "; hint: no key was sent; give one with `.key(…)`".to_owned(),
                (false, variable) => format!("; hint: no key was sent; set {variable}"),
                (true, "") => "; hint: check the key that was given with `.key(…)`".to_owned(),
                (true, variable) => format!("; hint: check the key in {variable}"),
            },
            ModelErrorKind::NoSuchModel => {
                format!("; hint: is there a model `{model}` at {}?", self.base_url)
            }
            ModelErrorKind::TooLong => {
                "; hint: compact the session, shorten the input, or choose a model that reads more".to_owned()
            }
            ModelErrorKind::QuotaExceeded => "; hint: look at the account's billing".to_owned(),
            _ => String::new(),
        };
        format!("{code}{said}{hint}")
    }

    fn error(&self, kind: ModelErrorKind, text: String, head: &Head) -> ModelError {
        let id = head.request_id();
        let text = match &id {
            Some(id) => format!("{text} (request {id})"),
            None => text,
        };
        let text = match &self.key {
            Some(key) => key.removed_from(text),
            None => text,
        };
        ModelError::new(text).of_kind(kind).for_request(id)
    }
}
