//! Why a run could not begin, go on, or end well.

use windlass_core::schema::NotStrict;
use windlass_core::{AgentName, CallPath, Failure, Illegal, ReplayError, RunId, SavedError, SessionId};

use crate::model::ModelError;
use crate::run::RunRecord;
use crate::store::Lease;

/// Why a run did not come to an outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The agent is not set up in a way that can run. Nothing has happened.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The run failed. What it did until then is kept.
    #[error("{}", .0.failure)]
    Failed(Box<FailedRun>),
    /// The journal could not be written. The run stops where it is, and can be resumed from what was.
    #[error("the journal cannot be written: {0}")]
    Store(#[from] StoreError),
    /// The session could not be read or written.
    #[error("the session cannot be used: {0}")]
    Session(#[source] StoreError),
    /// A saved run cannot be gone on with.
    #[error("the saved run cannot be resumed: {0}")]
    Replay(#[from] ReplayError),
    /// A stored run cannot be read.
    #[error("the stored run cannot be read: {0}")]
    Saved(#[from] SavedError),
}

impl RunError {
    /// Why the run failed, where it did.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failed) => Some(&failed.failure),
            _ => None,
        }
    }

    /// What the run did until it failed.
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
    /// Why.
    pub failure: Failure,
    /// What it did until then. Its history is whole: every call has an output.
    pub record: RunRecord,
    /// The model's own error, where that was why.
    pub model_error: Option<ModelError>,
}

/// Why an agent cannot run as it is set up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It has no model.
    #[error("agent `{agent}` has no model; give it one with `.model(…)`, or the run with `.model(…)`")]
    NoModel {
        /// The agent.
        agent: AgentName,
    },
    /// Two of its tools go by one name.
    #[error("agent `{agent}` has two tools that answer to `{name}`; rename one or put it in a namespace")]
    Collision {
        /// The agent.
        agent: AgentName,
        /// The name.
        name: String,
    },
    /// Its model cannot be offered one of its tools. Nothing has run.
    #[error("agent `{agent}` has tool `{tool}`, which its model cannot be offered: {why}")]
    NotSupported {
        /// The agent.
        agent: AgentName,
        /// The tool.
        tool: String,
        /// Why not.
        why: String,
    },
    /// A source of its tools has none to give. Nothing of the turn has happened.
    #[error("the tools of agent `{agent}` cannot be had: {why}")]
    Source {
        /// The agent.
        agent: AgentName,
        /// Why not.
        why: String,
    },
    /// A tool's schema has no strict form.
    #[error(
        "the arguments of tool `{tool}` cannot be offered: {why}; hint: `.non_strict()` offers the schema as it is"
    )]
    NotStrict {
        /// The tool.
        tool: String,
        /// Why not.
        why: NotStrict,
    },
    /// Two agents go by one name.
    #[error(
        "two different agents are called `{agent}`; saved runs find agents by name, so each needs its own"
    )]
    DuplicateAgent {
        /// The name.
        agent: AgentName,
    },
    /// A function that says what an agent is told or may use did not say it.
    #[error("the instructions and tools of agent `{agent}` cannot be worked out: {why}")]
    Unresolved {
        /// The agent.
        agent: AgentName,
        /// Why not.
        why: String,
    },
    /// An agent that is named is not there.
    #[error("there is no agent `{agent}` here; hint: `.agents([…])` on the run makes agents known by name")]
    UnknownAgent {
        /// The name.
        agent: AgentName,
    },
    /// A saved call asks for a tool that is not there any more. Nothing has run.
    #[error(
        "call `{call}` of the saved run asks for tool `{tool}`, which agent `{agent}` does not have any more"
    )]
    ToolGone {
        /// The tool.
        tool: String,
        /// The agent.
        agent: AgentName,
        /// The call.
        call: CallPath,
    },
    /// A saved call has other arguments than those that it was planned, shown and decided with. Nothing has run.
    #[error("call `{call}` of the saved run has other arguments than those it was planned with")]
    ArgumentsChanged {
        /// The tool.
        tool: String,
        /// The call.
        call: CallPath,
    },
    /// A saved call has arguments that its tool does not take, or not any more. Nothing has run.
    #[error("call `{call}` of the saved run has arguments that tool `{tool}` does not take: {problems}")]
    ArgumentsGone {
        /// The tool.
        tool: String,
        /// The call.
        call: CallPath,
        /// What is wrong with them.
        problems: String,
    },
    /// A stored run was to be gone on with, without the store.
    #[error("run `{run}` is to be gone on with from a store, and none was given; hint: `.store(…)`")]
    NoStore {
        /// The run.
        run: RunId,
    },
    /// The type of the final output has no strict schema.
    #[error("the output type of agent `{agent}` cannot be offered: {why}")]
    OutputNotStrict {
        /// The agent.
        agent: AgentName,
        /// Why not.
        why: NotStrict,
    },
}

