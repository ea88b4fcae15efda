//! One request and its response, plain or streamed. Every protocol uses this path, so timeouts, end-of-stream
//! rules and errors are the same for all.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use windlass::core::id::CallId;
use windlass::model::{DeltaSink, ModelError, ModelResponse};

use crate::cassette::ExchangeRecorder;
use crate::endpoint::{ProviderEndpoint, ResponseHead};
use crate::error::ResponseError;
use crate::http::{HttpError, IncomingBody, ReplaySafety};
use crate::sse::{SseDecoder, SseEvent};

/// Maximum length of a stream event in bytes. The last event of a Responses stream holds the whole response,
/// images included.
const MAX_EVENT_LEN: usize = 64 * 1024 * 1024;
/// Maximum length of a plain response body in bytes.
const MAX_BODY_LEN: usize = 64 * 1024 * 1024;
/// Maximum length of an error body in bytes.
const MAX_ERROR_BODY_LEN: usize = 64 * 1024;

/// The decoding half of a provider's wire protocol: the decoder of the response to one request.
pub(crate) trait ProtocolDecoder: Sized {
    /// Decodes a plain response body.
    fn decode_body(self, body: &str) -> Result<ModelResponse, ResponseError>;

    /// Consumes an event of a streamed response, other than [`END_MARKER`], and appends its deltas.
    fn decode_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError>;

    /// Returns true if the final event of the stream was decoded.
    fn is_complete(&self) -> bool;

    /// Returns the response of a stream whose final event was decoded.
    fn into_response(self) -> Result<ModelResponse, ResponseError>;

    /// Consumes any event of a streamed response, and appends its deltas.
    fn push_event(
        &mut self,
        event: SseEvent<'_>,
        deltas: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        match event.data {
            END_MARKER if self.is_complete() => Ok(StreamProgress::Complete),
            END_MARKER => Ok(StreamProgress::KeepAlive),
            _ => self.decode_event(event, deltas),
        }
    }

    /// Returns the response at the end of the stream.
    ///
    /// # Errors
    ///
    /// Returns [`ResponseError::Truncated`] if the stream ended before its final event.
    fn finish(self) -> Result<ModelResponse, ResponseError> {
        if self.is_complete() { self.into_response() } else { Err(ResponseError::Truncated) }
    }
}

/// The data of the event that ends a stream of OpenAI's APIs. Some servers omit it.
const END_MARKER: &str = "[DONE]";

/// The effect of one stream event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamProgress {
    /// The event belongs to the response and resets the idle timeout.
    Advanced,
    /// The event only keeps the connection alive.
    KeepAlive,
    /// The event was the last one; the response is complete.
    Complete,
}

/// A part of a response that is published before the response is complete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResponseDelta {
    Text(String),
    Reasoning(String),
    Arguments(CallId, String),
}

/// The deltas of a stream event, collected only if the run is watched.
pub(crate) struct DeltaBuffer(Option<Vec<ResponseDelta>>);

impl DeltaBuffer {
    /// Creates a buffer that collects deltas.
    pub(crate) fn collecting() -> Self {
        Self(Some(Vec::new()))
    }

    /// Creates a buffer that discards deltas.
    pub(crate) fn discarding() -> Self {
        Self(None)
    }

    /// Appends the delta that `delta` makes of a text. An empty text makes no delta.
    pub(crate) fn push(&mut self, text: Cow<'_, str>, delta: impl FnOnce(String) -> ResponseDelta) {
        if let Some(deltas) = &mut self.0
            && !text.is_empty()
        {
            deltas.push(delta(text.into_owned()));
        }
    }

    /// Removes the deltas and sends them to a sink.
    async fn emit(&mut self, sink: &DeltaSink) {
        for delta in self.0.iter_mut().flat_map(|deltas| deltas.drain(..)) {
            match delta {
                ResponseDelta::Text(text) => sink.emit_text(text).await,
                ResponseDelta::Reasoning(text) => sink.emit_reasoning(text).await,
                ResponseDelta::Arguments(call, text) => sink.emit_arguments(call, text).await,
            }
        }
    }
}

