//! The `windlass` command: runs agents from a folder, asks before they act, and goes on after a crash.
//!
//! The library never talks to the terminal. Everything that a person sees is written here.

mod agent_file;
mod apology;
mod args;
mod command;
mod demo;
mod live;
mod problem;
mod project;
mod term;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::args::Args;
use crate::problem::{Exit, Problem};
use crate::term::Term;

/// How long things that are still under way are waited for when all is said.
const LINGER: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    // Commands of agents run in a restricted child, which is this program again.
    #[cfg(unix)]
    windlass_tools::sandbox::main_if_asked();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let term = Term::of(&args);
    match apology::instead_of_a_panic(&term, || run(args, term.clone())) {
        Ok(exit) => exit.into(),
        Err(problem) => {
            term.problem(&problem);
            problem.exit().into()
        }
    }
}

fn run(args: Args, term: Term) -> Result<Exit, Problem> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Problem::new(format!("the runtime cannot start: {error}")))?;
    let exit = runtime.block_on(command::run(args, term));
    runtime.shutdown_timeout(LINGER);
    exit
}

/// Help and versions are not errors, and what nobody understands is.
fn usage(error: &clap::Error) -> ExitCode {
    // Where this cannot be printed there is nobody to tell.
    let _printed = error.print();
    if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() }
}
