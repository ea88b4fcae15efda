//! Execution of one tool call: its actions in order, then a screenshot.

use std::sync::Arc;

use serde_json::json;
use windlass::core::item::{ContentPart, OpaqueItem, OutputContent};
use windlass::tool::{OutputPart, ReconcileOutcome};
use windlass::tool::{ToolContext, ToolError};

use crate::action::{ComputerAction, SafetyCheck};
use crate::action_executor::{ActionOutcome, execute_action, within_time};
use crate::call_admission::JudgedCall;
use crate::computer::{ComputerError, Screenshot};
use crate::registry::{ComputerRegistry, RunComputer};

/// Executes the actions in order, then takes a screenshot.
pub(crate) async fn execute_call<C: Send + Sync + 'static>(
    station: &Arc<ComputerRegistry>,
    ctx: &ToolContext<C>,
    actions: &[ComputerAction],
    checks: &[SafetyCheck],
) -> Result<Vec<OutputPart>, ToolError> {
    let judged = station.judged_calls.take(ctx.run_context().run_id(), ctx.call_path());
    let seat = station.acquire(ctx).await.map_err(|error| create_error(&error))?;
    station.count_actions(ctx, &seat, actions).await?;
    let (mut seen, mut said) = (None, Vec::new());
    for (place, action) in actions.iter().enumerate() {
        let done = match check_target(judged.as_ref(), &seat, place, action).await {
            Ok(()) => perform_action(station, &seat, action).await,
            Err(error) => Err(error),
        };
        seen = match done {
            Ok(ActionOutcome::Performed) => None,
            Ok(ActionOutcome::Screenshot(screenshot)) => Some(screenshot),
            Ok(ActionOutcome::Text(text)) => {
                said.push(text);
                seen
            }
            Err(error) => return Err(failed_action_error(station, ctx, &seat, place, action, &error).await),
        };
    }
    let timeout = station.settings.action_timeout;
    let screenshot = match seen {
        Some(screenshot) => screenshot,
        None => match execute_action(&seat.computer, &ComputerAction::Screenshot, timeout).await {
            Ok(ActionOutcome::Screenshot(screenshot)) => screenshot,
            Ok(ActionOutcome::Performed | ActionOutcome::Text(_)) => {
                return Err(ToolError::hidden("a screenshot shows nothing"));
            }
            Err(error) => {
                let (place, action) = (actions.len(), &ComputerAction::Screenshot);
                return Err(failed_action_error(station, ctx, &seat, place, action, &error).await);
            }
        },
    };
    seat.set_last_screenshot(&screenshot);
    said.extend(seat.take_notices());
    let mut parts = Vec::new();
    if !said.is_empty() {
        parts.push(OutputPart(ContentPart::text(station.settings.secrets.redact(said.join("\n")))));
    }
    parts.push(OutputPart(image_content(ctx, &screenshot).await?));
    if !checks.is_empty() {
        let carried = OpaqueItem::new("acknowledged_safety_checks", json!(checks));
        parts.push(OutputPart(ContentPart::Unknown(carried)));
    }
    Ok(parts)
}

/// Checks that an action would hit the element that somebody decided about.
async fn check_target(
    judged: Option<&JudgedCall>,
    seat: &RunComputer,
    place: usize,
    action: &ComputerAction,
) -> Result<(), ComputerError> {
    let Some(evidence) = judged.and_then(JudgedCall::binding_evidence) else { return Ok(()) };
    if action.is_read_only() {
        return Ok(());
    }
    match evidence.action_difference(&seat.computer, place).await? {
        None => Ok(()),
        Some(difference) => Err(ComputerError::Refused(format!(
            "the screen is not the one that this call was decided for: {difference}"
        ))),
    }
}

async fn perform_action(
    station: &ComputerRegistry,
    seat: &RunComputer,
    action: &ComputerAction,
) -> Result<ActionOutcome, ComputerError> {
    let (secrets, timeout) = (&station.settings.secrets, station.settings.action_timeout);
    if !secrets.has_secret(action) {
        return execute_action(&seat.computer, action, timeout).await;
    }
    let typed = within_time(timeout, secrets.type_with_secrets(action, &*seat.computer)).await;
    typed.map(|()| ActionOutcome::Performed)
}

async fn image_content<C: Send + Sync + 'static>(
    ctx: &ToolContext<C>,
    screenshot: &Screenshot,
) -> Result<ContentPart, windlass::error::StoreError> {
    Ok(ContentPart::Image(ctx.save_media("image/png", screenshot.as_base64()).await?))
}

/// Builds the error of a failed action: the number of actions completed before it, and the last screenshot if
/// there is one.
async fn failed_action_error<C: Send + Sync + 'static>(
    station: &Arc<ComputerRegistry>,
    ctx: &ToolContext<C>,
    seat: &Arc<RunComputer>,
    place: usize,
    action: &ComputerAction,
    error: &ComputerError,
) -> ToolError {
    let before = match place {
        0 => "nothing was done before it".to_owned(),
        place => format!("the {place} before it were done"),
    };
    let mut text =
        format!("`actions[{place}]` ({}) failed: {error}; {before}, none after it.", action.kind());
    // A computer that ended is replaced at once, so that the model sees where it is.
    let seat = match seat.computer.is_closed() {
        true => station.acquire(ctx).await.unwrap_or_else(|_| seat.clone()),
        false => seat.clone(),
    };
    for note in seat.take_notices() {
        text.push('\n');
        text.push_str(&note);
    }
    let text = station.settings.secrets.redact(text);
    let last = match error.last_screenshot() {
        Some(last) => Some(last.clone()),
        // An unresponsive computer is not asked for another screenshot.
        None if matches!(error, ComputerError::Unresponsive { .. }) => seat.last_screenshot(),
        None if seat.computer.is_closed() => seat.last_screenshot(),
        None => match station.take_screenshot(&seat).await {
            Some(screenshot) => {
                seat.set_last_screenshot(&screenshot);
                Some(screenshot)
            }
            None => seat.last_screenshot(),
        },
    };
    let failed = match error {
        // A missing dependency concerns the operator, not the model.
        ComputerError::Missing { .. } => ToolError::hidden(text),
        _ => ToolError::visible(text),
    };
    match last {
        Some(last) => match image_content(ctx, &last).await {
            Ok(picture) => failed.with_attachments(picture),
            Err(_) => failed,
        },
        None => failed,
    }
}

fn create_error(error: &ComputerError) -> ToolError {
    ToolError::hidden(format!("the computer could not be created: {error}"))
}

/// Reconciles a call that a crash interrupted: its outcome is unknown, so the model gets the current screen.
pub(crate) async fn reconcile_with_screenshot<C: Send + Sync + 'static>(
    station: &Arc<ComputerRegistry>,
    ctx: &ToolContext<C>,
) -> ReconcileOutcome {
    const OUTCOME_UNKNOWN: &str = "The process ended in the middle of this call. It may have been done, in part or \
                                wholly, or not at all, and is not done again. This is the screen as it is now.";
    let Ok(seat) = station.acquire(ctx).await else { return ReconcileOutcome::Unknown };
    let Some(screenshot) = station.take_screenshot(&seat).await else { return ReconcileOutcome::Unknown };
    let Ok(picture) = image_content(ctx, &screenshot).await else { return ReconcileOutcome::Unknown };
    let mut text = vec![OUTCOME_UNKNOWN.to_owned()];
    text.extend(seat.take_notices());
    let text = station.settings.secrets.redact(text.join("\n"));
    ReconcileOutcome::Executed(OutputContent::Parts(vec![ContentPart::text(text), picture]))
}
