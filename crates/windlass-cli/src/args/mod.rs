//! The command-line interface: sub-commands, arguments and help texts.

mod command_args;

pub(crate) use command_args::*;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

const EXITS: &str = "\
Exit codes:
  0    success
  1    failure
  2    usage error
  3    the run waits for a person
  4    the run was cancelled, or detached by SIGTERM
  5    run, agent, call or file not found
  6    corrupt journal
  7    another process holds the run's lease
  8    the model's provider is away; `windlass resume` goes on
  70   internal error (a bug in windlass)
  130  interrupted by a second Ctrl-C

Start here:
  windlass demo                  a one-minute tour; needs no API key and no network
  windlass init                  make this folder an agent with your own model
  windlass run . \"a question\"    ask the agent of this folder";

/// Run AI agents durably. Every tool call is planned, approved if required, and journalled before it
/// executes, so a run can be killed and resumed without repeating its side effects.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, after_help = EXITS, arg_required_else_help = true)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct CliArgs {
    /// Project folder: one with an agent.toml or with runs [default: the current folder or a parent]
    #[arg(short = 'C', long, global = true, value_name = "FOLDER")]
    pub(crate) project: Option<PathBuf>,
    /// SQLite file with runs and sessions, or the address of a database, postgres://… [default: WINDLASS_STORE, or a file
    /// in the user's state folder]
    #[arg(long, global = true, value_name = "STORE")]
    pub(crate) store: Option<PathBuf>,
    /// File with the keys that authenticate decisions [default: WINDLASS_KEY_FILE, or a file in the user's state folder]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// File with the keys that encrypt the contents of the store [default: WINDLASS_ENCRYPTION_KEY_FILE; without one,
    /// nothing is encrypted]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) encryption_key_file: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Coloured output (NO_COLOR is respected)
    #[arg(long = "color", global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) colour: ColourChoice,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// The choice of coloured output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColourChoice {
    /// If the output is a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Show a one-minute tour: a payment, an approval, a crash, and a resume that repeats nothing
    #[command(
        after_help = "Examples:\n  windlass demo\n  windlass demo --yes      without prompts, for scripts"
    )]
    Demo(DemoArgs),
    /// Run an agent with one question
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Submit a run to the queue of the store, for a worker
    #[command(after_help = SUBMIT_EXAMPLES)]
    Submit(SubmitArgs),
    /// Work: take submitted runs from the queue of the store and drive them
    #[command(after_help = WORK_EXAMPLES)]
    Work(WorkArgs),
    /// Submit runs at the times of a calendar
    #[command(
        after_help = "Examples:\n  windlass schedule add report \"30 7 * * 1-5\" . \"Write the report.\"\n  windlass schedule list\n  windlass schedule remove report\n\nThe workers of the store submit the runs. Times are in UTC."
    )]
    Schedule(ScheduleArgs),
    /// Show the queue and the workers of the store, and revive dead letters
    #[command(
        after_help = "Examples:\n  windlass fleet queue\n  windlass fleet workers\n  windlass fleet check new-build\n  windlass fleet revive k3v9"
    )]
    Fleet(FleetArgs),
    /// List the runs of this project
    #[command(
        after_help = "Examples:\n  windlass runs\n  windlass runs --status paused\n  windlass runs --json | jq .run"
    )]
    Runs(RunsArgs),
    /// Show what a run did and its pending calls
    #[command(
        after_help = "Examples:\n  windlass show            the newest run\n  windlass show k3v9       the run whose id starts with k3v9\n  windlass show k3v9 --journal"
    )]
    Show(ShowArgs),
    /// Resume a run that is paused, interrupted, or whose process has died
    #[command(
        after_help = "Examples:\n  windlass resume          the newest unfinished run\n  windlass resume k3v9 --yes"
    )]
    Resume(ResumeArgs),
    /// Chat with an agent
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(ChatArgs),
    /// Talk with an agent by voice, on a local page of your browser
    #[cfg(feature = "talk")]
    #[command(after_help = TALK_EXAMPLES)]
    Talk(TalkArgs),
    /// Serve agents over HTTP, with an inbox for approvers and an inspector in the browser
    #[cfg(feature = "serve")]
    #[command(
        after_help = "Examples:\n  windlass serve                       the agent of this folder, on http://127.0.0.1:4816\n  windlass serve desk clerk            two agents\n  windlass serve --new-token anna      prints a token, and the lines for the access file\n  windlass serve --listen 0.0.0.0:4816 --access people.toml --name agents.example.org"
    )]
    Serve(ServeArgs),
    /// Approve a pending call, from any terminal
    #[command(
        after_help = "Examples:\n  windlass approve               shows the call that waits, and asks\n  windlass approve k3v9 pay-3 --resume\n  windlass approve --digest 9f86d081884c7d65…   the call that `windlass show` printed\n  windlass approve k3v9 pay-3 --arguments '{\"euros\": 100}'"
    )]
    Approve(ApproveArgs),
    /// Reject a pending call, from any terminal
    #[command(
        after_help = "Examples:\n  windlass reject k3v9 pay-3 --because \"ask me again in June\" --resume"
    )]
    Reject(RejectArgs),
    /// Answer a question that a tool asked
    #[command(
        after_help = "Examples:\n  windlass answer k3v9 book-1 '\"window seat\"' --resume   shows the question, and asks"
    )]
    Answer(AnswerArgs),
    /// Settle a call in doubt: one that had started when its process ended
    #[command(
        after_help = "Examples:\n  windlass settle k3v9 pay-3 --happened \"paid, receipt 12\"\n  windlass settle k3v9 pay-3 --did-not-happen --resume"
    )]
    Settle(SettleArgs),
    /// Cancel a run that no process is executing, or a submitted run
    #[command(
        after_help = "Examples:\n  windlass cancel k3v9\n\nThe worker of a submitted run carries the cancellation out. To stop another run that a process is executing, press\nCtrl-C in its terminal."
    )]
    Cancel(RunSelector),
    /// Fork a run at a record, under a new id. The original run is unchanged
    #[command(
        after_help = "Examples:\n  windlass fork k3v9 --at 12 --reject pay-3 --resume\n  windlass fork k3v9 --at 9 --output read-1=\"an empty file\""
    )]
    Fork(ForkArgs),
    /// Compare the journals of two runs
    #[command(after_help = "Examples:\n  windlass diff k3v9 p0xc")]
    Diff(DiffArgs),
    /// Export the journal of a run as text that every version can read and verify
    #[command(
        after_help = "Examples:\n  windlass export k3v9 > run.windlass\n  windlass verify run.windlass"
    )]
    Export(ExportArgs),
    /// Verify that a journal is unmodified, and list its decisions
    #[command(
        after_help = "Examples:\n  windlass verify k3v9\n  windlass verify run.windlass --head 9f86d0…"
    )]
    Verify(VerifyArgs),
    /// Show or rotate the keys that authenticate decisions, or make your own to sign with
    #[command(
        after_help = "Examples:\n  windlass key show\n  windlass key rotate\n  windlass key approver    for [approvers] in agent.toml"
    )]
    Key(KeyArgs),
    /// Sign a decision that a server has stated, and print the body to post
    #[command(
        after_help = "Examples:\n  windlass sign statement.json > decision.json\n  windlass sign statement.json --digest 3f9a…    after you have read the sheet with that digest"
    )]
    Sign(SignArgs),
    /// List sessions, or show one
    #[command(
        after_help = "Examples:\n  windlass sessions\n  windlass sessions ann\n  windlass sessions ann --rewind 1"
    )]
    Sessions(SessionsArgs),
    /// Copy the store to a new file while runs go on
    #[command(after_help = "Examples:\n  windlass backup windlass-backup.db")]
    Backup(BackupArgs),
    /// Make a store of a backup. Calls that may have run since the backup are in doubt
    #[command(
        after_help = "Examples:\n  windlass restore windlass-backup.db\n  windlass restore --store postgres://db.example/fleet    after pg_restore"
    )]
    Restore(RestoreArgs),
    /// Delete runs by name, or by age and status. Sessions and receipts stay
    #[command(
        after_help = "Examples:\n  windlass forget k3v9\n  windlass forget --older-than 30d\n  windlass forget --older-than 90d --status paused"
    )]
    Forget(ForgetArgs),
    /// Copy the runs, sessions and receipts of one store to another
    #[command(after_help = "Examples:\n  windlass migrate old.db new.db")]
    Migrate(MigrateArgs),
    /// List the tools of an agent, their effects and approval policies
    #[command(after_help = "Examples:\n  windlass tools .\n  windlass tools . --json | jq .schema")]
    Tools(ToolsArgs),
    /// List the providers of models, and what is missing to use them
    #[command(after_help = "Examples:\n  windlass models\n  windlass models . --json")]
    Models(ModelsArgs),
    /// Test a policy on the calls of recorded runs
    #[command(
        after_help = "Examples:\n  windlass policy test .\n  windlass policy test . --file stricter.toml"
    )]
    Policy(PolicyArgs),
    /// Check the setup and report what is missing
    #[command(after_help = "Examples:\n  windlass doctor\n  windlass doctor windlass-demo")]
    Doctor(DoctorArgs),
    /// Make this folder an agent with your own model, and try it
    #[command(
        after_help = "Examples:\n  windlass init                  asks which model, then shows an approval and a crash\n  windlass init --model ollama:qwen3 --no-tour\n\nIt finds API keys in the environment and model servers on this machine. Without any, the agent has a scripted model."
    )]
    Init(InitArgs),
    /// Create a new agent: a Rust project with tools and tests that needs no API key
    #[command(after_help = "Examples:\n  windlass new my-agent && cd my-agent && cargo test")]
    New(NewArgs),
    /// Print the completion script for a shell
    #[command(
        after_help = "Examples:\n  windlass completions bash > ~/.local/share/bash-completion/completions/windlass\n  windlass completions zsh > ~/.zfunc/_windlass\n  windlass completions fish > ~/.config/fish/completions/windlass.fish"
    )]
    Completions(CompletionsArgs),
}

