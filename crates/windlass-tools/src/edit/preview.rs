//! What a call would change, for the person who decides about it.

use similar::{ChangeTag, TextDiff};

use super::{Asked, PATCH, PatchFile, WRITE, WriteFile};
use crate::files::{Expected, Replacement};
use crate::workspace::Workspace;

/// How many lines around a change are shown.
const AROUND: usize = 3;

/// What a call would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diff {
    /// The file, relative to the workspace; as the model wrote it where it is no path of the workspace.
    pub path: String,
    /// What would happen to it.
    pub change: Change,
    /// The change as a unified diff. Empty where it would be refused.
    pub text: String,
    /// How many lines it adds.
    pub added: usize,
    /// How many lines it takes away.
    pub removed: usize,
}

/// What would happen to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is made.
    Makes,
    /// It is changed.
    Changes,
    /// Nothing: the call would be refused, for this reason, if it ran now.
    Refused(String),
}

pub(crate) fn preview(workspace: &Workspace, tool: &str, arguments: &str) -> Option<Diff> {
    match tool {
        WRITE => Some(of(workspace, &serde_json::from_str::<WriteFile>(arguments).ok()?)),
        PATCH => Some(of(workspace, &serde_json::from_str::<PatchFile>(arguments).ok()?)),
        _ => None,
    }
}

fn of<A: Asked>(workspace: &Workspace, asked: &A) -> Diff {
    let refused = |path: String, why: String| Diff {
        path,
        change: Change::Refused(why),
        text: String::new(),
        added: 0,
        removed: 0,
    };
    let place = match workspace.file_to_change(asked.path()) {
        Ok(place) => place,
        Err(refusal) => return refused(asked.path().to_owned(), refusal.to_string()),
    };
    let path = place.to_string();
    let replacement = Replacement {
        place: &place,
        expected: asked.expected(),
        key: "",
        limit: workspace.limits.file_bytes,
        tool: A::TOOL,
    };
    let texts = replacement.before(workspace.root()).and_then(|before| {
        let after = asked.after(before.as_deref())?;
        Ok((before.unwrap_or_default(), after))
    });
    match texts {
        Ok((before, after)) => {
            let change = match asked.expected() {
                Expected::Nothing => Change::Makes,
                Expected::Version(_) => Change::Changes,
            };
            diff(path, change, &before, &after)
        }
        Err(refusal) => refused(path, refusal.to_string()),
    }
}

fn diff(path: String, change: Change, before: &str, after: &str) -> Diff {
    let lines = TextDiff::from_lines(before, after);
    let count = |tag| lines.iter_all_changes().filter(|line| line.tag() == tag).count();
    let (added, removed) = (count(ChangeTag::Insert), count(ChangeTag::Delete));
    let old = match change {
        Change::Makes => "/dev/null".to_owned(),
        Change::Changes | Change::Refused(_) => format!("a/{path}"),
    };
    let text = lines.unified_diff().context_radius(AROUND).header(&old, &format!("b/{path}")).to_string();
    Diff { path, change, text, added, removed }
}
