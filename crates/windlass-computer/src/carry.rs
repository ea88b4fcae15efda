//! Carrying out a call: its actions in order, then a look.

use std::sync::Arc;

use serde_json::json;
use windlass::core::{Carried, Content, OutputContent};
use windlass::tool::{Part, Reconciled};
use windlass::{ToolContext, ToolError};

use crate::action::{Action, SafetyCheck};
use crate::computer::{ComputerError, Screenshot};
use crate::perform::{Done, perform};
use crate::station::{Seat, Station};

/// Does the actions in order, then looks.
pub(crate) async fn carry_out<C: Send + Sync + 'static>(
    station: &Arc<Station>,
    ctx: &ToolContext<C>,
    actions: &[Action],
    checks: &[SafetyCheck],
) -> Result<Vec<Part>, ToolError> {
    let seat = station.sit(ctx).await.map_err(|error| told(&error))?;
    station.count(ctx, &seat, actions).await?;
    let (mut seen, mut said) = (None, Vec::new());
    for (place, action) in actions.iter().enumerate() {
        let done = match station.secrets.put_into(action, &*seat.computer).await {
            Ok(action) => perform(&seat.computer, &action, station.within).await,
            Err(error) => Err(error),
        };
        seen = match done {
            Ok(Done::Acted) => None,
            Ok(Done::Saw(screenshot)) => Some(screenshot),
            Ok(Done::Said(text)) => {
                said.push(text);
                seen
            }
            Err(error) => return Err(failed_at(station, ctx, &seat, place, action, &error).await),
        };
    }
    let screenshot = match seen {
        Some(screenshot) => screenshot,
        None => match perform(&seat.computer, &Action::Screenshot, station.within).await {
            Ok(Done::Saw(screenshot)) => screenshot,
            Ok(Done::Acted | Done::Said(_)) => return Err(ToolError::hidden("a screenshot shows nothing")),
            Err(error) => {
                return Err(failed_at(station, ctx, &seat, actions.len(), &Action::Screenshot, &error).await);
            }
        },
    };
    seat.saw(&screenshot);
    said.extend(seat.computer.notes());
    let mut parts = Vec::new();
    if !said.is_empty() {
        parts.push(Part(Content::text(station.secrets.hidden(said.join("\n")))));
    }
    parts.push(Part(picture(ctx, &screenshot).await?));
    if !checks.is_empty() {
        let carried = Carried { kind: "acknowledged_safety_checks".to_owned(), raw: json!(checks) };
        parts.push(Part(Content::Unknown(carried)));
    }
    Ok(parts)
}

async fn picture<C: Send + Sync + 'static>(
    ctx: &ToolContext<C>,
    screenshot: &Screenshot,
) -> Result<Content, windlass::StoreError> {
    Ok(Content::Image(ctx.keep_media("image/png", screenshot.base64()).await?))
}

/// Says how far a call came, with the last picture that there is.
async fn failed_at<C: Send + Sync + 'static>(
    station: &Station,
    ctx: &ToolContext<C>,
    seat: &Seat,
    place: usize,
    action: &Action,
    error: &ComputerError,
) -> ToolError {
    let before = match place {
        0 => "nothing was done before it".to_owned(),
        place => format!("the {place} before it were done"),
    };
    let mut text =
        format!("`actions[{place}]` ({}) failed: {error}; {before}, none after it.", action.kind());
    for note in seat.computer.notes() {
        text.push('\n');
        text.push_str(&note);
    }
    let text = station.secrets.hidden(text);
    let last = match error.last() {
        Some(last) => Some(last.clone()),
        // Whoever does not answer need not be asked again.
        None if matches!(error, ComputerError::Hung { .. } | ComputerError::Gone(_)) => seat.last(),
        None => match perform(&seat.computer, &Action::Screenshot, station.within).await {
            Ok(Done::Saw(screenshot)) => Some(screenshot),
            _ => seat.last(),
        },
    };
    let failed = match error {
        // What is missing here is for whoever installs it.
        ComputerError::Missing { .. } => ToolError::hidden(text),
        _ => ToolError::tell(text),
    };
    match last {
        Some(last) => match picture(ctx, &last).await {
            Ok(picture) => failed.showing(picture),
            Err(_) => failed,
        },
        None => failed,
    }
}

fn told(error: &ComputerError) -> ToolError {
    ToolError::hidden(format!("no computer could be made: {error}"))
}

/// Of a call that a crash interrupted: nobody knows, but the screen can be looked at.
pub(crate) async fn show<C: Send + Sync + 'static>(
    station: &Arc<Station>,
    ctx: &ToolContext<C>,
) -> Reconciled {
    const NOBODY_KNOWS: &str = "The process ended in the middle of this call. It may have been done, in part or \
                                wholly, or not at all, and is not done again. This is the screen as it is now.";
    let Ok(seat) = station.sit(ctx).await else { return Reconciled::Unknown };
    let Ok(Done::Saw(screenshot)) = perform(&seat.computer, &Action::Screenshot, station.within).await else {
        return Reconciled::Unknown;
    };
    let Ok(picture) = picture(ctx, &screenshot).await else { return Reconciled::Unknown };
    Reconciled::Happened(OutputContent::Parts(vec![Content::text(NOBODY_KNOWS), picture]))
}
