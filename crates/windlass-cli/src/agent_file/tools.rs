//! The built-in tools of an agent file.

use windlass::tool::Tool;

use super::AgentFile;
use crate::cli_error::CliError;
use crate::demo;

/// Named sets of tools.
const TOOL_SETS: [(&str, &[&str]); 3] = [
    ("read", &["read_file", "list_files", "search_files", "read_output"]),
    ("files", &["read_file", "list_files", "search_files", "read_output", "write_file", "patch_file"]),
    ("shell", &["run_command", "git_commit"]),
];

/// The change that a call would make to a file.
pub(crate) struct ChangePreview {
    /// The effect and the path, or the reason for which the change would be refused.
    pub(crate) title: String,
    /// Outcome that the change would have now.
    pub(crate) status: PreviewStatus,
    /// The unified diff, without its file header.
    pub(crate) lines: Vec<String>,
}

/// The status of a change that a call would make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreviewStatus {
    /// The change can be made.
    Applicable,
    /// The tool would refuse the change.
    Refused,
}

/// Returns the tools that the agent file names.
pub(super) fn find_tools(file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    let names = &file.spec.tools;
    let skill_tools = skill_tools(file)?;
    if names.is_empty() {
        return Ok(skill_tools);
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
    for tool in skill_tools {
        if !found.iter().any(|other| other.name() == tool.name()) {
            found.push(tool);
        }
    }
    Ok(found)
}

/// Returns true if the agent file names tools that read or change files of the workspace, or run commands in it.
pub(super) fn has_workspace_tools(file: &AgentFile) -> Result<bool, CliError> {
    let in_workspace = folder_tools(file)?;
    let is_in_workspace = |name: &str| in_workspace.iter().any(|tool| tool.name() == name);
    let is_named = |name: &String| match TOOL_SETS.iter().find(|(set, _)| set == name) {
        Some((_, of_set)) => of_set.iter().any(|name| is_in_workspace(name)),
        None => is_in_workspace(name),
    };
    Ok(!file.spec.skills.is_empty() || file.spec.tools.iter().any(is_named))
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
    let mut tools = folder_tools(file)?;
    tools.push(windlass_tools::ask_person());
    let mut web = windlass_tools::WebFetcher::new();
    if let Some(policy) = file.policy().rules() {
        web = web.policy(policy);
    }
    tools.push(web.tool());
    Ok(tools)
}

#[cfg(unix)]
fn folder_tools(file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    Ok(open_workspace(file)?.tools())
}

#[cfg(unix)]
fn open_workspace(file: &AgentFile) -> Result<windlass_tools::Workspace, CliError> {
    use windlass_tools::sandbox::SandboxRequirement;
    use windlass_tools::{Sandbox, Workspace};

    use super::UnconfinedCommands;
    let wrong = |error: windlass_tools::WorkspaceError| {
        CliError::new(error.to_string()).with_hint("check `workspace` and `hidden_files` in the agent file")
    };
    let hidden = file.spec.hidden_files.iter().map(String::as_str);
    let mut workspace =
        Workspace::new(file.workspace_folder()).and_then(|folder| folder.hide(hidden)).map_err(wrong)?;
    // The files with the agent's rules are read-only under every name.
    workspace = workspace.protect(file.path());
    for path in file.spec.mcp_file.iter().chain(&file.spec.instructions_file) {
        workspace = workspace.protect(file.folder.join(path));
    }
    let mut skills = windlass_tools::Skills::default();
    for folder in &file.spec.skills {
        skills = skills.and_open(file.folder.join(folder)).map_err(|error| {
            CliError::new(error.to_string()).with_hint("check `skills` in the agent file")
        })?;
    }
    let requirement = match file.spec.unconfined_commands {
        UnconfinedCommands::Ask => SandboxRequirement::AskIfUnconfined,
        UnconfinedCommands::Run => SandboxRequirement::BestEffort,
        UnconfinedCommands::Refuse => SandboxRequirement::Required,
    };
    Ok(workspace.skills(skills).sandbox(Sandbox::default().requirement(requirement)))
}

/// Returns the tools of the skills that the agent file names.
#[cfg(unix)]
fn skill_tools(file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    if file.spec.skills.is_empty() {
        return Ok(Vec::new());
    }
    Ok(open_workspace(file)?.skill_tools())
}

#[cfg(not(unix))]
fn skill_tools(file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    if file.spec.skills.is_empty() {
        return Ok(Vec::new());
    }
    Err(CliError::new("`skills` cannot be used on this system"))
}

#[cfg(unix)]
pub(super) fn preview_change(file: &AgentFile, tool: &str, arguments: &str) -> Option<ChangePreview> {
    use windlass_tools::FileChange;

    use crate::terminal::pluralise;
    let diff = open_workspace(file).ok()?.preview(tool, arguments)?;
    let (path, added, removed) = (&diff.path, diff.added, diff.removed);
    let applicable = |title| (title, PreviewStatus::Applicable);
    let (title, status) = match &diff.change {
        FileChange::Creates => applicable(format!("creates {path}, {}", pluralise(added, "line", "lines"))),
        FileChange::Modifies => applicable(format!(
            "changes {path}, {} added, {removed} removed",
            pluralise(added, "line", "lines")
        )),
        FileChange::Refused(why) => (format!("would be refused: {why}"), PreviewStatus::Refused),
    };
    // The title already has the path. A carriage return is part of the change, so only line feeds end a line.
    let text = diff.text.strip_suffix('\n').unwrap_or(&diff.text);
    let lines = text.split('\n').skip_while(|line| line.starts_with("--- ") || line.starts_with("+++ "));
    let lines = lines.filter(|_| !text.is_empty()).map(str::to_owned).collect();
    Some(ChangePreview { title, status, lines })
}

#[cfg(not(unix))]
fn folder_tools(_file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    Ok(Vec::new())
}

#[cfg(not(unix))]
fn workspace_tools(_file: &AgentFile) -> Result<Vec<Tool>, CliError> {
    Ok(Vec::new())
}

#[cfg(not(unix))]
pub(super) fn preview_change(_file: &AgentFile, _tool: &str, _arguments: &str) -> Option<ChangePreview> {
    None
}
