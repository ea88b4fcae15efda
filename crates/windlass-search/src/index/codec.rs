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

/// A posting list under construction: delta-encoded chunk positions with term frequencies.
#[derive(Default)]
pub(super) struct PostingList {
    pub(super) encoded: Vec<u8>,
    pub(super) chunk_count: u32,
    last_chunk: u32,
}

impl PostingList {
    pub(super) fn push(&mut self, at: u32, times: u32) {
        write_varint(at - self.last_chunk, &mut self.encoded);
        write_varint(times, &mut self.encoded);
        self.last_chunk = at;
        self.chunk_count += 1;
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
