//! The tool `run_command`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::core::provenance::ContentSource;
use windlass::tool::Tool;

use crate::error::ToolRefusal;
use crate::policy::BuiltInApprovalPolicy;
use crate::sandbox::{self, ConfinementLevel, GitAccess, SandboxGap, SandboxedCommand};
use crate::tool_policy::CommandPattern;
use crate::workspace::Workspace;

/// What `run_command` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// The program. Give this or `shell`.
    program: Option<String>,
    /// Its arguments, each as it is: no shell reads them.
    args: Option<Vec<String>>,
    /// Text for `sh -c`, where pipes or variables are needed. Give this or `program`.
    shell: Option<String>,
    /// Where to run, relative to the workspace. Without it: the workspace.
    folder: Option<String>,
    /// How long it may take, in seconds.
    seconds: Option<u64>,
}

/// The output of `run_command` for the model.
#[derive(Debug, Serialize)]
pub(crate) struct CommandToolOutput {
    /// The exit code; `None` if a signal ended the command.
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timed_out: Option<String>,
    stdout: String,
    stderr: String,
    /// The confinement that was applied.
    confined: ConfinementLevel,
    /// The restrictions that were not applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    open: Vec<SandboxGap>,
    /// The changes of protected files that were undone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    protected: Vec<String>,
}

pub(crate) fn run_command<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    let (here, rule) = (workspace.clone(), workspace.clone());
    let tool = Tool::function(
        "run_command",
        "Runs a program in the workspace, without input, and tells its exit code and output. It may write only \
         in the workspace, and processes that it leaves behind are ended.",
        move |_, arguments: RunCommand| {
            let here = here.clone();
            async move { run_in_sandbox(&here, &arguments).await.map_err(ToolRefusal::into_tool_error) }
        },
    )
    .content_source(ContentSource::Command)
    .needs_approval_if(move |arguments: &RunCommand| needs_approval(&rule.command_approval, arguments))
    .without_standing_approvals()
    // Commands may change the same files, so they do not run concurrently.
    .conflict_key(|_: &RunCommand| "commands".to_owned());
    workspace.sandbox.apply_to(tool)
}

fn needs_approval(approve: &BuiltInApprovalPolicy, arguments: &RunCommand) -> bool {
    match approve {
        BuiltInApprovalPolicy::Always => true,
        BuiltInApprovalPolicy::Never => false,
        BuiltInApprovalPolicy::ExceptFor(commands) => match (&arguments.program, &arguments.shell) {
            (Some(program), None) => {
                let args: Vec<&str> = arguments.args.iter().flatten().map(String::as_str).collect();
                // A pattern that allows more than it seems to is no pattern, and exempts nothing.
                !commands.iter().any(|command| {
                    CommandPattern::parse(command).is_ok_and(|pattern| pattern.matches(program, &args))
                })
            }
            _ => true,
        },
    }
}

async fn run_in_sandbox(
    workspace: &Workspace,
    arguments: &RunCommand,
) -> Result<CommandToolOutput, ToolRefusal> {
    let (program, args) = match (&arguments.program, &arguments.shell) {
        (Some(program), None) if !program.is_empty() => {
            (program.clone(), arguments.args.clone().unwrap_or_default())
        }
        (None, Some(shell)) => ("sh".to_owned(), vec!["-c".to_owned(), shell.clone()]),
        _ => {
            return Err(ToolRefusal::InvalidArguments {
                reason: "give `program` with `args`, or `shell`, and not both".into(),
            });
        }
    };
    let request = CommandRequest {
        program,
        args,
        folder: arguments.folder.as_deref(),
        timeout: arguments.seconds.map(Duration::from_secs),
        git_access: GitAccess::ReadOnly,
    };
    execute(workspace, request).await
}

/// A command of a tool.
pub(crate) struct CommandRequest<'a> {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) folder: Option<&'a str>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) git_access: GitAccess,
}

/// Executes a command in the sandbox of a workspace.
pub(crate) async fn execute(
    workspace: &Workspace,
    request: CommandRequest<'_>,
) -> Result<CommandToolOutput, ToolRefusal> {
    let CommandRequest { program, args, folder, timeout, git_access } = request;
    if args.iter().chain([&program]).any(|word| word.contains('\0')) {
        return Err(ToolRefusal::InvalidArguments {
            reason: "a word of the command has a NUL in it: leave it out".into(),
        });
    }
    let folder = workspace.folder_path(folder)?;
    let limits = &workspace.limits;
    let time = timeout.unwrap_or(limits.default_command_timeout).min(limits.max_command_timeout);
    let sandbox = &workspace.sandbox;
    let order = SandboxedCommand {
        program,
        args,
        environment: Vec::new(),
        root: workspace.folder().to_owned(),
        folder: folder.as_path().to_owned(),
        readable: sandbox.readable.clone(),
        writable: sandbox.writable.clone(),
        protected: workspace.protected_paths(),
        git_access,
        network: sandbox.network,
        needs_confinement: sandbox.needs_confinement(),
        resource_limits: sandbox.resource_limits,
    };
    let ended = sandbox::run_sandboxed(sandbox, order, time, limits.max_output_bytes)
        .await
        .map_err(|what| ToolRefusal::CommandNotRun { reason: what })?;
    Ok(CommandToolOutput {
        exit_code: ended.exit_code,
        signal: ended.signal,
        timed_out: ended.timed_out.then(|| format!("it was ended after {} seconds", time.as_secs())),
        stdout: ended.stdout,
        stderr: ended.stderr,
        confined: ended.confinement.level,
        open: ended.confinement.open,
        protected: ended.undone,
    })
}
