//! `write_file` and `patch_file`: what they take, what they would change, and what they do.

mod patch;
mod preview;
mod unified;

pub(crate) use preview::preview;
pub use preview::{Change, Diff};

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use windlass::tool::Reconciled;
use windlass::{OutputContent, Tool, ToolContext};

use crate::error::Refusal;
use crate::files::{Evidence, Expected, Replacement, Version};
use crate::workspace::Workspace;
use patch::Edit;

pub(crate) const WRITE: &str = "write_file";
pub(crate) const PATCH: &str = "patch_file";

/// What `write_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WriteFile {
    /// The file, relative to the workspace. Folders on the way are made.
    path: String,
    /// All that the file is to hold.
    content: String,
    /// The version that read_file told, to replace a file. Without it the file must be new.
    version: Option<String>,
}

/// What `patch_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PatchFile {
    /// The file, relative to the workspace.
    path: String,
    /// The version that read_file told.
    version: String,
    /// Exact replacements, made one after the other. Give these or `diff`.
    edits: Option<Vec<Edit>>,
    /// A unified diff of this one file. Give this or `edits`.
    diff: Option<String>,
}

/// A change that a call asks for: the same for its preview, its body and the question after a crash.
trait Asked: DeserializeOwned {
    const TOOL: &'static str;
    fn path(&self) -> &str;
    fn expected(&self) -> Expected<'_>;
    /// What the file is to hold, given what it holds.
    fn after(&self, before: Option<&str>) -> Result<String, Refusal>;
    /// What the file is to hold, where that can be said without knowing what it held.
    fn wanted(&self) -> Option<&str>;
}

impl Asked for WriteFile {
    const TOOL: &'static str = WRITE;

    fn path(&self) -> &str {
        &self.path
    }

    fn expected(&self) -> Expected<'_> {
        self.version.as_deref().map_or(Expected::Nothing, Expected::Version)
    }

    fn after(&self, _: Option<&str>) -> Result<String, Refusal> {
        Ok(self.content.clone())
    }

    fn wanted(&self) -> Option<&str> {
        Some(&self.content)
    }
}

impl Asked for PatchFile {
    const TOOL: &'static str = PATCH;

    fn path(&self) -> &str {
        &self.path
    }

    fn expected(&self) -> Expected<'_> {
        Expected::Version(&self.version)
    }

    fn after(&self, before: Option<&str>) -> Result<String, Refusal> {
        let before = before.unwrap_or_default();
        let changed = match (&self.edits, &self.diff) {
            (Some(edits), None) => patch::replace(before, edits),
            (None, Some(diff)) => unified::apply(before, diff),
            (Some(_), Some(_)) | (None, None) => {
                return Err(Refusal::Arguments { what: "give `edits` or `diff`, and not both".into() });
            }
        };
        changed.map_err(|what| Refusal::Edit { path: self.path.clone(), what })
    }

    fn wanted(&self) -> Option<&str> {
        None
    }
}

pub(crate) fn write_file<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    tool::<C, WriteFile>(
        workspace,
        "Writes a whole text file in the workspace. To replace a file, read it first and give its version. For \
         small changes use patch_file.",
    )
}

pub(crate) fn patch_file<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    tool::<C, PatchFile>(
        workspace,
        "Changes parts of a text file in the workspace, by exact replacements or by a unified diff. Read the \
         file first and give its version. All of the change is made, or nothing.",
    )
}

fn tool<C, A>(workspace: &Workspace, description: &str) -> Tool<C>
where
    C: Send + Sync + 'static,
    A: Asked + JsonSchema + Send + Sync + 'static,
{
    let (here, rule, after_crash) = (workspace.clone(), workspace.clone(), workspace.clone());
    Tool::blocking(A::TOOL, description, move |ctx: ToolContext<C>, asked: A| {
        change(&here, &asked, &ctx.idempotency_key()).map_err(Refusal::told)
    })
    .approve_if(move |asked: &A| rule.asks_to_change(asked.path()))
    .conflict(|asked: &A| crate::conflict_key(asked.path()))
    .reconcile(move |ctx| {
        let found = what_happened::<A>(&after_crash, ctx.arguments(), &ctx.idempotency_key());
        std::future::ready(found)
    })
}

fn change<A: Asked>(workspace: &Workspace, asked: &A, key: &str) -> Result<String, Refusal> {
    let place = workspace.file_to_change(asked.path())?;
    let replacement = Replacement {
        place: &place,
        expected: asked.expected(),
        key,
        limit: workspace.limits.file_bytes,
        tool: A::TOOL,
    };
    let before = replacement.before(workspace.root())?;
    let after = asked.after(before.as_deref())?;
    let bytes = after.len() as u64;
    if bytes > workspace.limits.file_bytes {
        let (path, limit) = (place.to_string(), workspace.limits.file_bytes);
        return Err(Refusal::TooLarge { path, bytes, limit, hint: "write it in parts, into several files" });
    }
    replacement.put(workspace.root(), &after)?;
    Ok(told(&place.to_string(), &after))
}

fn told(path: &str, after: &str) -> String {
    format!("{path} is written, {} lines, version {}", after.lines().count(), Version::of(after))
}

/// What the disk says of a call that was running when a process ended.
fn what_happened<A: Asked>(workspace: &Workspace, arguments: &str, key: &str) -> Reconciled {
    let Ok(asked) = serde_json::from_str::<A>(arguments) else { return Reconciled::Unknown };
    let Ok(place) = workspace.file_to_change(asked.path()) else { return Reconciled::DidNotHappen };
    let replacement = Replacement {
        place: &place,
        expected: asked.expected(),
        key,
        limit: workspace.limits.file_bytes,
        tool: A::TOOL,
    };
    match replacement.evidence(workspace.root(), asked.wanted()) {
        Ok(Evidence::Happened) => Reconciled::Happened(OutputContent::Text(format!("{place} is written"))),
        Ok(Evidence::DidNotHappen) => Reconciled::DidNotHappen,
        Ok(Evidence::Unknown) | Err(_) => Reconciled::Unknown,
    }
}
