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

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use windlass::core::id::Timestamp;
    use windlass::fleet::{DecisionRequest, RunSubmission};

    use super::*;

    #[test]
    fn the_samples_of_the_guide_are_read() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/backends.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        let bodies = page.lines().filter_map(|line| line.split_once("--json '")?.1.strip_suffix('\''));
        let bodies: Vec<&str> = bodies.collect();
        let submission: RunSubmission = serde_json::from_str(bodies[0]).expect("it is a submission");
        assert_eq!(submission, RunSubmission::new("prod-invoice-17", "clerk", "Pay invoice 17."));
        let decision: DecisionRequest = serde_json::from_str(bodies[1]).expect("it is a decision");
        assert_eq!(decision.decided_by, "ann");
    }

    #[test]
    fn a_past_time_is_no_delay() {
        let at = |time| delay_until(NextWake::At { time: Timestamp(time) }, 1_000);
        assert_eq!(at(500), Some(std::time::Duration::ZERO));
        assert_eq!(at(1_250), Some(std::time::Duration::from_millis(250)));
        assert_eq!(delay_until(NextWake::AfterSignal, 1_000), None);
        assert_eq!(delay_until(NextWake::Never, 1_000), None);
    }
}
