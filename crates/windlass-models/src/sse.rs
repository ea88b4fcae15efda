//! An incremental decoder for server-sent events. It does no I/O, accepts chunks of any size, buffers at most one
//! event plus unread input, and rejects an event that is longer than its limit.

use memchr::{memchr, memchr2};

/// A server-sent event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The event's name, if it has one.
    pub name: Option<&'a str>,
    /// The event's data; several `data` lines are joined with `\n`.
    pub data: &'a str,
}

/// An error after which the stream cannot be decoded further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SseError {
    /// An event exceeds the limit.
    #[error("an event is longer than {limit} bytes")]
    TooLong {
        /// Maximum length of an event in bytes.
        limit: usize,
    },
    /// An event is not UTF-8.
    #[error("an event is not text in UTF-8")]
    InvalidUtf8,
}

/// A decoder that takes bytes and returns events.
///
/// ```
/// use windlass_models::sse::SseDecoder;
///
/// let mut decoder = SseDecoder::new(1024);
/// decoder.feed(b": keep-alive\n\nevent: greeting\ndata: Hel");
/// assert_eq!(decoder.next()?, None);
/// decoder.feed(b"lo\n\n");
/// let event = decoder.next()?.expect("it is whole now");
/// assert_eq!((event.name, event.data), (Some("greeting"), "Hello"));
/// # Ok::<(), windlass_models::sse::SseError>(())
/// ```
#[derive(Debug)]
pub struct SseDecoder {
    buffer: Vec<u8>,
    /// Start of the current event in the buffer.
    event_start: usize,
    /// Start of the current line.
    line_start: usize,
    /// End of the part already searched for a line end.
    scanned_to: usize,
    name: Option<(usize, usize)>,
    data: SseData,
    /// Joined data of an event with several `data` lines.
    joined: Vec<u8>,
    /// True if the input so far ends with CR; an LF that follows belongs to the same line end.
    skip_line_feed: bool,
    is_at_start: bool,
    /// True if the current event was returned; it is discarded before the next one is decoded.
    is_event_returned: bool,
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SseData {
    None,
    Line(usize, usize),
    Joined,
}

/// Number of consumed bytes after which the buffer is compacted.
const COMPACT_THRESHOLD: usize = 16 * 1024;

impl SseDecoder {
    /// Creates a decoder for events of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            event_start: 0,
            line_start: 0,
            scanned_to: 0,
            name: None,
            data: SseData::None,
            joined: Vec::new(),
            skip_line_feed: false,
            is_at_start: true,
            is_event_returned: false,
            limit,
        }
    }

    /// Appends bytes. Events not yet returned by [`next`](Self::next) stay in the buffer.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        if self.skip_line_feed && !bytes.is_empty() {
            self.skip_line_feed = false;
            if let Some(rest) = bytes.strip_prefix(b"\n") {
                bytes = rest;
            }
        }
        self.discard_returned_event();
        if self.event_start == self.buffer.len() {
            self.buffer.clear();
            self.rebase();
        } else if self.event_start >= COMPACT_THRESHOLD {
            self.buffer.drain(..self.event_start);
            self.rebase();
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete event, if there is one.
    #[expect(
        clippy::should_implement_trait,
        reason = "an event borrows the decoder, which no iterator's item can"
    )]
    pub fn next(&mut self) -> Result<Option<SseEvent<'_>>, SseError> {
        self.discard_returned_event();
        if self.is_at_start && !self.skip_byte_order_mark() {
            return Ok(None);
        }
        loop {
            let Some(found) = memchr2(b'\n', b'\r', &self.buffer[self.scanned_to..]) else {
                self.scanned_to = self.buffer.len();
                return if self.scanned_to - self.event_start > self.limit {
                    self.too_long_error()
                } else {
                    Ok(None)
                };
            };
            let end = self.scanned_to + found;
            let mut next = end + 1;
            if self.buffer[end] == b'\r' {
                match self.buffer.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => {}
                    None => self.skip_line_feed = true,
                }
            }
            if end - self.event_start > self.limit {
                return self.too_long_error();
            }
            let line = (self.line_start, end);
            self.line_start = next;
            self.scanned_to = next;
            if line.0 == line.1 {
                if self.data == SseData::None {
                    self.reset_event();
                    continue;
                }
                self.is_event_returned = true;
                return self.current_event().map(Some);
            }
            self.parse_field(line);
            if self.data == SseData::None && self.name.is_none() {
                self.event_start = next;
            }
        }
    }

    /// Returns the event at the end of the stream whose terminating empty line is missing, if there is one.
    pub fn finish(&mut self) -> Result<Option<SseEvent<'_>>, SseError> {
        self.feed(b"\n\n");
        self.next()
    }

    fn too_long_error(&self) -> Result<Option<SseEvent<'_>>, SseError> {
        Err(SseError::TooLong { limit: self.limit })
    }

    fn current_event(&self) -> Result<SseEvent<'_>, SseError> {
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| SseError::InvalidUtf8);
        let data = match self.data {
            SseData::None => &[],
            SseData::Line(from, to) => &self.buffer[from..to],
            SseData::Joined => self.joined.as_slice(),
        };
        let name = self.name.map(|(from, to)| text(&self.buffer[from..to])).transpose()?;
        Ok(SseEvent { name, data: text(data)? })
    }

    fn discard_returned_event(&mut self) {
        if self.is_event_returned {
            self.is_event_returned = false;
            self.reset_event();
        }
    }

    fn reset_event(&mut self) {
        self.event_start = self.line_start;
        self.name = None;
        self.data = SseData::None;
        self.joined.clear();
    }

    /// Adjusts all offsets after the bytes before the current event were removed.
    fn rebase(&mut self) {
        let gone = self.event_start;
        let back = |(from, to): (usize, usize)| (from - gone, to - gone);
        self.event_start = 0;
        self.line_start -= gone;
        self.scanned_to -= gone;
        self.name = self.name.map(back);
        if let SseData::Line(from, to) = self.data {
            let (from, to) = back((from, to));
            self.data = SseData::Line(from, to);
        }
    }

    /// Skips a byte order mark. Returns false if more input is needed to recognise it.
    fn skip_byte_order_mark(&mut self) -> bool {
        const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
        let start = &self.buffer[..self.buffer.len().min(BYTE_ORDER_MARK.len())];
        if start.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(start) {
            return false;
        }
        self.is_at_start = false;
        if start == BYTE_ORDER_MARK {
            (self.event_start, self.line_start, self.scanned_to) =
                (BYTE_ORDER_MARK.len(), BYTE_ORDER_MARK.len(), BYTE_ORDER_MARK.len());
        }
        true
    }

    fn parse_field(&mut self, (from, to): (usize, usize)) {
        let line = &self.buffer[from..to];
        let (key, value) = match memchr(b':', line) {
            Some(colon) => {
                let space = usize::from(line.get(colon + 1) == Some(&b' '));
                (&line[..colon], from + colon + 1 + space)
            }
            None => (line, to),
        };
        match key {
            b"data" => match self.data {
                SseData::None => self.data = SseData::Line(value, to),
                SseData::Line(first, end) => {
                    self.joined.extend_from_slice(&self.buffer[first..end]);
                    self.joined.push(b'\n');
                    self.joined.extend_from_slice(&self.buffer[value..to]);
                    self.data = SseData::Joined;
                }
                SseData::Joined => {
                    self.joined.push(b'\n');
                    self.joined.extend_from_slice(&self.buffer[value..to]);
                }
            },
            b"event" => self.name = Some((value, to)),
            // A comment has an empty key. `id` and `retry` matter only to clients that reconnect.
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
