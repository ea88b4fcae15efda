//! One request and its response, plain or streamed. Every protocol uses this path, so timeouts, end-of-stream
//! rules and errors are the same for all.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use windlass::model::{DeltaSink, ModelError, ModelResponse};

use crate::bedrock::EventStreamDecoder;
use crate::cassette::ExchangeRecorder;
use crate::endpoint::{ProviderEndpoint, ResponseHead};
use crate::protocol::{
    DeltaBuffer, EncodedRequest, ResponseDecoder, ResponseError, StreamProgress, finish_stream, push_event,
};
use crate::rate_limit::read_budgets;
use crate::sse::{SseDecoder, SseEvent};
use crate::wire::to_cost_nanos;
use windlass_net::{DecodedBody, ReplaySafety, TransportError};

/// Maximum length of a stream event in bytes. The last event of a Responses stream holds the whole response,
/// images included.
const MAX_EVENT_LEN: usize = 64 * 1024 * 1024;
/// Maximum length of a plain response body in bytes.
const MAX_BODY_LEN: usize = 64 * 1024 * 1024;
/// Maximum length of a streamed response body in bytes. Its deltas and its last event have the text twice, with the frame
/// of each delta.
const MAX_STREAM_LEN: usize = 512 * 1024 * 1024;
/// Maximum length of an error body in bytes.
const MAX_ERROR_BODY_LEN: usize = 64 * 1024;

/// An encoded request to a provider.
pub(crate) struct ProviderRequest<'a> {
    pub(crate) model: &'a str,
    pub(crate) encoded: EncodedRequest,
    pub(crate) is_streamed: bool,
    /// Suffix that makes the call ids of the response unique, if the provider numbers its calls.
    pub(crate) call_id_suffix: Option<String>,
}

/// The body of a response: from the network, from the network while being recorded, or from a cassette.
pub(crate) enum ResponseBody {
    Live(DecodedBody),
    Recording(DecodedBody, ExchangeRecorder),
    Replayed(VecDeque<Bytes>),
}

