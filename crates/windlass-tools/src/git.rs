//! The tool `git_commit`: commits without hooks, because commands cannot write in `.git`.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::provenance::ContentSource;
use windlass::tool::Tool;

use crate::command::{CommandRequest, CommandToolOutput, execute};
use crate::error::ToolRefusal;
use crate::policy::BuiltInApprovalPolicy;
use crate::sandbox::GitAccess;
use crate::workspace::Workspace;

/// Stages the named paths and commits them. The first argument is the message. No hook, monitor of files, editor or signing
/// program that the repository configures is executed; its filters of files (`filter.*.clean`) are, in the sandbox. Paths
/// are literal.
const COMMIT_SCRIPT: &str = r#"
export GIT_LITERAL_PATHSPECS=1 GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=1
message=$1; shift
fixed() {
    git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.editor=false -c core.pager=cat \
        -c commit.gpgSign=false -c log.showSignature=false -c commit.template= -c gc.auto=0 -c maintenance.auto=false "$@"
}
fixed add --all -- "$@" && fixed commit --no-verify --quiet --message "$message" -- "$@" &&
    fixed log --max-count=1 --format='%h %s' --stat
"#;

/// What `git_commit` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GitCommit {
    /// The message of the commit.
    message: String,
    /// The files and folders to commit, relative to the workspace. Without it: all changes.
    paths: Option<Vec<String>>,
}

pub(crate) fn git_commit<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    let (here, rule) = (workspace.clone(), workspace.clone());
    let tool = Tool::function(
        "git_commit",
        "Commits changes of the workspace to its Git repository, without running hooks. Commands cannot write in \
         `.git`, so use this tool to commit.",
        move |_, arguments: GitCommit| {
            let here = here.clone();
            async move { commit(&here, &arguments).await.map_err(ToolRefusal::into_tool_error) }
        },
    )
    .content_source(ContentSource::Command)
    .needs_approval_if(move |_: &GitCommit| match &rule.command_approval {
        BuiltInApprovalPolicy::Never => false,
        BuiltInApprovalPolicy::Always | BuiltInApprovalPolicy::ExceptFor(_) => true,
    })
    .without_standing_approvals()
    .conflict_key(|_: &GitCommit| "commands".to_owned());
    workspace.sandbox.apply_to(tool)
}

async fn commit(workspace: &Workspace, arguments: &GitCommit) -> Result<CommandToolOutput, ToolRefusal> {
    if arguments.message.trim().is_empty() {
        return Err(ToolRefusal::InvalidArguments {
            reason: "`message` is empty: say what is changed".into(),
        });
    }
    let everything = [".".to_owned()];
    let mut paths = Vec::new();
    for path in arguments.paths.as_deref().unwrap_or(&everything) {
        paths.push(workspace.folder_path(Some(path))?.as_path().to_owned());
    }
    let mut args: Vec<String> = Vec::new();
    if let Some((name, email)) = &workspace.git_identity {
        for role in ["AUTHOR", "COMMITTER"] {
            args.push(format!("GIT_{role}_NAME={name}"));
            args.push(format!("GIT_{role}_EMAIL={email}"));
        }
    }
    args.extend(["sh", "-c", COMMIT_SCRIPT, "git_commit"].map(str::to_owned));
    args.push(arguments.message.clone());
    args.extend(paths);
    let request = CommandRequest {
        program: "env".to_owned(),
        args,
        folder: None,
        timeout: None,
        git_access: GitAccess::Commit,
    };
    execute(workspace, request).await
}