/// Why something could not be stored or read back.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    message: String,
    kind: StoreErrorKind,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// An error in these words.
    pub fn new(message: impl Into<String>) -> Self {
        Self::of(StoreErrorKind::Other, message)
    }

    /// An error of this kind, in these words.
    pub fn of(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, source: None }
    }

    /// Somebody else owns the run.
    pub fn leased(run: &RunId, owner: &str) -> Self {
        Self::of(StoreErrorKind::Leased, format!("run `{run}` is being driven by `{owner}`"))
    }

    /// The run was taken over by somebody else.
    pub fn fenced(lease: &Lease) -> Self {
        let Lease { run, epoch, .. } = lease;
        Self::of(
            StoreErrorKind::Fenced,
            format!("run `{run}` was taken over after epoch {epoch}; this driver must stop"),
        )
    }

    /// The run has gone on since this was read.
    pub fn stale(run: &RunId, next: u64, at: u64) -> Self {
        let message = format!(
            "run `{run}` has {next} records, and record {at} was to be the next: it has gone on elsewhere"
        );
        Self::of(StoreErrorKind::Stale, message)
    }

    /// The session was changed since it was read.
    pub fn session_changed(session: &SessionId) -> Self {
        Self::of(StoreErrorKind::Stale, format!("session `{session}` was changed by somebody else"))
    }

    /// Another decision about the same call was there first.
    pub fn decided(run: &RunId, path: &CallPath) -> Self {
        Self::of(
            StoreErrorKind::Decided,
            format!("call `{path}` of run `{run}` was decided otherwise before"),
        )
    }

    /// Which kind of error it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the run was taken over by somebody else.
    pub fn is_fenced(&self) -> bool {
        self.kind == StoreErrorKind::Fenced
    }

    /// Whether somebody else drives the run, now or since: trying again later may help.
    pub fn is_busy(&self) -> bool {
        match self.kind {
            StoreErrorKind::Leased | StoreErrorKind::Fenced | StoreErrorKind::Stale => true,
            StoreErrorKind::NoSuchRun
            | StoreErrorKind::Exists
            | StoreErrorKind::Decided
            | StoreErrorKind::Corrupt
            | StoreErrorKind::TooNew
            | StoreErrorKind::Disk
            | StoreErrorKind::Other => false,
        }
    }

    /// Keeps the error that caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// The kinds of errors that stores have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// There is no such run.
    NoSuchRun,
    /// There is one of that name already.
    Exists,
    /// Somebody else owns it.
    Leased,
    /// It was taken over: this owner's writes are refused.
    Fenced,
    /// It has gone on since it was read.
    Stale,
    /// Another decision was there first.
    Decided,
    /// What is stored is not what was written.
    Corrupt,
    /// It was written by a newer version.
    TooNew,
    /// The disk is full, cannot be written, or cannot be read.
    Disk,
    /// Anything else.
    Other,
}

/// Why a decision does not count. The paused run is as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// No such call waits.
    #[error("no call `{0}` waits for a decision")]
    NotPending(CallPath),
    /// The id stands for calls of several nested agents.
    #[error("several calls are called `{0}`; name the one with its path, such as `outer/{0}`")]
    Ambiguous(CallPath),
    /// It was waited for too long. The call is rejected when the run goes on.
    #[error("the request for a decision about call `{0}` has expired")]
    Expired(CallPath),
    /// The decision does not fit the call.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// The answer is not what the question asks for.
    #[error("the answer cannot be used: {0}")]
    Answer(String),
    /// The edited arguments are not a JSON object.
    #[error("the edited arguments cannot be used: {0}")]
    Arguments(String),
}

/// Why the text of a saved run cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// It cannot be read.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// It can be read and does not add up.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// An error's text as it may be kept and shown: it is for reading, and has no use for megabytes.
pub(crate) fn readable(mut text: String) -> String {
    const LONGEST: usize = 16 * 1024;
    if text.len() > LONGEST {
        let (whole, shown) = (text.len(), text.floor_char_boundary(LONGEST));
        text.truncate(shown);
        text.push_str(&format!(" [cut: {shown} of {whole} bytes are shown]"));
    }
    text
}
