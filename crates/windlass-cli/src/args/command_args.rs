//! The arguments of each sub-command.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

/// The arguments of `windlass demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Approve automatically and never wait for a key
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Kill the process yourself: the demo prints its process id and waits
    #[arg(long, conflicts_with = "yes")]
    pub(crate) by_hand: bool,
    /// Folder for the files of the demo
    #[arg(long, value_name = "FOLDER", default_value = "windlass-demo")]
    pub(crate) folder: PathBuf,
}

/// The arguments of `windlass run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Agent (a folder with an agent.toml, or such a file) and question; without a question, read standard
    /// input
    #[arg(value_name = "AGENT] [QUESTION", num_args = 0..=2)]
    pub(crate) positionals: Vec<String>,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// Session to use as history and to append to
    #[arg(short, long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Id of the run [default: a new id]
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,
    /// Prompt of an MCP server of the agent, which is the question or comes before it; `windlass tools` lists them
    #[arg(long, value_name = "SERVER/NAME")]
    pub(crate) mcp_prompt: Option<String>,
    /// Argument of the prompt; can be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "mcp_prompt")]
    pub(crate) mcp_argument: Vec<String>,
}

/// The arguments of `windlass submit`.
#[derive(Debug, clap::Args)]
pub(crate) struct SubmitArgs {
    /// Agent (a folder with an agent.toml, or such a file) and question; without a question, read standard
    /// input
    #[arg(value_name = "AGENT] [QUESTION", num_args = 0..=2)]
    pub(crate) positionals: Vec<String>,
    /// Session to use as history and to append to
    #[arg(short, long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Id of the run; submitting the same again has no effect [default: a new id]
    #[arg(long, value_name = "ID")]
    pub(crate) run_id: Option<String>,
    /// Tenant that the run belongs to; tenants are served in turn
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) tenant: String,
    /// Priority among the runs of the tenant; higher ones are taken first
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Attempts without progress after which the run becomes a dead letter
    #[arg(long, value_name = "COUNT", default_value_t = windlass::fleet::DEFAULT_MAX_ATTEMPTS)]
    pub(crate) max_attempts: u32,
}

/// The arguments of `windlass work`.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkArgs {
    /// Agents to drive: folders with an agent.toml, or such files [default: the project]
    #[arg(value_name = "AGENT")]
    pub(crate) agents: Vec<PathBuf>,
    /// Number of runs to drive at a time
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    pub(crate) concurrency: usize,
    /// Seconds that running calls get to finish when the worker drains
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(crate) drain: u64,
    /// Stop when there is nothing to take
    #[arg(long)]
    pub(crate) until_idle: bool,
}

/// The arguments of `windlass schedule`.
#[derive(Debug, clap::Args)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) action: ScheduleAction,
}

/// The actions of `windlass schedule`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ScheduleAction {
    /// Add a schedule, in place of an earlier one of its name
    Add {
        /// Name of the schedule; its runs are named NAME@SECONDS
        name: String,
        /// Times in the notation of cron, in UTC: minute, hour, day, month, day of the week
        #[arg(value_name = "TIMES")]
        times: windlass::fleet::CronTimes,
        /// Treatment of times at which no worker was there
        #[arg(long, value_enum, default_value = "latest", value_name = "POLICY")]
        missed: MissedChoice,
        #[command(flatten)]
        submission: ScheduledRunArgs,
    },
    /// List the schedules
    List,
    /// Remove a schedule; runs that it has submitted stay
    Remove {
        /// Name of the schedule
        name: String,
    },
}

/// The run that a schedule submits.
#[derive(Debug, clap::Args)]
pub(crate) struct ScheduledRunArgs {
    /// Agent: a folder with an agent.toml, or such a file
    pub(crate) agent: PathBuf,
    /// Question of each run
    pub(crate) question: String,
    /// Session to use as history and to append to
    #[arg(short, long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Tenant that the runs belong to
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) tenant: String,
    /// Priority among the runs of the tenant
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
}

/// The treatment of missed times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MissedChoice {
    /// They are skipped
    Skip,
    /// The last one is made up for
    Latest,
    /// Up to 100 are made up for
    All,
}

/// The arguments of `windlass fleet`.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetArgs {
    #[command(subcommand)]
    pub(crate) action: FleetAction,
}

/// The actions of `windlass fleet`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum FleetAction {
    /// List the submitted runs that have not ended
    Queue {
        /// Maximum number of runs to list
        #[arg(short = 'n', long, default_value_t = 20, value_name = "COUNT")]
        limit: usize,
    },
    /// List the workers of the store
    Workers,
    /// Say which unfinished runs these agents could not finish, before they are deployed. Exit code 1 if there are any
    Check {
        /// Agents: folders with an agent.toml, or such files [default: the project]
        #[arg(value_name = "AGENT")]
        agents: Vec<PathBuf>,
    },
    /// Make a run ready again that is a dead letter or waits for a time
    Revive(RunSelector),
}

