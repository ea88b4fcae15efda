//! The transport to a server that is a child process: one JSON-RPC message on each line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;

use super::framing::{
    MAX_MESSAGE_BYTES, MessageScanner, decode_message, oversize_reason, unreadable_response,
};

/// Capacity of the read buffer, in bytes.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// A transport over a reader and a writer.
pub(super) struct LineTransport<R, W> {
    reader: BufReader<R>,
    writer: Arc<Mutex<Option<W>>>,
    line: Vec<u8>,
    oversize_line: Option<OversizeLine>,
    handshake: HandshakeFilter,
}

/// A line above the maximum size that is skipped.
#[derive(Default)]
struct OversizeLine {
    scanner: MessageScanner,
    bytes: usize,
}

/// A filter of the responses during the handshake: the reply to a probe that was given up may arrive after the next
/// request was sent, and does not answer it.
#[derive(Clone, Default)]
pub(super) struct HandshakeFilter {
    expected: Option<RequestId>,
    /// True if a probe for the modern protocol succeeded after it was given up.
    has_late_discovery: Arc<AtomicBool>,
}

impl HandshakeFilter {
    /// Returns the flag that is set when a probe for the modern protocol succeeds after it was given up.
    pub(super) fn late_discovery(&self) -> Arc<AtomicBool> {
        self.has_late_discovery.clone()
    }

    fn observe_request(&mut self, message: &ClientJsonRpcMessage) {
        if let JsonRpcMessage::Request(request) = message
            && matches!(
                request.request,
                ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
            )
        {
            self.expected = Some(request.id.clone());
        }
    }

    /// Returns true if the message belongs to the handshake that is under way, or there is none.
    fn accepts(&mut self, message: &ServerJsonRpcMessage) -> bool {
        let Some(expected) = &self.expected else { return true };
        let id = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => return true,
        };
        match id {
            Some(id) if id != expected => {
                if matches!(message, JsonRpcMessage::Response(_)) {
                    self.has_late_discovery.store(true, Ordering::Relaxed);
                }
                tracing::debug!(?id, "a late reply of a server is ignored");
                false
            }
            Some(_) | None => {
                self.expected = None;
                true
            }
        }
    }
}

impl<R: AsyncRead + Unpin, W> LineTransport<R, W> {
    pub(super) fn new(reader: R, writer: W, handshake: HandshakeFilter) -> Self {
        Self {
            reader: BufReader::with_capacity(READ_BUFFER_BYTES, reader),
            writer: Arc::new(Mutex::new(Some(writer))),
            line: Vec::new(),
            oversize_line: None,
            handshake,
        }
    }

    /// Reads up to the end of a line and returns its message, if it has one; `Err` at the end of the input.
    ///
    /// Cancel safe: bytes are consumed in the same step in which they are kept.
    async fn read_line(&mut self) -> Result<Option<ServerJsonRpcMessage>, EndOfInput> {
        loop {
            let available = match self.reader.fill_buf().await {
                Ok([]) => return Err(EndOfInput),
                Ok(available) => available,
                Err(error) => {
                    tracing::debug!(%error, "the output of a server cannot be read");
                    return Err(EndOfInput);
                }
            };
            let newline = available.iter().position(|byte| *byte == b'\n');
            let piece = &available[..newline.unwrap_or(available.len())];
            if let Some(skipped) = &mut self.oversize_line {
                skipped.skip(piece);
            } else if self.line.len() + piece.len() > MAX_MESSAGE_BYTES {
                let mut skipped = OversizeLine::default();
                skipped.skip(&self.line);
                skipped.skip(piece);
                self.oversize_line = Some(skipped);
                self.line = Vec::new();
            } else if newline.is_none() || !self.line.is_empty() {
                self.line.extend_from_slice(piece);
            }
            let Some(newline) = newline else {
                let bytes = available.len();
                self.reader.consume(bytes);
                continue;
            };
            let message = match self.oversize_line.take() {
                Some(skipped) => skipped.into_response(),
                // A line that is whole in the buffer is decoded in place.
                None if self.line.is_empty() => decode_message(&available[..newline]),
                None => decode_message(&self.line),
            };
            self.line.clear();
            self.reader.consume(newline + 1);
            return Ok(message);
        }
    }
}

/// The end of a server's output.
struct EndOfInput;

impl OversizeLine {
    fn skip(&mut self, bytes: &[u8]) {
        self.scanner.feed(bytes);
        self.bytes += bytes.len();
    }

    fn into_response(self) -> Option<ServerJsonRpcMessage> {
        let reason = oversize_reason(self.bytes);
        tracing::warn!(%reason, "a message of a server was skipped");
        self.scanner.response_id().map(|id| unreadable_response(id, &reason))
    }
}

impl<R, W> Transport<RoleClient> for LineTransport<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = std::io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.handshake.observe_request(&message);
        let writer = self.writer.clone();
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut writer = writer.lock().await;
            let Some(writer) = writer.as_mut() else {
                return Err(std::io::Error::new(std::io::ErrorKind::NotConnected, "the transport is closed"));
            };
            writer.write_all(&line).await?;
            writer.flush().await
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            match self.read_line().await {
                Ok(Some(message)) if self.handshake.accepts(&message) => return Some(message),
                Ok(_) => {}
                Err(EndOfInput) => return None,
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        drop(self.writer.lock().await.take());
        Ok(())
    }
}

#[cfg(test)]
#[path = "stdio_tests.rs"]
mod tests;
