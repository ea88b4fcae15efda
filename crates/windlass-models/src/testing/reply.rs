//! Scripted replies of a fake provider, independent of the protocol, and the faults of their delivery.

use std::time::Duration;

use serde_json::Value;

/// A reply in a fake provider's script.
#[derive(Clone, Debug)]
pub struct FakeReply {
    pub(super) content: FakeReplyContent,
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) usage: [u64; 4],
    pub(super) stop: FakeStopReason,
    pub(super) delta_chars: usize,
    pub(super) delivery: FakeDelivery,
}

#[derive(Clone, Debug)]
pub(super) enum FakeReplyContent {
    Parts(Vec<FakeReplyPart>),
    /// A raw body with its content type.
    Raw {
        content_type: &'static str,
        body: Vec<u8>,
    },
    /// An error in the format of the protocol.
    Error,
}

#[derive(Clone, Debug)]
pub(super) enum FakeReplyPart {
    Reasoning {
        id: String,
        text: String,
    },
    Text(String),
    Refusal(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    /// An output item of the Responses API, or a block of the Messages API.
    Raw(Value),
}

/// The reason for which a fake response stops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FakeStopReason {
    /// The response is complete.
    #[default]
    Complete,
    /// The response reached the token limit.
    MaxTokens,
    /// The provider's content filter stopped the response.
    ContentFilter,
    /// The provider failed during the response.
    Failed {
        /// The provider's error code.
        code: String,
        /// The provider's error message.
        message: String,
    },
}

/// The delivery of a response's bytes. Positions count the bytes of its body.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeDelivery {
    pub(super) chunk_bytes: Option<usize>,
    pub(super) delay: Option<Duration>,
    pub(super) fault: Option<(usize, DeliveryFault)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DeliveryFault {
    /// No more data is sent, and the connection stays open.
    Stall,
    /// Only comments are sent, at this interval.
    KeepAlive(Duration),
    /// The connection is reset.
    Reset,
    /// The body ends as if it were complete.
    End,
}

impl FakeReply {
    fn new(content: FakeReplyContent) -> Self {
        Self {
            content,
            status: 200,
            headers: Vec::new(),
            usage: [10, 0, 5, 0],
            stop: FakeStopReason::default(),
            delta_chars: 4,
            delivery: FakeDelivery::default(),
        }
    }

    /// Creates a reply to an embeddings request; texts with common words have similar vectors.
    pub fn embeddings() -> Self {
        Self::empty()
    }

    /// Creates a reply without content.
    pub fn empty() -> Self {
        Self::new(FakeReplyContent::Parts(vec![]))
    }

    /// Creates a reply with a message.
    pub fn text(text: &str) -> Self {
        Self::empty().and_text(text)
    }

    /// Creates a reply with a tool call; `arguments` is JSON text.
    pub fn call(id: &str, name: &str, arguments: &str) -> Self {
        Self::empty().and_call(id, name, arguments)
    }

    /// Creates a reply with reasoning, to which a message or a call should be added.
    pub fn reasoning(id: &str, text: &str) -> Self {
        Self::empty().and_reasoning(id, text)
    }

    /// Creates a reply with a refusal.
    pub fn refusal(text: &str) -> Self {
        Self::new(FakeReplyContent::Parts(vec![FakeReplyPart::Refusal(text.to_owned())]))
    }

    /// Creates a reply with an output item of the Responses API, or a block of the Messages API.
    pub fn item(value: Value) -> Self {
        Self::new(FakeReplyContent::Parts(vec![FakeReplyPart::Raw(value)]))
    }

    /// Creates an error reply with this HTTP status, in the format of the request's protocol.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::new(FakeReplyContent::Error) }
    }

    /// Creates a reply with a raw body of the content type `application/json`.
    pub fn json_body(body: impl Into<Vec<u8>>) -> Self {
        Self::new(FakeReplyContent::Raw { content_type: "application/json", body: body.into() })
    }

    /// Creates a reply with a raw body of the content type `text/event-stream`.
    pub fn event_body(body: impl Into<Vec<u8>>) -> Self {
        Self::new(FakeReplyContent::Raw { content_type: "text/event-stream", body: body.into() })
    }

    /// Creates a reply with a raw body of this content type.
    pub fn raw_body(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self::new(FakeReplyContent::Raw { content_type, body: body.into() })
    }

    fn push_part(mut self, said: FakeReplyPart) -> Self {
        if let FakeReplyContent::Parts(all) = &mut self.content {
            all.push(said);
        }
        self
    }

    /// Adds reasoning.
    #[must_use]
    pub fn and_reasoning(self, id: &str, text: &str) -> Self {
        self.push_part(FakeReplyPart::Reasoning { id: id.to_owned(), text: text.to_owned() })
    }

    /// Adds a message.
    #[must_use]
    pub fn and_text(self, text: &str) -> Self {
        self.push_part(FakeReplyPart::Text(text.to_owned()))
    }

    /// Adds a tool call.
    #[must_use]
    pub fn and_call(self, id: &str, name: &str, arguments: &str) -> Self {
        self.push_part(FakeReplyPart::Call {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }

    /// Adds an output item of the Responses API, or a block of the Messages API.
    #[must_use]
    pub fn and_item(self, value: Value) -> Self {
        self.push_part(FakeReplyPart::Raw(value))
    }

    /// Sets the usage: input tokens, the cached ones among them, output tokens, the reasoning tokens among them.
    #[must_use]
    pub fn usage(mut self, read: u64, cached: u64, written: u64, reasoning: u64) -> Self {
        self.usage = [read, cached, written, reasoning];
        self
    }

    /// Sets the stop reason.
    #[must_use]
    pub fn stop(mut self, stop: FakeStopReason) -> Self {
        self.stop = stop;
        self
    }

    /// Sets the HTTP status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Adds a response header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the number of characters in each streamed delta.
    #[must_use]
    pub fn in_deltas_of(mut self, characters: usize) -> Self {
        self.delta_chars = characters.max(1);
        self
    }

    /// Sets the number of bytes in each chunk of the body.
    #[must_use]
    pub fn in_chunks_of(mut self, bytes: usize) -> Self {
        self.delivery.chunk_bytes = Some(bytes.max(1));
        self
    }

    /// Sets the delay before the response starts.
    #[must_use]
    pub fn delayed_by(mut self, delay: Duration) -> Self {
        self.delivery.delay = Some(delay);
        self
    }

    /// Stops sending after `bytes` bytes and keeps the connection open.
    #[must_use]
    pub fn stall_at(self, bytes: usize) -> Self {
        self.fault_at(bytes, DeliveryFault::Stall)
    }

    /// Sends the events that are complete within `bytes` bytes, and then only a comment at each interval.
    #[must_use]
    pub fn keep_alive_at(self, bytes: usize, every: Duration) -> Self {
        self.fault_at(bytes, DeliveryFault::KeepAlive(every))
    }

    /// Resets the connection after `bytes` bytes.
    #[must_use]
    pub fn reset_at(self, bytes: usize) -> Self {
        self.fault_at(bytes, DeliveryFault::Reset)
    }

    /// Ends the body after `bytes` bytes as if it were complete.
    #[must_use]
    pub fn end_at(self, bytes: usize) -> Self {
        self.fault_at(bytes, DeliveryFault::End)
    }

    fn fault_at(mut self, bytes: usize, fault: DeliveryFault) -> Self {
        self.delivery.fault = Some((bytes, fault));
        self
    }
}
