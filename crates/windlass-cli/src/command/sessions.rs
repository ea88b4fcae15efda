//! `windlass sessions`: lists, shows and rewinds sessions.

use serde_json::json;
use windlass::core::{
    id::SessionId,
    item::{Item, Role},
};
use windlass::session::Session;
use windlass::session::SessionStore;

use crate::args::{CliArgs, SessionsArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::CliProject;
use crate::terminal::{OutputFormat, Terminal, TextStyle, format_arguments, to_one_line, truncate_to_width};

pub(crate) async fn run(
    args: &CliArgs,
    asked: &SessionsArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let store = CliProject::from_args(args)?.open_existing()?;
    let sessions = store.list_sessions().await?;
    let Some(named) = &asked.session else {
        if sessions.is_empty() && term.output_format() == OutputFormat::Text {
            term.eprint_line("no sessions; `windlass chat` starts one");
        }
        for id in sessions {
            let items = Session::new(id.clone(), store.clone()).items().await?;
            match term.output_format() {
                OutputFormat::Json => term.print_json(&json!({ "session": id, "items": items.len() })),
                OutputFormat::Text => {
                    let last = items.iter().rev().find_map(|item| message_text(item)).unwrap_or_default();
                    let line = format!("{}  {} items  {last}", id, items.len());
                    term.print_line(truncate_to_width(&line, term.width().saturating_sub(1)));
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
    let session = Session::new(id, store);
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
        OutputFormat::Json => term.print_text(&session.export().await?),
        OutputFormat::Text => session.items().await?.iter().for_each(|item| print_item(term, item)),
    }
    Ok(CommandExit::Success)
}

fn print_item(term: &Terminal, item: &Item) {
    let (mark, paint, text) = match item {
        Item::Message(message) if message.role == Role::User => ("›", TextStyle::Hint, message.text()),
        Item::Message(message) => ("‹", TextStyle::Name, message.text()),
        Item::Call(call) => {
            ("·", TextStyle::Faint, format!("{}  {}", call.name, format_arguments(&call.arguments)))
        }
        Item::Output(output) => ("╰", TextStyle::Faint, to_one_line(&output.content.text())),
        _ => return,
    };
    let text = match item {
        Item::Message(_) => text.trim_end().replace('\n', "\n  "),
        _ => truncate_to_width(&text, term.width().saturating_sub(3)),
    };
    term.print_line(format!("{} {text}", term.stdout_colour().paint(paint, mark)));
}

fn message_text(item: &Item) -> Option<String> {
    match item {
        Item::Message(message) => Some(to_one_line(&message.text())),
        _ => None,
    }
}
