//! Truncation of texts and outputs.

/// Truncates a text to a number of bytes at a character boundary, and appends the number of omitted bytes.
pub(crate) fn truncate(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes);
    format!("{}[… {} more bytes]", &text[..end], text.len() - end)
}

/// A buffer that keeps the head and the tail of a long output, because errors are usually at one of its ends.
pub(crate) struct HeadTailBuffer {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    half_bytes: usize,
    omitted_bytes: u64,
}

impl HeadTailBuffer {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            head: Vec::new(),
            tail: std::collections::VecDeque::new(),
            half_bytes: bytes / 2,
            omitted_bytes: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half_bytes - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half_bytes);
        self.tail.drain(..over);
        self.omitted_bytes += over as u64;
    }

    pub(crate) fn into_text(self) -> String {
        let (mut bytes, tail) = (self.head, Vec::from(self.tail));
        if self.omitted_bytes > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes left out …]\n", self.omitted_bytes).as_bytes());
        }
        bytes.extend_from_slice(&tail);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
