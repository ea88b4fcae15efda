//! Journal entries: everything that happened to a run, in order. The run's state is what they add up to.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::decision::{Decision, HoldReason, Question, Reach};
use crate::failure::Failure;
use crate::id::{AgentName, CallId, RunId, SessionId, Timestamp};
use crate::item::{Item, OutputContent};
use crate::plan::Planned;
use crate::tool::ToolKey;
use crate::usage::Usage;

/// An entry with its place in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its number, from 0, without gaps.
    pub seq: u64,
    /// When it was written.
    pub at: Timestamp,
    /// The calls that lead to the nested agent it belongs to; empty for the run itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<CallId>,
    /// What happened.
    pub entry: Entry,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Entry {
    /// The run began.
    Started(Box<Started>),
    /// The model answered, and its calls were planned.
    Answered(Box<Answered>),
    /// The model answered with something that cannot be carried out. None of it ran.
    AnswerRefused(AnswerRefused),
    /// A request to the model failed.
    ModelFailed(ModelFailed),
    /// A call waits for a person.
    Held(Held),
    /// Somebody decided about a call.
    Decided(Decided),
    /// A decision for good was taken back.
    Revoked(Revoked),
    /// The body of a call is about to start. Durable before it does.
    CallStarted(CallStarted),
    /// A call has its output. Exactly one for every call.
    CallSettled(CallSettled),
    /// A body that was given up on ended after all.
    CallEndedLate(CallEndedLate),
    /// Control passed to another agent.
    HandedOff(HandedOff),
    /// A tool's results were judged not to be final.
    WentOn,
    /// More input came while the run was under way.
    InputAdded(InputAdded),
    /// The run ended with an output.
    Finished(Finished),
    /// The run ended with an error.
    Failed(Failed),
    /// The run was cancelled.
    Cancelled(Cancelled),
}

impl Entry {
    /// What it says that the model cost.
    pub fn cost(&self) -> Usage {
        match self {
            Self::Answered(answered) => answered.usage,
            Self::AnswerRefused(refused) => refused.usage,
            Self::ModelFailed(failed) => failed.cost(),
            _ => Usage::default(),
        }
    }
}

/// The run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The run's id.
    pub run: RunId,
    /// The agent that begins.
    pub agent: AgentName,
    /// What the session held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Arc<Item>>,
    /// What the run was given.
    pub input: Vec<Arc<Item>>,
    /// How many turns it may take; no limit where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// The session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Where it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// The place in another run that a fork begins at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The other run.
    pub run: RunId,
    /// The record of it at which the fork was made.
    pub seq: u64,
    /// The calls whose bodies had started there and had not ended, and the run by whose name the world knows each:
    /// a fork goes on with them under the keys that they had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub under_way: BTreeMap<CallId, RunId>,
}

/// The model answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// The agent whose model it was.
    pub agent: AgentName,
    /// What it said.
    pub items: Vec<Arc<Item>>,
    /// Its calls, planned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Planned>,
    /// How many calls were left out, because they repeat calls that have their output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u32,
    /// What the turn's results mean for the run.
    #[serde(default, skip_serializing_if = "AfterTools::is_run_again")]
    pub after: AfterTools,
    /// What it cost.
    pub usage: Usage,
    /// The provider's id of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_id: Option<String>,
    /// The provider's id of the request, for asking the provider about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The model that answered, as the provider names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// What a turn's results mean for the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterTools {
    /// The model is asked again.
    #[default]
    RunAgain,
    /// The first tool's output is the run's.
    StopOnFirst,
    /// The output of the first of these tools is the run's.
    StopAt(Vec<String>),
    /// The application's function says.
    Ask,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

impl AfterTools {
    fn is_run_again(&self) -> bool {
        matches!(self, Self::RunAgain)
    }
}

/// The model answered with something that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnswerRefused {
    /// The agent whose model it was.
    pub agent: AgentName,
    /// What it said.
    pub items: Vec<Arc<Item>>,
    /// What it cost.
    pub usage: Usage,
}

