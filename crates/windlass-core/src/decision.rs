//! Decisions: what a person, or a policy in their place, says about a call.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::Digest;
use crate::id::{AgentName, CallId, CallPath, Timestamp};
use crate::item::OutputContent;
use crate::tool::ToolKey;

/// What is said about a call that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It may run.
    Approve,
    /// It may run with these arguments instead.
    ApproveEdited {
        /// The arguments, canonical.
        arguments: String,
    },
    /// It may not run, and the model is told this.
    Reject {
        /// What the model is told; without it, a standard text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// Of a call in doubt: it happened, with this result.
    Happened {
        /// The result.
        output: OutputContent,
    },
    /// Of a call in doubt: it did not happen; run it.
    DidNotHappen,
    /// Of a call in doubt: nobody knows; tell the model so.
    Unknown,
    /// Of a call that asks: the answer. Its body runs again, and finds it.
    Answer {
        /// The answer.
        value: Value,
    },
}

/// How far a decision reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// This call alone.
    #[default]
    Call,
    /// Every call of this tool by this agent, in this run. An approval leaves out those that are to be decided
    /// about each time.
    Always,
}

/// Why a call waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HoldReason {
    /// The tool asks for approval.
    Approval,
    /// It had started when a process ended, and nobody knows whether it took effect.
    InDoubt,
    /// Its body needs to know something before it can go on.
    Question(Question),
}

/// What the body of a call asks a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The question, in words.
    pub text: String,
    /// The JSON Schema that an answer must fit; any answer does where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

impl Question {
    /// A question in words alone.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), schema: None }
    }

    /// Says what an answer must look like.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(schema);
        self
    }
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What was asked.
    pub question: Question,
    /// What was answered.
    pub answer: Value,
}

/// A call that waits for a person, as it is shown to one.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// Where it stands among nested agents.
    pub path: CallPath,
    /// The agent that made it.
    pub agent: AgentName,
    /// The tool's identity.
    pub tool: ToolKey,
    /// The arguments: as the model wrote them or, of a call in doubt, as a person had changed them.
    pub arguments: String,
    /// Why it waits.
    pub reason: HoldReason,
    /// How often it had started when it was held: none for an approval. A call may be asked about more than
    /// once, and each question has its own number.
    pub attempt: u32,
    /// What a decision will be bound to.
    pub digest: Digest,
    /// When the wait ends by itself, with a rejection.
    pub expires: Option<Timestamp>,
    /// How far an approval of it may reach: not beyond the call where a person is to decide about each.
    pub reach: Reach,
}

impl Pending {
    /// The call's own id.
    pub fn call(&self) -> &CallId {
        self.path.call()
    }

    /// Whether the wait has ended by itself.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// The arguments as a value; `null` where they are not JSON.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_default()
    }
}

/// A decision that covers later calls too.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The calls that lead to the run in which it stands; empty for the run that was asked.
    pub within: Vec<CallId>,
    /// The agent whose calls it covers.
    pub agent: AgentName,
    /// The tool.
    pub tool: ToolKey,
    /// What was said.
    pub verdict: StandingVerdict,
}

/// What a standing decision says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandingVerdict {
    /// Calls may run.
    Approve,
    /// Calls may not run.
    Reject {
        /// What the model is told.
        message: Option<String>,
    },
}
