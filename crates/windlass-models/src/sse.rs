//! Server-sent events out of bytes that come in pieces of any size. It does no I/O, keeps one event at most, and
//! refuses one that is longer than its limit.

use memchr::{memchr, memchr2};

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// Its name, where it has one.
    pub name: Option<&'a str>,
    /// What it says; several lines of data are joined by line ends.
    pub data: &'a str,
}

/// Why a stream of events cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event is too long.
    #[error("an event is longer than {limit} bytes")]
    TooLong {
        /// The longest that is read.
        limit: usize,
    },
    /// An event is not UTF-8.
    #[error("an event is not text in UTF-8")]
    NotText,
}

/// Takes bytes, gives events.
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
    /// Where the event under way begins.
    event: usize,
    /// Where its current line begins.
    line: usize,
    /// Up to where no line end was found.
    scanned: usize,
    name: Option<(usize, usize)>,
    data: Data,
    /// Data of several lines, joined.
    joined: Vec<u8>,
    /// A line ended with CR at the end of what was fed: LF, if it comes next, belongs to it.
    skip_line_feed: bool,
    at_start: bool,
    /// The event that was given last is dropped before the next one is looked for.
    is_given: bool,
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    None,
    Line(usize, usize),
    Joined,
}

/// What was read already is dropped once there is so much of it.
const COMPACT: usize = 16 * 1024;

impl SseDecoder {
    /// A decoder of events of up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            event: 0,
            line: 0,
            scanned: 0,
            name: None,
            data: Data::None,
            joined: Vec::new(),
            skip_line_feed: false,
            at_start: true,
            is_given: false,
            limit,
        }
    }

    /// Takes bytes. What was not asked for with [`next`](Self::next) is kept.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        if self.skip_line_feed && !bytes.is_empty() {
            self.skip_line_feed = false;
            if let Some(rest) = bytes.strip_prefix(b"\n") {
                bytes = rest;
            }
        }
        self.forget_given();
        if self.event == self.buffer.len() {
            self.buffer.clear();
            self.rebase();
        } else if self.event >= COMPACT {
            self.buffer.drain(..self.event);
            self.rebase();
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event, if it is whole.
    #[expect(
        clippy::should_implement_trait,
        reason = "an event borrows the decoder, which no iterator's item can"
    )]
    pub fn next(&mut self) -> Result<Option<SseEvent<'_>>, SseError> {
        self.forget_given();
        if self.at_start && !self.skip_mark() {
            return Ok(None);
        }
        loop {
            let Some(found) = memchr2(b'\n', b'\r', &self.buffer[self.scanned..]) else {
                self.scanned = self.buffer.len();
                return if self.scanned - self.event > self.limit { self.too_long() } else { Ok(None) };
            };
            let end = self.scanned + found;
            let mut next = end + 1;
            if self.buffer[end] == b'\r' {
                match self.buffer.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => {}
                    None => self.skip_line_feed = true,
                }
            }
            if end - self.event > self.limit {
                return self.too_long();
            }
            let line = (self.line, end);
            self.line = next;
            self.scanned = next;
            if line.0 == line.1 {
                if self.data == Data::None {
                    self.begin();
                    continue;
                }
                self.is_given = true;
                return self.given().map(Some);
            }
            self.field(line);
            if self.data == Data::None && self.name.is_none() {
                self.event = next;
            }
        }
    }

    /// What stands there as the stream ends: an event whose empty line did not come any more.
    pub fn finish(&mut self) -> Result<Option<SseEvent<'_>>, SseError> {
        self.feed(b"\n\n");
        self.next()
    }

    fn too_long(&self) -> Result<Option<SseEvent<'_>>, SseError> {
        Err(SseError::TooLong { limit: self.limit })
    }

    fn given(&self) -> Result<SseEvent<'_>, SseError> {
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| SseError::NotText);
        let data = match self.data {
            Data::None => &[],
            Data::Line(from, to) => &self.buffer[from..to],
            Data::Joined => self.joined.as_slice(),
        };
        let name = self.name.map(|(from, to)| text(&self.buffer[from..to])).transpose()?;
        Ok(SseEvent { name, data: text(data)? })
    }

    fn forget_given(&mut self) {
        if self.is_given {
            self.is_given = false;
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.event = self.line;
        self.name = None;
        self.data = Data::None;
        self.joined.clear();
    }

    /// The bytes before the event under way are gone.
    fn rebase(&mut self) {
        let gone = self.event;
        let back = |(from, to): (usize, usize)| (from - gone, to - gone);
        self.event = 0;
        self.line -= gone;
        self.scanned -= gone;
        self.name = self.name.map(back);
        if let Data::Line(from, to) = self.data {
            let (from, to) = back((from, to));
            self.data = Data::Line(from, to);
        }
    }

    /// Skips a byte order mark; false where it cannot be told yet.
    fn skip_mark(&mut self) -> bool {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let start = &self.buffer[..self.buffer.len().min(MARK.len())];
        if start.len() < MARK.len() && MARK.starts_with(start) {
            return false;
        }
        self.at_start = false;
        if start == MARK {
            (self.event, self.line, self.scanned) = (MARK.len(), MARK.len(), MARK.len());
        }
        true
    }

    fn field(&mut self, (from, to): (usize, usize)) {
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
                Data::None => self.data = Data::Line(value, to),
                Data::Line(first, end) => {
                    self.joined.extend_from_slice(&self.buffer[first..end]);
                    self.joined.push(b'\n');
                    self.joined.extend_from_slice(&self.buffer[value..to]);
                    self.data = Data::Joined;
                }
                Data::Joined => {
                    self.joined.push(b'\n');
                    self.joined.extend_from_slice(&self.buffer[value..to]);
                }
            },
            b"event" => self.name = Some((value, to)),
            // A comment has an empty key. Ids and reconnection times are for clients that reconnect.
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
