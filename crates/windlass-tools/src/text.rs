//! Texts that are cut to a length.

/// The beginning of a text, in whole characters, and a word on what was left out.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes);
    format!("{}[… {} more bytes]", &text[..end], text.len() - end)
}

/// The beginning and the end of something long: where errors are told.
pub(crate) struct Ends {
    head: Vec<u8>,
    tail: std::collections::VecDeque<u8>,
    half: usize,
    left_out: u64,
}

impl Ends {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { head: Vec::new(), tail: std::collections::VecDeque::new(), half: bytes / 2, left_out: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    pub(crate) fn into_text(self) -> String {
        let (mut bytes, tail) = (self.head, Vec::from(self.tail));
        if self.left_out > 0 {
            bytes.extend_from_slice(format!("\n[… {} bytes left out …]\n", self.left_out).as_bytes());
        }
        bytes.extend_from_slice(&tail);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
