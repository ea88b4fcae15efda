//! Bodies of responses, decompressed if they are compressed.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use tokio::time::timeout;

use crate::gzip::GzipReader;
use crate::transport::{TransportBody, TransportError};

/// Maximum time to drain a complete response, so that its connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// The body of a response, decompressed chunk by chunk if its headers say that it is gzip. Other encodings are left
/// as they are.
pub struct DecodedBody {
    body: Box<dyn TransportBody>,
    gzip: Option<GzipReader>,
}

impl DecodedBody {
    /// Creates the reader of a body with these response headers.
    pub fn new(body: Box<dyn TransportBody>, headers: &HeaderMap) -> Self {
        Self { body, gzip: is_gzip(headers).then(GzipReader::new) }
    }

    /// Returns the next non-empty chunk, or `None` at the end of the body.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection breaks or the encoding is damaged.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, TransportError> {
        loop {
            let Some(chunk) = self.body.next_chunk().await? else { return Ok(None) };
            let Some(gzip) = &mut self.gzip else { return Ok(Some(chunk)) };
            let decoded = gzip.decode(&chunk).map_err(TransportError::InvalidBody)?;
            if !decoded.is_empty() {
                return Ok(Some(decoded));
            }
        }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    ///
    /// Returns [`TransportError::BodyTooLong`] if it is longer than `max_bytes`, or the error of a chunk.
    pub async fn read_all(&mut self, max_bytes: usize) -> Result<Vec<u8>, TransportError> {
        let mut whole = Vec::new();
        while let Some(chunk) = self.next_chunk().await? {
            if whole.len() + chunk.len() > max_bytes {
                return Err(TransportError::BodyTooLong(max_bytes));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole)
    }

    /// Reads the rest of a response whose content is already complete, for a short time, so that its connection can be
    /// reused.
    pub async fn drain(&mut self) {
        let rest = async { while let Ok(Some(_)) = self.body.next_chunk().await {} };
        // The content is complete; a failure only costs the connection.
        let _ = timeout(DRAIN_TIMEOUT, rest).await;
    }
}

/// Returns true if a body with these headers is compressed with gzip.
pub fn is_gzip(headers: &HeaderMap) -> bool {
    let encoding = headers.get(CONTENT_ENCODING).and_then(|encoding| encoding.to_str().ok());
    encoding.is_some_and(|encoding| {
        encoding.trim().eq_ignore_ascii_case("gzip") || encoding.trim().eq_ignore_ascii_case("x-gzip")
    })
}