/// An encoded request to a provider.
pub(crate) struct ProviderRequest<'a> {
    pub(crate) path: &'a str,
    pub(crate) model: &'a str,
    pub(crate) body: Vec<u8>,
    pub(crate) replay_safety: ReplaySafety,
    pub(crate) is_streamed: bool,
}

/// The body of a response: from the network, from the network while being recorded, or from a cassette.
pub(crate) enum ResponseBody<'a> {
    Live(IncomingBody<'a>),
    Recording(IncomingBody<'a>, ExchangeRecorder),
    Replayed(VecDeque<Bytes>),
}

impl ResponseBody<'_> {
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        match self {
            Self::Live(body) => body.next_chunk().await,
            Self::Recording(body, recording) => {
                let chunk = body.next_chunk().await?;
                match &chunk {
                    Some(bytes) => recording.push_chunk(bytes),
                    None => recording.finish(),
                }
                Ok(chunk)
            }
            Self::Replayed(chunks) => Ok(chunks.pop_front()),
        }
    }

    /// Returns the next chunk, or [`HttpError::TimedOut`] if it does not arrive before `until`.
    async fn next_chunk_before(
        &mut self,
        until: Instant,
        limit: Duration,
    ) -> Result<Option<Bytes>, HttpError> {
        timeout_at(until, self.next_chunk()).await.map_err(|_| HttpError::TimedOut(limit))?
    }

    async fn read_all(
        &mut self,
        until: Instant,
        limit: Duration,
        longest: usize,
    ) -> Result<Vec<u8>, HttpError> {
        let mut whole = Vec::new();
        while let Some(chunk) = self.next_chunk_before(until, limit).await? {
            if whole.len() + chunk.len() > longest {
                return Err(HttpError::BodyTooLong(longest));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    }

    async fn drain(&mut self) {
        match self {
            Self::Live(body) => body.drain().await,
            Self::Recording(body, recording) => {
                body.drain().await;
                recording.finish();
            }
            Self::Replayed(_) => {}
        }
    }
}

/// Sends a request and decodes the model's response.
///
/// # Cancel safety
///
/// Dropping the future closes the connection. The provider may still complete and bill the request.
pub(crate) async fn request_response(
    endpoint: &ProviderEndpoint,
    decoder: impl ProtocolDecoder,
    request: ProviderRequest<'_>,
    deltas: &DeltaSink,
) -> Result<ModelResponse, ModelError> {
    let is_streamed = request.is_streamed;
    let mut pending = send_request(endpoint, request).await?;
    let decoded = if is_streamed && pending.head.is_event_stream() {
        pending.read_stream(decoder, deltas).await
    } else {
        pending.read_body(|body| decoder.decode_body(utf8_text(body)?)).await
    };
    let response = decoded.map_err(|error| pending.model_error(error))?;
    pending.record_tokens(response.usage.map(|usage| usage.total_tokens()));
    let request_id = response.request_id.or_else(|| pending.head.request_id());
    Ok(ModelResponse { request_id, ..response })
}

/// Sends a request that is not a model turn, such as embeddings, and decodes its body with `decode`. `decode` also
/// returns the tokens that the request used, if the provider reports them.
pub(crate) async fn request_json<T>(
    endpoint: &ProviderEndpoint,
    request: ProviderRequest<'_>,
    decode: impl FnOnce(&[u8]) -> Result<(T, Option<u64>), ResponseError>,
) -> Result<T, ModelError> {
    let mut pending = send_request(endpoint, request).await?;
    let decoded = pending.read_body(decode).await;
    let (value, tokens) = decoded.map_err(|error| pending.model_error(error))?;
    pending.record_tokens(tokens);
    Ok(value)
}

fn utf8_text(body: &[u8]) -> Result<&str, ResponseError> {
    std::str::from_utf8(body).map_err(ResponseError::invalid)
}

/// Waits for the rate limit, sends a request and waits for the head of the response.
///
/// # Errors
///
/// Returns an error if the request fails in transport or the response has an error status.
async fn send_request<'a>(
    endpoint: &'a ProviderEndpoint,
    request: ProviderRequest<'a>,
) -> Result<PendingResponse<'a>, ModelError> {
    let ProviderRequest { path, model, body, replay_safety, is_streamed } = request;
    let estimated_tokens = (body.len() / 4) as u64;
    if let Some(limit) = &endpoint.rate_limit {
        limit.acquire(estimated_tokens).await;
    }
    let timeout = if is_streamed { endpoint.timeouts.idle } else { endpoint.timeouts.total };
    let deadline = Instant::now() + timeout;
    let posted = endpoint.post(path, body.into(), replay_safety, timeout).await;
    let (head, mut body) =
        posted.map_err(|error| endpoint.transport_error(&error, &ResponseHead::default(), replay_safety))?;
    if !(200..300).contains(&head.status) {
        // A body that cannot be read completely is reported as empty: the status matters more.
        let text = body.read_all(deadline, timeout, MAX_ERROR_BODY_LEN).await.unwrap_or_default();
        return Err(endpoint.status_error(&head, &text, model, replay_safety));
    }
    if let Some(limit) = &endpoint.rate_limit {
        limit.observe_success(&head.headers);
    }
    Ok(PendingResponse { endpoint, model, replay_safety, estimated_tokens, timeout, deadline, head, body })
}

