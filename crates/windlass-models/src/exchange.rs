//! One question and its answer, plain or streamed. Every protocol goes through here, so timeouts, endings and
//! errors mean the same for all.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use windlass::core::CallId;
use windlass::model::{Answer, Deltas, ModelError};

use crate::cassette::Recording;
use crate::endpoint::{Endpoint, Head};
use crate::error::Fault;
use crate::http::{HttpError, LiveBody, Replay};
use crate::sse::{SseDecoder, SseEvent};

/// The longest event of a stream. The last one of a streamed answer may hold all of it, pictures included.
const LONGEST_EVENT: usize = 64 * 1024 * 1024;
/// The longest plain answer.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;
/// The longest error that is read.
const LONGEST_ERROR: usize = 64 * 1024;

/// How a provider writes its answers.
pub(crate) trait Protocol {
    /// What puts a streamed answer together.
    type Stream: Assemble;

    /// Reads a plain answer.
    fn read(&self, body: &[u8]) -> Result<Answer, Fault>;

    /// Begins a streamed one.
    fn stream(&self) -> Self::Stream;
}

/// Puts a streamed answer together.
pub(crate) trait Assemble {
    /// Takes an event. What watchers are shown of it goes to `pieces`, where there is a place for it.
    fn take(&mut self, event: SseEvent<'_>, pieces: Option<&mut Vec<Piece>>) -> Result<Progress, Fault>;

    /// The answer, once all has come; none where the stream ended too soon.
    fn finish(self) -> Result<Option<Answer>, Fault>;
}

/// What an event was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The answer has come on.
    Some,
    /// It only keeps the connection alive.
    None,
    /// It was the last.
    Done,
}

/// A piece of an answer, for watchers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Reasoning(String),
    Arguments(CallId, String),
}

/// A question, written.
pub(crate) struct Question<'a> {
    pub(crate) path: &'a str,
    pub(crate) model: &'a str,
    pub(crate) body: Vec<u8>,
    pub(crate) replay: Replay,
    pub(crate) is_streamed: bool,
}

/// The body of an answer.
pub(crate) enum Body<'a> {
    Live(LiveBody<'a>),
    Recorded(LiveBody<'a>, Recording),
    Taped(VecDeque<Bytes>),
}

impl Body<'_> {
    async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        match self {
            Self::Live(body) => body.chunk().await,
            Self::Recorded(body, recording) => {
                let chunk = body.chunk().await?;
                match &chunk {
                    Some(bytes) => recording.add(bytes),
                    None => recording.end(),
                }
                Ok(chunk)
            }
            Self::Taped(chunks) => Ok(chunks.pop_front()),
        }
    }

    /// The next piece, by then.
    async fn chunk_by(&mut self, until: Instant, limit: Duration) -> Result<Option<Bytes>, HttpError> {
        timeout_at(until, self.chunk()).await.map_err(|_| HttpError::TimedOut(limit))?
    }

    async fn whole(&mut self, until: Instant, limit: Duration, longest: usize) -> Result<Vec<u8>, HttpError> {
        let mut whole = Vec::new();
        while let Some(chunk) = self.chunk_by(until, limit).await? {
            if whole.len() + chunk.len() > longest {
                return Err(HttpError::TooLong(longest));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    }

    async fn drain(self) {
        match self {
            Self::Live(body) => body.drain().await,
            Self::Recorded(body, mut recording) => {
                body.drain().await;
                recording.end();
            }
            Self::Taped(_) => {}
        }
    }
}

/// Asks, and reads the answer.
pub(crate) async fn ask<P: Protocol>(
    endpoint: &Endpoint,
    protocol: &P,
    question: Question<'_>,
    deltas: &Deltas,
) -> Result<Answer, ModelError> {
    let Question { model, replay, is_streamed, .. } = question;
    let Sent { estimate, wait, until, head, mut body } = send(endpoint, question).await?;
    let broken = |error: HttpError| endpoint.broken(&error, &head, replay);
    let read = if is_streamed && head.is_event_stream() {
        read_stream(endpoint, protocol.stream(), body, &head, replay, deltas).await?
    } else {
        let whole = body.whole(until, wait, LONGEST_ANSWER).await.map_err(broken)?;
        protocol.read(&whole).map(Some)
    };
    let answer = match read {
        Ok(Some(answer)) => answer,
        Ok(None) => return Err(endpoint.cut_short(&head, replay)),
        Err(fault) => return Err(endpoint.failed(fault, &head, model, replay)),
    };
    if let (Some(limit), Some(usage)) = (&endpoint.limit, &answer.usage) {
        limit.correct(estimate, usage.total_tokens());
    }
    let request_id = answer.request_id.or_else(|| head.request_id());
    Ok(Answer { request_id, ..answer })
}

/// Asks, and gives the answer as it was read, for what is no turn of a model. Reading it also says how
/// many tokens it took, where the provider does.
pub(crate) async fn ask_plain<T>(
    endpoint: &Endpoint,
    question: Question<'_>,
    read: impl FnOnce(&[u8]) -> Result<(T, Option<u64>), Fault>,
) -> Result<T, ModelError> {
    let Question { model, replay, .. } = question;
    let Sent { estimate, wait, until, head, mut body } = send(endpoint, question).await?;
    let whole = body
        .whole(until, wait, LONGEST_ANSWER)
        .await
        .map_err(|error| endpoint.broken(&error, &head, replay))?;
    let (read, cost) = read(&whole).map_err(|fault| endpoint.failed(fault, &head, model, replay))?;
    if let (Some(limit), Some(cost)) = (&endpoint.limit, cost) {
        limit.correct(estimate, cost);
    }
    Ok(read)
}

/// A question that was sent, and what has come of it so far.
struct Sent<'a> {
    estimate: u64,
    wait: Duration,
    until: Instant,
    head: Head,
    body: Body<'a>,
}

