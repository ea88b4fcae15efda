//! The implementations of the sub-commands, one file each.

mod backup;
mod cancel;
mod chat;
mod completions;
mod decisions;
mod doctor;
#[cfg(feature = "otlp")]
mod export_trace;
mod fleet;
mod forget;
mod init;
mod journals;
mod key;
mod migrate;
mod models;
mod new;
mod policy;
mod restore;
mod resume;
mod resume_text;
mod run;
mod runs;
mod schedule;
#[cfg(feature = "serve")]
mod serve;
mod sessions;
mod show;
mod sign;
mod submit;
#[cfg(feature = "talk")]
mod talk;
mod tools;
mod work;

use std::path::{Path, PathBuf};

use crate::agent_file::AgentFile;
use crate::approver_identity::{ApproverIdentity, ensure_approver_key_outside};
use crate::args::{CliArgs, CliCommand, DriveArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::demo;
use crate::project::CliProject;
use crate::run_driver::{ApproverMode, RunDriver};
use crate::store_place::ProjectStore;
use crate::terminal::Terminal;

/// Name of the file with the history of messages, beside the store.
const HISTORY_FILE: &str = "chat-history";

/// Runs the sub-command.
pub(crate) async fn run_command(args: CliArgs, term: Terminal) -> Result<CommandExit, CliError> {
    match &args.command {
        CliCommand::Demo(demo) => demo::run(&args, demo, &term).await,
        CliCommand::Run(run) => run::run(&args, run, &term).await,
        CliCommand::Chat(chat) => chat::run(&args, chat, &term).await,
        #[cfg(feature = "talk")]
        CliCommand::Talk(talk) => talk::run(&args, talk, &term).await,
        #[cfg(feature = "serve")]
        CliCommand::Serve(serve) => serve::run(&args, serve, &term).await,
        CliCommand::Submit(submit) => submit::run(&args, submit, &term).await,
        CliCommand::Work(work) => work::run(&args, work, &term).await,
        CliCommand::Schedule(schedule) => schedule::run(&args, schedule, &term).await,
        CliCommand::Fleet(fleet) => fleet::run(&args, fleet, &term).await,
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
        CliCommand::Sign(sign) => sign::run(sign, &term).await,
        CliCommand::Sessions(sessions) => sessions::run(&args, sessions, &term).await,
        CliCommand::Backup(backup) => backup::run(&args, backup, &term).await,
        CliCommand::Restore(asked) => restore::run(&args, asked, &term).await,
        CliCommand::Forget(asked) => forget::run(&args, asked, &term).await,
        CliCommand::Migrate(asked) => migrate::run(&args, asked, &term).await,
        CliCommand::Tools(tools) => tools::run(&args, tools, &term).await,
        CliCommand::Models(models) => models::run(&args, models, &term),
        CliCommand::Policy(policy) => policy::run(&args, policy, &term).await,
        CliCommand::Doctor(doctor) => doctor::run(&args, doctor, &term).await,
        CliCommand::Init(init) => init::run(&args, init, &term).await,
        CliCommand::New(new) => new::run(new, &term),
        CliCommand::Completions(completions) => Ok(completions::run(completions, &term)),
    }
}

/// Builds the driver for runs of an agent.
async fn build_driver(
    term: &Terminal,
    file: AgentFile,
    project: &CliProject,
    store: ProjectStore,
    drive: &DriveArgs,
) -> Result<RunDriver, CliError> {
    let identity = check_keys(project, &file)?;
    if drive.yes && !matches!(identity, ApproverIdentity::NotRequired) {
        return Err(CliError::usage(
            "--yes approves calls that nobody has seen, and this project has approvers",
        )
        .with_hint("leave --yes out; an approver decides at the prompt or with `windlass approve`"));
    }
    let agent = file.build_agent(drive.model.as_deref()).await?;
    let answers = match (drive.yes, drive.no_input || !term.can_prompt()) {
        (true, _) => ApproverMode::ApproveAll,
        (false, true) => ApproverMode::Defer,
        (false, false) => ApproverMode::Prompt,
    };
    let history_file = project.local_path().parent().map(|folder| folder.join(HISTORY_FILE));
    RunDriver::new(term, file, agent, store, answers, identity, history_file)
}

/// Checks that the tools of an agent reach neither a key nor the store, and that its file names no other approvers than the project. Returns
/// the user as the approvers know him or her.
fn check_keys(project: &CliProject, file: &AgentFile) -> Result<ApproverIdentity, CliError> {
    project.key_source().ensure_outside(&file.workspace_folder())?;
    ensure_approver_key_outside(&file.workspace_folder())?;
    project.ensure_encryption_keys_outside(&file.workspace_folder())?;
    project.ensure_store_outside(file)?;
    project.check_approvers(file)?;
    ApproverIdentity::of_project(project)
}

/// Returns the path of an agent: the named one, which beside `-C FOLDER` may be in that folder, or else the project's own.
fn find_agent(args: &CliArgs, named: Option<&Path>) -> Result<PathBuf, CliError> {
    let Some(named) = named else {
        return Ok(CliProject::from_args(args)?.folder().to_owned());
    };
    let in_project = args.project.as_ref().map(|folder| folder.join(named));
    Ok(in_project.filter(|path| AgentFile::has_agent(path)).unwrap_or_else(|| named.to_owned()))
}

/// Writes a text as a string of TOML, whose escapes include those of JSON.
fn quote_toml(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
