//! Call statuses as they are shown to people.

use windlass::core::journal::CallStatus;

use crate::terminal::TextStyle;

/// The label of a call status. The live renderer and `windlass show` use the same labels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusLabel {
    /// Mark in front of the call.
    pub(crate) mark: &'static str,
    /// Style of the mark.
    pub(crate) style: TextStyle,
    /// Note after the call; empty if the mark is enough.
    pub(crate) note: &'static str,
}

impl StatusLabel {
    /// Returns the label of a status.
    pub(crate) fn for_status(status: &CallStatus) -> Self {
        let (mark, style, note) = match status {
            CallStatus::Succeeded => ("✓", TextStyle::Success, ""),
            CallStatus::Deduplicated => ("✓", TextStyle::Success, "done before, not done again"),
            CallStatus::Reconciled => ("✓", TextStyle::Success, "had happened already, not done again"),
            CallStatus::Failed => ("✗", TextStyle::Failure, "failed"),
            CallStatus::TimedOut => ("✗", TextStyle::Failure, "timed out"),
            CallStatus::TimedOutStillRunning => ("✗", TextStyle::Failure, "timed out, may still be running"),
            CallStatus::InvalidArguments => ("✗", TextStyle::Failure, "invalid arguments"),
            CallStatus::UnknownTool => ("✗", TextStyle::Failure, "unknown tool"),
            CallStatus::SurplusHandoff => ("–", TextStyle::Faint, "surplus handoff"),
            CallStatus::Rejected => ("✗", TextStyle::Waiting, "rejected"),
            CallStatus::BlockedByGuardrail => ("✗", TextStyle::Waiting, "blocked by a guardrail"),
            CallStatus::OutputWithheld => ("✗", TextStyle::Waiting, "done, its output is withheld"),
            CallStatus::Cancelled => ("■", TextStyle::Waiting, "cancelled"),
            CallStatus::OutcomeUnknown => ("?", TextStyle::Waiting, "outcome unknown"),
        };
        Self { mark, style, note }
    }
}
