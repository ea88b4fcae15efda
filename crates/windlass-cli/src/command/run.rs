//! `windlass run`: runs an agent with one question.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use serde_json::json;
use windlass::core::{id::RunId, item::Item};
use windlass::run::RunBuilder;

use super::{build_driver, find_agent};
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, RunArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, new_run_id};
use crate::store_place::session_in_store;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

/// Maximum length of a question, in bytes.
const MAX_QUESTION_BYTES: u64 = 4 << 20;

pub(crate) async fn run(args: &CliArgs, run: &RunArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let (named, question) = split_positionals(args, &run.positionals)?;
    let file = AgentFile::read(&named)?;
    let mut input = match &run.mcp_prompt {
        Some(prompt) => file.fetch_mcp_prompt(prompt, &run.mcp_argument).await?,
        None => Vec::new(),
    };
    match question {
        Some(question) => input.push(Item::user(question)),
        None if input.is_empty() => input.push(Item::user(read_question_from_stdin()?)),
        None => {}
    }
    let project = CliProject::of_agent_file(args, file.path(), term)?;
    let store = project.open_or_create().await?;
    let mut driving = build_driver(term, file, &project, store.clone(), &run.drive).await?;
    let id = run.run_id.as_deref().map_or_else(new_run_id, RunId::from);
    announce_run(term, &driving.file, &id, run.drive.model.as_deref());
    let mut builder: RunBuilder = driving.agent.run(input).store(store.clone()).run_id(id.clone());
    if let Some(session) = &run.session {
        builder = builder.session(&session_in_store(session, &store)?);
        builder = driving.file.with_session_budget(builder);
    }
    let builder = driving.file.with_limits(builder);
    let driven = driving.drive_to_outcome(&id, builder, &[]).await?;
    Ok(driven.report_outcome(term))
}

/// Prints the agent, the model and the run id.
pub(crate) fn announce_run(term: &Terminal, file: &AgentFile, id: &RunId, model: Option<&str>) {
    let model = model.map(str::to_owned).or_else(|| file.effective_model_name());
    let model = model.as_deref().unwrap_or("no model");
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(&json!({ "type": "run", "run": id, "agent": file.name(), "model": model }));
        }
        OutputFormat::Text => {
            let rest = format!("{model} · run {id}");
            term.eprint_words(styled![
                paint(TextStyle::Title, file.name()),
                " ",
                paint(TextStyle::Faint, rest),
            ]);
        }
    }
}

/// Splits the positional arguments into the agent and the question.
pub(super) fn split_positionals(
    args: &CliArgs,
    words: &[String],
) -> Result<(PathBuf, Option<String>), CliError> {
    match words {
        [agent, question] => {
            let question = Some(question.clone()).filter(|question| question != "-");
            Ok((find_agent(args, Some(Path::new(agent)))?, question))
        }
        [word] => {
            let named = find_agent(args, Some(Path::new(word)))?;
            if AgentFile::has_agent(&named) {
                return Ok((named, None));
            }
            let (here, question) = (find_agent(args, None)?, word);
            if AgentFile::has_agent(&here) {
                Ok((here, Some(question.clone())))
            } else {
                Err(CliError::not_found(format!(
                    "there is no agent at `{question}`, and no agent in this project to ask"
                ))
                .with_hint("`windlass init` makes this folder an agent; `windlass run AGENT QUESTION` asks another one"))
            }
        }
        _ => Ok((find_agent(args, None)?, None)),
    }
}

/// Reads the question from standard input.
pub(super) fn read_question_from_stdin() -> Result<String, CliError> {
    let input = std::io::stdin();
    if input.is_terminal() {
        return Err(CliError::usage("no question given")
            .with_hint("`windlass run AGENT \"a question\"`; `windlass chat` starts a conversation"));
    }
    let mut question = String::new();
    let read = input.lock().take(MAX_QUESTION_BYTES + 1).read_to_string(&mut question);
    read.map_err(|error| CliError::new(format!("the question cannot be read: {error}")))?;
    if question.len() as u64 > MAX_QUESTION_BYTES {
        return Err(CliError::usage("the question is longer than 4 MiB")
            .with_hint("put it in a file for the agent to read"));
    }
    if question.trim().is_empty() {
        return Err(CliError::usage("the question is empty").with_hint("`windlass run AGENT \"a question\"`"));
    }
    Ok(question)
}