/// A request to the model failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFailed {
    /// The agent whose model it was.
    pub agent: AgentName,
    /// What went wrong.
    pub error: String,
    /// After how many milliseconds it is tried again; absent where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What it cost, where the provider said so though it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

impl ModelFailed {
    /// What it cost: a request, and whatever else is known.
    pub fn cost(&self) -> Usage {
        self.usage.unwrap_or_else(Usage::unknown)
    }
}

/// A call waits for a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Which call.
    pub call: CallId,
    /// Why.
    pub reason: HoldReason,
    /// When the wait ends by itself, with a rejection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

impl Held {
    /// A call whose body asks.
    pub fn for_answer(call: CallId, question: Question) -> Self {
        Self { call, reason: HoldReason::Question(question), expires: None }
    }
}

/// Somebody decided about a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// Which call.
    pub call: CallId,
    /// What was shown: the decision covers nothing else.
    pub digest: Digest,
    /// What was said.
    pub decision: Decision,
    /// How far it reaches.
    #[serde(default)]
    pub reach: Reach,
    /// Who said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Decided {
    /// Whether both say the same about the same, whoever said it.
    pub fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest && self.decision == other.decision && self.reach == other.reach
    }
}

/// A decision for good was taken back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revoked {
    /// The agent whose calls it covered.
    pub agent: AgentName,
    /// The tool.
    pub tool: ToolKey,
}

/// The body of a call is about to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallStarted {
    /// Which call.
    pub call: CallId,
    /// Which attempt, from 1.
    pub attempt: u32,
}

/// A call has its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallSettled {
    /// Which call.
    pub call: CallId,
    /// How it came about.
    pub how: How,
    /// What the model is told.
    pub output: OutputContent,
    /// Whether this is what ends the run.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ends_run: bool,
}

impl CallSettled {
    /// A settlement that the run survives.
    pub fn new(call: CallId, how: How, output: impl Into<OutputContent>) -> Self {
        Self { call, how, output: output.into(), ends_run: false }
    }
}

/// How a call came to its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Its body ran and gave it.
    Succeeded,
    /// Its body failed.
    Failed,
    /// Its body took too long and was stopped.
    TimedOut,
    /// Its body took too long and could not be stopped: it may still take effect.
    LeftRunning,
    /// Its arguments could not be used.
    Invalid,
    /// There is no such tool.
    Missing,
    /// It was one handoff too many.
    Ignored,
    /// A person said no.
    Rejected,
    /// A guardrail said no, before the body or of its output.
    Guarded,
    /// An identical call of an idempotent tool had given it already.
    Receipt,
    /// The run was cancelled, or ended, before it finished.
    Cancelled,
    /// It was in doubt, and a person said what happened.
    Reconciled,
    /// It was in doubt, and nobody knows.
    Unknown,
}

impl How {
    /// Whether the call did what was asked.
    pub fn is_success(&self) -> bool {
        match self {
            Self::Succeeded | Self::Receipt | Self::Reconciled => true,
            Self::Failed
            | Self::TimedOut
            | Self::LeftRunning
            | Self::Invalid
            | Self::Missing
            | Self::Ignored
            | Self::Rejected
            | Self::Guarded
            | Self::Cancelled
            | Self::Unknown => false,
        }
    }
}

/// A body that was given up on ended after all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallEndedLate {
    /// Which call.
    pub call: CallId,
    /// What it gave, or its error.
    pub result: Result<OutputContent, String>,
}

/// Control passed to another agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandedOff {
    /// The call that asked for it.
    pub call: CallId,
    /// The agent that goes on.
    pub to: AgentName,
    /// What the new agent sees of the history before this turn, where a filter changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<Arc<Item>>>,
}

/// More input came while the run was under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputAdded {
    /// The input.
    pub items: Vec<Arc<Item>>,
}

/// The run ended with an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The output: text, or the JSON text of a typed output.
    pub output: String,
    /// A message to add to the history, where a handler made the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<Item>>,
}

/// The run ended with an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// What went wrong.
    pub failure: Failure,
}

/// The run was cancelled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Calls whose bodies were still running when the wait for them ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draining: Vec<CallId>,
}
