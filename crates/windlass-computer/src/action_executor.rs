//! Dispatch of one action to the operations of a [`Computer`].

use std::sync::Arc;
use std::time::Duration;

use crate::action::ComputerAction;
use crate::computer::{Computer, ComputerError, HistoryNavigation, Screenshot};

/// The outcome of one action.
pub(crate) enum ActionOutcome {
    Performed,
    Screenshot(Screenshot),
    Text(String),
}

/// Executes one action; its timeout is `within` plus the action's own duration.
pub(crate) async fn execute_action(
    computer: &Arc<dyn Computer>,
    action: &ComputerAction,
    within: Duration,
) -> Result<ActionOutcome, ComputerError> {
    within_time(within + action.requested_duration(), dispatch_action(&**computer, action)).await
}

/// Awaits an operation; one that takes too long is an error.
pub(crate) async fn within_time<T>(
    waited: Duration,
    operation: impl Future<Output = Result<T, ComputerError>>,
) -> Result<T, ComputerError> {
    match tokio::time::timeout(waited, operation).await {
        Ok(done) => done,
        Err(_) => Err(ComputerError::Unresponsive { waited, last_screenshot: None }),
    }
}

async fn dispatch_action(
    computer: &dyn Computer,
    action: &ComputerAction,
) -> Result<ActionOutcome, ComputerError> {
    match action {
        ComputerAction::Screenshot => return computer.screenshot().await.map(ActionOutcome::Screenshot),
        ComputerAction::Zoom { region } => {
            return computer.zoom(*region).await.map(ActionOutcome::Screenshot);
        }
        ComputerAction::CursorPosition => {
            let at = computer.cursor_position().await?;
            return Ok(ActionOutcome::Text(format!("The pointer is at X={},Y={}.", at.x, at.y)));
        }
        ComputerAction::ListTabs => {
            let lines = computer.list_tabs().await?.into_iter().enumerate().map(|(at, tab)| {
                let mark = if tab.is_current { "*" } else { " " };
                format!("{mark} {at}: {} {}", tab.url, tab.title)
            });
            return Ok(ActionOutcome::Text(lines.collect::<Vec<_>>().join("\n")));
        }
        ComputerAction::ReadPage { reading } => {
            return computer.read_page(reading).await.map(ActionOutcome::Text);
        }
        ComputerAction::FindElements { query } => {
            return computer.find_elements(query).await.map(ActionOutcome::Text);
        }
        ComputerAction::Move { to, held_keys: held } => computer.move_to(*to, held).await?,
        ComputerAction::Click { at, button, times, held_keys: held } => {
            computer.click(*at, *button, *times, held).await?
        }
        ComputerAction::MouseDown { button } => computer.mouse_down(*button).await?,
        ComputerAction::MouseUp { button } => computer.mouse_up(*button).await?,
        ComputerAction::Drag { path, held_keys: held } => computer.drag(path, held).await?,
        ComputerAction::Scroll { at, delta_x: right, delta_y: down, held_keys: held } => {
            computer.scroll(*at, *right, *down, held).await?
        }
        ComputerAction::TypeText { text } => computer.type_text(text).await?,
        ComputerAction::PressKeys { chord, times } => {
            for _ in 0..*times {
                computer.press_keys(chord).await?;
            }
        }
        ComputerAction::HoldKeys { chord, duration: lasting } => computer.hold_keys(chord, *lasting).await?,
        ComputerAction::Wait { duration: lasting } => tokio::time::sleep(*lasting).await,
        ComputerAction::Navigate { url } => computer.navigate(url).await?,
        ComputerAction::Back => computer.navigate_history(HistoryNavigation::Back).await?,
        ComputerAction::Forward => computer.navigate_history(HistoryNavigation::Forward).await?,
        ComputerAction::Reload => computer.navigate_history(HistoryNavigation::Reload).await?,
        ComputerAction::SwitchTab { tab } => computer.switch_tab(*tab).await?,
        ComputerAction::CloseTab { tab } => computer.close_tab(*tab).await?,
        ComputerAction::AnswerDialog { answer, text } => {
            computer.answer_dialog(*answer, text.as_deref()).await?
        }
        ComputerAction::UploadFiles { field, files } => {
            computer.upload_files(field.as_deref(), files).await?
        }
        ComputerAction::FillField { field, value } => computer.fill_field(field, value, &[]).await?,
        ComputerAction::NewTab => computer.open_tab().await?,
        ComputerAction::ClickElement { element, button, times, held_keys } => {
            computer.click_element(element, *button, *times, held_keys).await?
        }
        ComputerAction::HoverElement { element } => computer.hover_element(element).await?,
        ComputerAction::ScrollToElement { element } => computer.scroll_to_element(element).await?,
    }
    Ok(ActionOutcome::Performed)
}
