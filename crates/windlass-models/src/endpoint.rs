//! A provider's endpoint: base URL, API key, headers, rate limit and timeouts. It sends requests and turns
//! failures into [`ModelError`]s. Every error text is redacted of the API key.

use std::borrow::Cow;
use std::time::Duration;

use std::sync::Arc;

use bytes::Bytes;
use hyper::Request;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, LOCATION, USER_AGENT,
};
use tokio::time::timeout;
use windlass::model::{ModelError, ModelErrorKind, RetryAdvice};
use windlass_net::{
    BaseUrl, DecodedBody, HttpClient, HttpTransport, ReplaySafety, TransportError, TransportOptions,
    display_url, is_gzip,
};

use crate::api_key::ApiKey;
use crate::cassette::Cassette;
use crate::error::{ProviderError, SetupError};
use crate::exchange::ResponseBody;
use crate::protocol::{EncodedRequest, ResponseError};
use crate::rate_limit::RateLimit;
use crate::retry::{self, FailureStage};
use crate::signer::{RequestSigner, SignError};

/// Time limits for requests to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderTimeouts {
    /// Maximum time to open a connection.
    pub connect: Duration,
    /// Maximum time between two events of a stream. Comments and pings do not reset it.
    pub idle: Duration,
    /// Maximum time for a response that is not streamed, from sending the request to the end of the body.
    pub total: Duration,
}

impl Default for ProviderTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            // Reasoning models may send nothing for minutes.
            idle: Duration::from_secs(300),
            total: Duration::from_secs(600),
        }
    }
}

/// The header that carries the API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiKeyHeader {
    Bearer,
    /// A header with this name, in lower case.
    Named(&'static str),
}

/// The configured headers whose values are no secrets: versions, which errors of providers name.
const PUBLIC_HEADERS: [&str; 2] = ["anthropic-version", "anthropic-beta"];

/// Returns `var` without the variables that are blank.
pub(crate) fn without_blank(var: impl Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    move |name| var(name).filter(|text| !text.trim().is_empty())
}

/// The unvalidated configuration of a [`ProviderEndpoint`].
#[derive(Clone, Debug)]
pub(crate) struct EndpointConfig {
    pub(crate) provider: String,
    /// The id of the provider that owns data in items; the host if absent.
    pub(crate) provider_id: Option<String>,
    pub(crate) base_url: String,
    pub(crate) key: Option<ApiKey>,
    pub(crate) key_header: ApiKeyHeader,
    pub(crate) key_variable: Cow<'static, str>,
    pub(crate) base_url_variable: &'static str,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeouts: ProviderTimeouts,
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) cassette: Option<Cassette>,
    pub(crate) http_client: Option<Arc<dyn HttpTransport>>,
    pub(crate) signer: Option<Arc<dyn RequestSigner>>,
}

/// Defines the builder methods of a provider's client that set the common parts of its `config`.
macro_rules! endpoint_builder_methods {
    () => {
        /// Sets the API key.
        #[must_use]
        pub fn key(mut self, key: impl Into<crate::ApiKey>) -> Self {
            self.config.key = Some(key.into());
            self
        }

        /// Adds a header to every request. Its value is treated as a secret.
        #[must_use]
        pub fn header(mut self, name: &str, value: &str) -> Self {
            self.config.headers.push((name.to_owned(), value.to_owned()));
            self
        }

        /// Sets the id of the provider. Signatures and other data that only their provider can use are sent back
        /// only to a provider with the same id. The default is the host of the base URL.
        #[must_use]
        pub fn provider_id(mut self, id: &str) -> Self {
            self.config.provider_id = Some(id.to_owned());
            self
        }

        /// Sets the time limits.
        #[must_use]
        pub fn timeouts(mut self, timeouts: crate::ProviderTimeouts) -> Self {
            self.config.timeouts = timeouts;
            self
        }

        /// Sets the rate limit.
        #[must_use]
        pub fn rate_limit(mut self, limit: crate::RateLimit) -> Self {
            self.config.rate_limit = Some(limit);
            self
        }

        /// Sets the HTTP client: a shared [`HttpClient`](crate::net::HttpClient), or the application's own.
        #[must_use]
        pub fn http_client(mut self, client: impl crate::net::HttpTransport) -> Self {
            self.config.http_client = Some(std::sync::Arc::new(client));
            self
        }

        /// Sets the signer, which authorises every request just before it is sent.
        #[must_use]
        pub fn signer(mut self, signer: impl crate::RequestSigner) -> Self {
            self.config.signer = Some(std::sync::Arc::new(signer));
            self
        }

        /// Replays exchanges from a cassette, or records them to it.
        #[must_use]
        pub fn cassette(mut self, cassette: crate::Cassette) -> Self {
            self.config.cassette = Some(cassette);
            self
        }
    };
}

