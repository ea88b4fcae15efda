//! Decompression of gzip bodies, chunk by chunk, so that events of a compressed stream arrive when they are sent.

use std::io::Write;

use bytes::Bytes;
use flate2::write::GzDecoder;

/// An incremental gzip decoder.
pub(crate) struct GzipReader(GzDecoder<Vec<u8>>);

impl GzipReader {
    pub(crate) fn new() -> Self {
        Self(GzDecoder::new(Vec::new()))
    }

    /// Returns the bytes that are known after this chunk.
    ///
    /// # Errors
    ///
    /// Returns the reason if the chunk is not gzip.
    pub(crate) fn decode(&mut self, chunk: &[u8]) -> Result<Bytes, String> {
        let written = self.0.write_all(chunk).and_then(|()| self.0.flush());
        written.map_err(|error| format!("its gzip encoding is damaged: {error}"))?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }
}
