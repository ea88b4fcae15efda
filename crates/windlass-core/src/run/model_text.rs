//! Texts that the model receives as the output of calls whose body produced none, and the note on edited arguments.

use crate::item::{ContentPart, OutputContent};

/// Start and end of the note on edited arguments. The arguments are one line of JSON, so the end is unambiguous.
const EDIT_NOTE: [&str; 2] = ["[A person changed the arguments of this call to ", " before it ran.]"];

/// Output of a call that was rejected.
pub const REJECTED: &str = "Tool execution was not approved.";
/// Output of a second handoff in one response.
pub const SURPLUS_HANDOFF: &str = "Multiple handoffs detected, ignoring this one.";
/// Output of a call whose predecessor was not successful.
pub const PREDECESSOR_FAILED: &str = "Not executed: an earlier action in this turn failed.";
/// Output of a call that was not executed beside an earlier one whose body outlived its deadline.
pub const EARLIER_CALL_RUNS: &str =
    "Not executed: an earlier call exceeded its time limit and still runs. Try again when it has ended.";
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
/// Output of a call that failed and ended its run, and whose tool has output guardrails: they do not run any more.
pub const ERROR_NOT_CHECKED: &str = "The call failed and ended the run. Its error was withheld, because the checks of \
    it did not run. Do not repeat it without checking whether it took effect.";
/// Output of a call in doubt whose outcome is unknown.
pub const OUTCOME_UNKNOWN: &str =
    "It is not known whether this call took effect. Do not repeat it without checking.";
/// Output of a call whose approval request expired.
pub const APPROVAL_EXPIRED: &str = "Tool execution was not approved: the request for approval expired.";
/// Start of the output of a failed call.
pub const TOOL_FAILED: &str = "An error occurred while running the tool. Please try again.";
/// Start of the output of a call whose body ended without a result and may have taken effect.
pub const EFFECT_UNKNOWN: &str = "The call ended without a result, and it is not known whether it took effect. Do not repeat it without checking.";

/// Start of the message that asks the model to correct its final output.
pub const OUTPUT_NOT_VALID: &str =
    "Your answer does not match the required JSON Schema. Answer again with the JSON alone. Problem:";

/// Note on an output whose secrets were not kept.
pub(super) const SECRETS_LOST_NOTE: &str =
    "[The call was executed. The secret parts of its output were not kept and are not available any more.]";

/// Returns a redacted output with a note that its secrets were not kept, so that nobody repeats the call to see them.
pub fn with_secrets_lost(mut output: OutputContent) -> OutputContent {
    output.push_line(SECRETS_LOST_NOTE);
    output
}

/// Returns the output of a failed call: the start, with the detail that the model may see.
pub fn with_detail(start: &str, detail: Option<&str>) -> String {
    match detail {
        Some(detail) => format!("{start} Error: {}", truncate_detail(detail)),
        None => start.to_owned(),
    }
}

/// Truncates a detail for the model.
pub fn truncate_detail(detail: &str) -> &str {
    const MAX_DETAIL_BYTES: usize = 4096;
    &detail[..detail.floor_char_boundary(MAX_DETAIL_BYTES)]
}

/// Returns an output with a note that a person changed the arguments of its call to `arguments`.
pub fn with_edit_note(arguments: &str, output: OutputContent) -> OutputContent {
    let note = format!("{}{arguments}{}", EDIT_NOTE[0], EDIT_NOTE[1]);
    match output {
        OutputContent::Text(text) => OutputContent::Text(format!("{note}\n{text}")),
        OutputContent::Parts(mut parts) => {
            parts.insert(0, ContentPart::text(note));
            OutputContent::Parts(parts)
        }
    }
}

/// Returns an output without the note of [`with_edit_note`], for calls with the same arguments that nobody changed.
pub(crate) fn without_edit_note(output: &OutputContent) -> OutputContent {
    let is_note = |text: &str| text.starts_with(EDIT_NOTE[0]) && text.ends_with(EDIT_NOTE[1]);
    match output {
        OutputContent::Text(text) => match text.split_once('\n') {
            Some((note, rest)) if is_note(note) => OutputContent::Text(rest.to_owned()),
            _ => output.clone(),
        },
        OutputContent::Parts(parts) => match parts.split_first() {
            Some((ContentPart::Text { text, .. }, rest)) if is_note(text) => {
                OutputContent::Parts(rest.to_vec())
            }
            _ => output.clone(),
        },
    }
}
