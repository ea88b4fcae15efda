//! Events that a realtime session reports to the application.

use std::sync::Arc;

use serde_json::Value;
use windlass::core::failure::RunFailure;
use windlass::core::{
    budget::{OnBudgetReached, ReachedBudget},
    decision::PendingCall,
    id::{AgentName, CallId, CallPath, RunId},
    item::OutputContent,
    journal::CallStatus,
    tool::ToolKey,
};

use crate::history::HistoryChange;
use crate::id::{ItemId, ResponseId};
use crate::metrics::TurnMetrics;
use crate::model::{RealtimeRateLimit, RealtimeUsage, ResponseStatus};

/// An event of a realtime session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RealtimeEvent {
    /// The model is connected and has accepted the agent's configuration.
    Connected,
    /// The connection was lost. `next_step` says if the session reconnects.
    Disconnected {
        /// The cause.
        reason: String,
        /// The session's reaction.
        next_step: AfterDisconnect,
    },
    /// The connection was restored and the model has the conversation again.
    Reconnected {
        /// Number of connection attempts.
        attempts: u32,
    },
    /// Another agent became current.
    AgentChanged {
        /// The previous agent.
        from: AgentName,
        /// The current agent.
        to: AgentName,
        /// The cause.
        cause: AgentChangeCause,
    },
    /// A response started.
    TurnStarted {
        /// Id of the response.
        response: ResponseId,
        /// The agent that responds.
        agent: AgentName,
    },
    /// A response ended, and every guardrail has checked it.
    TurnEnded {
        /// Id of the response.
        response: ResponseId,
        /// The agent that responded.
        agent: AgentName,
        /// The final status.
        status: ResponseStatus,
        /// Token usage, if the provider reported it.
        usage: Option<RealtimeUsage>,
        /// Latencies and durations of the response.
        metrics: TurnMetrics,
    },
    /// A response outside the conversation ended. It changes neither the history nor the current turn, and its calls
    /// are not executed.
    SideResponseEnded {
        /// Id of the response.
        response: ResponseId,
        /// The final status.
        status: ResponseStatus,
        /// The whole text or transcript.
        text: String,
        /// Token usage, if the provider reported it.
        usage: Option<RealtimeUsage>,
    },
    /// A budget does not allow the next response. A question to a person follows as a held call
    /// ([`RealtimeEvent::CallHeld`]) if that is the reaction.
    BudgetReached {
        /// The budget.
        budget: ReachedBudget,
        /// The reaction.
        reaction: OnBudgetReached,
    },
    /// A demanded response waits, because the provider reports that the user is speaking. It is requested when the
    /// speech ends, when the hold timeout elapses, or by `RealtimeSession::force_response`.
    ResponseHeld,
    /// A chunk of speech, to be played.
    Audio(AudioChunk),
    /// The speech of an item is complete.
    AudioEnded {
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
    },
    /// Playback must stop now: the user speaks, the application interrupted, or a guardrail tripped.
    AudioInterrupted {
        /// Id of the item.
        item: ItemId,
        /// Index of the content part.
        content_index: u32,
        /// Milliseconds of speech the user heard, as reported to the model.
        heard_ms: u64,
    },
    /// A fragment of the model's output: of the transcript of its speech, or of its text.
    OutputTextDelta {
        /// Id of the item.
        item: ItemId,
        /// The fragment.
        delta: String,
    },
    /// A fragment of the transcript of the user's speech.
    InputTranscriptDelta {
        /// Id of the item.
        item: ItemId,
        /// The fragment.
        delta: String,
    },
    /// An item of the history was added, updated or removed. Fragments of an item in progress have their own events.
    HistoryChanged(HistoryChange),
    /// The user started to speak.
    SpeechStarted,
    /// The user stopped speaking.
    SpeechStopped,
    /// The provider's idle timeout elapsed without speech.
    IdleTimeout,
    /// A tool call waits for a person's decision.
    CallHeld {
        /// Id of the run that executes the call.
        run: RunId,
        /// The call and the question to the person.
        pending: Box<PendingCall>,
    },
    /// A held call no longer waits for a decision: it starts or has its output. The decision may have been made in another
    /// process, and the call may be one of a nested agent.
    CallReleased {
        /// Id of the run that executes the call.
        run: RunId,
        /// The path of the call.
        call: CallPath,
    },
    /// The body of a tool call starts.
    CallStarted {
        /// Id of the call.
        call: CallId,
        /// The tool.
        tool: ToolKey,
        /// The agent that made the call.
        agent: AgentName,
    },
    /// A tool call reports progress.
    CallProgress {
        /// Id of the call.
        call: CallId,
        /// The progress value, as the tool reported it.
        progress: Value,
    },
    /// A tool call has its output.
    CallSettled {
        /// Id of the call.
        call: CallId,
        /// The status under which the call settled.
        status: CallStatus,
        /// The output sent to the model.
        output: OutputContent,
        /// The agent that made the call.
        agent: AgentName,
    },
    /// A guardrail rejected the model's output. Reported once per response.
    GuardrailTripped {
        /// Id of the response.
        response: ResponseId,
        /// The guardrails that tripped.
        guardrails: Vec<String>,
        /// The text they checked.
        text: Arc<str>,
    },
    /// The provider reported its remaining rate limits.
    RateLimits(Vec<RealtimeRateLimit>),
    /// A recoverable error; the session goes on.
    Error(RealtimeError),
    /// This subscriber was too slow and events were dropped.
    Lagged {
        /// Number of dropped audio chunks.
        dropped_audio: u64,
        /// Number of dropped other events.
        dropped_events: u64,
    },
    /// An event of the provider, unchanged; reported only if the model was built with raw events.
    Raw(Value),
    /// A provider event that this version does not know.
    Unknown {
        /// The provider's event type.
        kind: String,
        /// The whole event.
        raw: Value,
    },
    /// The session ended. No event follows.
    Closed(CloseReason),
}

