//! The trait behind every live model: a connection, what is sent over it, and what comes back. It knows no
//! provider's words, so that another provider, or a test, is another implementation.

use futures_util::future::BoxFuture;
use serde_json::Value;
use windlass::Usage;
use windlass::core::CallId;
use windlass::model::{OfferedKind, OfferedTool};

use crate::history::LiveItem;
use crate::id::{CommandId, ItemId, ResponseId};
use crate::settings::Configuration;

/// Something that holds a live conversation.
pub trait RealtimeModel: Send + Sync + 'static {
    /// Connects. Nothing of a connection that failed is left behind. The configuration is the first that will be
    /// sent, for providers that want parts of it in the address.
    fn connect<'a>(&'a self, first: &'a Configuration) -> BoxFuture<'a, Result<Connection, ConnectError>>;

    /// Whether it can be offered a tool. Functions it can, and nothing else unless it says so.
    fn supports(&self, tool: &OfferedTool) -> Result<(), String> {
        match tool.kind {
            OfferedKind::Function => Ok(()),
            _ => Err("a live model is offered functions only".to_owned()),
        }
    }
}

/// A connection to a live model. Dropping it ends it without a word.
pub struct Connection {
    /// Where commands go.
    pub commands: Box<dyn Commands>,
    /// Where events come from.
    pub events: Box<dyn ModelEvents>,
}

/// Where commands to a model go.
pub trait Commands: Send + 'static {
    /// Sends one. An error means that the connection is of no use any more.
    fn send(&mut self, command: Command) -> BoxFuture<'_, Result<(), Lost>>;

    /// Says goodbye. The session waits for it only so long.
    fn close(&mut self) -> BoxFuture<'_, Result<(), Lost>>;
}

/// Where a model's events come from.
pub trait ModelEvents: Send + 'static {
    /// The next; none when the other side said goodbye.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<ModelEvent, Lost>>>;
}

/// Why a connection could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    /// What went wrong.
    pub message: String,
    /// Whether trying again may help.
    pub retry: Retry,
}

/// Whether trying again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It may.
    MayHelp,
    /// It does not: a key that is not accepted, an address that is none.
    IsOfNoUse,
}

/// A connection that was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Lost {
    /// What went wrong.
    pub message: String,
    /// Whether connecting again may help.
    pub retry: Retry,
}

impl ConnectError {
    /// An error that trying again may mend.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: Retry::MayHelp }
    }

    /// An error that trying again does not mend.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: Retry::IsOfNoUse }
    }
}

impl Lost {
    /// A loss that connecting again may mend.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: Retry::MayHelp }
    }

    /// A loss that connecting again does not mend.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { message: message.into(), retry: Retry::IsOfNoUse }
    }
}

/// Something that a model is told, under an id that it may name when it objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// The id.
    pub id: CommandId,
    /// What it is told.
    pub kind: CommandKind,
}

/// What a model is told.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CommandKind {
    /// Who speaks from now on, with which tools, and how.
    Configure(Box<Configuration>),
    /// What the user says, as audio in the configured form.
    Audio(Vec<u8>),
    /// The audio so far is a message of the user.
    CommitAudio,
    /// The audio so far is forgotten.
    ClearAudio,
    /// An item for the conversation, behind another one or at the end.
    Add {
        /// The item.
        item: LiveItem,
        /// The item before it.
        after: Option<ItemId>,
    },
    /// An item is taken out of the conversation.
    Delete {
        /// Which.
        item: ItemId,
    },
    /// The user heard only so much of an item.
    Truncate {
        /// Which.
        item: ItemId,
        /// Which part of it.
        content: u32,
        /// How much was heard.
        heard_ms: u64,
    },
    /// The model is to answer.
    Respond(RespondOptions),
    /// The model is to stop answering.
    Cancel {
        /// Which answer.
        response: ResponseId,
    },
    /// Something in the provider's own words.
    Raw(Value),
}

/// How one answer differs from what is configured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RespondOptions {
    /// Instructions for this answer alone.
    pub instructions: Option<String>,
}

