//! Decoding of the messages of a server, including those that are not valid JSON.
//!
//! **Invariant:** a response that cannot be read still settles its request: if the message has an id, the request
//! receives an error with the reason. Lone surrogates, invalid UTF-8, raw control characters and the numbers `NaN` and
//! `Infinity` are replaced, so that the rest of the message survives.

use rmcp::model::{ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};

/// Maximum size of one message of a server, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// The error code of a response that cannot be read. It is outside the range that JSON-RPC reserves for servers.
const UNREADABLE_RESPONSE: ErrorCode = ErrorCode(-31_999);

/// Maximum number of bytes of a key or an id that the scanner keeps.
const MAX_SCANNED_BYTES: usize = 256;

/// Returns the reason if an error stands for a response that could not be read.
pub(super) fn unreadable_reason(error: &ErrorData) -> Option<&str> {
    (error.code == UNREADABLE_RESPONSE).then_some(&*error.message)
}

/// Returns the error response to a request whose real response cannot be read.
pub(super) fn unreadable_response(id: RequestId, reason: &str) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(ErrorData::new(UNREADABLE_RESPONSE, reason.to_owned(), None), Some(id))
}

/// Returns the reason text for a message above the maximum size.
pub(super) fn oversize_reason(bytes: usize) -> String {
    format!("it has {bytes} bytes, and at most {MAX_MESSAGE_BYTES} are accepted")
}

/// Decodes one message. Returns `None` for a message that is neither readable nor the response to a request, such as
/// a log line.
pub(super) fn decode_message(bytes: &[u8]) -> Option<ServerJsonRpcMessage> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii();
    if bytes.is_empty() {
        return None;
    }
    let error = match serde_json::from_slice(bytes) {
        Ok(message) => return Some(message),
        Err(error) => error,
    };
    let reason = match serde_json::from_str(&repair_json(&String::from_utf8_lossy(bytes))) {
        Ok(message) => {
            tracing::debug!(%error, "a message of a server was repaired");
            return Some(message);
        }
        // The error of the repaired text is about what remains wrong with it.
        Err(error) => error.to_string(),
    };
    let mut scanner = MessageScanner::default();
    scanner.feed(bytes);
    tracing::debug!(%reason, "a message of a server cannot be read");
    scanner.response_id().map(|id| unreadable_response(id, &reason))
}

/// Replaces everything in a JSON text that a parser refuses although its meaning is clear.
fn repair_json(text: &str) -> String {
    let mut repaired = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_in_string = false;
    while let Some(next) = rest.chars().next() {
        if is_in_string {
            let plain = rest.find(|one: char| one == '"' || one == '\\' || one < ' ').unwrap_or(rest.len());
            repaired.push_str(&rest[..plain]);
            rest = &rest[plain..];
            match rest.as_bytes() {
                [] => break,
                [b'"', ..] => {
                    is_in_string = false;
                    repaired.push('"');
                    rest = &rest[1..];
                }
                [b'\\', b'u', ..] => rest = copy_unicode_escape(rest, &mut repaired),
                [b'\\', ..] => {
                    let end = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
                    repaired.push_str(&rest[..end]);
                    rest = &rest[end..];
                }
                [control, ..] => {
                    repaired.push_str(&format!("\\u{control:04x}"));
                    rest = &rest[1..];
                }
            }
            continue;
        }
        let number = ["NaN", "-Infinity", "Infinity"].into_iter().find(|name| rest.starts_with(name));
        if let Some(name) = number {
            repaired.push_str("null");
            rest = &rest[name.len()..];
            continue;
        }
        is_in_string = next == '"';
        repaired.push(next);
        rest = &rest[next.len_utf8()..];
    }
    repaired
}

/// Copies a `\u` escape, with the second half of a surrogate pair. A lone surrogate becomes the replacement character.
fn copy_unicode_escape<'a>(rest: &'a str, repaired: &mut String) -> &'a str {
    let unit = |text: &str| text.get(2..6).and_then(|digits| u16::from_str_radix(digits, 16).ok());
    match unit(rest) {
        Some(0xD800..=0xDBFF) => {
            let follows = &rest[6..];
            let is_pair = follows.starts_with("\\u") && matches!(unit(follows), Some(0xDC00..=0xDFFF));
            if is_pair {
                repaired.push_str(&rest[..12]);
                return &rest[12..];
            }
            repaired.push_str("\\ufffd");
            follows
        }
        Some(0xDC00..=0xDFFF) => {
            repaired.push_str("\\ufffd");
            &rest[6..]
        }
        Some(_) => {
            repaired.push_str(&rest[..6]);
            &rest[6..]
        }
        None => {
            repaired.push_str("\\ufffd");
            &rest[2..]
        }
    }
}

/// A scanner that finds the id of a JSON-RPC message in its bytes, without parsing the rest. It accepts the bytes in
/// pieces and keeps none of them but the id.
#[derive(Default)]
pub(super) struct MessageScanner {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    is_in_value: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    id: Option<RequestId>,
    has_method: bool,
}

impl MessageScanner {
    /// Scans the next bytes of the message.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.is_in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_in_string = false,
                    _ => {}
                }
                self.keep(byte);
                continue;
            }
            match byte {
                b'"' => {
                    self.is_in_string = true;
                    self.keep(byte);
                }
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.end_member();
                    self.depth = self.depth.saturating_sub(1);
                }
                b':' if self.depth == 1 => self.is_in_value = true,
                b',' => self.end_member(),
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ => self.keep(byte),
            }
        }
    }

    fn keep(&mut self, byte: u8) {
        let kept = if self.is_in_value { &mut self.value } else { &mut self.key };
        if self.depth == 1 && kept.len() < MAX_SCANNED_BYTES {
            kept.push(byte);
        }
    }

    fn end_member(&mut self) {
        if self.depth != 1 {
            return;
        }
        match self.key.as_slice() {
            b"\"id\"" => self.id = serde_json::from_slice(&self.value).ok(),
            b"\"method\"" => self.has_method = true,
            _ => {}
        }
        self.key.clear();
        self.value.clear();
        self.is_in_value = false;
    }

    /// Returns the id if the message is a response.
    pub(super) fn response_id(&self) -> Option<RequestId> {
        if self.has_method { None } else { self.id.clone() }
    }
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
