//! The late end of a body that was given up on, which is recorded after its call has settled.
//!
//! Invariant: a late end is the only record that follows the end of a run, and it changes nothing but what is known.

use std::sync::Arc;

use windlass_core::{
    item::OutputContent,
    journal::{CallEndedLate, CallStatus, JournalEntry},
};

use super::running_body::{BodyJoinError, RunningBody, flatten_result, redact_error_text};
use crate::journal::RunJournal;
use crate::redaction::{OutputVisibility, REDACTED};
use crate::secret_mask::SecretMask;
use crate::tool::{BodyResult, Tool, ToolContext};

/// Records the end of a body that the driver no longer waits for: in the journal of the driver, or in the store if the run
/// has ended. A run that another driver may continue gets no entry from here.
pub(crate) fn record_late_end<C: Send + Sync + 'static>(
    running: RunningBody,
    journal: &Arc<RunJournal>,
    ctx: ToolContext<C>,
    tool: Arc<Tool<C>>,
    mask: SecretMask,
) {
    let ended_run = journal.ended_run();
    let journal = Arc::downgrade(journal);
    tokio::spawn(async move {
        let ended = running.await;
        let call = ctx.call_path();
        // That it was dropped does not tell how far it had come, so it is no end to record.
        let was_dropped = matches!(ended, Err(BodyJoinError::Dropped));
        let result = redact_late_result(flatten_result(ended), &tool, ctx.arguments(), &mask);
        match &result {
            Ok(_) => tracing::warn!(%call, "a body that was given up on has ended"),
            Err(error) => tracing::warn!(%call, %error, "a body that was given up on has failed"),
        }
        let (status, output) = match result {
            Ok(output) => (CallStatus::Succeeded, output),
            Err(error) => (CallStatus::Failed, error.into()),
        };
        // Nobody sees what the output guardrails have not.
        let output = tool.output_guardrails.is_empty().then_some(output);
        if was_dropped {
            return;
        }
        let ended = CallEndedLate { call: call.call().clone(), status, output };
        let entry = JournalEntry::CallEndedLate(ended);
        let written = match journal.upgrade() {
            Some(journal) => journal.append_late(call, &entry).await,
            None => None,
        };
        let written = match (written, ended_run) {
            (Some(written), _) => written,
            (None, Some(run)) => run.append_late(call, entry).await,
            (None, None) => Ok(()),
        };
        if let Err(error) = written {
            tracing::warn!(%call, %error, "its end could not be recorded");
        }
    });
}

/// Returns the result of a late end without secrets, and truncated like the call's output.
fn redact_late_result<C>(
    result: BodyResult,
    tool: &Tool<C>,
    arguments: &str,
    mask: &SecretMask,
) -> Result<OutputContent, String> {
    match result {
        Ok(_) if tool.output_visibility == OutputVisibility::Secret => Ok(REDACTED.into()),
        Ok(output) => {
            // A secret that was cut would not be found.
            let mut output = mask.mask_value(output);
            output.truncate_text(tool.max_output_bytes);
            Ok(output)
        }
        Err(error) => {
            let masked = mask.mask_text(error.message().to_owned());
            Err(redact_error_text(&masked, tool, arguments))
        }
    }
}
