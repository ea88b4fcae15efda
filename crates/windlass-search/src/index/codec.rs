//! How lists of numbers are written into the index.

/// Appends a number in as few bytes as it needs.
pub(super) fn put(mut value: u32, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0]);
}

/// Reads a number; `None` at the end, or where bytes make no number.
#[inline]
pub(super) fn take(from: &mut &[u8]) -> Option<u32> {
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

/// Where a term occurs: which chunk of the segment, and how often.
pub(super) fn occurrences(mut data: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let mut last = 0u32;
    std::iter::from_fn(move || {
        let gap = take(&mut data)?;
        let count = take(&mut data)?;
        last = last.wrapping_add(gap);
        Some((last, count))
    })
}

/// A list of occurrences that grows.
#[derive(Default)]
pub(super) struct Postings {
    pub(super) data: Vec<u8>,
    pub(super) count: u32,
    last: u32,
}

impl Postings {
    pub(super) fn add(&mut self, at: u32, times: u32) {
        put(at - self.last, &mut self.data);
        put(times, &mut self.data);
        self.last = at;
        self.count += 1;
    }
}

pub(super) fn write_all(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

pub(super) fn read_all(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
}
