//! The commands, each in a file of its own.

mod cancel;
mod chat;
mod completions;
mod decisions;
mod doctor;
mod journals;
mod new;
mod resume;
mod run;
mod runs;
mod sessions;
mod show;
mod tools;

use std::path::PathBuf;
use std::sync::Arc;

use windlass::SqliteStore;

use crate::agent_file::AgentFile;
use crate::args::{Args, Command, DriveArgs};
use crate::demo;
use crate::live::{Answers, Driving, Signals};
use crate::problem::{Exit, Problem};
use crate::project::Project;
use crate::term::{Asker, Term};

/// Carries out a command.
pub(crate) async fn run(args: Args, term: Term) -> Result<Exit, Problem> {
    match &args.command {
        Command::Demo(demo) => demo::run(&args, demo, &term).await,
        Command::Run(run) => run::run(&args, run, &term).await,
        Command::Chat(chat) => chat::run(&args, chat, &term).await,
        Command::Runs(runs) => runs::run(&args, runs, &term).await,
        Command::Show(show) => show::run(&args, show, &term).await,
        Command::Resume(resume) => resume::run(&args, resume, &term).await,
        Command::Approve(approve) => decisions::approve(&args, approve, &term).await,
        Command::Reject(reject) => decisions::reject(&args, reject, &term).await,
        Command::Answer(answer) => decisions::answer(&args, answer, &term).await,
        Command::Settle(settle) => decisions::settle(&args, settle, &term).await,
        Command::Cancel(cancel) => cancel::run(&args, cancel, &term).await,
        Command::Fork(fork) => journals::fork_run(&args, fork, &term).await,
        Command::Diff(diff) => journals::diff_runs(&args, diff, &term).await,
        Command::Export(export) => journals::export(&args, export, &term).await,
        Command::Verify(verify) => journals::verify_runs(&args, verify, &term).await,
        Command::Sessions(sessions) => sessions::run(&args, sessions, &term).await,
        Command::Tools(tools) => tools::run(&args, tools, &term).await,
        Command::Doctor(doctor) => doctor::run(&args, doctor, &term).await,
        Command::New(new) => new::run(new, &term),
        Command::Completions(completions) => Ok(completions::run(completions, &term)),
    }
}

/// Whoever drives runs of an agent here.
async fn driving(
    term: &Term,
    file: AgentFile,
    store: Arc<SqliteStore>,
    drive: &DriveArgs,
) -> Result<Driving, Problem> {
    let agent = file.build(drive.model.as_deref()).await?;
    let answers = match (drive.yes, drive.no_input || !term.can_ask()) {
        (true, _) => Answers::Yes,
        (false, true) => Answers::Leave,
        (false, false) => Answers::Ask,
    };
    let signals = Signals::listen()?;
    Ok(Driving { term: term.clone(), file, agent, store, answers, asker: Asker::start(), signals })
}

/// The agent of the project, where none is named.
fn agent_here(args: &Args) -> Result<PathBuf, Problem> {
    Ok(Project::find(args)?.folder().to_owned())
}
