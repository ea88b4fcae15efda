//! Encoding of posting lists (varint gaps and frequencies) and of number columns.

/// Appends a number as a variable-length integer (LEB128).
pub(super) fn write_varint(mut value: u32, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0]);
}

/// Reads a variable-length integer; returns `None` at the end or if the bytes are malformed.
#[inline]
pub(super) fn read_varint(from: &mut &[u8]) -> Option<u32> {
    let (first, rest) = from.split_first()?;
    *from = rest;
    if *first < 0x80 {
        return Some(u32::from(*first));
    }
    let mut value = u32::from(first & 0x7f);
    let mut shift = 7;
    loop {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if *byte < 0x80 {
            return Some(value);
        }
        shift += 7;
    }
}

/// Decodes a posting list into pairs of chunk position in the segment and term frequency.
pub(super) fn decode_postings(mut data: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let mut last = 0u32;
    std::iter::from_fn(move || {
        let gap = read_varint(&mut data)?;
        let count = read_varint(&mut data)?;
        last = last.wrapping_add(gap);
        Some((last, count))
    })
}

/// A posting list under construction: delta-encoded chunk positions with term frequencies, and apart from them the
/// delta-encoded word positions of the term in each chunk, which only phrases read.
#[derive(Default)]
pub(super) struct PostingList {
    pub(super) encoded: Vec<u8>,
    pub(super) word_positions: Vec<u8>,
    pub(super) chunk_count: u32,
    last_chunk: u32,
}

impl PostingList {
    /// Appends a chunk with the ascending word positions of the term in it.
    pub(super) fn push(&mut self, at: u32, word_positions: impl ExactSizeIterator<Item = u32>) {
        write_varint(at - self.last_chunk, &mut self.encoded);
        write_varint(u32::try_from(word_positions.len()).unwrap_or(u32::MAX), &mut self.encoded);
        let mut last = 0;
        for position in word_positions {
            write_varint(position - last, &mut self.word_positions);
            last = position;
        }
        self.last_chunk = at;
        self.chunk_count += 1;
    }
}

/// A reader of a posting list with its word positions.
pub(super) struct PositionReader<'a> {
    postings: &'a [u8],
    word_positions: &'a [u8],
    chunk: u32,
}

impl<'a> PositionReader<'a> {
    pub(super) fn new(postings: &'a [u8], word_positions: &'a [u8]) -> Self {
        Self { postings, word_positions, chunk: 0 }
    }

    /// Reads the next chunk and the word positions of the term in it; `None` at the end.
    pub(super) fn next_chunk(&mut self, word_positions: &mut Vec<u32>) -> Option<u32> {
        self.chunk = self.chunk.wrapping_add(read_varint(&mut self.postings)?);
        let count = read_varint(&mut self.postings)?;
        word_positions.clear();
        let mut last = 0u32;
        for _ in 0..count {
            last = last.wrapping_add(read_varint(&mut self.word_positions)?);
            word_positions.push(last);
        }
        Some(self.chunk)
    }
}

/// Encodes numbers as little-endian 32-bit values.
pub(super) fn encode_u32s(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Decodes little-endian 32-bit values.
pub(super) fn decode_u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
}
