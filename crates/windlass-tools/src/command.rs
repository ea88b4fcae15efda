//! `run_command`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::Tool;

use crate::error::Refusal;
use crate::policy::Approve;
use crate::sandbox::{self, Confinement, Order};
use crate::workspace::Workspace;

/// What `run_command` takes.
#[derive(Debug, Deserialize, JsonSchema)]
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

/// What the model is told.
#[derive(Debug, Serialize)]
struct Told {
    /// The exit code; none where a signal ended it.
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timed_out: Option<String>,
    stdout: String,
    stderr: String,
    /// How far the kernel restricted it.
    confined: Confinement,
}

pub(crate) fn run_command<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    let (here, rule) = (workspace.clone(), workspace.clone());
    Tool::function(
        "run_command",
        "Runs a program in the workspace, without input, and tells its exit code and output. It may write only \
         in the workspace, and processes that it leaves behind are ended.",
        move |_, arguments: RunCommand| {
            let here = here.clone();
            async move { run(&here, &arguments).await.map_err(Refusal::told) }
        },
    )
    .approve_if(move |arguments: &RunCommand| asks(&rule.commands, arguments))
    // Commands change the same files: side by side they would get in each other's way.
    .conflict(|_: &RunCommand| "commands".to_owned())
}

fn asks(approve: &Approve, arguments: &RunCommand) -> bool {
    match approve {
        Approve::Always => true,
        Approve::Never => false,
        Approve::OutsideOf(programs) => match (&arguments.program, &arguments.shell) {
            (Some(program), None) => !programs.contains(program),
            _ => true,
        },
    }
}

async fn run(workspace: &Workspace, arguments: &RunCommand) -> Result<Told, Refusal> {
    let (program, args) = match (&arguments.program, &arguments.shell) {
        (Some(program), None) if !program.is_empty() => {
            (program.clone(), arguments.args.clone().unwrap_or_default())
        }
        (None, Some(shell)) => ("sh".to_owned(), vec!["-c".to_owned(), shell.clone()]),
        _ => {
            return Err(Refusal::Arguments {
                what: "give `program` with `args`, or `shell`, and not both".into(),
            });
        }
    };
    if args.iter().chain([&program]).any(|word| word.contains('\0')) {
        return Err(Refusal::Arguments {
            what: "a word of the command has a NUL in it: leave it out".into(),
        });
    }
    let folder = workspace.folder_at(arguments.folder.as_deref())?;
    let limits = &workspace.limits;
    let time = arguments.seconds.map_or(limits.command_time, Duration::from_secs).min(limits.longest_command);
    let sandbox = &workspace.sandbox;
    let order = Order {
        program,
        args,
        environment: Vec::new(),
        root: workspace.folder().to_owned(),
        folder: folder.as_path().to_owned(),
        read: sandbox.read.clone(),
        write: sandbox.write.clone(),
        network: sandbox.network,
        need: sandbox.need,
        uses: sandbox.uses,
    };
    let ended = sandbox::run(sandbox, order, time, limits.output_bytes)
        .await
        .map_err(|what| Refusal::Command { what })?;
    Ok(Told {
        exit_code: ended.code,
        signal: ended.signal,
        timed_out: ended.timed_out.then(|| format!("it was ended after {} seconds", time.as_secs())),
        stdout: ended.stdout,
        stderr: ended.stderr,
        confined: ended.confined,
    })
}
