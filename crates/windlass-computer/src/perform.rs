//! From an action to what a computer does.

use std::sync::Arc;
use std::time::Duration;

use crate::action::Action;
use crate::computer::{Computer, ComputerError, Screenshot, Travel};

/// What came of an action.
pub(crate) enum Done {
    Acted,
    Saw(Screenshot),
    Said(String),
}

/// Carries out one action, within its time.
pub(crate) async fn perform(
    computer: &Arc<dyn Computer>,
    action: &Action,
    within: Duration,
) -> Result<Done, ComputerError> {
    let waited = within + action.lasting();
    match tokio::time::timeout(waited, act(&**computer, action)).await {
        Ok(done) => done,
        Err(_) => Err(ComputerError::Hung { waited, last: None }),
    }
}

async fn act(computer: &dyn Computer, action: &Action) -> Result<Done, ComputerError> {
    match action {
        Action::Screenshot => return computer.screenshot().await.map(Done::Saw),
        Action::Zoom { region } => return computer.zoom(*region).await.map(Done::Saw),
        Action::Cursor => {
            let at = computer.cursor().await?;
            return Ok(Done::Said(format!("The pointer is at X={},Y={}.", at.x, at.y)));
        }
        Action::Tabs => {
            let lines = computer.tabs().await?.into_iter().enumerate().map(|(at, tab)| {
                let mark = if tab.is_current { "*" } else { " " };
                format!("{mark} {at}: {} {}", tab.url, tab.title)
            });
            return Ok(Done::Said(lines.collect::<Vec<_>>().join("\n")));
        }
        Action::Move { to, held } => computer.move_to(*to, held).await?,
        Action::Click { at, button, times, held } => computer.click(*at, *button, *times, held).await?,
        Action::Press { button } => computer.press(*button).await?,
        Action::Release { button } => computer.release(*button).await?,
        Action::Drag { path, held } => computer.drag(path, held).await?,
        Action::Scroll { at, right, down, held } => computer.scroll(*at, *right, *down, held).await?,
        Action::Type { text } => computer.type_text(text).await?,
        Action::Keys { chord, times } => {
            for _ in 0..*times {
                computer.keys(chord).await?;
            }
        }
        Action::Hold { chord, lasting } => computer.hold(chord, *lasting).await?,
        Action::Wait { lasting } => tokio::time::sleep(*lasting).await,
        Action::Navigate { url } => computer.navigate(url).await?,
        Action::Back => computer.travel(Travel::Back).await?,
        Action::Forward => computer.travel(Travel::Forward).await?,
        Action::Reload => computer.travel(Travel::Reload).await?,
        Action::SwitchTab { tab } => computer.switch_tab(*tab).await?,
        Action::CloseTab { tab } => computer.close_tab(*tab).await?,
        Action::AnswerDialog { answer, text } => computer.answer_dialog(*answer, text.as_deref()).await?,
    }
    Ok(Done::Acted)
}
