//! Errors of runs, stores and decisions.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::schema::StrictSchemaError;
use windlass_core::{
    authenticity::{MacError, SignatureError},
    failure::RunFailure,
    id::{AgentName, CallPath, RunId, SessionId},
    journal::{AgentBuild, JournalFormatError},
    run::{ApplyError, ReplayError},
};

use crate::model::ModelError;
use crate::run::{RunRecord, RunSettlement};
use crate::session::SessionWrite;
use crate::store::{Lease, PostedDecision};
use crate::tool::ReceiptScope;

/// An error that ended a run without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The agent's configuration is invalid. No call has been executed and no model request made.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The run failed. Its journal up to the failure is preserved.
    #[error("{}", .0.failure)]
    Failed(Box<FailedRun>),
    /// The journal could not be written. The run stops, and can be resumed from its last durable record.
    #[error("the journal cannot be written: {0}")]
    Store(#[from] StoreError),
    /// The session could not be read or written.
    #[error("the session cannot be used: {0}")]
    Session(#[source] StoreError),
    /// The journal of a saved run could not be replayed.
    #[error("the saved run cannot be resumed: {0}")]
    Replay(#[from] ReplayError),
    /// The journal of a stored run could not be decoded.
    #[error("the stored run cannot be read: {0}")]
    JournalFormat(#[from] JournalFormatError),
}

impl RunError {
    /// Returns the cause, if the run failed.
    pub fn failure(&self) -> Option<&RunFailure> {
        match self {
            Self::Failed(failed) => Some(&failed.failure),
            _ => None,
        }
    }

    /// Returns the record of a run that failed.
    pub fn record(&self) -> Option<&RunRecord> {
        match self {
            Self::Failed(failed) => Some(&failed.record),
            _ => None,
        }
    }
}

/// A run that failed.
#[derive(Debug)]
pub struct FailedRun {
    /// The cause of the failure.
    pub failure: RunFailure,
    /// The calls of the last turn, by their fate: those in doubt may have taken effect.
    pub settlement: RunSettlement,
    /// The record of the run up to the failure. Its history is complete: every call has an output.
    pub record: RunRecord,
    /// The model's error, if a model request caused the failure.
    pub model_error: Option<ModelError>,
}

/// The reason why a run has no final output, although it did not fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnfinishedRun {
    /// The run waits for decisions.
    #[error("the run has no output: it is paused, and {pending_calls} of its calls wait for a decision")]
    Paused {
        /// Number of calls that wait for a decision or an answer.
        pending_calls: usize,
    },
    /// The run was cancelled.
    #[error("the run has no output: it was cancelled")]
    Cancelled,
    /// The driver detached from the run, which another driver can continue.
    #[error("the run has no output: its driver detached from it")]
    Detached,
}

/// The final output of a run could not be read as the requested type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The run did not finish.
    #[error(transparent)]
    Unfinished(#[from] UnfinishedRun),
    /// The output is not of the requested type.
    #[error("the output of the run cannot be read as the requested type: {0}")]
    Type(#[from] serde_json::Error),
}

/// An error in the configuration of an agent or a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Neither the agent nor the run has a model. Detected before the agent's first model request, which may follow a
    /// handoff.
    #[error("agent `{agent}` has no model; give it one with `.model(…)`, or the run with `.model(…)`")]
    NoModel {
        /// The agent.
        agent: AgentName,
    },
    /// The run continues a conversation that its provider stores, and has something that such a run cannot have.
    #[error(
        "a run with `.previous_response_id(…)` cannot have {other}: its provider stores the conversation"
    )]
    StoredConversation {
        /// The part that it cannot have.
        other: &'static str,
    },
    /// The run has a budget of its session, and its store does not have the session.
    #[error("a session has a budget only if it is in the store of its runs")]
    SessionBudgetWithoutStore,
    /// The run belongs to a session that is not in its store and was not handed over.
    #[error(
        "run `{run}` belongs to session `{session}`, which is not in its store; hand it over with `.session(…)`"
    )]
    NoSession {
        /// The run.
        run: RunId,
        /// The session.
        session: SessionId,
    },
    /// The run does not belong to the session that was handed over.
    #[error("run `{run}` belongs to {}, not to session `{given}`", session_name(.expected.as_ref()))]
    OtherSession {
        /// The run.
        run: RunId,
        /// The session of the run; absent if it has none.
        expected: Option<SessionId>,
        /// The session that was handed over.
        given: SessionId,
    },
    /// Another release has begun the run, which this worker does not continue.
    #[error("build `{begun_by}` has begun run `{run}`, and this worker continues other releases only")]
    OtherRelease {
        /// The run.
        run: RunId,
        /// The build that has begun the run.
        begun_by: AgentBuild,
    },
    /// Two tools of the agent have the same name.
    #[error("agent `{agent}` has two tools that answer to `{name}`; rename one or put it in a namespace")]
    DuplicateToolName {
        /// The agent.
        agent: AgentName,
        /// The name.
        name: String,
    },
    /// The model does not support one of the agent's tools. Nothing was executed.
    #[error("agent `{agent}` has tool `{tool}`, which its model does not support: {reason}")]
    UnsupportedTool {
        /// The agent.
        agent: AgentName,
        /// The tool.
        tool: String,
        /// Reason that the model gives.
        reason: String,
    },
    /// A tool source returned an error. Nothing of the turn was executed.
    #[error("a tool source of agent `{agent}` failed: {reason}")]
    ToolSourceFailed {
        /// The agent.
        agent: AgentName,
        /// Error text of the source.
        reason: String,
    },
    /// The schema of a tool's arguments has no strict form.
    #[error(
        "the arguments of tool `{tool}` cannot be offered: {reason}; hint: `.non_strict()` offers the schema as it is"
    )]
    ToolNotStrict {
        /// The tool.
        tool: String,
        /// Reason that there is no strict form.
        reason: StrictSchemaError,
    },
    /// The schema of a handoff's arguments has no strict form.
    #[error("the arguments of handoff `{handoff}` cannot be offered: {reason}")]
    HandoffNotStrict {
        /// Name of the handoff's tool.
        handoff: String,
        /// Reason that there is no strict form.
        reason: StrictSchemaError,
    },
    /// Two agents have the same name.
    #[error(
        "two different agents are called `{agent}`; saved runs find agents by name, so each needs its own"
    )]
    DuplicateAgent {
        /// The name.
        agent: AgentName,
    },
    /// A function that computes the instructions or tools of an agent panicked.
    #[error("the instructions and tools of agent `{agent}` cannot be resolved: {reason}")]
    ResolveFailed {
        /// The agent.
        agent: AgentName,
        /// Text of the panic.
        reason: String,
    },
    /// The run does not know an agent of this name.
    #[error(
        "there is no agent `{agent}` here; hint: `.known_agents([…])` on the run makes agents known by name"
    )]
    UnknownAgent {
        /// The name.
        agent: AgentName,
    },
    /// A saved call refers to a tool that the agent no longer has. Nothing was executed.
    #[error(
        "call `{call}` of the saved run asks for tool `{tool}`, which agent `{agent}` does not have any more"
    )]
    ToolRemoved {
        /// The tool.
        tool: String,
        /// The agent.
        agent: AgentName,
        /// The call.
        call: CallPath,
    },
    /// The arguments of a saved call differ from those that it was planned and decided with. Nothing was
    /// executed.
    #[error("call `{call}` of the saved run has other arguments than those it was planned with")]
    ArgumentsChanged {
        /// The tool.
        tool: String,
        /// The call.
        call: CallPath,
    },
    /// The arguments of a saved call are not valid for its tool, or no longer. Nothing was executed.
    #[error("call `{call}` of the saved run has arguments that tool `{tool}` does not take: {problems}")]
    ArgumentsNoLongerValid {
        /// The tool.
        tool: String,
        /// The call.
        call: CallPath,
        /// Description of the invalid arguments.
        problems: String,
    },
    /// A tool shares its receipts in a scope that the run does not have. Nothing was executed with it.
    #[error(
        "tool `{tool}` of agent `{agent}` has the receipt scope `{scope:?}`, and the run has no {missing}; hint: give \
         the run one with `.{missing}(…)`, or the tool a narrower scope with `.receipt_policy(…)`"
    )]
    ReceiptScopeUnavailable {
        /// The tool.
        tool: String,
        /// The agent.
        agent: AgentName,
        /// The scope that the tool declares.
        scope: ReceiptScope,
        /// The part that the run lacks: `session` or `store`.
        missing: &'static str,
    },
    /// A tool has a limit that processes share, and the run has no store. Nothing was executed with it.
    #[error(
        "tool `{tool}` of agent `{agent}` has the shared limit `{limit}`, and the run has no store; hint: give the run one \
         with `.store(…)`, or the tool a limit of this process with `.max_concurrent_calls(…)`"
    )]
    SharedLimitUnavailable {
        /// The tool.
        tool: String,
        /// The agent.
        agent: AgentName,
        /// Name of the limit.
        limit: String,
    },
    /// A stored run was to be continued without its store.
    #[error("run `{run}` can only be continued with its store, and none was given; hint: `.store(…)`")]
    NoStore {
        /// Id of the run.
        run: RunId,
    },
    /// The type of the final output has no strict schema.
    #[error("the output type of agent `{agent}` cannot be offered: {reason}")]
    OutputNotStrict {
        /// The agent.
        agent: AgentName,
        /// Reason that there is no strict form.
        reason: StrictSchemaError,
    },
}

