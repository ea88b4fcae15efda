//! What a fake provider answers, in no provider's dialect, and how badly it is delivered.

use std::time::Duration;

use serde_json::Value;

/// One answer of a script.
#[derive(Clone, Debug)]
pub struct FakeReply {
    pub(super) content: Content,
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) usage: [u64; 4],
    pub(super) stop: Stop,
    pub(super) piece: usize,
    pub(super) delivery: Delivery,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Said(Vec<Said>),
    /// A body as it is; with the type that it is said to have.
    Raw {
        kind: &'static str,
        body: Vec<u8>,
    },
    /// An error in the provider's own form.
    Error,
}

#[derive(Clone, Debug)]
pub(super) enum Said {
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
    /// An item in OpenAI's form, or a block in Anthropic's.
    Other(Value),
}

/// Why an answer ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// It is complete.
    #[default]
    Complete,
    /// It is as long as it may be.
    MaxTokens,
    /// The provider's filter stopped it.
    ContentFilter,
    /// The provider failed in the middle of it.
    Failed {
        /// The provider's code.
        code: String,
        /// Its words.
        message: String,
    },
}

/// How the bytes of an answer are delivered. Places count the bytes of its body.
#[derive(Clone, Debug, Default)]
pub(super) struct Delivery {
    pub(super) split: Option<usize>,
    pub(super) delay: Option<Duration>,
    pub(super) fault: Option<(usize, Fault)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Nothing more comes.
    Stall,
    /// Comments come, and nothing else.
    KeepAlive(Duration),
    /// The connection is torn down.
    Reset,
    /// The body ends, as if it were complete.
    End,
}

impl FakeReply {
    fn new(content: Content) -> Self {
        Self {
            content,
            status: 200,
            headers: Vec::new(),
            usage: [10, 0, 5, 0],
            stop: Stop::default(),
            piece: 4,
            delivery: Delivery::default(),
        }
    }

    /// Vectors, where they are asked for: texts with words in common are near each other.
    pub fn vectors() -> Self {
        Self::nothing()
    }

    /// An answer that says nothing yet.
    pub fn nothing() -> Self {
        Self::new(Content::Said(vec![]))
    }

    /// A message.
    pub fn text(text: &str) -> Self {
        Self::nothing().and_text(text)
    }

    /// A call, with arguments as JSON text.
    pub fn call(id: &str, name: &str, arguments: &str) -> Self {
        Self::nothing().and_call(id, name, arguments)
    }

    /// Reasoning. More should follow it.
    pub fn reasoning(id: &str, text: &str) -> Self {
        Self::nothing().and_reasoning(id, text)
    }

    /// The model declines to answer.
    pub fn refusal(text: &str) -> Self {
        Self::new(Content::Said(vec![Said::Refusal(text.to_owned())]))
    }

    /// An item in OpenAI's Responses form, or a block in Anthropic's.
    pub fn item(value: Value) -> Self {
        Self::new(Content::Said(vec![Said::Other(value)]))
    }

    /// An error with this status, in the form of whichever protocol is asked.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::new(Content::Error) }
    }

    /// A body that is said to be JSON, as it is.
    pub fn json_body(body: impl Into<Vec<u8>>) -> Self {
        Self::new(Content::Raw { kind: "application/json", body: body.into() })
    }

    /// A body that is said to be a stream of events, as it is.
    pub fn event_body(body: impl Into<Vec<u8>>) -> Self {
        Self::new(Content::Raw { kind: "text/event-stream", body: body.into() })
    }

    fn and(mut self, said: Said) -> Self {
        if let Content::Said(all) = &mut self.content {
            all.push(said);
        }
        self
    }

    /// And reasoning.
    #[must_use]
    pub fn and_reasoning(self, id: &str, text: &str) -> Self {
        self.and(Said::Reasoning { id: id.to_owned(), text: text.to_owned() })
    }

    /// And a message.
    #[must_use]
    pub fn and_text(self, text: &str) -> Self {
        self.and(Said::Text(text.to_owned()))
    }

    /// And a call.
    #[must_use]
    pub fn and_call(self, id: &str, name: &str, arguments: &str) -> Self {
        self.and(Said::Call { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() })
    }

    /// And an item in OpenAI's Responses form, or a block in Anthropic's.
    #[must_use]
    pub fn and_item(self, value: Value) -> Self {
        self.and(Said::Other(value))
    }

    /// What it costs: tokens read, those of them from a cache, tokens written, those of them reasoning.
    #[must_use]
    pub fn usage(mut self, read: u64, cached: u64, written: u64, reasoning: u64) -> Self {
        self.usage = [read, cached, written, reasoning];
        self
    }

    /// Why it ends.
    #[must_use]
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// The status that the answer has.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// A header of the answer.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// How many characters each streamed piece has.
    #[must_use]
    pub fn in_pieces_of(mut self, characters: usize) -> Self {
        self.piece = characters.max(1);
        self
    }

    /// How many bytes are sent at once.
    #[must_use]
    pub fn in_chunks_of(mut self, bytes: usize) -> Self {
        self.delivery.split = Some(bytes.max(1));
        self
    }

    /// How long nothing happens first.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delivery.delay = Some(delay);
        self
    }

    /// After so many bytes nothing more comes, and the connection stays open.
    #[must_use]
    pub fn stalls_at(self, bytes: usize) -> Self {
        self.fails_at(bytes, Fault::Stall)
    }

    /// After the events that are whole within so many bytes there is a comment every so often, and nothing else.
    #[must_use]
    pub fn only_keeps_alive_at(self, bytes: usize, every: Duration) -> Self {
        self.fails_at(bytes, Fault::KeepAlive(every))
    }

    /// After so many bytes the connection is torn down.
    #[must_use]
    pub fn resets_at(self, bytes: usize) -> Self {
        self.fails_at(bytes, Fault::Reset)
    }

    /// After so many bytes the body ends, as if it were complete.
    #[must_use]
    pub fn ends_at(self, bytes: usize) -> Self {
        self.fails_at(bytes, Fault::End)
    }

    fn fails_at(mut self, bytes: usize, fault: Fault) -> Self {
        self.delivery.fault = Some((bytes, fault));
        self
    }
}