/// Something that a model says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// A conversation has begun.
    Opened {
        /// The provider's name for it.
        session: String,
    },
    /// A configuration is in force.
    Configured,
    /// An answer begins.
    ResponseStarted {
        /// Which.
        response: ResponseId,
        /// The command that asked for it, where the provider says.
        asked_by: Option<CommandId>,
        /// Whether it belongs to the conversation.
        place: ResponsePlace,
    },
    /// An answer has ended.
    ResponseEnded {
        /// Which.
        response: ResponseId,
        /// How.
        status: ResponseStatus,
        /// What it cost, where the provider says.
        usage: Option<Usage>,
        /// The calls it holds.
        calls: Vec<LiveItem>,
    },
    /// A piece of speech.
    Audio {
        /// Of which answer.
        response: ResponseId,
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
        /// The audio, in the configured form.
        bytes: Vec<u8>,
    },
    /// The speech of an item is complete.
    AudioEnded {
        /// Of which answer.
        response: ResponseId,
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
    },
    /// A piece of what is said, or written.
    Words {
        /// Of which answer.
        response: ResponseId,
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
        /// The piece.
        delta: String,
        /// Spoken or written.
        form: WordForm,
    },
    /// All that an item says.
    WordsEnded {
        /// Of which answer.
        response: ResponseId,
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
        /// The whole text.
        text: String,
        /// Spoken or written.
        form: WordForm,
    },
    /// A piece of a call's arguments.
    Arguments {
        /// Of which answer.
        response: ResponseId,
        /// The call.
        call: CallId,
        /// The piece.
        delta: String,
    },
    /// An item is in the conversation, or has changed.
    Item {
        /// The item.
        item: LiveItem,
        /// The item before it, where the provider says.
        after: Option<ItemId>,
    },
    /// An item is gone.
    ItemDeleted {
        /// Which.
        item: ItemId,
    },
    /// An item was cut at what was heard.
    ItemTruncated {
        /// Which.
        item: ItemId,
        /// What was heard.
        heard_ms: u64,
    },
    /// A piece of what the user said.
    Heard {
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
        /// The piece.
        delta: String,
    },
    /// What the user said.
    HeardAll {
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
        /// The text.
        text: String,
    },
    /// What the user said could not be written down.
    NotHeard {
        /// Of which item.
        item: ItemId,
        /// Why.
        message: String,
    },
    /// The user begins to speak.
    SpeechStarted {
        /// The item that it will be.
        item: ItemId,
    },
    /// The user has finished speaking.
    SpeechStopped {
        /// The item that it will be.
        item: ItemId,
    },
    /// The user's audio has become an item.
    AudioCommitted {
        /// Which.
        item: ItemId,
        /// The item before it.
        after: Option<ItemId>,
    },
    /// Nobody has said anything for long.
    IdleTimeout,
    /// What is left of the provider's limits.
    RateLimits(Vec<RateLimit>),
    /// A command was not carried out.
    Refused {
        /// Which, where the provider says.
        command: Option<CommandId>,
        /// The provider's name for the reason.
        code: String,
        /// The reason.
        message: String,
        /// What it means.
        why: RefusalKind,
    },
    /// Something that this version does not know.
    Unknown {
        /// The provider's name for it.
        kind: String,
        /// All of it.
        raw: Value,
    },
}

/// Whether an answer belongs to the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsePlace {
    /// It does, and there is one at a time.
    InConversation,
    /// It stands beside it.
    Beside,
}

/// Whether words are spoken or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordForm {
    /// They come with audio.
    Spoken,
    /// They are all there is.
    Written,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// It is whole.
    Completed,
    /// It was cut off: by the user, the application, or a guardrail.
    Cancelled,
    /// It is not whole, for a reason of the provider: too long, filtered.
    Incomplete {
        /// The reason.
        reason: String,
    },
    /// It failed.
    Failed {
        /// The provider's name for the reason.
        code: String,
        /// The reason.
        message: String,
    },
    /// Nobody knows: the connection was lost, or it went silent.
    Lost,
}

/// What the refusal of a command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// An answer is under way already: ask again when it has ended.
    AlreadyAnswering,
    /// There was nothing to stop.
    NothingToCancel,
    /// Anything else.
    Other,
}

/// What is left of one of the provider's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimit {
    /// What is counted.
    pub name: String,
    /// How many there are.
    pub limit: u64,
    /// How many are left.
    pub remaining: u64,
    /// When all are there again, in seconds.
    pub reset_seconds: f64,
}
