//! Parsing of server-sent events into JSON-RPC messages.
//!
//! **Invariant:** memory is bounded by the maximum size of a message. An event that is too large, or that cannot be
//! read, becomes an error of the request that it answers.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use rmcp::model::{RequestId, ServerJsonRpcMessage};
use sse_stream::{Error as SseError, Sse};
use windlass_net::DecodedBody;

use super::framing::{
    MAX_MESSAGE_BYTES, MessageScanner, decode_message, oversize_reason, unreadable_response,
};

/// Maximum time to read the rest of a response whose message has arrived, so that its connection can be used again.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the events of an HTTP response. `request` is the request that the response answers, if it is known.
pub(super) fn read_events(
    body: DecodedBody,
    request: Option<RequestId>,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let reader = EventReader { body: Some(body), parser: EventParser::new(request), ready: VecDeque::new() };
    stream::unfold(reader, |mut reader| async move {
        loop {
            if let Some(event) = reader.ready.pop_front() {
                return Some((Ok(event), reader));
            }
            match reader.body.as_mut()?.next_chunk().await.transpose()? {
                Ok(piece) => reader.ready.extend(reader.parser.feed(&piece)),
                Err(error) => {
                    reader.body = None;
                    return Some((Err(SseError::Body(Box::new(error))), reader));
                }
            }
        }
    })
    .boxed()
}

struct EventReader {
    body: Option<DecodedBody>,
    parser: EventParser,
    ready: VecDeque<Sse>,
}

impl Drop for EventReader {
    fn drop(&mut self) {
        if let (true, Some(mut body), Ok(runtime)) =
            (self.parser.has_answered, self.body.take(), tokio::runtime::Handle::try_current())
        {
            // A response that was read to its end leaves its connection to the next request.
            runtime.spawn(async move {
                let rest = async { while let Ok(Some(_)) = body.next_chunk().await {} };
                tokio::time::timeout(DRAIN_TIMEOUT, rest).await
            });
        }
    }
}

/// An incremental parser of server-sent events.
pub(super) struct EventParser {
    request: Option<RequestId>,
    /// True if the response to the request has been read.
    has_answered: bool,
    line: Vec<u8>,
    is_after_carriage_return: bool,
    data: Option<Vec<u8>>,
    fields: Sse,
    oversize: Option<(MessageScanner, usize)>,
}

impl EventParser {
    pub(super) fn new(request: Option<RequestId>) -> Self {
        Self {
            request,
            has_answered: false,
            line: Vec::new(),
            is_after_carriage_return: false,
            data: None,
            fields: Sse::default(),
            oversize: None,
        }
    }

    /// Parses the next bytes and returns the events that they complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Vec<Sse> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if std::mem::take(&mut self.is_after_carriage_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.extend_line(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { break };
            self.is_after_carriage_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            events.extend(self.end_line());
        }
        events
    }

    fn extend_line(&mut self, piece: &[u8]) {
        let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
        if self.oversize.is_none() && held + piece.len() > MAX_MESSAGE_BYTES {
            let mut scanner = MessageScanner::default();
            scanner.feed(&self.data.take().unwrap_or_default());
            let line = std::mem::take(&mut self.line);
            scanner.feed(line.strip_prefix(b"data:").unwrap_or(&line));
            self.oversize = Some((scanner, held));
            // Something must be left on the line, or its end would look like the end of the event.
            self.line.push(b':');
        }
        match &mut self.oversize {
            Some((scanner, bytes)) => {
                scanner.feed(piece);
                *bytes += piece.len();
                if self.line.is_empty() && !piece.is_empty() {
                    self.line.push(b':');
                }
            }
            None => self.line.extend_from_slice(piece),
        }
    }

    fn end_line(&mut self) -> Option<Sse> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.end_event();
        }
        let at = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, value) = (&line[..at], line.get(at + 1..).unwrap_or_default());
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = || String::from_utf8_lossy(value).into_owned();
        match field {
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            b"event" => self.fields.event = Some(text()),
            b"id" if !value.contains(&0) => self.fields.id = Some(text()),
            b"retry" => self.fields.retry = text().parse().ok(),
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<Sse> {
        let mut event = std::mem::take(&mut self.fields);
        let data = self.data.take();
        let is_message = matches!(event.event.as_deref(), None | Some("" | "message"));
        event.data = match (self.oversize.take(), data) {
            (Some((scanner, bytes)), _) => {
                let id = scanner.response_id().or_else(|| self.request.clone())?;
                Some(self.write_message(&unreadable_response(id, &oversize_reason(bytes))))
            }
            (None, Some(data)) if is_message => Some(match decode_message(&data) {
                Some(message) => self.write_message(&message),
                None => String::from_utf8_lossy(&data).into_owned(),
            }),
            (None, data) => data.map(|data| String::from_utf8_lossy(&data).into_owned()),
        };
        (event != Sse::default()).then_some(event)
    }

    fn write_message(&mut self, message: &ServerJsonRpcMessage) -> String {
        let id = match message {
            ServerJsonRpcMessage::Response(response) => Some(&response.id),
            ServerJsonRpcMessage::Error(error) => error.id.as_ref(),
            ServerJsonRpcMessage::Request(_) | ServerJsonRpcMessage::Notification(_) => None,
        };
        self.has_answered |= id.is_some() && id == self.request.as_ref();
        serde_json::to_string(message).unwrap_or_default()
    }
}

#[cfg(test)]
#[path = "event_stream_tests.rs"]
mod tests;
