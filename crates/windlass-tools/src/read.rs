//! The tool `read_file`.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::provenance::ContentSource;
use windlass::{core::tool::ToolEffect, tool::Tool};

use crate::error::ToolRefusal;
use crate::files::FileVersion;
use crate::text::truncate;
use crate::workspace::Workspace;

/// What `read_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// The file, relative to the workspace.
    pub(crate) path: String,
    /// The first line to show, counted from 1. Without it: the first.
    pub(crate) from_line: Option<usize>,
    /// How many lines to show. Without it: as many as are shown at once.
    pub(crate) lines: Option<usize>,
}

pub(crate) fn read_file<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    let here = workspace.clone();
    Tool::blocking(
        "read_file",
        "Reads a text file of the workspace. The first line of the answer tells the file's version, which \
         write_file and patch_file want to see, and which lines follow.",
        move |_, arguments: ReadFile| read_lines(&here, &arguments).map_err(ToolRefusal::into_tool_error),
    )
    .effect(ToolEffect::Pure)
    .content_source(ContentSource::File)
    .conflict_key(|arguments: &ReadFile| crate::conflict_key(&arguments.path))
}

pub(crate) fn read_lines(workspace: &Workspace, arguments: &ReadFile) -> Result<String, ToolRefusal> {
    let place = workspace.file_path(&arguments.path)?;
    let limits = &workspace.limits;
    let text = workspace.read_text(&place, "read_file")?;
    let version = FileVersion::of_text(&text);
    let all = text.lines().count();
    if all == 0 {
        return Ok(format!("{place}, version {version}, is empty"));
    }
    let from = arguments.from_line.unwrap_or(1).max(1);
    if from > all {
        let what =
            format!("`{place}` has {all} lines, so none is shown from line {from}: ask for earlier ones");
        return Err(ToolRefusal::InvalidArguments { reason: what });
    }
    let wanted = arguments.lines.unwrap_or(limits.max_shown_lines).clamp(1, limits.max_shown_lines);
    let mut shown = String::new();
    let mut count = 0;
    for line in text.split_inclusive('\n').skip(from - 1).take(wanted) {
        if count > 0 && shown.len() + line.len() > limits.max_shown_bytes {
            break;
        }
        // A single long line is truncated; the version is that of the whole file.
        shown.push_str(&truncate(line, limits.max_shown_bytes));
        count += 1;
    }
    let last = from + count - 1;
    let more = if last < all { format!(": ask for more with from_line {}", last + 1) } else { String::new() };
    Ok(format!("{place}, version {version}, lines {from} to {last} of {all}{more}\n{shown}"))
}
