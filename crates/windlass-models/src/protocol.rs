//! Wire protocols: the interface between a provider's API and the transport. The three protocols of this crate
//! implement it, and an application can implement it for another API, or wrap one of the three.
//!
//! A protocol encodes a request into a path and a body, and decodes the response, plain or streamed. Transport,
//! timeouts, retries, rate limits, redaction and cassettes are the same for all protocols.

use std::borrow::Cow;
use std::fmt;

use hyper::header::HeaderMap;
use windlass::core::id::CallId;
use windlass::core::usage::Usage;
use windlass::model::{
    DeltaSink, ModelError, ModelRequest, ModelResponse, ModelSettings, ToolDefinition, ToolKind,
};
use windlass_net::{ReplaySafety, TransportError};

use crate::sse::SseEvent;

pub use crate::anthropic::MessagesProtocol;
pub use crate::bedrock::{ConverseProtocol, InvokeProtocol};
pub use crate::error::ProviderError;
pub use crate::gemini::{GeminiHost, GeminiProtocol};
pub use crate::openai::{
    ChatCachePoints, ChatCallIds, ChatDialect, ChatOutputFormat, ChatProtocol, ResponsesProtocol,
    StreamUsageRequest, TokenLimitField,
};

/// A provider's wire protocol.
pub trait ModelProtocol: fmt::Debug + Send + Sync + 'static {
    /// Returns the name of the protocol. Together with the provider it is the origin of provider data.
    fn name(&self) -> &str;

    /// Returns the name of the provider in the semantic conventions of OpenTelemetry, for traces. The default is the name
    /// of the protocol.
    fn provider_name(&self) -> &str {
        self.name()
    }

    /// Encodes a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the request cannot be expressed.
    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError>;

    /// Creates a decoder for the response to a request.
    fn decoder<'a>(&'a self, request: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a>;

    /// Checks that the protocol can express this tool, and returns the reason if it cannot. The default accepts
    /// functions only.
    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match &tool.kind {
            ToolKind::Function => Ok(()),
            _ => Err(format!("the protocol `{}` has only functions", self.name())),
        }
    }

    /// Returns the maximum of output tokens that a request with these settings asks for: see
    /// [`Model::max_output_tokens`](windlass::model::Model::max_output_tokens).
    fn max_output_tokens(&self, settings: &ModelSettings) -> Option<u64> {
        settings.max_tokens
    }

    /// Returns true if the next request names a conversation that the provider stores: see
    /// [`Model::has_stored_conversation`](windlass::model::Model::has_stored_conversation).
    fn has_stored_conversation(&self, _last_response_id: Option<&str>) -> bool {
        false
    }
}

/// A request in front of its encoding.
#[derive(Clone, Copy, Debug)]
pub struct ProtocolRequest<'a> {
    /// The request.
    pub request: ModelRequest<'a>,
    /// The name of the model.
    pub model: &'a str,
    /// The host of the provider.
    pub host: &'a str,
    /// True if the response is streamed.
    pub is_streamed: bool,
    /// The origin of the response's items, such as `responses:api.openai.com`: see
    /// [`ProviderData`](windlass::core::item::ProviderData).
    pub origin: &'a str,
}

/// An encoded request.
#[derive(Clone, Debug)]
pub struct EncodedRequest {
    /// The path, which is appended to the base URL.
    pub path: Cow<'static, str>,
    /// Headers beside those of the provider.
    pub headers: HeaderMap,
    /// The body in JSON.
    pub body: Vec<u8>,
    /// The safety of sending the request twice.
    pub replay_safety: ReplaySafety,
}

impl EncodedRequest {
    /// Creates a request that may be sent twice.
    pub fn new(path: impl Into<Cow<'static, str>>, body: Vec<u8>) -> Self {
        Self { path: path.into(), headers: HeaderMap::new(), body, replay_safety: ReplaySafety::Safe }
    }

    /// Sets the safety of sending the request twice.
    #[must_use]
    pub fn with_replay_safety(self, replay_safety: ReplaySafety) -> Self {
        Self { replay_safety, ..self }
    }
}

/// The decoder of the response to one request.
pub trait ResponseDecoder: Send {
    /// Decodes a plain response body.
    ///
    /// # Errors
    ///
    /// Returns an error if the body is not a complete response.
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError>;

    /// Consumes an event of a streamed response, other than the end marker `[DONE]`, and appends its deltas.
    ///
    /// # Errors
    ///
    /// Returns an error if the event is malformed or reports a failure.
    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError>;

    /// Returns true if the final event of the stream was decoded.
    fn is_complete(&self) -> bool;

    /// Returns the response of a stream whose final event was decoded.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream did not contain a complete response.
    fn take_response(&mut self) -> Result<ModelResponse, ResponseError>;
}

/// The data of the event that ends a stream of OpenAI's APIs. Some servers omit it.
const END_MARKER: &str = "[DONE]";

