//! The provider-neutral interface of realtime models: a connection, the commands sent over it, and the events
//! received from it. Each provider, and each test model, is one implementation of [`RealtimeModel`].

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use windlass::core::id::CallId;
use windlass::core::usage::Usage;
use windlass::model::{ToolChoice, ToolDefinition, ToolKind};

use crate::history::RealtimeItem;
use crate::id::{CommandId, ItemId, ResponseId};
use crate::settings::{OutputModality, SessionConfiguration};

/// The lifetime of a provider's conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConversationLifetime {
    /// It ends with its connection. On a new connection the session sends the conversation so far.
    #[default]
    Connection,
    /// The provider keeps it, and goes on with it, while no connection is open: the conversation of a telephone call. On a
    /// new connection the session sends what the provider does not have.
    Call,
}

/// A model that holds a realtime conversation.
pub trait RealtimeModel: Send + Sync + 'static {
    /// Connects to the model. `first` is the first configuration the session will send, for providers that need
    /// parts of it in the URL. An implementation must release all resources of a failed connection.
    ///
    /// # Errors
    ///
    /// Returns [`RealtimeConnectionError`] if the connection could not be established.
    fn connect<'a>(
        &'a self,
        first: &'a SessionConfiguration,
    ) -> BoxFuture<'a, Result<RealtimeConnection, RealtimeConnectionError>>;

    /// Returns the provider's name of the model, by which its price is found.
    fn model_name(&self) -> Option<&str> {
        None
    }

    /// Returns the lifetime of the provider's conversation. By default, each connection has one of its own.
    fn conversation_lifetime(&self) -> ConversationLifetime {
        ConversationLifetime::Connection
    }

    /// Checks if the model can be offered a tool. By default, functions only.
    ///
    /// # Errors
    ///
    /// Returns the reason if the tool is not supported.
    fn check_tool_support(&self, tool: &ToolDefinition) -> Result<(), String> {
        match tool.kind {
            ToolKind::Function => Ok(()),
            _ => Err("a realtime model supports function tools only".to_owned()),
        }
    }
}

/// A connection to a realtime model. Dropping it disconnects without a closing handshake.
pub struct RealtimeConnection {
    /// The sending half.
    pub commands: Box<dyn CommandSink>,
    /// The receiving half.
    pub events: Box<dyn ModelEventSource>,
}

/// The sending half of a connection.
pub trait CommandSink: Send + 'static {
    /// Sends a command.
    ///
    /// # Errors
    ///
    /// Returns [`RealtimeConnectionError`] if the connection can no longer be used.
    fn send(&mut self, command: RealtimeCommand) -> BoxFuture<'_, Result<(), RealtimeConnectionError>>;

    /// Closes the connection in an orderly way. The session waits for this future for a bounded time only.
    fn close(&mut self) -> BoxFuture<'_, Result<(), RealtimeConnectionError>>;
}

/// The receiving half of a connection.
pub trait ModelEventSource: Send + 'static {
    /// Returns the next event; `None` after the model closed the connection in an orderly way.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel safe: the session drops this future whenever another event is ready first.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<RealtimeModelEvent, RealtimeConnectionError>>>;
}

/// An error from connecting to a model, or the loss of a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RealtimeConnectionError {
    /// The cause.
    pub message: String,
    /// The prospect of a new connection attempt.
    pub retryability: Retryability,
}

/// The prospect of a retry.
///
/// Exhaustive on purpose: whoever retries must decide each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retryability {
    /// A retry may succeed.
    Retryable,
    /// A retry cannot succeed: for example, the API key or the address is invalid.
    Permanent,
}

impl RealtimeConnectionError {
    /// Creates a retryable error.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryability: Retryability::Retryable }
    }

    /// Creates a permanent error.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryability: Retryability::Permanent }
    }
}

/// A command to the model. The model's errors refer to it by its id.
#[derive(Clone, Debug, PartialEq)]
pub struct RealtimeCommand {
    /// The id.
    pub id: CommandId,
    /// The kind of the command and its content.
    pub kind: RealtimeCommandKind,
}

