//! Decompression of gzip bodies, chunk by chunk, so that events of a compressed stream arrive when they are sent.

use std::fmt;
use std::io::Write;

use bytes::Bytes;
use flate2::write::GzDecoder;

/// Maximum number of decompressed bytes of one chunk. A chunk can decompress to a thousand times its size, and no
/// response may be longer than this.
const MAX_DECODED_LEN: usize = 64 * 1024 * 1024;
/// Number of compressed bytes after which the length is checked.
const STEP_LEN: usize = 1024;

/// An incremental gzip decoder.
pub struct GzipReader(GzDecoder<Vec<u8>>);

impl Default for GzipReader {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GzipReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GzipReader")
    }
}

impl GzipReader {
    /// Creates a decoder.
    pub fn new() -> Self {
        Self(GzDecoder::new(Vec::new()))
    }

    /// Returns the bytes that are known after this chunk.
    ///
    /// # Errors
    ///
    /// Returns the reason if the chunk is not gzip, or decompresses to more than a response may have.
    pub fn decode(&mut self, chunk: &[u8]) -> Result<Bytes, String> {
        for step in chunk.chunks(STEP_LEN) {
            let written = self.0.write_all(step).and_then(|()| self.0.flush());
            written.map_err(|error| format!("its gzip encoding is damaged: {error}"))?;
            if self.0.get_ref().len() > MAX_DECODED_LEN {
                return Err(format!("a part of it decompresses to more than {MAX_DECODED_LEN} bytes"));
            }
        }
        Ok(std::mem::take(self.0.get_mut()).into())
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn a_bomb_is_refused_before_it_is_large() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
        let zeros = vec![0; 1024 * 1024];
        for _ in 0..80 {
            bomb.write_all(&zeros).expect("it is memory");
        }
        let bomb = bomb.finish().expect("it is memory");
        let refused = GzipReader::new().decode(&bomb).expect_err("it is refused");
        assert!(refused.contains("decompresses to more than"), "{refused}");
    }
}
