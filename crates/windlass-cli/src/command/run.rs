//! `windlass run`: one question to an agent.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use serde_json::json;
use windlass::core::RunId;
use windlass::{RunBuilder, Session};

use super::{agent_here, driving};
use crate::agent_file::AgentFile;
use crate::args::{Args, RunArgs};
use crate::problem::{Exit, Problem};
use crate::project::{Project, new_run_id};
use crate::term::{Form, Paint, Term};

/// How long a question may be, in bytes.
const LONGEST_QUESTION: u64 = 4 << 20;

pub(crate) async fn run(args: &Args, run: &RunArgs, term: &Term) -> Result<Exit, Problem> {
    let (named, question) = understood(args, &run.words)?;
    let question = match question {
        Some(question) => question,
        None => piped()?,
    };
    let file = AgentFile::read(&named)?;
    let store = Project::of_agent(args, file.path())?.open_or_make()?;
    let mut driving = driving(term, file, store.clone(), &run.drive).await?;
    let id = run.run_id.as_deref().map_or_else(new_run_id, RunId::from);
    announce(term, &driving.file, &id, run.drive.model.as_deref());
    let mut builder: RunBuilder = driving.agent.run(question).store(store.clone()).run_id(id.clone());
    if let Some(session) = &run.session {
        builder = builder.session(&Session::new(session.as_str(), store));
    }
    let builder = driving.file.limited(builder);
    let driven = driving.see_through(&id, builder, &[]).await?;
    Ok(driven.told(term))
}

/// Says which run of which agent this is.
pub(crate) fn announce(term: &Term, file: &AgentFile, id: &RunId, model: Option<&str>) {
    let model = model.or(file.model()).unwrap_or("no model");
    match term.form() {
        Form::Json => {
            term.say_json(&json!({ "type": "run", "run": id, "agent": file.name(), "model": model }));
        }
        Form::Human => {
            let paint = term.paint();
            let rest = format!("{model} · run {id}");
            term.note(format!("{} {}", paint.of(Paint::Title, &file.name()), paint.of(Paint::Faint, &rest)));
        }
    }
}

/// Which words are the agent, and which the question.
fn understood(args: &Args, words: &[String]) -> Result<(PathBuf, Option<String>), Problem> {
    match words {
        [agent, question] => Ok((agent.into(), Some(question.clone()).filter(|question| question != "-"))),
        [word] if AgentFile::is_there(Path::new(word)) => Ok((word.into(), None)),
        [question] => {
            let here = agent_here(args)?;
            if AgentFile::is_there(&here) {
                Ok((here, Some(question.clone())))
            } else {
                Err(Problem::not_found(format!(
                    "there is no agent at `{question}`, and none here to ask that"
                ))
                .hint("`windlass run AGENT QUESTION`; an agent is a folder with an agent.toml"))
            }
        }
        _ => Ok((agent_here(args)?, None)),
    }
}

/// The question from standard input.
fn piped() -> Result<String, Problem> {
    let input = std::io::stdin();
    if input.is_terminal() {
        return Err(Problem::usage("there is no question")
            .hint("`windlass run AGENT \"a question\"`; `windlass chat` holds a conversation"));
    }
    let mut question = String::new();
    let read = input.lock().take(LONGEST_QUESTION + 1).read_to_string(&mut question);
    read.map_err(|error| Problem::new(format!("the question cannot be read: {error}")))?;
    if question.len() as u64 > LONGEST_QUESTION {
        return Err(Problem::usage("the question is longer than 4 MiB")
            .hint("put it in a file for the agent to read"));
    }
    if question.trim().is_empty() {
        return Err(Problem::usage("the question is empty").hint("`windlass run AGENT \"a question\"`"));
    }
    Ok(question)
}