/// The kind of a command.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RealtimeCommandKind {
    /// Sets the agent's instructions, tools and settings.
    Configure(Box<SessionConfiguration>),
    /// Appends audio of the user, in the configured format, to the input buffer.
    AppendAudio(Vec<u8>),
    /// Turns the input buffer into a message of the user.
    CommitAudio,
    /// Discards the input buffer.
    ClearAudio,
    /// Adds an item to the conversation, after another one or at the end.
    CreateItem {
        /// The item.
        item: RealtimeItem,
        /// The preceding item; the end of the conversation if absent.
        after: Option<ItemId>,
    },
    /// Deletes an item from the conversation.
    DeleteItem {
        /// Id of the item.
        item: ItemId,
    },
    /// Truncates an item to the part the user heard.
    TruncateItem {
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
        /// Milliseconds of speech the user heard.
        heard_ms: u64,
    },
    /// Requests a response.
    CreateResponse(Box<ResponseOptions>),
    /// Requests a response with a message in the provider's own format.
    CreateRawResponse(Value),
    /// Cancels a response.
    CancelResponse {
        /// Id of the response.
        response: ResponseId,
    },
    /// A message in the provider's own format.
    Raw(Value),
}

/// Options of one response that override the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseOptions {
    /// Instructions for this response only.
    pub instructions: Option<String>,
    /// The output modality of this response only.
    pub output_modality: Option<OutputModality>,
    /// The tool choice of this response only.
    pub tool_choice: Option<ToolChoice>,
    /// Maximum number of output tokens of this response.
    pub max_output_tokens: Option<u64>,
    /// The relation of the response to the conversation.
    pub scope: ResponseScope,
    /// The input of the response, in place of the conversation, if present.
    pub input: Option<Vec<RealtimeItem>>,
    /// Metadata that the provider returns with the response.
    pub metadata: Map<String, Value>,
    /// Provider-specific fields of the request, merged over all others.
    pub extra: Map<String, Value>,
}

/// An event of a realtime model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RealtimeModelEvent {
    /// The provider created a session.
    SessionCreated {
        /// The provider's id of the session.
        session: String,
    },
    /// A configuration is in force.
    ConfigurationApplied {
        /// The command that sent the configuration; absent if the provider's acknowledgement does not identify it.
        command: Option<CommandId>,
    },
    /// A response started.
    ResponseStarted {
        /// Id of the response.
        response: ResponseId,
        /// The command that requested the response, if the provider reports it.
        requested_by: Option<CommandId>,
        /// The relation of the response to the conversation.
        scope: ResponseScope,
    },
    /// A response ended.
    ResponseEnded {
        /// Id of the response.
        response: ResponseId,
        /// The final status.
        status: ResponseStatus,
        /// Token usage, if the provider reports it.
        usage: Option<RealtimeUsage>,
        /// The tool calls in the response.
        calls: Vec<RealtimeItem>,
    },
    /// A chunk of speech.
    AudioDelta {
        /// Id of the response.
        response: ResponseId,
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
        /// The audio, in the configured format.
        bytes: Vec<u8>,
    },
    /// The speech of an item is complete.
    AudioEnded {
        /// Id of the response.
        response: ResponseId,
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
    },
    /// A fragment of a transcript or of text.
    OutputTextDelta {
        /// Id of the response.
        response: ResponseId,
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
        /// The fragment.
        delta: String,
        /// The kind of the text.
        kind: OutputTextKind,
    },
    /// The transcript or text of a content part is complete.
    OutputTextEnded {
        /// Id of the response.
        response: ResponseId,
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
        /// The whole text.
        text: String,
        /// The kind of the text.
        kind: OutputTextKind,
    },
    /// A fragment of a call's arguments.
    ArgumentsDelta {
        /// Id of the response.
        response: ResponseId,
        /// Id of the call.
        call: CallId,
        /// The fragment.
        delta: String,
    },
    /// An item was added to the conversation or changed.
    ItemChanged {
        /// The item.
        item: RealtimeItem,
        /// The preceding item, if the provider reports it.
        after: Option<ItemId>,
    },
    /// An item was deleted.
    ItemDeleted {
        /// Id of the item.
        item: ItemId,
    },
    /// An item was truncated to the part the user heard.
    ItemTruncated {
        /// Id of the item.
        item: ItemId,
        /// Milliseconds of speech the user heard.
        heard_ms: u64,
    },
    /// A fragment of the transcript of the user's speech.
    InputTranscriptDelta {
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
        /// The fragment.
        delta: String,
    },
    /// The whole transcript of the user's speech.
    InputTranscriptCompleted {
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
        /// The transcript.
        text: String,
    },
    /// The transcription of the user's speech failed.
    InputTranscriptFailed {
        /// Id of the item.
        item: ItemId,
        /// The cause.
        message: String,
    },
    /// The user started to speak.
    SpeechStarted {
        /// The item that the speech will become.
        item: ItemId,
    },
    /// The user stopped speaking.
    SpeechStopped {
        /// The item that the speech will become.
        item: ItemId,
    },
    /// The input buffer was discarded.
    AudioCleared,
    /// The input buffer became an item.
    AudioCommitted {
        /// Id of the item.
        item: ItemId,
        /// The preceding item.
        after: Option<ItemId>,
    },
    /// The provider's idle timeout elapsed without speech.
    IdleTimeout,
    /// The provider's remaining rate limits.
    RateLimits(Vec<RealtimeRateLimit>),
    /// The model rejected a command.
    CommandRejected {
        /// The command, if the provider reports it.
        command: Option<CommandId>,
        /// The provider's error code.
        code: String,
        /// The provider's message.
        message: String,
        /// The kind of the rejection.
        kind: RejectionKind,
        /// The part of a command that the error is about, as far as the provider says.
        subject: RejectionSubject,
    },
    /// An event of the provider, unchanged. Sent before the decoded event, only on request.
    Raw(Value),
    /// An event that this version does not know.
    Unknown {
        /// The provider's event type.
        kind: String,
        /// The whole event.
        raw: Value,
    },
}

