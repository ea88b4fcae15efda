//! The bodies of requests and answers.

use serde::{Deserialize, Serialize};
use windlass::core::canonical::Digest;
use windlass::core::decision::{Decision, DecisionScope};
use windlass::core::id::{AgentName, CallPath};
use windlass::fleet::{NextWake, QueuedRun};

/// A decision about a call, for the handler `decide`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionRequest {
    /// The call.
    pub call: CallPath,
    /// The decision.
    pub decision: Decision,
    /// Calls that the decision covers.
    #[serde(default)]
    pub scope: DecisionScope,
    /// Name of the person or policy that decided.
    pub decided_by: String,
    /// Digest of the text that was displayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub displayed: Option<Digest>,
    /// Number of the hold that was displayed. A decision about another hold of the call is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

impl DecisionRequest {
    /// Creates a decision about one call, in the name of `decided_by`.
    pub fn new(call: impl Into<CallPath>, decision: Decision, decided_by: impl Into<String>) -> Self {
        Self {
            call: call.into(),
            decision,
            scope: DecisionScope::default(),
            decided_by: decided_by.into(),
            displayed: None,
            attempt: None,
        }
    }
}

/// The state of a run in the queue, as the handler `status` returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// Agent that started the run.
    pub agent: AgentName,
    /// State: see [`windlass::fleet::QueuedState::name`].
    pub state: String,
    /// Number of attempts since the run last made progress.
    pub attempt: u32,
    /// Reason of the last failure, if the run has failed since it last made progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<QueuedRun> for RunState {
    fn from(queued: QueuedRun) -> Self {
        Self {
            agent: queued.submission.agent,
            state: queued.state.name().to_owned(),
            attempt: queued.attempt,
            reason: queued.reason,
        }
    }
}

/// Returns the delay until the next segment at this time; `None` if the run is not woken by a time.
pub(crate) fn delay_until(wake: NextWake, now_millis: u64) -> Option<std::time::Duration> {
    match wake {
        NextWake::Now => Some(std::time::Duration::ZERO),
        NextWake::At { time } => Some(std::time::Duration::from_millis(time.0.saturating_sub(now_millis))),
        NextWake::AfterSignal | NextWake::Never => None,
    }
}