/// Consumes any event of a streamed response, and appends its deltas.
pub(crate) fn push_event(
    decoder: &mut dyn ResponseDecoder,
    event: SseEvent<'_>,
    deltas: &mut DeltaBuffer,
) -> Result<StreamProgress, ResponseError> {
    match event.data {
        END_MARKER if decoder.is_complete() => Ok(StreamProgress::Complete),
        END_MARKER => Ok(StreamProgress::KeepAlive),
        _ => decoder.decode_event(event, deltas),
    }
}

/// Returns the response at the end of the stream.
///
/// # Errors
///
/// Returns [`ResponseError::Truncated`] if the stream ended before its final event.
pub(crate) fn finish_stream(decoder: &mut dyn ResponseDecoder) -> Result<ModelResponse, ResponseError> {
    if decoder.is_complete() { decoder.take_response() } else { Err(ResponseError::Truncated) }
}

/// The effect of one stream event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamProgress {
    /// The event belongs to the response and resets the idle timeout.
    Advanced,
    /// The event only keeps the connection alive.
    KeepAlive,
    /// The event was the last one; the response is complete.
    Complete,
}

/// A provider's response that does not contain a complete answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResponseError {
    /// The connection failed while the response was read.
    Transport(TransportError),
    /// The response is not in the expected format.
    InvalidResponse(String),
    /// The provider reported a failure.
    ReportedByProvider(ProviderError),
    /// The model stopped before its answer was complete.
    Incomplete {
        /// The reason in the provider's notation.
        reason: String,
        /// The usage, if the provider reported it.
        usage: Option<Box<Usage>>,
        /// The part of the response that was received.
        partial_response: Option<Box<ModelResponse>>,
    },
    /// The response ended before its last event or its last byte.
    Truncated,
}

impl From<TransportError> for ResponseError {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl ResponseError {
    /// Creates the error for a response that is not in the expected format.
    pub fn invalid(why: impl fmt::Display) -> Self {
        Self::InvalidResponse(why.to_string())
    }

    /// Creates the error for JSON that cannot be parsed. JSON that ends too early is a truncated response.
    pub fn invalid_json(error: &serde_json::Error) -> Self {
        if error.is_eof() { Self::Truncated } else { Self::InvalidResponse(error.to_string()) }
    }

    /// Creates the error for a body or an event in which the provider reports a failure.
    pub fn reported_in(text: &str) -> Self {
        Self::ReportedByProvider(ProviderError::parse(text.as_bytes()))
    }
}

/// A part of a response that is published before the response is complete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResponseDelta {
    Text(String),
    Reasoning(String),
    Arguments(CallId, String),
}

/// The deltas of a stream event, collected only if the run is watched.
#[derive(Debug)]
pub struct DeltaBuffer(Option<Vec<ResponseDelta>>);

impl DeltaBuffer {
    /// Creates a buffer that collects deltas.
    pub(crate) fn collecting() -> Self {
        Self(Some(Vec::new()))
    }

    /// Creates a buffer that discards deltas.
    pub fn discarding() -> Self {
        Self(None)
    }

    /// Appends a delta of the message's text.
    pub fn push_text<'a>(&mut self, text: impl Into<Cow<'a, str>>) {
        self.push(text.into(), ResponseDelta::Text);
    }

    /// Appends a delta of the reasoning that may be shown.
    pub fn push_reasoning<'a>(&mut self, text: impl Into<Cow<'a, str>>) {
        self.push(text.into(), ResponseDelta::Reasoning);
    }

    /// Appends a delta of a call's arguments.
    pub fn push_arguments<'a>(&mut self, call: &str, text: impl Into<Cow<'a, str>>) {
        self.push(text.into(), |delta| ResponseDelta::Arguments(CallId::from(call), delta));
    }

    /// Appends the delta that `delta` makes of a text. An empty text makes no delta.
    fn push(&mut self, text: Cow<'_, str>, delta: impl FnOnce(String) -> ResponseDelta) {
        if let Some(deltas) = &mut self.0
            && !text.is_empty()
        {
            deltas.push(delta(text.into_owned()));
        }
    }

    /// Removes the deltas and sends them to a sink, with the suffix of the response's call ids, if they have one.
    pub(crate) async fn emit(&mut self, sink: &DeltaSink, call_id_suffix: Option<&str>) {
        for delta in self.0.iter_mut().flat_map(|deltas| deltas.drain(..)) {
            match delta {
                ResponseDelta::Text(text) => sink.emit_text(text).await,
                ResponseDelta::Reasoning(text) => sink.emit_reasoning(text).await,
                ResponseDelta::Arguments(call, text) => {
                    let call = call_id_suffix
                        .map_or_else(|| call.clone(), |suffix| format!("{call}{suffix}").into());
                    sink.emit_arguments(call, text).await;
                }
            }
        }
    }
}