impl ResponseBody {
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, TransportError> {
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

    /// Returns the next chunk, or [`TransportError::TimedOut`] if it does not arrive before `until`.
    async fn next_chunk_before(
        &mut self,
        until: Instant,
        limit: Duration,
    ) -> Result<Option<Bytes>, TransportError> {
        timeout_at(until, self.next_chunk()).await.map_err(|_| TransportError::TimedOut(limit))?
    }

    async fn read_all(
        &mut self,
        until: Instant,
        limit: Duration,
        longest: usize,
    ) -> Result<Vec<u8>, TransportError> {
        let mut whole = Vec::new();
        while let Some(chunk) = self.next_chunk_before(until, limit).await? {
            if whole.len() + chunk.len() > longest {
                return Err(TransportError::BodyTooLong(longest));
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

/// The framing of a streamed body.
enum StreamFraming {
    ServerSent(SseDecoder),
    Amazon(EventStreamDecoder),
}

impl StreamFraming {
    fn feed(&mut self, chunk: &[u8]) {
        match self {
            Self::ServerSent(events) => events.feed(chunk),
            Self::Amazon(events) => events.feed(chunk),
        }
    }

    /// Returns the next event, if it is complete.
    fn next(&mut self) -> Result<Option<SseEvent<'_>>, ResponseError> {
        match self {
            Self::ServerSent(events) => events.next().map_err(ResponseError::invalid),
            Self::Amazon(events) => events.next_event(),
        }
    }

    /// Returns the next event after the last chunk.
    fn finish(&mut self) -> Result<Option<SseEvent<'_>>, ResponseError> {
        match self {
            Self::ServerSent(events) => events.finish().map_err(ResponseError::invalid),
            Self::Amazon(events) => events.next_event(),
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
    decoder: &mut dyn ResponseDecoder,
    request: ProviderRequest<'_>,
    deltas: &DeltaSink,
) -> Result<ModelResponse, ModelError> {
    let is_streamed = request.is_streamed;
    let mut pending = send_request(endpoint, request).await?;
    let decoded = if is_streamed && (pending.head.is_event_stream() || pending.head.is_amazon_event_stream())
    {
        pending.read_stream(decoder, deltas).await
    } else {
        pending.read_body(|body| decoder.decode_body(utf8_text(body)?)).await
    };
    let mut response = decoded.map_err(|error| pending.model_error(error))?;
    pending.record_tokens(response.usage.map(|usage| usage.total_tokens()));
    response.request_id = response.request_id.or_else(|| pending.head.request_id());
    if let (Some(usage), Some(cost)) = (&mut response.usage, pending.head.reported_cost()) {
        usage.cost_nanos = usage.cost_nanos.max(to_cost_nanos(cost));
    }
    response.details.rate_limits = read_budgets(&pending.head.headers);
    Ok(response)
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

/// Returns a body as text without its byte order mark.
fn utf8_text(body: &[u8]) -> Result<&str, ResponseError> {
    let text = std::str::from_utf8(body).map_err(ResponseError::invalid)?;
    Ok(text.trim_start_matches('\u{feff}'))
}

/// Returns the time at which a limit ends. One that is longer than a year never does in practice.
fn deadline_after(limit: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + limit.min(YEAR)
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
    let ProviderRequest { model, encoded, is_streamed, call_id_suffix } = request;
    let replay_safety = encoded.replay_safety;
    let estimated_tokens = (encoded.body.len() / 4) as u64;
    if let Some(limit) = &endpoint.rate_limit {
        limit.acquire(estimated_tokens).await;
    }
    let timeout = if is_streamed { endpoint.timeouts.idle } else { endpoint.timeouts.total };
    let deadline = deadline_after(timeout);
    let path = encoded.path.clone();
    let (head, mut body) = endpoint.post(encoded, is_streamed, timeout).await?;
    if !(200..300).contains(&head.status) {
        // A body that cannot be read completely is reported as empty: the status matters more.
        let text = body.read_all(deadline, timeout, MAX_ERROR_BODY_LEN).await.unwrap_or_default();
        return Err(endpoint.status_error(&head, &text, model, &path, replay_safety));
    }
    if let Some(limit) = &endpoint.rate_limit {
        limit.observe_success(&head.headers);
    }
    if let Some(why) = head.unreadable_format() {
        return Err(endpoint.response_error(
            ResponseError::InvalidResponse(why),
            &head,
            model,
            replay_safety,
        ));
    }
    Ok(PendingResponse {
        endpoint,
        model,
        replay_safety,
        estimated_tokens,
        timeout,
        deadline,
        call_id_suffix,
        head,
        body,
    })
}

/// A request that was sent, with the head of its response.
struct PendingResponse<'a> {
    endpoint: &'a ProviderEndpoint,
    model: &'a str,
    replay_safety: ReplaySafety,
    estimated_tokens: u64,
    timeout: Duration,
    deadline: Instant,
    call_id_suffix: Option<String>,
    head: ResponseHead,
    body: ResponseBody,
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
        decoder: &mut dyn ResponseDecoder,
        sink: &DeltaSink,
    ) -> Result<ModelResponse, ResponseError> {
        let idle = self.timeout;
        let mut events = match self.head.is_amazon_event_stream() {
            true => StreamFraming::Amazon(EventStreamDecoder::new(MAX_EVENT_LEN)),
            false => StreamFraming::ServerSent(SseDecoder::new(MAX_EVENT_LEN)),
        };
        let mut deltas =
            if sink.is_watched() { DeltaBuffer::collecting() } else { DeltaBuffer::discarding() };
        let mut until = deadline_after(idle);
        let mut len = 0_usize;
        loop {
            let chunk = self.body.next_chunk_before(until, idle).await?;
            let is_last = chunk.is_none();
            if let Some(chunk) = &chunk {
                // Each event resets the time limit, so that a model in a loop ends here.
                len = len.saturating_add(chunk.len());
                if len > MAX_STREAM_LEN {
                    return Err(TransportError::BodyTooLong(MAX_STREAM_LEN).into());
                }
                events.feed(chunk);
            }
            let mut has_progressed = false;
            loop {
                let event = if is_last { events.finish() } else { events.next() };
                let Some(event) = event? else { break };
                let progress = match push_event(decoder, event, &mut deltas) {
                    Ok(progress) => progress,
                    // A broken connection leaves half an event; that is a truncated stream, not malformed data.
                    Err(ResponseError::InvalidResponse(_)) if is_last => break,
                    Err(error) => return Err(error),
                };
                deltas.emit(sink, self.call_id_suffix.as_deref()).await;
                match progress {
                    StreamProgress::Advanced => has_progressed = true,
                    StreamProgress::KeepAlive => {}
                    StreamProgress::Complete => {
                        self.body.drain().await;
                        return finish_stream(decoder);
                    }
                }
            }
            if is_last {
                return finish_stream(decoder);
            }
            if has_progressed {
                until = deadline_after(idle);
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
