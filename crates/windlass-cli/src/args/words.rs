//! What each command takes.

use std::path::PathBuf;

use clap::ValueEnum;

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

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// The agent: a folder with an agent.toml, or such a file [default: the project]
    pub(crate) agent: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// The session, a new or an old one [default: a new one]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) session: Option<String>,
}

/// A run, by its name.
#[derive(Debug, clap::Args)]
pub(crate) struct RunName {
    /// The run, or the beginning of its id
    pub(crate) run: String,
}

/// A call that waits, and in whose name is decided about it.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitingCall {
    /// The run, or the beginning of its id [default: the newest that waits]
    pub(crate) run: Option<String>,
    /// The call, as `windlass show` names it [default: the only one that waits]
    pub(crate) call: Option<String>,
    /// In whose name [default: the user's]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Go on with the run afterwards, here
    #[arg(short, long)]
    pub(crate) resume: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    pub(crate) about: WaitingCall,
    /// And to every later call of this tool in this run
    #[arg(long, conflicts_with = "arguments")]
    pub(crate) always: bool,
    /// With these arguments in place of the model's; the model is told
    #[arg(long, value_name = "JSON")]
    pub(crate) arguments: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RejectArgs {
    #[command(flatten)]
    pub(crate) about: WaitingCall,
    /// And to every later call of this tool in this run
    #[arg(long)]
    pub(crate) always: bool,
    /// Why; the model is told
    #[arg(long, value_name = "REASON")]
    pub(crate) because: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AnswerArgs {
    /// The run, or the beginning of its id
    pub(crate) run: String,
    /// The call, as `windlass show` names it
    pub(crate) call: String,
    /// The answer: JSON, or else plain text
    pub(crate) value: String,
    /// In whose name [default: the user's]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Go on with the run afterwards, here
    #[arg(short, long)]
    pub(crate) resume: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SettleArgs {
    #[command(flatten)]
    pub(crate) about: WaitingCall,
    #[command(flatten)]
    pub(crate) what: WhatHappened,
}

/// What became of a call in doubt.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct WhatHappened {
    /// It happened, and gave this
    #[arg(long, value_name = "OUTPUT")]
    pub(crate) happened: Option<String>,
    /// It did not happen: run it
    #[arg(long)]
    pub(crate) did_not_happen: bool,
    /// Nobody knows: tell the model so
    #[arg(long)]
    pub(crate) unknown: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    /// The run, or the beginning of its id
    pub(crate) run: String,
    /// The record to go another way from [default: the last]
    #[arg(long, value_name = "RECORD")]
    pub(crate) at: Option<u64>,
    #[command(flatten)]
    pub(crate) change: ForkChange,
    /// The id of the fork [default: a new one]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Go on with the fork, here
    #[arg(short, long)]
    pub(crate) resume: bool,
}

/// What goes otherwise in a fork.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct ForkChange {
    /// This call is approved
    #[arg(long, value_name = "CALL")]
    pub(crate) approve: Option<String>,
    /// This call is rejected
    #[arg(long, value_name = "CALL")]
    pub(crate) reject: Option<String>,
    /// This call has another output
    #[arg(long, value_name = "CALL=TEXT")]
    pub(crate) output: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// One run
    pub(crate) first: String,
    /// The other
    pub(crate) second: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// The run, or the beginning of its id [default: the newest]
    pub(crate) run: Option<String>,
    /// The file to write, in place of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// A run, the beginning of its id, or a file that was exported [default: every run of the project]
    pub(crate) run: Option<String>,
    /// The hash of the last line, as it was noted elsewhere: lines cut off from the end leave no other trace
    #[arg(long, value_name = "HASH", requires = "run")]
    pub(crate) head: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SessionsArgs {
    /// The session to show
    pub(crate) session: Option<String>,
    /// Take it back to before so many of the user's messages
    #[arg(long, value_name = "TURNS", requires = "session")]
    pub(crate) rewind: Option<usize>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ToolsArgs {
    /// The agent: a folder with an agent.toml, or such a file [default: the project]
    pub(crate) agent: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The agent to look at [default: the project]
    pub(crate) agent: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// The name, which is also that of the folder
    pub(crate) name: String,
    /// Use the crates of a clone of Windlass in place of published ones
    #[arg(long, value_name = "FOLDER")]
    pub(crate) path: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Shells that completion scripts are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// GNU Bash
    Bash,
    /// Zsh
    Zsh,
    /// fish
    Fish,
}