/// An error of a store. Clones share the source.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    message: String,
    kind: StoreErrorKind,
    retry_after: Option<Duration>,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// Creates an error with this message, of the kind [`StoreErrorKind::Other`].
    pub fn new(message: impl Into<String>) -> Self {
        Self::with_kind(StoreErrorKind::Other, message)
    }

    /// Creates an error of this kind with this message.
    pub fn with_kind(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, retry_after: None, source: None }
    }

    /// Creates the error for a run that was to be created and exists.
    pub fn already_exists(run: &RunId) -> Self {
        Self::with_kind(StoreErrorKind::AlreadyExists, format!("there is a run `{run}` already"))
    }

    /// Creates the error for a run whose lease another driver holds.
    pub fn lease_held(run: &RunId, owner: &str) -> Self {
        Self::with_kind(StoreErrorKind::LeaseHeld, format!("run `{run}` is being driven by `{owner}`"))
    }

    /// Creates the error for a driver that was fenced off: another driver has taken over the lease.
    pub fn fenced_off(lease: &Lease) -> Self {
        let Lease { run, epoch, .. } = lease;
        Self::with_kind(
            StoreErrorKind::Fenced,
            format!("run `{run}` was taken over after epoch {epoch}; this driver must stop"),
        )
    }

    /// Creates the error for a worker that was retired, and whose leases are void.
    pub fn worker_retired(worker: &str) -> Self {
        Self::with_kind(
            StoreErrorKind::Fenced,
            format!("worker `{worker}` is retired; its drivers must stop"),
        )
    }

    /// Creates the error for a run that is not in the queue.
    pub fn not_submitted(run: &RunId) -> Self {
        Self::with_kind(StoreErrorKind::RunNotFound, format!("run `{run}` was not submitted"))
    }

    /// Creates the error for a write that is based on an outdated read of the run.
    pub fn stale_read(run: &RunId, next: u64, at: u64) -> Self {
        let message = format!(
            "run `{run}` has {next} records, and record {at} was to be the next: it has gone on elsewhere"
        );
        Self::with_kind(StoreErrorKind::Stale, message)
    }

    /// Creates the error for a snapshot whose earlier segments are missing: the store has `count` of them.
    pub fn missing_segments(run: &RunId, count: u64) -> Self {
        let message =
            format!("run `{run}`: the store has {count} segments of its snapshot, and others are missing");
        Self::with_kind(StoreErrorKind::Stale, message)
    }

    /// Creates the error for a decision with a MAC whose revision another decision has.
    pub fn stale_revision(run: &RunId, call: &CallPath) -> Self {
        let message = format!("run `{run}`: another decision about call `{call}` was posted meanwhile");
        Self::with_kind(StoreErrorKind::Stale, message)
    }

    /// Creates the error for a write that is based on an outdated read of the session.
    pub fn session_changed(session: &SessionId) -> Self {
        Self::with_kind(StoreErrorKind::Stale, format!("session `{session}` was changed by somebody else"))
    }

    /// Creates the error for a new run whose id an earlier run in the session had.
    pub(crate) fn run_id_in_session(session: &SessionId, run: &RunId) -> Self {
        let message =
            format!("session `{session}` has items of an earlier run `{run}`: a new run needs another id");
        Self::with_kind(StoreErrorKind::AlreadyExists, message)
    }

    /// Creates the error for a session to which another run is appending.
    pub fn session_busy(session: &SessionId, holder: &RunId) -> Self {
        Self::with_kind(
            StoreErrorKind::SessionBusy,
            format!(
                "session `{session}` is in use by run `{holder}`, and one run at a time appends to a session"
            ),
        )
    }

    /// Creates the error for a session to which another run of this process is appending.
    pub(crate) fn session_busy_here(session: &SessionId) -> Self {
        Self::with_kind(
            StoreErrorKind::SessionBusy,
            format!(
                "session `{session}` is in use by another run of this process, and one run at a time appends to a session"
            ),
        )
    }

    /// Creates the error for a session to which a driver of another store is appending.
    pub fn session_busy_elsewhere(session: &SessionId, owner: &str) -> Self {
        Self::with_kind(
            StoreErrorKind::SessionBusy,
            format!(
                "session `{session}` is in use by driver `{owner}`, and one run at a time appends to a session"
            ),
        )
    }

    /// Creates the error for a session that another driver may have taken over.
    pub(crate) fn session_lost(session: &SessionId) -> Self {
        Self::with_kind(
            StoreErrorKind::SessionBusy,
            format!("session `{session}` could not be held on to, and another run may append to it"),
        )
    }

    /// Creates the error for items of a run that do not continue what its session has.
    pub fn session_position(write: &SessionWrite, position: u64) -> Self {
        let SessionWrite { session, run, from, to, .. } = write;
        Self::with_kind(
            StoreErrorKind::Stale,
            format!("session `{session}` has run `{run}` up to position {position}, and {from} to {to} came"),
        )
    }

    /// Creates the error for a decision about a call whose decision a driver has taken. `taken` is the posted one.
    pub fn already_decided(run: &RunId, path: &CallPath, taken: Option<&PostedDecision>) -> Self {
        let by = taken.and_then(|taken| taken.decision.decided_by.as_deref());
        let what = taken.map(|taken| taken.decision.decision.describe());
        let message = match (by, what) {
            (Some(by), Some(what)) => {
                format!("call `{path}` of run `{run}`: the decision of {by} is taken: it was {what}")
            }
            (None, Some(what)) => {
                format!("call `{path}` of run `{run}`: an earlier decision is taken: it was {what}")
            }
            (_, None) => format!("call `{path}` of run `{run}`: an earlier decision is taken"),
        };
        Self::with_kind(StoreErrorKind::AlreadyDecided, message)
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns the time after which a lease that is held now can be taken over, unless its driver renews it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Sets the time after which a retry may succeed.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// True if another driver has taken over the run.
    pub fn is_fenced(&self) -> bool {
        self.kind == StoreErrorKind::Fenced
    }

    /// True if another driver owns or has changed the run; a later retry may succeed.
    pub fn is_busy(&self) -> bool {
        match self.kind {
            StoreErrorKind::LeaseHeld
            | StoreErrorKind::Fenced
            | StoreErrorKind::Stale
            | StoreErrorKind::SessionBusy => true,
            StoreErrorKind::RunNotFound
            | StoreErrorKind::AlreadyExists
            | StoreErrorKind::AlreadyDecided
            | StoreErrorKind::Corrupt
            | StoreErrorKind::UnknownKey
            | StoreErrorKind::UnsupportedVersion
            | StoreErrorKind::NotRestored
            | StoreErrorKind::Disk
            | StoreErrorKind::Other => false,
        }
    }

    /// True if the same operation cannot succeed later, however often it is repeated.
    pub fn is_final(&self) -> bool {
        match self.kind {
            StoreErrorKind::RunNotFound
            | StoreErrorKind::AlreadyExists
            | StoreErrorKind::AlreadyDecided
            | StoreErrorKind::Corrupt
            | StoreErrorKind::UnknownKey
            | StoreErrorKind::UnsupportedVersion
            | StoreErrorKind::NotRestored => true,
            StoreErrorKind::LeaseHeld
            | StoreErrorKind::Fenced
            | StoreErrorKind::Stale
            | StoreErrorKind::SessionBusy
            | StoreErrorKind::Disk
            | StoreErrorKind::Other => false,
        }
    }

    /// Sets the source of the error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }
}