/// The options of every sub-command that executes a run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DriveArgs {
    /// Model to use instead of the agent's own: `provider:name`, or `scripted:FILE`
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Approve every call that requires approval. Calls in doubt still wait for a person
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Never prompt: the run pauses if a person is needed
    #[arg(long, conflicts_with = "yes")]
    pub(crate) no_input: bool,
}

/// The arguments of `windlass runs`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunsArgs {
    /// List only runs with this status
    #[arg(long, value_enum, value_name = "STATE")]
    pub(crate) status: Option<StatusChoice>,
    /// Maximum number of runs to list
    #[arg(short = 'n', long, default_value_t = 20, value_name = "COUNT")]
    pub(crate) limit: usize,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusChoice {
    /// Being executed, or interrupted by the end of its process
    Running,
    /// Waiting for a person
    Paused,
    /// Ended with an answer
    Finished,
    /// Ended with an error
    Failed,
    /// Cancelled
    Cancelled,
}

/// The arguments of `windlass show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// Run id or its prefix [default: the newest run]
    pub(crate) run: Option<String>,
    /// Show every record of the journal, one per line
    #[arg(long)]
    pub(crate) journal: bool,
    /// Show the call that waits with these arguments, a JSON object, and the digest that approves it so
    #[arg(long, value_name = "JSON", conflicts_with = "journal")]
    pub(crate) arguments: Option<String>,
    /// Id of the call whose arguments are edited [default: the only one that waits]
    #[arg(long, value_name = "CALL", requires = "arguments")]
    pub(crate) call: Option<String>,
}

/// The arguments of `windlass resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Run id, its prefix, or an exported file [default: the newest unfinished run]
    pub(crate) run: Option<String>,
    /// Agent to use instead of the one that started the run
    #[arg(short, long, value_name = "AGENT")]
    pub(crate) agent: Option<PathBuf>,
    /// Go on with the decisions of a file that cannot be verified
    #[arg(long)]
    pub(crate) trust_text: bool,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
}

/// The arguments of `windlass chat`.
#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// Agent: a folder with an agent.toml, or such a file [default: the project]
    pub(crate) agent: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// Session to start or to continue [default: a new session]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) session: Option<String>,
}

/// The arguments of `windlass talk`.
#[cfg(feature = "talk")]
#[derive(Debug, clap::Args)]
pub(crate) struct TalkArgs {
    /// Agent: a folder with an agent.toml, or such a file [default: the project]
    pub(crate) agent: Option<PathBuf>,
    /// Talk to the scripted test server, even if OPENAI_API_KEY is set
    #[arg(long)]
    pub(crate) scripted: bool,
    /// Server of OpenAI's Realtime API to talk to; the key is sent only to wss:// addresses
    #[arg(long, value_name = "URL", conflicts_with = "scripted")]
    pub(crate) url: Option<String>,
    /// Realtime model [default: that of the provider]
    #[arg(short, long, value_name = "MODEL", conflicts_with = "scripted")]
    pub(crate) model: Option<String>,
    /// Voice of the answers
    #[arg(long, value_name = "NAME")]
    pub(crate) voice: Option<String>,
    /// Go on with a conversation whose process was stopped or killed
    #[arg(long, value_name = "SESSION")]
    pub(crate) resume: Option<String>,
    /// Port of the page [default: a free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub(crate) port: u16,
    /// Do not open the page in a browser
    #[arg(long)]
    pub(crate) no_open: bool,
}

/// The arguments of `windlass serve`.
#[cfg(feature = "serve")]
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Agents: folders with an agent.toml, or such files [default: the project]
    pub(crate) agents: Vec<PathBuf>,
    /// Address to listen on; one that is not a loopback address needs --access
    #[arg(long, value_name = "ADDRESS", default_value = windlass_server::DEFAULT_ADDRESS)]
    pub(crate) listen: String,
    /// File with the people who may use the server, their token digests and rights
    #[arg(long, value_name = "FILE")]
    pub(crate) access: Option<PathBuf>,
    /// Host name that the server answers for, beside its address
    #[arg(long, value_name = "HOST")]
    pub(crate) name: Vec<String>,
    /// Number of runs that are driven at a time; 0 drives none
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) workers: usize,
    /// Print a new token for a person, and the lines for the access file
    #[arg(long, value_name = "PERSON", exclusive = true)]
    pub(crate) new_token: Option<String>,
}

/// A required run id.
#[derive(Debug, clap::Args)]
pub(crate) struct RunSelector {
    /// Run id or its prefix
    pub(crate) run: String,
}

