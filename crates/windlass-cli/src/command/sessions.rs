//! `windlass sessions`: lists, shows and rewinds sessions.

use serde_json::json;
use windlass::core::{
    id::SessionId,
    item::{Item, Role},
};

use crate::args::{CliArgs, SessionsArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::store_place::{list_sessions, session_in_store};
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled, summarize_arguments};
use windlass_text::SafeText;

pub(crate) async fn run(
    args: &CliArgs,
    asked: &SessionsArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing().await?;
    let sessions = list_sessions(&store).await?;
    let Some(named) = &asked.session else {
        if sessions.is_empty() && term.output_format() == OutputFormat::Text {
            term.eprint_line("no sessions; `windlass chat` starts one");
        }
        for id in sessions {
            let items = session_in_store(id.as_str(), &store)?.items().await?;
            match term.output_format() {
                OutputFormat::Json => term.print_json(&json!({ "session": id, "items": items.len() })),
                OutputFormat::Text => {
                    let last = items.iter().rev().find_map(|item| message_text(item)).unwrap_or_default();
                    let line = format!("{}  {} items  {last}", id, items.len());
                    term.print_line(SafeText::from_line(&line).truncate(term.width().saturating_sub(1)));
                }
            }
        }
        return Ok(CommandExit::Success);
    };
    let id = SessionId::from(named.as_str());
    if !sessions.contains(&id) {
        return Err(CliError::not_found(format!("there is no session `{named}`"))
            .with_hint("`windlass sessions` lists the sessions"));
    }
    let session = session_in_store(named, &store)?;
    if let Some(turns) = asked.rewind {
        let taken = session.rewind(turns).await?.len();
        match term.output_format() {
            OutputFormat::Json => term.print_json(&json!({ "session": named, "taken": taken })),
            OutputFormat::Text => term.print_line(format!(
                "{taken} items were removed from the session; the effects of tools are not undone"
            )),
        }
        return Ok(CommandExit::Success);
    }
    match term.output_format() {
        OutputFormat::Json => term.print_data(&session.export().await?),
        OutputFormat::Text => session.items().await?.iter().for_each(|item| print_item(term, item)),
    }
    Ok(CommandExit::Success)
}

fn print_item(term: &Terminal, item: &Item) {
    let room = term.width().saturating_sub(3);
    let line = |text: SafeText| vec![text.truncate(room)];
    let message = |text: String| SafeText::from_lines(text.trim_end());
    let (mark, style, lines) = match item {
        Item::Message(said) if said.role == Role::User => ("›", TextStyle::Hint, message(said.text())),
        Item::Message(said) => ("‹", TextStyle::Name, message(said.text())),
        Item::Call(call) => {
            let arguments = summarize_arguments(&call.arguments);
            let call = SafeText::from_line(&format!("{}  {arguments}", call.name));
            ("·", TextStyle::Faint, line(call))
        }
        Item::Output(output) => ("╰", TextStyle::Faint, line(SafeText::from_words(&output.content.text()))),
        _ => return,
    };
    for (place, text) in lines.into_iter().enumerate() {
        let mark = if place == 0 { mark } else { " " };
        term.print_line(styled![paint(style, mark), " ", text]);
    }
}

fn message_text(item: &Item) -> Option<SafeText> {
    match item {
        Item::Message(message) => Some(SafeText::from_words(&message.text())),
        _ => None,
    }
}