/// The relation of a response to the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseScope {
    /// The response is part of the conversation; one such response is active at a time.
    #[default]
    InConversation,
    /// The response is not added to the conversation.
    OutOfBand,
}

/// The kind of a text that a model produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputTextKind {
    /// The transcript of speech.
    AudioTranscript,
    /// Text without speech.
    PlainText,
}

/// The final status of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponseStatus {
    /// The response is complete.
    Completed,
    /// The response was cancelled by the user, the application or a guardrail.
    Cancelled,
    /// The provider ended the response early: for example, it was too long or was filtered.
    Incomplete {
        /// The provider's reason.
        reason: String,
    },
    /// The response failed.
    Failed {
        /// The provider's error code.
        code: String,
        /// The provider's message.
        message: String,
    },
    /// The end of the response was not observed: the connection was lost or the response stalled.
    Unknown,
}

/// The kind of a rejected command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectionKind {
    /// Another response is active; the request can be repeated when it has ended.
    ResponseAlreadyActive,
    /// There was no active response to cancel.
    NothingToCancel,
    /// Any other reason.
    Other,
}

/// The part of a command that a provider's error is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectionSubject {
    /// The provider does not say.
    #[default]
    Unspecified,
    /// A field of the session's configuration.
    Configuration,
    /// An item of the conversation.
    Item,
    /// A response request.
    Response,
}

/// Token usage of one response, in total and by modality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RealtimeUsage {
    /// The totals.
    pub total: Usage,
    /// Input tokens by modality.
    pub input: ModalityTokens,
    /// Input tokens that were served from a cache, by modality.
    pub cached: ModalityTokens,
    /// Output tokens by modality.
    pub output: ModalityTokens,
}

impl RealtimeUsage {
    /// Creates the usage of one request of unknown cost.
    pub fn of_unknown_request() -> Self {
        Self { total: Usage::of_unknown_request(), ..Self::default() }
    }

    /// Adds another usage to this one.
    pub fn add(&mut self, other: &Self) {
        self.total.add(&other.total);
        self.input.add(&other.input);
        self.cached.add(&other.cached);
        self.output.add(&other.output);
    }
}

/// Numbers of tokens by modality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModalityTokens {
    /// Tokens of text.
    pub text: u64,
    /// Tokens of audio.
    pub audio: u64,
    /// Tokens of images.
    pub image: u64,
}

impl ModalityTokens {
    fn add(&mut self, other: &Self) {
        self.text = self.text.saturating_add(other.text);
        self.audio = self.audio.saturating_add(other.audio);
        self.image = self.image.saturating_add(other.image);
    }
}

/// The remaining quota of one of the provider's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct RealtimeRateLimit {
    /// The counted resource, such as `requests` or `tokens`.
    pub name: String,
    /// Size of the quota.
    pub limit: u64,
    /// Remaining quota.
    pub remaining: u64,
    /// Seconds until the quota is full again.
    pub reset_seconds: f64,
}
