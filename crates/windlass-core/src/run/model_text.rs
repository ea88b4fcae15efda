//! Texts that the model receives as the output of calls whose body produced none.

/// Output of a call that was rejected.
pub const REJECTED: &str = "Tool execution was not approved.";
/// Output of a second handoff in one response.
pub const SURPLUS_HANDOFF: &str = "Multiple handoffs detected, ignoring this one.";
/// Output of a call whose predecessor was not successful.
pub const PREDECESSOR_FAILED: &str = "Not executed: an earlier action in this turn failed.";
/// Output of a call whose run ended before it finished.
pub const CANCELLED: &str = "The call was stopped before it finished.";
/// Replacement for an output that an output guardrail of the run blocked.
pub const OUTPUT_WITHHELD: &str = "Output withheld by an output guardrail.";
/// Output of a call that was executed and whose output an output guardrail blocked by failing the run.
pub const OUTPUT_BLOCKED: &str = "The call was executed. Its output was withheld by an output guardrail.";
/// Output of a call that was executed and whose run ended before its output guardrails had finished.
pub const OUTPUT_NOT_CHECKED: &str =
    "The call was executed. Its output was withheld, because the checks of it did not finish.";
/// Output of a call that was executed and whose withheld output could not be read again.
pub const OUTPUT_LOST: &str = "The call was executed. Its output was not kept.";
/// Output of a call in doubt whose outcome is unknown.
pub const OUTCOME_UNKNOWN: &str =
    "It is not known whether this call took effect. Do not repeat it without checking.";
/// Output of a call whose approval request expired.
pub const APPROVAL_EXPIRED: &str = "Tool execution was not approved: the request for approval expired.";
/// Start of the output of a failed call.
pub const TOOL_FAILED: &str = "An error occurred while running the tool. Please try again.";
