//! Execution of one tool call: its actions in order, then a screenshot.

use std::sync::Arc;

use serde_json::json;
use windlass::core::item::{ContentPart, OpaqueItem, OutputContent};
use windlass::tool::{OutputPart, ReconcileOutcome};
use windlass::tool::{ToolContext, ToolError};

use crate::action::{ComputerAction, SafetyCheck};
use crate::action_executor::{ActionOutcome, execute_action};
use crate::computer::{ComputerError, Screenshot};
use crate::registry::{ComputerRegistry, RunComputer};

/// Executes the actions in order, then takes a screenshot.
pub(crate) async fn execute_call<C: Send + Sync + 'static>(
    station: &Arc<ComputerRegistry>,
    ctx: &ToolContext<C>,
    actions: &[ComputerAction],
    checks: &[SafetyCheck],
) -> Result<Vec<OutputPart>, ToolError> {
    let seat = station.acquire(ctx).await.map_err(|error| create_error(&error))?;
    station.count_actions(ctx, &seat, actions).await?;
    let (mut seen, mut said) = (None, Vec::new());
    for (place, action) in actions.iter().enumerate() {
        let done = match station.secrets.substitute_secrets(action, &*seat.computer).await {
            Ok(action) => execute_action(&seat.computer, &action, station.action_timeout).await,
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
    let screenshot = match seen {
        Some(screenshot) => screenshot,
        None => {
            match execute_action(&seat.computer, &ComputerAction::Screenshot, station.action_timeout).await {
                Ok(ActionOutcome::Screenshot(screenshot)) => screenshot,
                Ok(ActionOutcome::Performed | ActionOutcome::Text(_)) => {
                    return Err(ToolError::hidden("a screenshot shows nothing"));
                }
                Err(error) => {
                    return Err(failed_action_error(
                        station,
                        ctx,
                        &seat,
                        actions.len(),
                        &ComputerAction::Screenshot,
                        &error,
                    )
                    .await);
                }
            }
        }
    };
    seat.set_last_screenshot(&screenshot);
    said.extend(seat.computer.take_notices());
    let mut parts = Vec::new();
    if !said.is_empty() {
        parts.push(OutputPart(ContentPart::text(station.secrets.redact(said.join("\n")))));
    }
    parts.push(OutputPart(image_content(ctx, &screenshot).await?));
    if !checks.is_empty() {
        let carried = OpaqueItem { kind: "acknowledged_safety_checks".to_owned(), raw: json!(checks) };
        parts.push(OutputPart(ContentPart::Unknown(carried)));
    }
    Ok(parts)
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
    station: &ComputerRegistry,
    ctx: &ToolContext<C>,
    seat: &RunComputer,
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
    for note in seat.computer.take_notices() {
        text.push('\n');
        text.push_str(&note);
    }
    let text = station.secrets.redact(text);
    let last = match error.last_screenshot() {
        Some(last) => Some(last.clone()),
        // An unresponsive or closed computer is not asked for another screenshot.
        None if matches!(error, ComputerError::Unresponsive { .. } | ComputerError::Closed(_)) => {
            seat.last_screenshot()
        }
        None => {
            match execute_action(&seat.computer, &ComputerAction::Screenshot, station.action_timeout).await {
                Ok(ActionOutcome::Screenshot(screenshot)) => Some(screenshot),
                _ => seat.last_screenshot(),
            }
        }
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
    let Ok(ActionOutcome::Screenshot(screenshot)) =
        execute_action(&seat.computer, &ComputerAction::Screenshot, station.action_timeout).await
    else {
        return ReconcileOutcome::Unknown;
    };
    let Ok(picture) = image_content(ctx, &screenshot).await else { return ReconcileOutcome::Unknown };
    ReconcileOutcome::Executed(OutputContent::Parts(vec![ContentPart::text(OUTCOME_UNKNOWN), picture]))
}
