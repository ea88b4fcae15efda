//! `windlass sessions`: conversations that are kept.

use serde_json::json;
use windlass::Session;
use windlass::core::{Item, Role, SessionId};
use windlass::session::SessionStore;

use crate::args::{Args, SessionsArgs};
use crate::problem::{Exit, Problem};
use crate::project::Project;
use crate::term::{Form, Paint, Term, clip, fields, one_line};

pub(crate) async fn run(args: &Args, asked: &SessionsArgs, term: &Term) -> Result<Exit, Problem> {
    let store = Project::find(args)?.open()?;
    let sessions = store.sessions().await?;
    let Some(named) = &asked.session else {
        if sessions.is_empty() && term.form() == Form::Human {
            term.note("there are no sessions; `windlass chat` begins one");
        }
        for id in sessions {
            let items = Session::new(id.clone(), store.clone()).items().await?;
            match term.form() {
                Form::Json => term.say_json(&json!({ "session": id, "items": items.len() })),
                Form::Human => {
                    let last = items.iter().rev().find_map(|item| message(item)).unwrap_or_default();
                    let line = format!("{}  {} items  {last}", id, items.len());
                    term.say(clip(&line, term.width().saturating_sub(1)));
                }
            }
        }
        return Ok(Exit::Done);
    };
    let id = SessionId::from(named.as_str());
    if !sessions.contains(&id) {
        return Err(Problem::not_found(format!("there is no session `{named}`"))
            .hint("`windlass sessions` lists what there is"));
    }
    let session = Session::new(id, store);
    if let Some(turns) = asked.rewind {
        let taken = session.rewind(turns).await?.len();
        match term.form() {
            Form::Json => term.say_json(&json!({ "session": named, "taken": taken })),
            Form::Human => term.say(format!("{taken} items were taken back; what tools did stays done")),
        }
        return Ok(Exit::Done);
    }
    match term.form() {
        Form::Json => term.say_piece(&session.export().await?),
        Form::Human => session.items().await?.iter().for_each(|item| show(term, item)),
    }
    Ok(Exit::Done)
}

fn show(term: &Term, item: &Item) {
    let (mark, paint, text) = match item {
        Item::Message(message) if message.role == Role::User => ("›", Paint::Note, message.text()),
        Item::Message(message) => ("‹", Paint::Name, message.text()),
        Item::Call(call) => ("·", Paint::Faint, format!("{}  {}", call.name, fields(&call.arguments))),
        Item::Output(output) => ("╰", Paint::Faint, one_line(&output.content.text())),
        _ => return,
    };
    let text = match item {
        Item::Message(_) => text.trim_end().replace('\n', "\n  "),
        _ => clip(&text, term.width().saturating_sub(3)),
    };
    term.say(format!("{} {text}", term.paint_out().of(paint, mark)));
}

fn message(item: &Item) -> Option<String> {
    match item {
        Item::Message(message) => Some(one_line(&message.text())),
        _ => None,
    }
}