/// The kind of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The run does not exist.
    RunNotFound,
    /// A run of that id already exists.
    AlreadyExists,
    /// Another driver holds the lease.
    LeaseHeld,
    /// Another driver has taken over the lease; writes of the old epoch are rejected.
    Fenced,
    /// The run or session has changed since it was read.
    Stale,
    /// Another run is appending to the session.
    SessionBusy,
    /// The call already has a different decision.
    AlreadyDecided,
    /// The stored data are corrupt: they are not the data that were written.
    Corrupt,
    /// The data were sealed with an encryption key that was not given.
    UnknownKey,
    /// The data were written by a newer version.
    UnsupportedVersion,
    /// The store is a backup, or its database was restored from one: its open runs are not in doubt yet.
    NotRestored,
    /// The disk is full or cannot be read or written.
    Disk,
    /// Any other error.
    Other,
}

/// An error that rejects a decision. The paused run is unchanged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// No call of this id waits for a decision.
    #[error("no call `{0}` waits for a decision")]
    NotPending(CallPath),
    /// Calls of several nested agents have this id.
    #[error("several calls are called `{0}`; name the one with its path, such as `outer/{0}`")]
    AmbiguousCall(CallPath),
    /// The time limit for the decision has passed. The call is rejected when the run continues.
    #[error("the request for a decision about call `{0}` has expired")]
    Expired(CallPath),
    /// The decision is not applicable to the call.
    #[error(transparent)]
    NotApplicable(#[from] ApplyError),
    /// The edited arguments are not a JSON object.
    #[error("the edited arguments cannot be used: {0}")]
    InvalidArguments(String),
    /// The store of the run has approvers, and none of them has signed the decision.
    #[error("the decision would not count: {0}")]
    Signature(#[from] SignatureError),
}

/// An error that prevents restoring a run from its text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The text could not be decoded.
    #[error(transparent)]
    JournalFormat(#[from] JournalFormatError),
    /// The journal was decoded and could not be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The text is not what the holder of the key wrote.
    #[error("the text of run `{run}` is forged: {reason}")]
    ForgedText {
        /// Id of the run.
        run: RunId,
        /// The reason why it is not authentic.
        reason: MacError,
    },
}

/// Truncates the text of an error to a size that is stored and shown.
pub(crate) fn truncate_message(mut text: String) -> String {
    const MAX_MESSAGE_BYTES: usize = 16 * 1024;
    if text.len() > MAX_MESSAGE_BYTES {
        let (whole, shown) = (text.len(), text.floor_char_boundary(MAX_MESSAGE_BYTES));
        text.truncate(shown);
        text.push_str(&format!(" [cut: {shown} of {whole} bytes are shown]"));
    }
    text
}

/// Names a run's session in an error.
fn session_name(session: Option<&SessionId>) -> String {
    session.map_or_else(|| "no session".to_owned(), |session| format!("session `{session}`"))
}
