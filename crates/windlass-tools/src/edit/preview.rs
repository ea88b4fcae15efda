//! Previews of file changes for the approver.

use similar::{ChangeTag, TextDiff};

use super::{FileChangeRequest, PATCH_FILE, PatchFile, WRITE_FILE, WriteFile};
use crate::files::{FilePrecondition, FileReplacement};
use crate::workspace::Workspace;

/// Number of context lines around a change in the diff.
const CONTEXT_LINES: usize = 3;

/// The preview of a file change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiff {
    /// The file, relative to the workspace; the model's own text if it is not a valid path.
    pub path: String,
    /// The kind of change.
    pub change: FileChange,
    /// The change as a unified diff; empty if the call would be refused.
    pub text: String,
    /// Number of added lines.
    pub added: usize,
    /// Number of removed lines.
    pub removed: usize,
}

/// The kind of change that a call would make to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// The file is created.
    Creates,
    /// The file is modified.
    Modifies,
    /// The call would be refused if it ran now, for this reason.
    Refused(String),
}

pub(crate) fn preview_call(workspace: &Workspace, tool: &str, arguments: &str) -> Option<FileDiff> {
    match tool {
        WRITE_FILE => Some(preview_change(workspace, &serde_json::from_str::<WriteFile>(arguments).ok()?)),
        PATCH_FILE => Some(preview_change(workspace, &serde_json::from_str::<PatchFile>(arguments).ok()?)),
        _ => None,
    }
}

fn preview_change<A: FileChangeRequest>(workspace: &Workspace, asked: &A) -> FileDiff {
    let refused = |path: String, why: String| FileDiff {
        path,
        change: FileChange::Refused(why),
        text: String::new(),
        added: 0,
        removed: 0,
    };
    let place = match workspace.writable_path(asked.path()) {
        Ok(place) => place,
        Err(refusal) => return refused(asked.path().to_owned(), refusal.to_string()),
    };
    let path = place.to_string();
    let replacement = FileReplacement {
        path: &place,
        precondition: asked.precondition(),
        call_key: "",
        max_bytes: workspace.limits.max_file_bytes,
        tool_name: A::TOOL,
    };
    let texts = replacement.read_old_text(workspace.root()).and_then(|before| {
        let after = asked.new_text(before.as_deref())?;
        Ok((before.unwrap_or_default(), after))
    });
    match texts {
        Ok((before, after)) => {
            let change = match asked.precondition() {
                FilePrecondition::Absent => FileChange::Creates,
                FilePrecondition::Version(_) => FileChange::Modifies,
            };
            build_diff(path, change, &before, &after)
        }
        Err(refusal) => refused(path, refusal.to_string()),
    }
}

fn build_diff(path: String, change: FileChange, before: &str, after: &str) -> FileDiff {
    // Only line feeds end a line: a carriage return could otherwise move a changed line into the one before it.
    let lines_of = |text| str::split_inclusive(text, '\n').collect::<Vec<&str>>();
    let lines =
        TextDiff::configure().newline_terminated(true).diff_slices(&lines_of(before), &lines_of(after));
    let count = |tag| lines.iter_all_changes().filter(|line| line.tag() == tag).count();
    let (added, removed) = (count(ChangeTag::Insert), count(ChangeTag::Delete));
    let old = match change {
        FileChange::Creates => "/dev/null".to_owned(),
        FileChange::Modifies | FileChange::Refused(_) => format!("a/{path}"),
    };
    let text =
        lines.unified_diff().context_radius(CONTEXT_LINES).header(&old, &format!("b/{path}")).to_string();
    FileDiff { path, change, text, added, removed }
}