#[cfg(feature = "talk")]
const TALK_EXAMPLES: &str = "\
Examples:
  windlass talk .                      with OPENAI_API_KEY to the provider, without it to a scripted test server
  windlass talk . --scripted           to the scripted test server, also with a key
  windlass talk . --url ws://127.0.0.1:8765/v1/realtime    to your own server

Open the printed address in a browser on this machine, allow the microphone, and speak. Calls that need approval
appear on the page; `windlass approve` decides them too. Ctrl-C ends the conversation.";

const SUBMIT_EXAMPLES: &str = "\
Examples:
  windlass submit . \"Pay the invoices\"
  windlass submit . \"Pay the invoices\" --run-id invoices-2026-11    again has no effect
  windlass submit . \"Tidy up\" --tenant acme --priority 5 --store postgres://db.example/fleet

`windlass work` drives it; `windlass show`, `approve` and `cancel` reach it from any machine that shares the store.";

const WORK_EXAMPLES: &str = "\
Examples:
  windlass work .
  windlass work clerk reviewer --concurrency 32 --store postgres://db.example/fleet
  windlass work . --until-idle

SIGTERM and Ctrl-C drain the worker: it takes no more runs, no further call starts, and running calls get the drain
time. Other workers go on with its runs. A second Ctrl-C ends it at once, as a crash would.";

const CHAT_EXAMPLES: &str = "\
Examples:
  windlass chat .
  windlass chat . --session ann        continue the session
  windlass chat . --model ollama:qwen3

Ctrl-C stops the current turn; a second Ctrl-C quits. /help lists the commands of the chat.";

const RUN_EXAMPLES: &str = "\
Examples:
  windlass run . \"What is in this folder?\"
  windlass run helper.toml \"Tidy the notes\" --model openai:gpt-5-mini
  git diff | windlass run reviewer          the question is read from standard input
  windlass run . \"Pay the invoices\" --json  one JSON object per event

The answer goes to standard output, everything else to standard error. Without a terminal, a call that needs a
person pauses the run (exit code 3); continue with `windlass show`, `windlass approve` and `windlass resume`.";