pub(crate) use endpoint_builder_methods;

/// A provider at one base URL, with validated configuration.
#[derive(Debug)]
pub(crate) struct ProviderEndpoint {
    provider: String,
    base_url: String,
    key: Option<ApiKey>,
    key_variable: Cow<'static, str>,
    base_url_variable: &'static str,
    headers: HeaderMap,
    base: BaseUrl,
    http_client: Arc<dyn HttpTransport>,
    signer: Option<Arc<dyn RequestSigner>>,
    pub(crate) timeouts: ProviderTimeouts,
    pub(crate) rate_limit: Option<RateLimit>,
    cassette: Option<Cassette>,
    host: String,
    provider_id: Option<String>,
}

/// The status and headers of an HTTP response.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The secrets of its request, which some servers echo in their errors.
    pub(crate) sent_secrets: SentSecrets,
}

/// The secret values of a request: the headers that are marked sensitive, and what its signer added.
#[derive(Clone, Default)]
pub(crate) struct SentSecrets(Vec<String>);

impl SentSecrets {
    /// Shorter values are no credentials; replacing them would make errors unreadable.
    const MIN_LENGTH: usize = 8;

    /// Collects the secrets of a request. `unsigned` are its address and headers before it was signed.
    fn of_request<B>(request: &Request<B>, unsigned: Option<(hyper::Uri, HeaderMap)>) -> Self {
        let mut secrets = Self::default();
        let (uri, headers) = match &unsigned {
            Some((uri, headers)) => (Some(uri), Some(headers)),
            None => (None, None),
        };
        for (name, value) in request.headers() {
            let is_signed =
                headers.is_some_and(|before| !before.get_all(name).iter().any(|old| old == value));
            if let (true, Ok(text)) = (is_signed || value.is_sensitive(), value.to_str()) {
                // A server that echoes a token leaves out its scheme.
                let token = text.split_once(' ').map_or("", |(_, token)| token);
                secrets.add(text);
                secrets.add(token);
            }
        }
        if let Some(query) = request.uri().query().filter(|_| uri.is_some_and(|uri| uri != request.uri())) {
            let before = uri.and_then(|uri| uri.query()).unwrap_or_default();
            for pair in query.split('&').filter(|pair| !before.split('&').any(|old| old == *pair)) {
                secrets.add(pair.split_once('=').map_or(pair, |(_, value)| value));
            }
        }
        // A secret may be a part of another one.
        secrets.0.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets
    }

    fn add(&mut self, secret: &str) {
        if secret.len() >= Self::MIN_LENGTH {
            self.0.push(secret.to_owned());
        }
    }

    fn redact_from(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| match text.contains(secret.as_str()) {
            true => text.replace(secret.as_str(), "[secret]"),
            false => text,
        })
    }
}

impl std::fmt::Debug for SentSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SentSecrets({})", self.0.len())
    }
}

impl ResponseHead {
    pub(crate) fn request_id(&self) -> Option<String> {
        let names = ["x-request-id", "request-id", "apim-request-id", "x-amzn-requestid"];
        let id = names.iter().find_map(|name| self.headers.get(*name))?;
        id.to_str().ok().map(str::to_owned)
    }

