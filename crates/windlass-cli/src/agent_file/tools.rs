//! The built-in tools that an agent's file names.

use windlass::Tool;

use super::AgentFile;
use crate::demo;
use crate::problem::Problem;

/// Sets of tools, by name.
const SETS: [(&str, &[&str]); 3] = [
    ("read", &["read_file", "list_files", "search_files", "read_output"]),
    ("files", &["read_file", "list_files", "search_files", "read_output", "write_file", "patch_file"]),
    ("shell", &["run_command"]),
];

/// What a call would change in a file.
pub(crate) struct Preview {
    /// What it does to which file, or why it would be refused.
    pub(crate) title: String,
    /// The change, as a unified diff.
    pub(crate) lines: Vec<String>,
}

/// The tools that the agent's file names.
pub(super) fn find(file: &AgentFile) -> Result<Vec<Tool>, Problem> {
    let names = &file.spec.tools;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let known = all(file)?;
    let mut wanted: Vec<&str> = Vec::new();
    for name in names {
        match SETS.iter().find(|(set, _)| set == name) {
            Some((_, of_set)) => wanted.extend(*of_set),
            None => wanted.push(name),
        }
    }
    let mut found: Vec<Tool> = Vec::new();
    for name in wanted {
        let Some((_, tool)) = known.iter().find(|(known, _)| known == name) else {
            let names: Vec<&str> =
                SETS.iter().map(|(set, _)| *set).chain(known.iter().map(|(name, _)| name.as_str())).collect();
            return Err(Problem::new(format!("there is no built-in tool `{name}`"))
                .hint(format!("there are {}", names.join(", "))));
        };
        if !found.iter().any(|other| other.name() == tool.name()) {
            found.push(tool.clone());
        }
    }
    Ok(found)
}

/// Every tool that there is, by the name that a file knows it by.
fn all(file: &AgentFile) -> Result<Vec<(String, Tool)>, Problem> {
    let mut known: Vec<(String, Tool)> = Vec::new();
    let folder = file.workspace();
    for tool in working_in(file)? {
        known.push((tool.name().to_owned(), tool));
    }
    known.push(("read_output".to_owned(), windlass::read_output()));
    known.extend(demo::tools(&folder).into_iter().map(|tool| (format!("demo.{}", tool.name()), tool)));
    Ok(known)
}

#[cfg(unix)]
fn working_in(file: &AgentFile) -> Result<Vec<Tool>, Problem> {
    let mut tools = workspace(file)?.tools();
    tools.push(windlass_tools::ask_person());
    let unasked = file.spec.policy.fetch_unasked.iter().cloned();
    tools.push(windlass_tools::Web::new().approve(windlass_tools::Approve::outside_of(unasked)).tool());
    Ok(tools)
}

#[cfg(unix)]
fn workspace(file: &AgentFile) -> Result<windlass_tools::Workspace, Problem> {
    use windlass_tools::{Approve, Workspace};
    let wrong = |error: windlass_tools::WorkspaceError| {
        Problem::new(error.to_string()).hint("look at `workspace` and `hide` in the agent's file")
    };
    // What the command keeps is no business of agents.
    let hidden = std::iter::once(".windlass").chain(file.spec.hide.iter().map(String::as_str));
    let mut workspace =
        Workspace::new(file.workspace()).and_then(|folder| folder.hide(hidden)).map_err(wrong)?;
    let policy = &file.spec.policy;
    if !policy.write_unasked.is_empty() {
        workspace = workspace.approve_writes(Approve::outside_of(policy.write_unasked.iter().cloned()));
    }
    if !policy.run_unasked.is_empty() {
        workspace = workspace.approve_commands(Approve::outside_of(policy.run_unasked.iter().cloned()));
    }
    Ok(workspace)
}

#[cfg(unix)]
pub(super) fn preview(file: &AgentFile, tool: &str, arguments: &str) -> Option<Preview> {
    use windlass_tools::Change;

    use crate::term::count;
    let diff = workspace(file).ok()?.preview(tool, arguments)?;
    let (path, added, removed) = (&diff.path, diff.added, diff.removed);
    let title = match &diff.change {
        Change::Makes => format!("makes {path}, {}", count(added, "line", "lines")),
        Change::Changes => {
            format!("changes {path}, {} added, {removed} removed", count(added, "line", "lines"))
        }
        Change::Refused(why) => format!("would be refused: {why}"),
    };
    // The names of the file stand in the title.
    let lines = diff.text.lines().skip_while(|line| line.starts_with("--- ") || line.starts_with("+++ "));
    Some(Preview { title, lines: lines.map(str::to_owned).collect() })
}

#[cfg(not(unix))]
fn working_in(_file: &AgentFile) -> Result<Vec<Tool>, Problem> {
    Ok(Vec::new())
}

#[cfg(not(unix))]
pub(super) fn preview(_file: &AgentFile, _tool: &str, _arguments: &str) -> Option<Preview> {
    None
}