/// Sends a question within the limits and waits for the head of its answer. A refusal is an error.
async fn send<'a>(endpoint: &'a Endpoint, question: Question<'_>) -> Result<Sent<'a>, ModelError> {
    let Question { path, model, body, replay, is_streamed } = question;
    let estimate = (body.len() / 4) as u64;
    if let Some(limit) = &endpoint.limit {
        limit.take(estimate).await;
    }
    let wait = if is_streamed { endpoint.timeouts.idle } else { endpoint.timeouts.whole };
    let until = Instant::now() + wait;
    let posted = endpoint.post(path, body.into(), replay, wait).await;
    let (head, mut body) = posted.map_err(|error| endpoint.broken(&error, &Head::default(), replay))?;
    if !(200..300).contains(&head.status) {
        // What it says is of more use than how it ended.
        let text = body.whole(until, wait, LONGEST_ERROR).await.unwrap_or_default();
        return Err(endpoint.refused(&head, &text, model, replay));
    }
    if let Some(limit) = &endpoint.limit {
        limit.heed(&head.headers, false);
    }
    Ok(Sent { estimate, wait, until, head, body })
}

async fn read_stream<A: Assemble>(
    endpoint: &Endpoint,
    mut assembler: A,
    mut body: Body<'_>,
    head: &Head,
    replay: Replay,
    deltas: &Deltas,
) -> Result<Result<Option<Answer>, Fault>, ModelError> {
    let idle = endpoint.timeouts.idle;
    let mut decoder = SseDecoder::new(LONGEST_EVENT);
    let mut pieces = Vec::new();
    let is_watched = deltas.wanted();
    let mut until = Instant::now() + idle;
    loop {
        let chunk =
            body.chunk_by(until, idle).await.map_err(|error| endpoint.broken(&error, head, replay))?;
        let is_last = chunk.is_none();
        if let Some(chunk) = &chunk {
            decoder.feed(chunk);
        }
        let mut has_progressed = false;
        loop {
            let event = if is_last { decoder.finish() } else { decoder.next() };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => return Ok(Err(Fault::Unreadable(error.to_string()))),
            };
            let progress = match assembler.take(event, is_watched.then_some(&mut pieces)) {
                Ok(progress) => progress,
                // Half an event is what a connection leaves behind that broke.
                Err(Fault::Unreadable(_)) if is_last => break,
                Err(fault) => return Ok(Err(fault)),
            };
            for piece in pieces.drain(..) {
                match piece {
                    Piece::Text(text) => deltas.text(text).await,
                    Piece::Reasoning(text) => deltas.reasoning(text).await,
                    Piece::Arguments(call, text) => deltas.arguments(call, text).await,
                }
            }
            match progress {
                Progress::Some => has_progressed = true,
                Progress::None => {}
                Progress::Done => {
                    body.drain().await;
                    return Ok(assembler.finish());
                }
            }
        }
        if is_last {
            return Ok(assembler.finish());
        }
        if has_progressed {
            until = Instant::now() + idle;
        }
    }
}