/// A pending call, and the name of the person who decides.
#[derive(Debug, clap::Args)]
pub(crate) struct PendingCallArgs {
    /// Run id or its prefix [default: the only run that waits]
    pub(crate) run: Option<String>,
    /// Id of the call, as shown by `windlass show` [default: the only pending call]
    pub(crate) call: Option<String>,
    /// Digest that `windlass show` printed below the call. Without it, the call is shown and confirmed here
    #[arg(long, value_name = "DIGEST")]
    pub(crate) digest: Option<String>,
    /// Name of the person who decides [default: the current user]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Resume the run afterwards, in this terminal
    #[arg(short, long)]
    pub(crate) resume: bool,
}

/// The arguments of `windlass approve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    pub(crate) pending_call: PendingCallArgs,
    /// Also approve every later call of this tool in this run
    #[arg(long, conflicts_with = "arguments")]
    pub(crate) always: bool,
    /// Replace the arguments of the call; the model is informed
    #[arg(long, value_name = "JSON")]
    pub(crate) arguments: Option<String>,
}

/// The arguments of `windlass reject`.
#[derive(Debug, clap::Args)]
pub(crate) struct RejectArgs {
    #[command(flatten)]
    pub(crate) pending_call: PendingCallArgs,
    /// Also reject every later call of this tool in this run
    #[arg(long)]
    pub(crate) always: bool,
    /// Reason for the rejection, shown to the model
    #[arg(long, value_name = "REASON")]
    pub(crate) because: Option<String>,
}

/// The arguments of `windlass answer`.
#[derive(Debug, clap::Args)]
pub(crate) struct AnswerArgs {
    /// Run id or its prefix
    pub(crate) run: String,
    /// Id of the call, as shown by `windlass show`
    pub(crate) call: String,
    /// Answer, as JSON or plain text
    pub(crate) value: String,
    /// Digest of the question that was read, as printed by `windlass show` [default: display it and ask]
    #[arg(long, value_name = "DIGEST")]
    pub(crate) digest: Option<String>,
    /// Name of the person who answers [default: the current user]
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Resume the run afterwards, in this terminal
    #[arg(short, long)]
    pub(crate) resume: bool,
}

/// The arguments of `windlass settle`.
#[derive(Debug, clap::Args)]
pub(crate) struct SettleArgs {
    #[command(flatten)]
    pub(crate) pending_call: PendingCallArgs,
    #[command(flatten)]
    pub(crate) settlement: SettlementArgs,
}

/// The settlement of a call in doubt.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct SettlementArgs {
    /// The call was executed and returned this output
    #[arg(long, value_name = "OUTPUT")]
    pub(crate) happened: Option<String>,
    /// The call was not executed: execute it
    #[arg(long)]
    pub(crate) did_not_happen: bool,
    /// The outcome is unknown: inform the model
    #[arg(long)]
    pub(crate) unknown: bool,
}

/// The arguments of `windlass fork`.
#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    /// Run id or its prefix
    pub(crate) run: String,
    /// Record number to fork at [default: the last record]
    #[arg(long, value_name = "RECORD")]
    pub(crate) at: Option<u64>,
    #[command(flatten)]
    pub(crate) change: ForkChangeArgs,
    /// Id of the fork [default: a new id]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Resume the fork, in this terminal
    #[arg(short, long)]
    pub(crate) resume: bool,
}

/// The change that a fork makes.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct ForkChangeArgs {
    /// Show this call of the fork, and approve it if you confirm
    #[arg(long, value_name = "CALL")]
    pub(crate) approve: Option<String>,
    /// Reject this call
    #[arg(long, value_name = "CALL")]
    pub(crate) reject: Option<String>,
    /// Replace the output of this call
    #[arg(long, value_name = "CALL=TEXT")]
    pub(crate) output: Option<String>,
}

/// The arguments of `windlass diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// First run
    pub(crate) first: String,
    /// Second run
    pub(crate) second: String,
}

/// The arguments of `windlass export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Run id or its prefix [default: the newest run]
    pub(crate) run: Option<String>,
    /// File to write instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Send the trace of the run to an OTLP collector instead, such as http://localhost:4318/v1/traces; without an
    /// address, to the one in the OTEL_* variables
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, conflicts_with = "output")]
    pub(crate) otlp: Option<Option<String>>,
}

/// The arguments of `windlass verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Run id, its prefix, or an exported file [default: every run of the project]
    pub(crate) run: Option<String>,
    /// Expected hash of the last line; the only way to detect lines removed from the end
    #[arg(long, value_name = "HASH", requires = "run")]
    pub(crate) head: Option<String>,
}

