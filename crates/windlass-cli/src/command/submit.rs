//! `windlass submit`: submits a run to the queue of the store.

use serde_json::json;
use windlass::core::id::RunId;
use windlass::fleet::{RunSubmission, SubmitResult};

use super::resume::current_time;
use super::run::{read_question_from_stdin, split_positionals};
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, SubmitArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::project::{CliProject, new_run_id};
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(
    args: &CliArgs,
    asked: &SubmitArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    let (named, question) = split_positionals(args, &asked.positionals)?;
    let question = match question {
        Some(question) => question,
        None => read_question_from_stdin()?,
    };
    let file = AgentFile::read(&named)?;
    let store = CliProject::of_agent_file(args, file.path(), term)?.open_or_create().await?;
    let run = asked.run_id.as_deref().map_or_else(new_run_id, RunId::from);
    let mut submission = RunSubmission::new(run.clone(), file.name(), question)
        .tenant(&asked.tenant)
        .priority(asked.priority)
        .max_attempts(asked.max_attempts);
    if let Some(session) = &asked.session {
        submission = submission.session(session.as_str());
    }
    let result = store.submit_run(&submission, current_time()).await?;
    match term.output_format() {
        OutputFormat::Json => term.print_json(&json!({
            "type": "submitted", "run": run, "agent": file.name(),
            "is_new": result == SubmitResult::Accepted,
        })),
        OutputFormat::Text => {
            term.print_line(run.as_str());
            term.eprint_line(match result {
                SubmitResult::Accepted => format!("run {run} waits for a worker of {}", file.name()),
                SubmitResult::AlreadySubmitted => format!("run {run} was submitted before"),
            });
        }
    }
    Ok(CommandExit::Success)
}
