//! The implementations of the sub-commands, one file each.

mod backup;
mod cancel;
mod chat;
mod completions;
mod decisions;
mod doctor;
mod journals;
mod key;
mod migrate;
mod new;
mod policy;
mod resume;
mod resume_text;
mod run;
mod runs;
mod sessions;
mod show;
#[cfg(feature = "talk")]
mod talk;
mod tools;

use std::path::PathBuf;
use std::sync::Arc;

use windlass::store::SqliteStore;

use crate::agent_file::AgentFile;
use crate::args::{CliArgs, CliCommand, DriveArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::demo;
use crate::project::CliProject;
use crate::run_driver::{ApproverMode, RunDriver};
use crate::terminal::Terminal;

/// Runs the sub-command.
pub(crate) async fn run_command(args: CliArgs, term: Terminal) -> Result<CommandExit, CliError> {
    match &args.command {
        CliCommand::Demo(demo) => demo::run(&args, demo, &term).await,
        CliCommand::Run(run) => run::run(&args, run, &term).await,
        CliCommand::Chat(chat) => chat::run(&args, chat, &term).await,
        #[cfg(feature = "talk")]
        CliCommand::Talk(talk) => talk::run(&args, talk, &term).await,
        CliCommand::Runs(runs) => runs::run(&args, runs, &term).await,
        CliCommand::Show(show) => show::run(&args, show, &term).await,
        CliCommand::Resume(resume) => resume::run(&args, resume, &term).await,
        CliCommand::Approve(approve) => decisions::approve(&args, approve, &term).await,
        CliCommand::Reject(reject) => decisions::reject(&args, reject, &term).await,
        CliCommand::Answer(answer) => decisions::answer(&args, answer, &term).await,
        CliCommand::Settle(settle) => decisions::settle(&args, settle, &term).await,
        CliCommand::Cancel(cancel) => cancel::run(&args, cancel, &term).await,
        CliCommand::Fork(fork) => journals::fork_run(&args, fork, &term).await,
        CliCommand::Diff(diff) => journals::diff_runs(&args, diff, &term).await,
        CliCommand::Export(export) => journals::export_run(&args, export, &term).await,
        CliCommand::Verify(verify) => journals::verify_runs(&args, verify, &term).await,
        CliCommand::Key(key) => key::run(&args, key, &term),
        CliCommand::Sessions(sessions) => sessions::run(&args, sessions, &term).await,
        CliCommand::Backup(backup) => backup::run(&args, backup, &term).await,
        CliCommand::Migrate(asked) => migrate::run(asked, &term).await,
        CliCommand::Tools(tools) => tools::run(&args, tools, &term).await,
        CliCommand::Policy(policy) => policy::run(&args, policy, &term).await,
        CliCommand::Doctor(doctor) => doctor::run(&args, doctor, &term).await,
        CliCommand::New(new) => new::run(new, &term),
        CliCommand::Completions(completions) => Ok(completions::run(completions, &term)),
    }
}

/// Builds the driver for runs of an agent.
async fn build_driver(
    term: &Terminal,
    file: AgentFile,
    project: &CliProject,
    store: Arc<SqliteStore>,
    drive: &DriveArgs,
) -> Result<RunDriver, CliError> {
    project.key_source().ensure_outside(&file.workspace_folder())?;
    let agent = file.build_agent(drive.model.as_deref()).await?;
    let answers = match (drive.yes, drive.no_input || !term.can_prompt()) {
        (true, _) => ApproverMode::ApproveAll,
        (false, true) => ApproverMode::Defer,
        (false, false) => ApproverMode::Prompt,
    };
    RunDriver::new(term, file, agent, store, answers)
}

/// Returns the agent of the project, for commands that name none.
fn default_agent(args: &CliArgs) -> Result<PathBuf, CliError> {
    Ok(CliProject::from_args(args)?.folder().to_owned())
}