/// A call that waits for a person's decision, and the run that executes it.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldCall {
    /// Id of the run.
    pub run: RunId,
    /// The call and the question to the person.
    pub pending: PendingCall,
}

/// A chunk of speech.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioChunk {
    /// Id of the response.
    pub response: ResponseId,
    /// Id of the item.
    pub item: ItemId,
    /// Index of the content part.
    pub content_index: u32,
    /// Number of bytes of the content part before this chunk.
    pub position: u64,
    /// The audio, in the configured format.
    pub bytes: Arc<[u8]>,
}

/// The session's reaction to a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterDisconnect {
    /// The session tries to reconnect.
    Reconnects,
    /// The session ends.
    SessionEnds,
}

/// The cause of an agent change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentChangeCause {
    /// A handoff by the model, with this call.
    Handoff(CallId),
    /// A request of the application.
    Application,
}

/// A recoverable error of a session.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RealtimeError {
    /// The provider rejected a command or reported an error.
    #[error("the provider reported `{code}`: {message}")]
    Provider {
        /// The provider's error code.
        code: String,
        /// The provider's message.
        message: String,
    },
    /// The model stopped sending in the middle of a response, and the session cancelled it.
    #[error("the model stopped sending during response `{response}`, which was cancelled")]
    ResponseStalled {
        /// Id of the response.
        response: ResponseId,
    },
    /// The model did not start a requested response.
    #[error("the model did not start the requested response in time")]
    ResponseNotStarted,
    /// A demanded response failed repeatedly and is not requested again.
    #[error("the demanded response failed {attempts} times and is not requested again: {message}")]
    ResponseAbandoned {
        /// Number of requests.
        attempts: u32,
        /// The last cause.
        message: String,
    },
    /// A response started while the provider had not confirmed the agent's configuration. The session cancelled it.
    #[error("response `{response}` started before the agent's configuration was in force, and was cancelled")]
    ResponseUnconfigured {
        /// Id of the response.
        response: ResponseId,
    },
    /// The connection was lost before the provider began to answer the user's speech, and there is no transcript that could
    /// be sent again. The user has to repeat it.
    #[error(
        "the user's speech `{item}` was lost with the connection before it was answered; it has no transcript"
    )]
    SpeechLost {
        /// The item of the speech.
        item: ItemId,
    },
    /// The provider rejected the output of a call. The session keeps the output and sends it again a few times, and
    /// when the application calls `resend_outputs` or the session reconnects; the call does not run again.
    #[error(
        "the provider rejected the output of call `{call}` ({message}); the output is kept and sent again, and \
         `resend_outputs` sends it again at any time"
    )]
    OutputRejected {
        /// Id of the call.
        call: CallId,
        /// The provider's message.
        message: String,
    },
    /// An agent change failed. The previous agent stays current.
    #[error("agent `{to}` cannot become current: {message}; the previous agent stays current")]
    AgentChangeFailed {
        /// The agent that did not become current.
        to: AgentName,
        /// The cause.
        message: String,
    },
    /// The model used one id for two different calls of one response. The second one did not run.
    #[error(
        "call id `{call}` was already used by a different call of the same response; this call did not run"
    )]
    CallIdReused {
        /// The id.
        call: CallId,
    },
    /// Too many responses in a row made calls, without an input of the user or a request of the application. The calls of
    /// this response are not made, and their outputs demand no response.
    #[error("more than {limit} responses in a row made calls; those of response `{response}` are not made")]
    CallLimitReached {
        /// Id of the response.
        response: ResponseId,
        /// The limit.
        limit: u32,
    },
    /// The calls of a response could not be executed.
    #[error("the calls of response `{response}` could not be executed: {message}")]
    CallsFailed {
        /// Id of the response.
        response: ResponseId,
        /// The cause.
        message: String,
    },
    /// A guardrail failed.
    #[error("guardrail `{guardrail}` failed: {message}")]
    GuardrailFailed {
        /// The guardrail.
        guardrail: String,
        /// The cause.
        message: String,
    },
    /// The session's journal could not be written.
    #[error("the session's journal cannot be written: {message}")]
    JournalFailed {
        /// The cause.
        message: String,
    },
}

/// The reason for the end of a session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The application closed the session.
    Closed,
    /// The application detached from the session, to resume it later or in another process.
    Detached,
    /// The provider closed the connection in an orderly way.
    ClosedByProvider,
    /// The connection was lost and could not be restored.
    ConnectionLost(String),
    /// The provider rejected the current agent's configuration on a new connection, or when it had to be restored.
    /// The session does not continue with another configuration.
    ConfigurationRejected(String),
    /// A call failed with an error that ends its run, and with it the session.
    CallFailed(RunFailure),
    /// A budget is reached, and nobody granted more.
    BudgetReached(ReachedBudget),
    /// The session's journal could not be written.
    JournalFailed(String),
}
