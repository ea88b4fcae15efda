//! `windlass completions`: what shells need to complete the command's words.

use clap::CommandFactory;
use clap_complete::generate;
use clap_complete::shells::{Bash, Fish, Zsh};

use crate::args::{Args, CompletionsArgs, Shell};
use crate::problem::Exit;
use crate::term::Term;

pub(crate) fn run(asked: &CompletionsArgs, term: &Term) -> Exit {
    let mut command = Args::command();
    let mut script = Vec::new();
    match asked.shell {
        Shell::Bash => generate(Bash, &mut command, "windlass", &mut script),
        Shell::Zsh => generate(Zsh, &mut command, "windlass", &mut script),
        Shell::Fish => generate(Fish, &mut command, "windlass", &mut script),
    }
    term.say_piece(&String::from_utf8_lossy(&script));
    Exit::Done
}
