//! The built-in tools of an agent file.

use windlass::tool::Tool;

use super::AgentFile;
use crate::cli_error::CliError;
use crate::demo;

/// Named sets of tools.
const TOOL_SETS: [(&str, &[&str]); 3] = [
    ("read", &["read_file", "list_files", "search_files", "read_output"]),
    ("files", &["read_file", "list_files", "search_files", "read_output", "write_file", "patch_file"]),
    ("shell", &["run_command"]),
];

/// The change that a call would make to a file.
pub(crate) struct ChangePreview {
    /// The effect and the path, or the reason for which the change would be refused.
    pub(crate) title: String,
    /// The unified diff, without its file header.
    pub(crate) lines: Vec<String>,
}

/// Returns the tools that the agent file names.
pub(super) fn find_tools(file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    let names = &file.spec.tools;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let known = all_tools(file)?;
    let mut wanted: Vec<&str> = Vec::new();
    for name in names {
        match TOOL_SETS.iter().find(|(set, _)| set == name) {
            Some((_, of_set)) => wanted.extend(*of_set),
            None => wanted.push(name),
        }
    }
    let mut found: Vec<Tool> = Vec::new();
    for name in wanted {
        let Some((_, tool)) = known.iter().find(|(known, _)| known == name) else {
            let names: Vec<&str> = TOOL_SETS
                .iter()
                .map(|(set, _)| *set)
                .chain(known.iter().map(|(name, _)| name.as_str()))
                .collect();
            return Err(CliError::new(format!("there is no built-in tool `{name}`"))
                .with_hint(format!("available: {}", names.join(", "))));
        };
        if !found.iter().any(|other| other.name() == tool.name()) {
            found.push(tool.clone());
        }
    }
    Ok(found)
}

/// Returns all built-in tools with the names that an agent file uses.
fn all_tools(file: &AgentFile) -> Result<Vec<(String, Tool)>, CliError> {
    let mut known: Vec<(String, Tool)> = Vec::new();
    let folder = file.workspace_folder();
    for tool in workspace_tools(file)? {
        known.push((tool.name().to_owned(), tool));
    }
    known.push(("read_output".to_owned(), windlass::artefact::read_output()));
    known.extend(demo::demo_tools(&folder).into_iter().map(|tool| (format!("demo.{}", tool.name()), tool)));
    Ok(known)
}

#[cfg(unix)]
fn workspace_tools(file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    let mut tools = open_workspace(file)?.tools();
    tools.push(windlass_tools::ask_person());
    let hosts = file.spec.policy.auto_approve_fetches.iter().cloned();
    tools.push(
        windlass_tools::WebFetcher::new()
            .approve(windlass_tools::BuiltInApprovalPolicy::except_for(hosts))
            .tool(),
    );
    Ok(tools)
}

#[cfg(unix)]
fn open_workspace(file: &AgentFile) -> Result<windlass_tools::Workspace, CliError> {
    use windlass_tools::{BuiltInApprovalPolicy, Workspace};
    let wrong = |error: windlass_tools::WorkspaceError| {
        CliError::new(error.to_string()).with_hint("check `workspace` and `hidden_files` in the agent file")
    };
    // Agents must not access the command's own files.
    let hidden = std::iter::once(".windlass").chain(file.spec.hidden_files.iter().map(String::as_str));
    let mut workspace =
        Workspace::new(file.workspace_folder()).and_then(|folder| folder.hide(hidden)).map_err(wrong)?;
    let policy = &file.spec.policy;
    if !policy.auto_approve_writes.is_empty() {
        let folders = policy.auto_approve_writes.iter().cloned();
        workspace = workspace.approve_writes(BuiltInApprovalPolicy::except_for(folders));
    }
    if !policy.auto_approve_commands.is_empty() {
        let programs = policy.auto_approve_commands.iter().cloned();
        workspace = workspace.approve_commands(BuiltInApprovalPolicy::except_for(programs));
    }
    Ok(workspace)
}

#[cfg(unix)]
pub(super) fn preview_change(file: &AgentFile, tool: &str, arguments: &str) -> Option<ChangePreview> {
    use windlass_tools::FileChange;

    use crate::terminal::pluralise;
    let diff = open_workspace(file).ok()?.preview(tool, arguments)?;
    let (path, added, removed) = (&diff.path, diff.added, diff.removed);
    let title = match &diff.change {
        FileChange::Creates => format!("creates {path}, {}", pluralise(added, "line", "lines")),
        FileChange::Modifies => {
            format!("changes {path}, {} added, {removed} removed", pluralise(added, "line", "lines"))
        }
        FileChange::Refused(why) => format!("would be refused: {why}"),
    };
    // The title already has the path.
    let lines = diff.text.lines().skip_while(|line| line.starts_with("--- ") || line.starts_with("+++ "));
    Some(ChangePreview { title, lines: lines.map(str::to_owned).collect() })
}

#[cfg(not(unix))]
fn workspace_tools(_file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    Ok(Vec::new())
}

#[cfg(not(unix))]
pub(super) fn preview_change(_file: &AgentFile, _tool: &str, _arguments: &str) -> Option<ChangePreview> {
    None
}
