//! An incremental decoder of Amazon's binary event-stream framing. It does no I/O and buffers at most one message plus
//! unread input.
//!
//! A message has its total length, the length of its headers and a CRC-32 of both, then headers, payload, and a CRC-32 of
//! everything before.

use flate2::Crc;

use crate::error::ProviderError;
use crate::protocol::ResponseError;
use crate::sse::SseEvent;

/// Length of the two lengths and their checksum.
const PRELUDE_LEN: usize = 12;
/// Length of a message without headers and payload.
const MIN_MESSAGE_LEN: usize = PRELUDE_LEN + 4;

/// A decoder that takes bytes and returns events.
pub(crate) struct EventStreamDecoder {
    buffer: Vec<u8>,
    /// Length of the message at the start of the buffer that was returned.
    returned: usize,
    name: String,
    data: String,
    limit: usize,
}

/// A complete message, borrowed from the buffer.
struct FrameParts<'a> {
    headers: Vec<(&'a str, &'a str)>,
    payload: &'a [u8],
}

impl EventStreamDecoder {
    /// Creates a decoder for messages of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), returned: 0, name: String::new(), data: String::new(), limit }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.discard_returned();
        self.buffer.extend_from_slice(bytes);
    }

    fn discard_returned(&mut self) {
        if self.returned > 0 {
            self.buffer.drain(..self.returned);
            self.returned = 0;
        }
    }

    /// Returns the next event, if it is complete. Its name is the type of the event.
    ///
    /// # Errors
    ///
    /// Returns an error if the message is malformed, or reports an exception.
    pub(crate) fn next_event(&mut self) -> Result<Option<SseEvent<'_>>, ResponseError> {
        self.discard_returned();
        let Some(length) = read_length(&self.buffer, self.limit)? else { return Ok(None) };
        let frame = parse_frame(&self.buffer[..length])?;
        let header =
            |name: &str| frame.headers.iter().find(|header| header.0 == name).map_or("", |header| header.1);
        let text = std::str::from_utf8(frame.payload).map_err(ResponseError::invalid)?;
        match header(":message-type") {
            "event" => {}
            "exception" => {
                let mut error = ProviderError::parse(frame.payload);
                error.code = exception_code(header(":exception-type")).to_owned();
                return Err(ResponseError::ReportedByProvider(error));
            }
            "error" => {
                let error = ProviderError {
                    code: exception_code(header(":error-code")).to_owned(),
                    message: header(":error-message").to_owned(),
                    ..ProviderError::default()
                };
                return Err(ResponseError::ReportedByProvider(error));
            }
            other => return Err(ResponseError::invalid(format!("a message has the type `{other}`"))),
        }
        self.name = header(":event-type").to_owned();
        self.data = text.to_owned();
        self.returned = length;
        Ok(Some(SseEvent { name: Some(&self.name), data: &self.data }))
    }
}

/// Returns the code by which other providers report the same failure.
fn exception_code(exception: &str) -> &str {
    match exception {
        "throttlingException" | "ThrottlingException" => "rate_limit_error",
        "serviceUnavailableException" | "modelNotReadyException" => "overloaded_error",
        "internalServerException" | "modelStreamErrorException" => "server_error",
        "modelTimeoutException" => "timeout_error",
        "validationException" => "invalid_request_error",
        other => other,
    }
}

fn read_u32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// Returns the length of the message at the start of the buffer, if it is complete.
fn read_length(buffer: &[u8], limit: usize) -> Result<Option<usize>, ResponseError> {
    let (Some(total), Some(prelude), Some(checksum)) =
        (read_u32(buffer), buffer.get(..8), buffer.get(8..).and_then(read_u32))
    else {
        return Ok(None);
    };
    if crc32(prelude) != checksum {
        return Err(ResponseError::invalid("the checksum of an event\'s lengths is wrong"));
    }
    let total = total as usize;
    if total < MIN_MESSAGE_LEN || total > limit {
        return Err(ResponseError::invalid(format!("an event has {total} bytes")));
    }
    Ok((buffer.len() >= total).then_some(total))
}

fn parse_frame(message: &[u8]) -> Result<FrameParts<'_>, ResponseError> {
    let malformed = || ResponseError::invalid("the headers of an event are malformed");
    let (body, checksum) = message.split_at(message.len() - 4);
    if Some(crc32(body)) != read_u32(checksum) {
        return Err(ResponseError::invalid("the checksum of an event is wrong"));
    }
    let headers_len = read_u32(&message[4..]).ok_or_else(malformed)? as usize;
    let rest = &body[PRELUDE_LEN..];
    let (headers, payload) = rest.split_at_checked(headers_len).ok_or_else(malformed)?;
    Ok(FrameParts { headers: parse_headers(headers).ok_or_else(malformed)?, payload })
}

/// Returns the headers with texts.
fn parse_headers(mut bytes: &[u8]) -> Option<Vec<(&str, &str)>> {
    let mut headers = Vec::new();
    while let Some((&name_len, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
        let (&kind, rest) = rest.split_first()?;
        let sized = |rest: &[u8]| -> Option<usize> {
            Some(2 + usize::from(u16::from_be_bytes(rest.get(..2)?.try_into().ok()?)))
        };
        let len = match kind {
            0 | 1 => 0,
            2 => 1,
            3 => 2,
            4 => 4,
            5 | 8 => 8,
            6 | 7 => sized(rest)?,
            9 => 16,
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(len)?;
        if kind == 7 {
            headers.push((std::str::from_utf8(name).ok()?, std::str::from_utf8(&value[2..]).ok()?));
        }
        bytes = rest;
    }
    Some(headers)
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Encodes a message, for tests.
pub(crate) fn encode_event(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    for (name, value) in headers {
        encoded.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        encoded.extend_from_slice(name.as_bytes());
        encoded.push(7);
        encoded.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        encoded.extend_from_slice(value.as_bytes());
    }
    let total = u32::try_from(MIN_MESSAGE_LEN + encoded.len() + payload.len()).unwrap_or(u32::MAX);
    let mut message = total.to_be_bytes().to_vec();
    message.extend_from_slice(&u32::try_from(encoded.len()).unwrap_or(u32::MAX).to_be_bytes());
    message.extend_from_slice(&crc32(&message).to_be_bytes());
    message.extend_from_slice(&encoded);
    message.extend_from_slice(payload);
    message.extend_from_slice(&crc32(&message).to_be_bytes());
    message
}

#[cfg(test)]
#[path = "event_stream_tests.rs"]
mod tests;
