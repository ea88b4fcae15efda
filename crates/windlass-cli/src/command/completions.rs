//! `windlass completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::generate;
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::args::{CliArgs, CompletionShell, CompletionsArgs};
use crate::cli_error::CommandExit;
use crate::terminal::Terminal;

pub(crate) fn run(asked: &CompletionsArgs, term: &Terminal) -> CommandExit {
    let mut command = CliArgs::command();
    let mut script = Vec::new();
    match asked.shell {
        CompletionShell::Bash => generate(Bash, &mut command, "windlass", &mut script),
        CompletionShell::Zsh => generate(Zsh, &mut command, "windlass", &mut script),
        CompletionShell::Fish => generate(Fish, &mut command, "windlass", &mut script),
    }
    term.print_data(&String::from_utf8_lossy(&script));
    CommandExit::Success
}