/// A request that was sent, with the head of its response.
struct PendingResponse<'a> {
    endpoint: &'a ProviderEndpoint,
    model: &'a str,
    replay_safety: ReplaySafety,
    estimated_tokens: u64,
    timeout: Duration,
    deadline: Instant,
    head: ResponseHead,
    body: ResponseBody<'a>,
}

impl PendingResponse<'_> {
    /// Reads and decodes a plain body.
    async fn read_body<T>(
        &mut self,
        decode: impl FnOnce(&[u8]) -> Result<T, ResponseError>,
    ) -> Result<T, ResponseError> {
        let body = self.body.read_all(self.deadline, self.timeout, MAX_BODY_LEN).await?;
        decode(&body)
    }

    /// Reads and decodes a streamed body, and sends its deltas to `sink` as they arrive.
    async fn read_stream(
        &mut self,
        mut decoder: impl ProtocolDecoder,
        sink: &DeltaSink,
    ) -> Result<ModelResponse, ResponseError> {
        let idle = self.timeout;
        let mut events = SseDecoder::new(MAX_EVENT_LEN);
        let mut deltas =
            if sink.is_watched() { DeltaBuffer::collecting() } else { DeltaBuffer::discarding() };
        let mut until = Instant::now() + idle;
        loop {
            let chunk = self.body.next_chunk_before(until, idle).await?;
            let is_last = chunk.is_none();
            if let Some(chunk) = &chunk {
                events.feed(chunk);
            }
            let mut has_progressed = false;
            loop {
                let event = if is_last { events.finish() } else { events.next() };
                let Some(event) = event.map_err(ResponseError::invalid)? else { break };
                let progress = match decoder.push_event(event, &mut deltas) {
                    Ok(progress) => progress,
                    // A broken connection leaves half an event; that is a truncated stream, not malformed data.
                    Err(ResponseError::InvalidResponse(_)) if is_last => break,
                    Err(error) => return Err(error),
                };
                deltas.emit(sink).await;
                match progress {
                    StreamProgress::Advanced => has_progressed = true,
                    StreamProgress::KeepAlive => {}
                    StreamProgress::Complete => {
                        self.body.drain().await;
                        return decoder.finish();
                    }
                }
            }
            if is_last {
                return decoder.finish();
            }
            if has_progressed {
                until = Instant::now() + idle;
            }
        }
    }

    /// Corrects the estimate of the rate limit by the tokens that the request used, if they are known.
    fn record_tokens(&self, tokens: Option<u64>) {
        if let (Some(limit), Some(tokens)) = (&self.endpoint.rate_limit, tokens) {
            limit.record_actual_tokens(self.estimated_tokens, tokens);
        }
    }

    fn model_error(&self, error: ResponseError) -> ModelError {
        self.endpoint.response_error(error, &self.head, self.model, self.replay_safety)
    }
}
