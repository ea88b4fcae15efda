//! The words that the command understands, and the help that teaches them.

mod words;

pub(crate) use words::*;

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
    /// Hold a conversation with an agent
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(ChatArgs),
    /// Say yes to a call that waits, from any terminal
    #[command(
        after_help = "Examples:\n  windlass approve               the one call that waits in the newest run\n  windlass approve k3v9 pay-3 --resume\n  windlass approve k3v9 pay-3 --arguments '{\"euros\": 100}'"
    )]
    Approve(ApproveArgs),
    /// Say no to a call that waits, from any terminal
    #[command(
        after_help = "Examples:\n  windlass reject k3v9 pay-3 --because \"ask me again in June\" --resume"
    )]
    Reject(RejectArgs),
    /// Answer a question that a tool asked
    #[command(after_help = "Examples:\n  windlass answer k3v9 book-1 '\"window seat\"' --resume")]
    Answer(AnswerArgs),
    /// Say what happened to a call in doubt: one that had started when its process ended
    #[command(
        after_help = "Examples:\n  windlass settle k3v9 pay-3 --happened \"paid, receipt 12\"\n  windlass settle k3v9 pay-3 --did-not-happen --resume"
    )]
    Settle(SettleArgs),
    /// End a run that nobody drives
    #[command(
        after_help = "Examples:\n  windlass cancel k3v9\n\nA run that another process drives is stopped there, with Ctrl-C."
    )]
    Cancel(RunName),
    /// Go another way from a record of a run, under another id. The first run stays as it is
    #[command(
        after_help = "Examples:\n  windlass fork k3v9 --at 12 --reject pay-3 --resume\n  windlass fork k3v9 --at 9 --output read-1=\"an empty file\""
    )]
    Fork(ForkArgs),
    /// Compare two runs, record by record
    #[command(after_help = "Examples:\n  windlass diff k3v9 p0xc")]
    Diff(DiffArgs),
    /// Write a run's journal out, as text that any version can read and check
    #[command(
        after_help = "Examples:\n  windlass export k3v9 > run.windlass\n  windlass verify run.windlass"
    )]
    Export(ExportArgs),
    /// Check that a journal is what was written, and list who decided what
    #[command(
        after_help = "Examples:\n  windlass verify k3v9\n  windlass verify run.windlass --head 9f86d0…"
    )]
    Verify(VerifyArgs),
    /// List conversations, or show one
    #[command(
        after_help = "Examples:\n  windlass sessions\n  windlass sessions ann\n  windlass sessions ann --rewind 1"
    )]
    Sessions(SessionsArgs),
    /// List the tools of an agent: what each does to the world, and whether it asks
    #[command(after_help = "Examples:\n  windlass tools .\n  windlass tools . --json | jq .schema")]
    Tools(ToolsArgs),
    /// Say what is set up, and what is missing
    #[command(after_help = "Examples:\n  windlass doctor\n  windlass doctor windlass-demo")]
    Doctor(DoctorArgs),
    /// Make an agent of your own: a Rust program with a tool and a test, that needs no key
    #[command(after_help = "Examples:\n  windlass new my-agent && cd my-agent && cargo test")]
    New(NewArgs),
    /// Print the completion script of a shell
    #[command(
        after_help = "Examples:\n  windlass completions bash > ~/.local/share/bash-completion/completions/windlass\n  windlass completions zsh > ~/.zfunc/_windlass\n  windlass completions fish > ~/.config/fish/completions/windlass.fish"
    )]
    Completions(CompletionsArgs),
}

const CHAT_EXAMPLES: &str = "\
Examples:
  windlass chat .
  windlass chat . --session ann        goes on where the session was left
  windlass chat . --model ollama:qwen3

Ctrl-C stops the turn that is under way; twice, it leaves. /help lists what can be typed besides messages.";

const RUN_EXAMPLES: &str = "\
Examples:
  windlass run . \"What is in this folder?\"
  windlass run helper.toml \"Tidy the notes\" --model openai:gpt-5-mini
  git diff | windlass run reviewer          the question comes from the pipe
  windlass run . \"Pay the invoices\" --json  one JSON object for each event

The answer goes to standard output, everything else to standard error. Where nobody can be asked, a call that
needs a person makes the run wait: exit code 3, and `windlass approve` and `windlass resume` go on.";
