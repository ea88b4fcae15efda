//! The words that the command understands, and the help that teaches them.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

const EXITS: &str = "\
Exit codes:
  0    done
  1    it failed
  2    the command was not understood
  3    the run waits for a person
  4    the run was cancelled
  5    there is no such run, agent, call or file
  6    a journal is not what was written
  7    somebody else drives the run
  70   a defect of windlass itself
  130  left at once, by a second Ctrl-C

Start here:
  windlass demo                  one minute, no key, no network
  windlass run . \"a question\"    the agent of this folder answers";

/// Runs AI agents that act. Every call of a tool is planned, approved where it should be, and written down before
/// it happens, so that a run can be killed and go on without doing anything twice.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, after_help = EXITS, arg_required_else_help = true)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// The project: a folder with an agent.toml, or with the runs of one [default: this folder or one above it]
    #[arg(short = 'C', long, global = true, value_name = "FOLDER")]
    pub(crate) project: Option<PathBuf>,
    /// The file that holds runs and sessions [default: .windlass/windlass.db in the project; or WINDLASS_STORE]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) store: Option<PathBuf>,
    /// Speak JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to use colours (NO_COLOR is heeded)
    #[arg(long = "color", global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) colour: ColourChoice,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColourChoice {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show in a minute what windlass is for: a payment, a person's word, a crash, and nothing done twice
    #[command(
        after_help = "Examples:\n  windlass demo\n  windlass demo --yes      nobody is asked, for scripts"
    )]
    Demo(DemoArgs),
    /// Ask an agent one question
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// List the runs of this project
    #[command(
        after_help = "Examples:\n  windlass runs\n  windlass runs --status paused\n  windlass runs --json | jq .run"
    )]
    Runs(RunsArgs),
    /// Tell what a run did, and what waits in it
    #[command(
        after_help = "Examples:\n  windlass show            the newest run\n  windlass show k3v9       the run whose id begins so\n  windlass show k3v9 --journal"
    )]
    Show(ShowArgs),
    /// Go on with a run that waits, was left, or whose process is gone
    #[command(
        after_help = "Examples:\n  windlass resume          the newest run that is not over\n  windlass resume k3v9 --yes"
    )]
    Resume(ResumeArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  windlass run . \"What is in this folder?\"
  windlass run helper.toml \"Tidy the notes\" --model openai:gpt-5-mini
  git diff | windlass run reviewer          the question comes from the pipe
  windlass run . \"Pay the invoices\" --json  one JSON object for each event

The answer goes to standard output, everything else to standard error. Where nobody can be asked, a call that
needs a person makes the run wait: exit code 3, and `windlass approve` and `windlass resume` go on.";

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Answer for the person, and never wait for a key
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Leave the killing to you: the demo says which process, and waits
    #[arg(long, conflicts_with = "yes")]
    pub(crate) by_hand: bool,
    /// Where to put the files of the demo
    #[arg(long, value_name = "FOLDER", default_value = "windlass-demo")]
    pub(crate) folder: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The agent (a folder with an agent.toml, or such a file) and the question; without a question, standard input
    #[arg(value_name = "AGENT] [QUESTION", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// The session whose history the run sees and adds to
    #[arg(short, long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// The run's id, in place of a new one
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,
}

/// How a run is driven.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DriveArgs {
    /// The model, in place of the agent's own: `provider:name`, or `scripted:FILE`
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Say yes to every call that asks for approval. Calls in doubt still wait
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Ask nobody: the run waits where a person is needed
    #[arg(long, conflicts_with = "yes")]
    pub(crate) no_input: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunsArgs {
    /// Only runs in this state
    #[arg(long, value_enum, value_name = "STATE")]
    pub(crate) status: Option<StatusChoice>,
    /// How many at most
    #[arg(short = 'n', long, default_value_t = 20, value_name = "COUNT")]
    pub(crate) limit: usize,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusChoice {
    /// Somebody drives it, or did until the process ended
    Running,
    /// It waits for a person
    Paused,
    /// It ended with an answer
    Finished,
    /// It ended with an error
    Failed,
    /// It was cancelled
    Cancelled,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// The run, or the beginning of its id [default: the newest]
    pub(crate) run: Option<String>,
    /// Every record of the journal, in a line each
    #[arg(long)]
    pub(crate) journal: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// The run, or the beginning of its id [default: the newest that is not over]
    pub(crate) run: Option<String>,
    /// The agent, where it is not the one that the run began with
    #[arg(short, long, value_name = "AGENT")]
    pub(crate) agent: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
}