    /// Returns the cost that a gateway (LiteLLM) reports in a header.
    pub(crate) fn reported_cost(&self) -> Option<f64> {
        self.headers.get("x-litellm-response-cost")?.to_str().ok()?.parse().ok()
    }

    pub(crate) fn is_event_stream(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        // Media types are compared without regard to case.
        kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
    }

    /// True if the body is in Amazon's binary framing of events.
    pub(crate) fn is_amazon_event_stream(&self) -> bool {
        let kind = self.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        kind.is_some_and(|kind| {
            kind.trim_start().to_ascii_lowercase().starts_with("application/vnd.amazon.eventstream")
        })
    }

    /// Returns the reason if the body is in a format that no protocol has.
    pub(crate) fn unreadable_format(&self) -> Option<String> {
        let text = |name| self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").trim();
        let encoding = text(CONTENT_ENCODING);
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") && !is_gzip(&self.headers) {
            return Some(format!("its content encoding is `{encoding}`, and only gzip was asked for"));
        }
        let is_page = text(CONTENT_TYPE).to_ascii_lowercase().starts_with("text/html");
        is_page.then(|| "it is a web page; hint: check the base URL".to_owned())
    }
}

impl EndpointConfig {
    /// Creates the configuration of a provider without a key. Errors call it `provider`.
    pub(crate) fn new(provider: &str, base_url: &str, key_header: ApiKeyHeader) -> Self {
        Self {
            provider: provider.to_owned(),
            provider_id: None,
            base_url: base_url.to_owned(),
            key: None,
            key_header,
            // A server that the program configures has no environment variables to hint at.
            key_variable: Cow::Borrowed(""),
            base_url_variable: "",
            headers: Vec::new(),
            timeouts: ProviderTimeouts::default(),
            rate_limit: None,
            cassette: None,
            http_client: None,
            signer: None,
        }
    }

    /// Sets the names of the environment variables that hold the key and the base URL.
    pub(crate) fn with_variables(self, key_variable: &'static str, base_url_variable: &'static str) -> Self {
        Self { key_variable: key_variable.into(), base_url_variable, ..self }
    }

    /// Sets the key and the base URL to the values of their variables.
    ///
    /// # Errors
    ///
    /// Returns [`SetupError::MissingKey`] if neither is set.
    pub(crate) fn read_vars(mut self, var: impl Fn(&str) -> Option<String>) -> Result<Self, SetupError> {
        let (key, base_url) = (var(&self.key_variable), var(self.base_url_variable));
        if key.is_none() && base_url.is_none() {
            let variable = self.key_variable.into_owned();
            return Err(SetupError::MissingKey { provider: self.provider, variable });
        }
        self.key = key.map(ApiKey::new);
        self.base_url = base_url.unwrap_or(self.base_url);
        Ok(self)
    }

    pub(crate) fn build(&self) -> Result<ProviderEndpoint, SetupError> {
        let bad_address = |why| SetupError::InvalidBaseUrl { url: display_url(&self.base_url), why };
        let base = BaseUrl::parse(&self.base_url).map_err(bad_address)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("windlass/", env!("CARGO_PKG_VERSION"))));
        if let Some(key) = &self.key {
            let unusable = || SetupError::InvalidKey {
                provider: self.provider.clone(),
                variable: self.key_variable.clone().into_owned(),
            };
            let (name, text) = match self.key_header {
                ApiKeyHeader::Bearer => (AUTHORIZATION, format!("Bearer {}", key.reveal())),
                ApiKeyHeader::Named(name) => (HeaderName::from_static(name), key.reveal().to_owned()),
            };
            let mut value = HeaderValue::from_str(&text).map_err(|_| unusable())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        for (name, value) in &self.headers {
            let bad = || SetupError::InvalidHeader { name: name.clone() };
            let key: HeaderName = name.parse().map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
            value.set_sensitive(!PUBLIC_HEADERS.contains(&key.as_str()));
            headers.insert(key, value);
        }
        Ok(ProviderEndpoint {
            provider: self.provider.clone(),
            base_url: display_url(&self.base_url),
            key: self.key.clone(),
            key_variable: self.key_variable.clone(),
            base_url_variable: self.base_url_variable,
            headers,
            host: base.host().to_owned(),
            provider_id: self.provider_id.clone(),
            base,
            http_client: self.http_client.clone().unwrap_or_else(|| Arc::new(HttpClient::new())),
            signer: self.signer.clone(),
            timeouts: self.timeouts,
            rate_limit: self.rate_limit.clone(),
            cassette: self.cassette.clone(),
        })
    }
}

