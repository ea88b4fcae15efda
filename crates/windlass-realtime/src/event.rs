//! What a live session tells the application.

use std::sync::Arc;

use serde_json::Value;
use windlass::core::{AgentName, CallId, How, OutputContent, Pending, ToolKey};
use windlass::{Failure, Usage};

use crate::history::HistoryChange;
use crate::id::{ItemId, ResponseId};
use crate::metrics::TurnMetrics;
use crate::model::{RateLimit, ResponseStatus};

/// Something that happened in a live session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LiveEvent {
    /// The model is there, and knows the agent.
    Connected,
    /// The connection was lost. Where `retrying`, it is made again.
    Disconnected {
        /// Why.
        reason: String,
        /// Whether it is made again.
        retrying: Retrying,
    },
    /// The connection is there again, and so is the conversation.
    Reconnected {
        /// How many tries it took.
        attempts: u32,
    },
    /// Another agent is current.
    AgentChanged {
        /// The one before.
        from: AgentName,
        /// The one from now on.
        to: AgentName,
        /// Why.
        cause: ChangeCause,
    },
    /// An answer begins.
    TurnStarted {
        /// Which.
        response: ResponseId,
        /// The agent whose answer it is.
        agent: AgentName,
    },
    /// An answer has ended, and every guardrail has seen it.
    TurnEnded {
        /// Which.
        response: ResponseId,
        /// The agent whose answer it was.
        agent: AgentName,
        /// How it ended.
        status: ResponseStatus,
        /// What it cost, where the provider said.
        usage: Option<Usage>,
        /// How long things took.
        metrics: TurnMetrics,
    },
    /// A piece of speech, to be played.
    Audio(AudioChunk),
    /// The speech of an item is complete.
    AudioEnded {
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
    },
    /// Stop playing this now: the user speaks, the application interrupted, or a guardrail tripped.
    AudioInterrupted {
        /// Of which item.
        item: ItemId,
        /// Of which part.
        content: u32,
        /// What the model is told that was heard.
        heard_ms: u64,
    },
    /// A piece of what the model says or writes.
    Words {
        /// Of which item.
        item: ItemId,
        /// The piece.
        delta: String,
    },
    /// A piece of what the user said.
    Heard {
        /// Of which item.
        item: ItemId,
        /// The piece.
        delta: String,
    },
    /// The history changed.
    History(HistoryChange),
    /// The user begins to speak.
    SpeechStarted,
    /// The user has finished speaking.
    SpeechStopped,
    /// Nobody has said anything for long.
    IdleTimeout,
    /// A call waits for a person.
    CallHeld {
        /// The call, and what is asked.
        pending: Box<Pending>,
    },
    /// The body of a call starts.
    CallStarted {
        /// Which call.
        call: CallId,
        /// Which tool.
        tool: ToolKey,
        /// The agent that made it.
        agent: AgentName,
    },
    /// A call tells how far it has come.
    CallProgress {
        /// Which call.
        call: CallId,
        /// Its own words.
        progress: Value,
    },
    /// A call has its output.
    CallSettled {
        /// Which call.
        call: CallId,
        /// How it came about.
        how: How,
        /// What the model is told.
        output: OutputContent,
        /// The agent that made it.
        agent: AgentName,
    },
    /// A guardrail objects to what the model says. Told once for an answer.
    GuardrailTripped {
        /// Which answer.
        response: ResponseId,
        /// The guardrails that object.
        guardrails: Vec<String>,
        /// What they saw.
        text: Arc<str>,
    },
    /// What is left of the provider's limits.
    RateLimits(Vec<RateLimit>),
    /// Something went wrong that the session survives.
    Error(LiveError),
    /// This watcher was too slow, and so much was left out.
    Lagged {
        /// Pieces of speech that were left out.
        audio: u64,
        /// Other events that were left out.
        others: u64,
    },
    /// Something in the provider's own words that this version does not know.
    Unknown {
        /// The provider's name for it.
        kind: String,
        /// All of it.
        raw: Value,
    },
    /// The session has ended. Nothing comes after this.
    Closed(CloseReason),
}

/// A piece of speech.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioChunk {
    /// Of which answer.
    pub response: ResponseId,
    /// Of which item.
    pub item: ItemId,
    /// Of which part.
    pub content: u32,
    /// The audio, in the configured form.
    pub bytes: Arc<[u8]>,
}

/// Whether a lost connection is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retrying {
    /// It is.
    Yes,
    /// It is not, and the session ends.
    No,
}

/// Why another agent is current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeCause {
    /// The model handed over, with this call.
    Handoff(CallId),
    /// The application changed it.
    Application,
}

/// Something that went wrong that the session survives.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The provider did not carry something out, or reports something.
    #[error("the provider says `{code}`: {message}")]
    Provider {
        /// The provider's name for it.
        code: String,
        /// Its words.
        message: String,
    },
    /// The model went silent in the middle of an answer, which was given up.
    #[error("the model went silent during answer `{response}`, which was given up")]
    Stalled {
        /// Which answer.
        response: ResponseId,
    },
    /// The model did not begin to answer when it was asked to.
    #[error("the model was asked to answer and did not; it is asked again when there is a reason to")]
    NoAnswer,
    /// The output of a call was not taken. It is kept, and sent again.
    #[error("the output of call `{call}` was not taken ({message}); it is kept and sent again")]
    OutputNotSent {
        /// Which call.
        call: CallId,
        /// Why not.
        message: String,
    },
    /// An agent could not become current. The one before still is.
    #[error("agent `{to}` cannot become current: {message}; the one before still is")]
    AgentNotChanged {
        /// The agent.
        to: AgentName,
        /// Why not.
        message: String,
    },
    /// The model used the id of an earlier call for another one, which did not run.
    #[error("call id `{call}` stands for another call already; this one did not run")]
    CallIdTaken {
        /// The id.
        call: CallId,
    },
    /// The calls of an answer could not be carried out.
    #[error("the calls of answer `{response}` could not be carried out: {message}")]
    Calls {
        /// Which answer.
        response: ResponseId,
        /// Why not.
        message: String,
    },
    /// A guardrail could not do its work.
    #[error("guardrail `{guardrail}` failed: {message}")]
    Guardrail {
        /// Which.
        guardrail: String,
        /// Why.
        message: String,
    },
    /// The journal of the session could not be written.
    #[error("the session's journal cannot be written: {message}")]
    Journal {
        /// Why.
        message: String,
    },
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CloseReason {
    /// It was closed.
    Closed,
    /// It was left, to be resumed later or elsewhere.
    Left,
    /// The other side said goodbye.
    Finished,
    /// The connection was lost and could not be made again.
    Lost(String),
    /// A call failed in a way that ends a run, and so the session.
    CallFailed(Failure),
    /// Its journal could not be written, so it cannot go on.
    Journal(String),
}
