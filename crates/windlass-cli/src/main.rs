//! The `windlass` command: runs agents from a folder, asks for approval before they act, and resumes runs
//! after a crash.
//!
//! The library never writes to the terminal; all user-facing output is in this crate.

mod agent_file;
mod agent_path;
mod approver_identity;
mod args;
mod cli_error;
mod command;
mod demo;
mod live_trace;
mod log_lines;
mod panic_report;
mod project;
mod project_keys;
mod run_driver;
mod shell_words;
mod store_place;
#[cfg(feature = "talk")]
mod talk;
mod terminal;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::args::CliArgs;
use crate::cli_error::{CliError, CommandExit};
use crate::terminal::Terminal;

/// Time to wait for background tasks when the command ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    // Agents' commands run in a sandboxed child process, which is this program started again.
    #[cfg(unix)]
    windlass_tools::sandbox::main_if_asked();
    let args = match CliArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            terminal::print_usage(&error);
            // Help and version are not errors.
            let exit = if error.exit_code() == 0 { CommandExit::Success } else { CommandExit::UsageError };
            return exit.into();
        }
    };
    let term = Terminal::from_args(&args);
    match panic_report::run_with_panic_report(&term, || run_to_exit(args, term.clone())) {
        Ok(exit) => exit.into(),
        Err(problem) => {
            term.report_error(&problem);
            problem.exit().into()
        }
    }
}

fn run_to_exit(args: CliArgs, term: Terminal) -> Result<CommandExit, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CliError::new(format!("the runtime cannot start: {error}")))?;
    let exit = runtime.block_on(async {
        let exit = command::run_command(args, term).await;
        live_trace::flush_traces().await;
        exit
    });
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    exit
}
