//! The answers of the handlers, and delays.

use serde::{Deserialize, Serialize};
use windlass::core::id::AgentName;
use windlass::fleet::{NextWake, QueuedRun};

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