impl ProviderEndpoint {
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the id of the provider that owns data in items.
    pub(crate) fn provider_id(&self) -> &str {
        self.provider_id.as_deref().unwrap_or(&self.host)
    }

    /// Sends a POST request, or replays it from the cassette, and returns the head and body of the response.
    ///
    /// A response with an error status is returned as `Ok`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no response, or the signer fails.
    pub(crate) async fn post(
        &self,
        encoded: EncodedRequest,
        is_streamed: bool,
        limit: Duration,
    ) -> Result<(ResponseHead, ResponseBody), ModelError> {
        let EncodedRequest { path, headers, body, replay_safety } = encoded;
        let body = Bytes::from(body);
        let mut head = ResponseHead::default();
        let unsent = |why| self.transport_error(&TransportError::Unusable(why), &head, replay_safety);
        if let Some(cassette) = &self.cassette {
            let replayed = cassette.replay_next(&path, &body);
            if let Some((head, chunks)) = replayed.map_err(|why| self.cassette_error(&why))? {
                return Ok((head, ResponseBody::Replayed(chunks)));
            }
        }
        let uri = self.base.join(&path).map_err(unsent)?;
        let mut request = Request::new(body.clone());
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().extend(headers);
        let accepted = HeaderValue::from_static(
            "application/json, text/event-stream, application/vnd.amazon.eventstream",
        );
        request.headers_mut().insert(ACCEPT, accepted);
        if !is_streamed {
            // Servers that compress a stream may hold its events back.
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let mut unsigned = None;
        if let Some(signer) = &self.signer {
            unsigned = Some((request.uri().clone(), request.headers().clone()));
            let signed = timeout(limit, signer.sign(&mut request)).await;
            let signed = signed.unwrap_or_else(|_| Err(TransportError::TimedOut(limit).into()));
            signed.map_err(|error| self.signer_error(error))?;
        }
        head.sent_secrets = SentSecrets::of_request(&request, unsigned);
        let options = TransportOptions::new(replay_safety);
        let options = options.connect_timeout(self.timeouts.connect).head_timeout(limit);
        // A client of the application may have no timeouts of its own.
        let sent =
            timeout(limit.saturating_add(self.timeouts.connect), self.http_client.send(request, options))
                .await;
        let sent = sent.unwrap_or(Err(TransportError::TimedOut(limit)));
        let response = sent.map_err(|error| self.transport_error(&error, &head, replay_safety))?;
        let (parts, live) = response.into_parts();
        (head.status, head.headers) = (parts.status.as_u16(), parts.headers);
        let live = DecodedBody::new(live, &head.headers);
        let live = match &self.cassette {
            Some(cassette) => ResponseBody::Recording(live, cassette.start_recording(&path, &body, &head)),
            None => ResponseBody::Live(live),
        };
        Ok((head, live))
    }

    /// Returns the error for a request that a cassette does not have, or cannot record. It is no failure of the provider,
    /// for which another model could stand in.
    fn cassette_error(&self, why: &str) -> ModelError {
        let text = format!("{} cannot be used at {}: {why}", self.provider, self.base_url);
        self.build_error(ModelErrorKind::NotConfigured, text, &ResponseHead::default())
    }

    /// Returns the error for a request that could not be signed. Nothing was sent, so a signer that could not reach
    /// its token server may try again.
    fn signer_error(&self, error: SignError) -> ModelError {
        let text = format!("the request to {} cannot be signed: {error}", self.provider);
        let advice = match error.downcast_ref::<TransportError>() {
            Some(TransportError::Unreachable(_) | TransportError::TimedOut(_)) => RetryAdvice::Safe,
            _ => RetryAdvice::Never,
        };
        let error =
            self.build_error(ModelErrorKind::Unauthorised, text, &ResponseHead::default()).with_source(error);
        error.with_retry_advice(advice)
    }

    /// Returns the error for a request that failed in transport.
    pub(crate) fn transport_error(
        &self,
        error: &TransportError,
        head: &ResponseHead,
        replay: ReplaySafety,
    ) -> ModelError {
        let (provider, url) = (&self.provider, &self.base_url);
        let (kind, text) = match error {
            TransportError::Unusable(why)
            | TransportError::OtherProtocol(why)
            | TransportError::AddressRefused(why) => {
                (ModelErrorKind::Unreachable, format!("{provider} cannot be used at {url}: {why}"))
            }
            // Another model must not be asked instead: the program says that nothing is sent.
            TransportError::Banned(why) => {
                (ModelErrorKind::NotConfigured, format!("{provider} cannot be used at {url}: {why}"))
            }
            TransportError::Unreachable(why) => {
                let hint = match self.base_url_variable {
                    "" => "is the server running?".to_owned(),
                    variable => format!("is the server running? {variable} sets the address"),
                };
                (
                    ModelErrorKind::Unreachable,
                    format!("{provider} cannot be reached at {url}: {why}; hint: {hint}"),
                )
            }
            TransportError::ConnectionLost(why) => (
                ModelErrorKind::ConnectionLost,
                format!("the answer of {provider} at {url} was cut short: {why}"),
            ),
            TransportError::TimedOut(_) => {
                (ModelErrorKind::TimedOut, format!("{provider} at {url}: {error}"))
            }
            // Beside the body that is too long or malformed: kinds of errors that are added later.
            _ => (ModelErrorKind::InvalidResponse, format!("{provider} at {url}: {error}")),
        };
        let advice = match error {
            TransportError::Unreachable(_)
            | TransportError::ConnectionLost(_)
            | TransportError::TimedOut(_) => {
                retry::retry_advice(kind, &HeaderMap::new(), FailureStage::Sent, replay)
            }
            _ => RetryAdvice::Never,
        };
        self.build_error(kind, text, head).with_retry_advice(advice)
    }

    /// Returns the error for a response with an error status, and applies its headers to the rate limit.
    pub(crate) fn status_error(
        &self,
        head: &ResponseHead,
        body: &[u8],
        model: &str,
        path: &str,
        replay: ReplaySafety,
    ) -> ModelError {
        let reported = ProviderError::parse(body);
        let kind = reported.error_kind(Some(head.status));
        if let Some(limit) = &self.rate_limit {
            limit.observe_rejection(&head.headers);
        }
        let advice = retry::retry_advice(kind, &head.headers, FailureStage::Refused, replay);
        let advice = retry::delay_retry(advice, reported.retry_delay);
        let hint = match head.status {
            300..=399 => {
                let place = head.headers.get(LOCATION).and_then(|place| place.to_str().ok());
                let place = place.map_or_else(String::new, |place| format!(" to {place}"));
                format!(
                    "; hint: the server redirects{place}, and redirects are not followed; set that base URL"
                )
            }
            404 if kind != ModelErrorKind::ModelNotFound => {
                let other = match path {
                    "/responses" => {
                        "; a server with Chat Completions only needs `openai-chat:` or `OpenAi::chat`"
                    }
                    _ => "",
                };
                format!("; hint: is there `{path}` at {}?{other}", self.base_url)
            }
            _ => String::new(),
        };
        let text = format!(
            "{} answered {}{}{hint}",
            self.provider,
            head.status,
            self.describe_failure(&reported, kind, model)
        );
        let window = reported.named_window().filter(|_| kind == ModelErrorKind::ContextLengthExceeded);
        self.build_error(kind, text, head).with_retry_advice(advice).with_context_window(window)
    }

    /// Returns the error for a response that broke off, is unreadable or incomplete, or reports a failure.
    pub(crate) fn response_error(
        &self,
        error: ResponseError,
        head: &ResponseHead,
        model: &str,
        replay: ReplaySafety,
    ) -> ModelError {
        let (mut partial, mut retry_delay, mut window) = (None, None, None);
        let (kind, text, usage) = match error {
            ResponseError::Transport(error) => return self.transport_error(&error, head, replay),
            ResponseError::InvalidResponse(why) => {
                let text = format!("the response of {} cannot be read: {why}", self.provider);
                (ModelErrorKind::InvalidResponse, text, None)
            }
            ResponseError::ReportedByProvider(reported) => {
                let kind = reported.error_kind(None);
                retry_delay = reported.retry_delay;
                window = reported.named_window().filter(|_| kind == ModelErrorKind::ContextLengthExceeded);
                (
                    kind,
                    format!("{} failed{}", self.provider, self.describe_failure(&reported, kind, model)),
                    reported.usage.as_deref().copied(),
                )
            }
            ResponseError::Incomplete { reason, usage, partial_response } => {
                partial = partial_response;
                let kind = if reason.contains("content_filter") {
                    ModelErrorKind::ContentFilter
                } else {
                    ModelErrorKind::Incomplete
                };
                let hint = match reason.as_str() {
                    "max_output_tokens" | "max_tokens" | "length" => {
                        "; hint: raise `max_tokens` in the settings, or keep the text with `on_length_limit`"
                    }
                    _ => "",
                };
                let text =
                    format!("{} stopped before its answer was complete ({reason}){hint}", self.provider);
                (kind, text, usage.as_deref().copied())
            }
            ResponseError::Truncated => {
                let text = format!("the response of {} ended before it was complete", self.provider);
                (ModelErrorKind::ConnectionLost, text, None)
            }
        };
        let advice = retry::retry_advice(kind, &HeaderMap::new(), FailureStage::Sent, replay);
        self.build_error(kind, text, head)
            .with_retry_advice(retry::delay_retry(advice, retry_delay))
            .with_usage(usage)
            .with_context_window(window)
            .with_partial_response(partial)
    }

    fn describe_failure(&self, reported: &ProviderError, kind: ModelErrorKind, model: &str) -> String {
        let code = if reported.code.is_empty() { String::new() } else { format!(" ({})", reported.code) };
        let message =
            if reported.message.is_empty() { String::new() } else { format!(": {}", reported.message) };
        let hint = match kind {
            ModelErrorKind::Unauthorised => match (self.key.is_some(), &*self.key_variable) {
                (false, "") => "; hint: no key was sent; give one with `.key(…)`".to_owned(),
                (false, variable) => format!("; hint: no key was sent; set {variable}"),
                (true, "") => "; hint: check the key that was given with `.key(…)`".to_owned(),
                (true, variable) => format!("; hint: check the key in {variable}"),
            },
            ModelErrorKind::ModelNotFound => {
                format!("; hint: is there a model `{model}` at {}?", self.base_url)
            }
            ModelErrorKind::ContextLengthExceeded => {
                "; hint: compact the session, shorten the input, or use a model with more context".to_owned()
            }
            ModelErrorKind::QuotaExceeded => "; hint: check the account's billing".to_owned(),
            _ => String::new(),
        };
        format!("{code}{message}{hint}")
    }

    fn build_error(&self, kind: ModelErrorKind, text: String, head: &ResponseHead) -> ModelError {
        let id = head.request_id();
        let text = match &id {
            Some(id) => format!("{text} (request {id})"),
            None => text,
        };
        let text = match &self.key {
            Some(key) => key.redact_from(text),
            None => text,
        };
        let text = head.sent_secrets.redact_from(text);
        ModelError::new(text).with_kind(kind).with_request_id(id)
    }
}