/// The arguments of `windlass key`.
#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) action: KeyAction,
}

/// The actions of `windlass key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Subcommand)]
pub(crate) enum KeyAction {
    /// Print the file and the ids of the keys
    Show,
    /// Add a key that authenticates decisions from now on; the earlier ones still verify
    Rotate,
    /// Print your own key, with which you sign decisions; it is made if there is none
    Approver,
}

/// The arguments of `windlass sign`.
#[derive(Debug, clap::Args)]
pub(crate) struct SignArgs {
    /// File with the answer of `POST /v1/runs/{run}/statement`; `-` for the standard input
    pub(crate) statement: PathBuf,
    /// Digest of the sheet that you have read. Without it, the call is shown and confirmed here
    #[arg(long, value_name = "DIGEST")]
    pub(crate) digest: Option<String>,
}

/// The arguments of `windlass policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) action: PolicyAction,
}

/// The actions of `windlass policy`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PolicyAction {
    /// Show the calls of recorded runs that the policy would handle otherwise
    Test {
        /// Folder with an agent.toml, or an agent file [default: the project]
        agent: Option<PathBuf>,
        /// A policy file to test in place of the agent's own policy
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// The arguments of `windlass sessions`.
#[derive(Debug, clap::Args)]
pub(crate) struct SessionsArgs {
    /// Session to show
    pub(crate) session: Option<String>,
    /// Rewind the session by this number of user messages
    #[arg(long, value_name = "TURNS", requires = "session")]
    pub(crate) rewind: Option<usize>,
}

/// The arguments of `windlass tools`.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolsArgs {
    /// Agent: a folder with an agent.toml, or such a file [default: the project]
    pub(crate) agent: Option<PathBuf>,
}

/// The arguments of `windlass models`.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelsArgs {
    /// Agent: a folder with an agent.toml, or such a file [default: the project]
    pub(crate) agent: Option<PathBuf>,
}

/// The arguments of `windlass backup`.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// File to write; it must not exist
    pub(crate) file: PathBuf,
}

/// The arguments of `windlass restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Backup to make a store of, where there is none now [default: the store was restored by other means]
    pub(crate) file: Option<PathBuf>,
}

/// The arguments of `windlass forget`.
#[derive(Debug, clap::Args)]
pub(crate) struct ForgetArgs {
    /// Run ids or their prefixes
    #[arg(value_name = "RUN", required_unless_present = "older_than", conflicts_with = "older_than")]
    pub(crate) runs: Vec<String>,
    /// Forget ended runs whose status has not changed for this time: 12h, 30d
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    pub(crate) older_than: Option<Duration>,
    /// Forget runs with this status instead of all ended ones; may be repeated
    #[arg(long, value_enum, value_name = "STATE", requires = "older_than")]
    pub(crate) status: Vec<StatusChoice>,
}

/// Parses an age: a number and its unit, which is `m`, `h` or `d`.
fn parse_age(text: &str) -> Result<Duration, String> {
    let units = [("m", 60), ("h", 3_600), ("d", 86_400)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let age =
        found.and_then(|(number, seconds): (&str, u64)| number.parse::<u64>().ok()?.checked_mul(seconds));
    age.map(Duration::from_secs).ok_or_else(|| "write an age like 45m, 12h or 30d".to_owned())
}

/// The arguments of `windlass migrate`.
#[derive(Debug, clap::Args)]
pub(crate) struct MigrateArgs {
    /// Store to copy from: a file, or the address of a database
    pub(crate) from: PathBuf,
    /// Store to copy to; it is made if it does not exist
    pub(crate) to: PathBuf,
}

/// The arguments of `windlass doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Agent to check [default: the project]
    pub(crate) agent: Option<PathBuf>,
}

/// The arguments of `windlass init`.
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// Folder of the agent
    #[arg(default_value = ".")]
    pub(crate) folder: PathBuf,
    /// Model of the agent, as `provider:name` [default: a question]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Write the files and show nothing
    #[arg(long)]
    pub(crate) no_tour: bool,
}

/// The arguments of `windlass new`.
#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// Name of the project and of its folder
    pub(crate) name: String,
    /// Folder of a Windlass clone that the project depends on [default: the revision or the clone that
    /// this command was installed from]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) path: Option<PathBuf>,
    /// Git repository of Windlass that the project depends on
    #[arg(long, value_name = "URL", conflicts_with = "path")]
    pub(crate) git: Option<String>,
}

/// The arguments of `windlass completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to generate the script for
    #[arg(value_enum)]
    pub(crate) shell: CompletionShell,
}

/// A shell with completion support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletionShell {
    /// GNU Bash
    Bash,
    /// Zsh
    Zsh,
    /// fish
    Fish,
}
