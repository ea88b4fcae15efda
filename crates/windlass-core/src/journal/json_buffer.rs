//! Serialisation of records. Most pieces that `serde_json` writes are a single quote, comma, colon or brace; a byte is
//! appended at less than half of the cost of a slice.

use std::io;

use serde::Serialize;

/// Bytes of JSON that are written piece by piece.
struct JsonBuffer<'a>(&'a mut Vec<u8>);

impl io::Write for JsonBuffer<'_> {
    #[inline]
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.write_all(piece)?;
        Ok(piece.len())
    }

    #[inline]
    fn write_all(&mut self, piece: &[u8]) -> io::Result<()> {
        match piece {
            [byte] => self.0.push(*byte),
            _ => self.0.extend_from_slice(piece),
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends a value as JSON. A value with text keys and finite numbers alone cannot fail; another one is cut off.
pub(super) fn write_json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(JsonBuffer(out), value).unwrap_or_default();
}
