//! The tools `write_file` and `patch_file`: their arguments, previews, changes and reconciliation after a crash.

mod patch;
mod preview;
mod unified;

pub(crate) use preview::preview_call;
pub use preview::{FileChange, FileDiff};

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use windlass::core::provenance::ContentSource;
use windlass::tool::ReconcileOutcome;
use windlass::{
    core::item::OutputContent,
    tool::{Tool, ToolContext},
};

use crate::error::ToolRefusal;
use crate::files::{CrashEvidence, FilePrecondition, FileReplacement, FileVersion};
use crate::workspace::Workspace;
use patch::FileEdit;

pub(crate) const WRITE_FILE: &str = "write_file";
pub(crate) const PATCH_FILE: &str = "patch_file";

/// What `write_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
pub(crate) struct PatchFile {
    /// The file, relative to the workspace.
    path: String,
    /// The version that read_file told.
    version: String,
    /// Exact replacements, made one after the other. Give these or `diff`.
    edits: Option<Vec<FileEdit>>,
    /// A unified diff of this one file. Give this or `edits`.
    diff: Option<String>,
}

/// A requested change of a file. The preview, the tool body and the reconciliation share it.
trait FileChangeRequest: DeserializeOwned {
    const TOOL: &'static str;
    fn path(&self) -> &str;
    fn precondition(&self) -> FilePrecondition<'_>;
    /// Computes the new text of the file from its current text.
    ///
    /// # Errors
    ///
    /// Returns a refusal if the change does not apply to the current text.
    fn new_text(&self, before: Option<&str>) -> Result<String, ToolRefusal>;
    /// Returns the new text if it does not depend on the current text.
    fn known_new_text(&self) -> Option<&str>;
}

impl FileChangeRequest for WriteFile {
    const TOOL: &'static str = WRITE_FILE;

    fn path(&self) -> &str {
        &self.path
    }

    fn precondition(&self) -> FilePrecondition<'_> {
        self.version.as_deref().map_or(FilePrecondition::Absent, FilePrecondition::Version)
    }

    fn new_text(&self, _: Option<&str>) -> Result<String, ToolRefusal> {
        Ok(self.content.clone())
    }

    fn known_new_text(&self) -> Option<&str> {
        Some(&self.content)
    }
}

impl FileChangeRequest for PatchFile {
    const TOOL: &'static str = PATCH_FILE;

    fn path(&self) -> &str {
        &self.path
    }

    fn precondition(&self) -> FilePrecondition<'_> {
        FilePrecondition::Version(&self.version)
    }

    fn new_text(&self, before: Option<&str>) -> Result<String, ToolRefusal> {
        let before = before.unwrap_or_default();
        let changed = match (&self.edits, &self.diff) {
            (Some(edits), None) => patch::apply_edits(before, edits),
            (None, Some(diff)) => unified::apply(before, diff),
            (Some(_), Some(_)) | (None, None) => {
                return Err(ToolRefusal::InvalidArguments {
                    reason: "give `edits` or `diff`, and not both".into(),
                });
            }
        };
        changed.map_err(|what| ToolRefusal::EditMismatch { path: self.path.clone(), reason: what })
    }

    fn known_new_text(&self) -> Option<&str> {
        None
    }
}

pub(crate) fn write_file<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    change_tool::<C, WriteFile>(
        workspace,
        "Writes a whole text file in the workspace. To replace a file, read it first and give its version. For \
         small changes use patch_file.",
    )
}

pub(crate) fn patch_file<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    change_tool::<C, PatchFile>(
        workspace,
        "Changes parts of a text file in the workspace, by exact replacements or by a unified diff. Read the \
         file first and give its version. All of the change is made, or nothing.",
    )
}

fn change_tool<C, A>(workspace: &Workspace, description: &str) -> Tool<C>
where
    C: Send + Sync + 'static,
    A: FileChangeRequest + JsonSchema + Send + Sync + 'static,
{
    let (here, rule, after_crash) = (workspace.clone(), workspace.clone(), workspace.clone());
    let instructions = workspace.clone();
    Tool::blocking(A::TOOL, description, move |ctx: ToolContext<C>, asked: A| {
        apply_change(&here, &asked, &ctx.idempotency_key()).map_err(ToolRefusal::into_tool_error)
    })
    // A refused patch quotes the file.
    .content_source(ContentSource::File)
    .needs_approval_if(move |asked: &A| rule.needs_write_approval(asked.path()))
    .needs_approval_each_time_if(move |asked: &A| instructions.needs_write_approval_each_time(asked.path()))
    .conflict_key(|asked: &A| crate::conflict_key(asked.path()))
    .reconcile(move |ctx| {
        let found = reconcile_change::<A>(&after_crash, ctx.arguments(), &ctx.idempotency_key());
        std::future::ready(found)
    })
}

fn apply_change<A: FileChangeRequest>(
    workspace: &Workspace,
    asked: &A,
    key: &str,
) -> Result<String, ToolRefusal> {
    let place = workspace.writable_path(asked.path())?;
    let replacement = FileReplacement {
        path: &place,
        precondition: asked.precondition(),
        call_key: key,
        max_bytes: workspace.limits.max_file_bytes,
        tool_name: A::TOOL,
    };
    let before = replacement.read_old_text(workspace.root())?;
    let after = asked.new_text(before.as_deref())?;
    let bytes = after.len() as u64;
    if bytes > workspace.limits.max_file_bytes {
        let (path, limit) = (place.to_string(), workspace.limits.max_file_bytes);
        return Err(ToolRefusal::TooLarge {
            path,
            bytes,
            limit,
            hint: "write it in parts, into several files",
        });
    }
    replacement.write(workspace.root(), &after)?;
    Ok(written_message(&place.to_string(), &after))
}

fn written_message(path: &str, after: &str) -> String {
    format!("{path} is written, {} lines, version {}", after.lines().count(), FileVersion::of_text(after))
}

/// Reconciles a call that a crash interrupted, from the state of the disk.
fn reconcile_change<A: FileChangeRequest>(
    workspace: &Workspace,
    arguments: &str,
    key: &str,
) -> ReconcileOutcome {
    let Ok(asked) = serde_json::from_str::<A>(arguments) else { return ReconcileOutcome::Unknown };
    let Ok(place) = workspace.writable_path(asked.path()) else { return ReconcileOutcome::NotExecuted };
    let replacement = FileReplacement {
        path: &place,
        precondition: asked.precondition(),
        call_key: key,
        max_bytes: workspace.limits.max_file_bytes,
        tool_name: A::TOOL,
    };
    match replacement.collect_evidence(workspace.root(), asked.known_new_text()) {
        Ok(CrashEvidence::Happened) => {
            ReconcileOutcome::Executed(OutputContent::Text(format!("{place} is written")))
        }
        Ok(CrashEvidence::DidNotHappen) => ReconcileOutcome::NotExecuted,
        Ok(CrashEvidence::Unknown) | Err(_) => ReconcileOutcome::Unknown,
    }
}
