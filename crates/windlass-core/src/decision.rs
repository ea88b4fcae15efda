//! Decisions about tool calls, made by a person or by a policy on a person's behalf.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::Digest;
use crate::id::{AgentName, CallId, CallPath, Timestamp};
use crate::item::OutputContent;
use crate::provenance::ContentSources;
use crate::tool::ToolKey;

/// A decision about a call that is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Approves the call with the model's arguments.
    Approve,
    /// Approves the call with edited arguments.
    ApproveEdited {
        /// The edited arguments as canonical JSON.
        arguments: String,
    },
    /// Rejects the call; the model receives the message as the call's output.
    Reject {
        /// The message for the model; a standard text if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// Resolves a call in doubt: it was executed and had this result.
    ConfirmExecuted {
        /// The result of the execution.
        output: OutputContent,
    },
    /// Resolves a call in doubt: it was not executed; the driver executes it again.
    ConfirmNotExecuted,
    /// Resolves a call in doubt: nobody knows whether it was executed; the model is told so.
    OutcomeUnknown,
    /// Answers the question that the call's body asked. The body runs again and receives the answer.
    Answer {
        /// The answer.
        value: Value,
    },
}

impl Decision {
    /// Returns a short description, for messages.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Approve => "an approval",
            Self::ApproveEdited { .. } => "an approval with edited arguments",
            Self::Reject { .. } => "a rejection",
            Self::ConfirmExecuted { .. } => "a confirmation that it was executed",
            Self::ConfirmNotExecuted => "a confirmation that it was not executed",
            Self::OutcomeUnknown => "a statement that its outcome is unknown",
            Self::Answer { .. } => "an answer",
        }
    }
}

/// The set of calls that a decision covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionScope {
    /// Only the call that the decision names.
    #[default]
    ThisCall,
    /// All calls of this tool by this agent in this run. An approval does not cover calls that require approval
    /// every time.
    ToolForRun,
}

/// The reason why a call is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HoldReason {
    /// The tool's approval policy requires a decision.
    Approval,
    /// The process ended after the call had started, and it is unknown whether the call took effect.
    InDoubt,
    /// The call's body asks a person a question.
    Question(PersonQuestion),
}

/// A question that a call's body asks a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonQuestion {
    /// The text of the question.
    pub text: String,
    /// JSON Schema that the answer must satisfy; any answer is accepted if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

impl PersonQuestion {
    /// Creates a question without an answer schema.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), schema: None }
    }

    /// Sets the JSON Schema that the answer must satisfy.
    #[must_use]
    pub fn with_schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }
}

/// A question and the person's answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweredQuestion {
    /// The question.
    pub question: PersonQuestion,
    /// The answer.
    pub answer: Value,
}

/// A call that is held for a person, with everything an approver is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingCall {
    /// The call's path through nested agents.
    pub path: CallPath,
    /// The agent that made the call.
    pub agent: AgentName,
    /// The tool's identity.
    pub tool: ToolKey,
    /// The arguments as the model wrote them or, for a call in doubt, as a person edited them.
    pub arguments: String,
    /// The reason why the call is held.
    pub reason: HoldReason,
    /// Number of times the call had started when it was held; 0 for an approval. A call can be held more than
    /// once, and the attempt tells the holds apart.
    pub attempt: u32,
    /// The digest that a decision must carry.
    pub digest: Digest,
    /// Time at which the hold expires and the call is rejected; never if absent.
    pub expires_at: Option<Timestamp>,
    /// The widest scope that an approval of this call may have: [`DecisionScope::ThisCall`] if the tool
    /// requires approval every time.
    pub max_approval_scope: DecisionScope,
    /// For a call in doubt, the last time at which the driver before the one that found it was seen, on that driver's clock. It
    /// started the call, or took the run over from the driver that did and found nothing out.
    pub last_driver_seen: Option<Timestamp>,
    /// Sources outside the conversation of the text that the model could read when it proposed the call.
    pub context_sources: ContentSources,
    /// The decision that was posted about this hold, if no driver has recorded it yet. It can be corrected.
    pub posted: Option<Box<PostedNote>>,
}

/// A decision that was posted and that no driver has recorded yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PostedNote {
    /// The decision.
    pub decision: Decision,
    /// Name of the person or policy that decided, if known.
    pub decided_by: Option<String>,
    /// Time at which it was posted, on the clock of whoever posted it.
    pub posted_at: Timestamp,
}

/// A call that a person has decided about and whose decision is not taken yet: it can be corrected.
#[derive(Clone, Debug, PartialEq)]
pub struct CorrectableCall {
    /// The call as it was pending.
    pub pending: PendingCall,
    /// The decision.
    pub decision: Decision,
    /// Name of the person or policy that decided, if known.
    pub decided_by: Option<String>,
    /// Highest revision among the posted decisions about this hold that were recorded; 0 if none was posted.
    pub posted_revision: u32,
}

/// The hold of a call that has neither started nor settled since, so that decisions about it are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntakenHold {
    /// Number of the hold: see [`PendingCall::attempt`].
    pub attempt: u32,
    /// Highest revision among the posted decisions about this hold that were recorded; 0 if none was posted.
    pub posted_revision: u32,
}

impl PendingCall {
    /// Returns the call's id.
    pub fn call(&self) -> &CallId {
        self.path.call()
    }

    /// Returns true if the hold has expired at time `now`.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires| expires <= now)
    }

    /// Returns the arguments as a JSON value, or `null` if they are not valid JSON.
    pub fn arguments_value(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_default()
    }
}

/// A decision that also covers later calls of the same tool by the same agent.
#[derive(Clone, Debug, PartialEq)]
pub struct StandingDecision {
    /// The calls that lead to the nested run in which the decision applies, outermost first; empty for the run
    /// that was queried.
    pub parent_calls: Vec<CallId>,
    /// The agent whose calls the decision covers.
    pub agent: AgentName,
    /// The tool whose calls the decision covers.
    pub tool: ToolKey,
    /// The verdict.
    pub verdict: StandingVerdict,
}

/// The verdict of a standing decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandingVerdict {
    /// Calls are approved.
    Approve,
    /// Calls are rejected.
    Reject {
        /// The message for the model; a standard text if absent.
        message: Option<String>,
    },
}
