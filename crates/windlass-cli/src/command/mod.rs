//! The commands, each in a file of its own.

mod resume;
mod run;
mod runs;
mod show;

use std::path::PathBuf;
use std::sync::Arc;

use windlass::SqliteStore;

use crate::agent_file::AgentFile;
use crate::args::{Args, Command, DriveArgs};
use crate::demo;
use crate::live::{Answers, Driving, Signals};
use crate::problem::{Exit, Problem};
use crate::term::{Asker, Term};

/// Carries out a command.
pub(crate) async fn run(args: Args, term: Term) -> Result<Exit, Problem> {
    match &args.command {
        Command::Demo(demo) => demo::run(&args, demo, &term).await,
        Command::Run(run) => run::run(&args, run, &term).await,
        Command::Runs(runs) => runs::run(&args, runs, &term).await,
        Command::Show(show) => show::run(&args, show, &term).await,
        Command::Resume(resume) => resume::run(&args, resume, &term).await,
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
    Ok(crate::project::Project::find(args)?.folder().to_owned())
}
