//! What the model is told where no body speaks for itself.

/// A call that a person said no to.
pub const REJECTED: &str = "Tool execution was not approved.";
/// A second handoff in one answer.
pub const EXTRA_HANDOFF: &str = "Multiple handoffs detected, ignoring this one.";
/// A call that was to follow one that was not done.
pub const BROKEN_OFF: &str = "Not executed: an earlier action in this turn failed.";
/// A call whose run ended before it did.
pub const CANCELLED: &str = "The call was stopped before it finished.";
/// An output that a guardrail of the run's output refused.
pub const WITHHELD: &str = "Output withheld by an output guardrail.";
/// A call of which nobody knows whether it took effect.
pub const UNKNOWN: &str = "It is not known whether this call took effect. Do not repeat it without checking.";
/// A call whose approval ran out.
pub const EXPIRED: &str = "Tool execution was not approved: the request for approval expired.";
/// The beginning of what the model is told of a failed call.
pub const FAILED: &str = "An error occurred while running the tool. Please try again.";
