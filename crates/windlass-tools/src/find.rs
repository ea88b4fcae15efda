//! The tools `list_files` and `search_files`.

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::provenance::ContentSource;
use windlass::{
    core::tool::ToolEffect,
    tool::{Tool, ToolContext},
};

use crate::error::ToolRefusal;
use crate::files::{WalkControl, WorkspacePath};
use crate::text::truncate;
use crate::workspace::Workspace;

/// Maximum number of bytes of a line that are shown.
const MAX_LINE_BYTES: usize = 300;
/// Maximum size of a compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;
/// Maximum number of files and folders that one call visits.
const MAX_FILES: usize = 200_000;

/// What `list_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFiles {
    /// The folder to list, relative to the workspace. Without it: the workspace.
    folder: Option<String>,
    /// Which files, as a pattern such as `*.rs` or `src/**/*.toml`. Without it: all.
    pattern: Option<String>,
    /// How many folders deep. 1 is the folder itself. Without it: all.
    depth: Option<usize>,
}

/// What `search_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchFiles {
    /// What to look for in each line.
    text: String,
    /// How `text` is meant. Without it: literally.
    kind: Option<SearchKind>,
    /// Whether capital and small letters are the same. Without it: they are not.
    case: Option<CaseSensitivity>,
    /// The folder to search, relative to the workspace. Without it: the workspace.
    folder: Option<String>,
    /// Which files, as a pattern such as `*.rs` or `src/**/*.toml`. Without it: all.
    pattern: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Kind")]
enum SearchKind {
    #[default]
    Literal,
    Regex,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Case")]
enum CaseSensitivity {
    #[default]
    Matters,
    Ignored,
}

pub(crate) fn list_files<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    let here = workspace.clone();
    Tool::blocking(
        "list_files",
        "Lists the files of the workspace, one path a line; folders end with a slash. What Git ignores is left \
         out, and so are links.",
        move |ctx, arguments: ListFiles| list_matching(&here, &ctx, &arguments).map_err(ToolRefusal::into_tool_error),
    )
    .effect(ToolEffect::Pure)
    .content_source(ContentSource::File)
}

pub(crate) fn search_files<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    let here = workspace.clone();
    Tool::blocking(
        "search_files",
        "Finds lines in the text files of the workspace. Each answer line is `path:line: text`. What Git \
         ignores is left out, and so are links.",
        move |ctx, arguments: SearchFiles| {
            search_matching(&here, &ctx, &arguments).map_err(ToolRefusal::into_tool_error)
        },
    )
    .effect(ToolEffect::Pure)
    .content_source(ContentSource::File)
}

fn list_matching<C>(
    workspace: &Workspace,
    ctx: &ToolContext<C>,
    arguments: &ListFiles,
) -> Result<String, ToolRefusal> {
    let start = workspace.open_folder(arguments.folder.as_deref())?;
    let wanted = arguments.pattern.as_deref().map(parse_pattern).transpose()?;
    let depth = arguments.depth.unwrap_or(usize::MAX).max(1);
    let base = start.0.parts().count();
    let mut shown = BoundedLines::new(workspace);
    let mut looked_at = 0;
    workspace.walk(&start, &mut |found| {
        looked_at += 1;
        if looked_at > MAX_FILES || ctx.is_cancelled() {
            shown.is_incomplete = true;
            return WalkControl::Stop;
        }
        let fits = match &wanted {
            None => true,
            Some(wanted) => !found.is_folder && matches_pattern(wanted, &found.path),
        };
        if fits {
            shown.push_line(|| format!("{}{}", found.path, if found.is_folder { "/" } else { "" }));
        }
        if found.is_folder && found.path.parts().count() - base >= depth {
            WalkControl::SkipFolder
        } else {
            WalkControl::Continue
        }
    })?;
    Ok(shown.into_text("no files", "paths"))
}

fn search_matching<C>(
    workspace: &Workspace,
    ctx: &ToolContext<C>,
    arguments: &SearchFiles,
) -> Result<String, ToolRefusal> {
    if arguments.text.is_empty() {
        return Err(ToolRefusal::InvalidArguments { reason: "`text` is empty: say what to look for".into() });
    }
    let lines = line_regex(arguments)?;
    let start = workspace.open_folder(arguments.folder.as_deref())?;
    let wanted = arguments.pattern.as_deref().map(parse_pattern).transpose()?;
    let hidden = workspace.hidden_links();
    let mut shown = BoundedLines::new(workspace);
    let mut looked_at = 0;
    workspace.walk(&start, &mut |found| {
        looked_at += 1;
        if looked_at > MAX_FILES || ctx.is_cancelled() {
            shown.is_incomplete = true;
            return WalkControl::Stop;
        }
        if found.is_folder || wanted.as_ref().is_some_and(|wanted| !matches_pattern(wanted, &found.path)) {
            return WalkControl::Continue;
        }
        match found.read_text(workspace.limits.max_file_bytes, &hidden) {
            Ok(text) => {
                for (number, line) in text.lines().enumerate().filter(|(_, line)| lines.is_match(line)) {
                    shown.push_line(|| {
                        format!(
                            "{}:{}: {}",
                            found.path,
                            number + 1,
                            truncate(line.trim_end(), MAX_LINE_BYTES)
                        )
                    });
                }
            }
            Err(ToolRefusal::TooLarge { .. }) => shown.too_large_files += 1,
            // Binary files and unreadable files are skipped.
            Err(_) => {}
        }
        WalkControl::Continue
    })?;
    Ok(shown.into_text("nothing was found", "lines"))
}

fn line_regex(arguments: &SearchFiles) -> Result<Regex, ToolRefusal> {
    let text = match arguments.kind.unwrap_or_default() {
        SearchKind::Literal => regex::escape(&arguments.text),
        SearchKind::Regex => arguments.text.clone(),
    };
    RegexBuilder::new(&text)
        .case_insensitive(arguments.case.unwrap_or_default() == CaseSensitivity::Ignored)
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_BYTES)
        .build()
        .map_err(|error| ToolRefusal::InvalidPattern { reason: truncate(&error.to_string(), MAX_LINE_BYTES) })
}

/// Parses a pattern with the semantics of `.gitignore`: without a slash it matches at any depth.
fn parse_pattern(text: &str) -> Result<Gitignore, ToolRefusal> {
    let mut builder = GitignoreBuilder::new("");
    let refused = |error: ignore::Error| ToolRefusal::InvalidPattern {
        reason: truncate(&error.to_string(), MAX_LINE_BYTES),
    };
    builder.add_line(None, text).map_err(refused)?;
    builder.build().map_err(refused)
}

fn matches_pattern(wanted: &Gitignore, place: &WorkspacePath) -> bool {
    wanted.matched_path_or_any_parents(place.as_path(), false).is_ignore()
}

/// Output lines up to a maximum number and size, with counts of the omitted ones.
struct BoundedLines {
    text: String,
    lines: usize,
    omitted_lines: usize,
    too_large_files: usize,
    is_incomplete: bool,
    max_lines: usize,
    max_bytes: usize,
}

impl BoundedLines {
    fn new(workspace: &Workspace) -> Self {
        Self {
            text: String::new(),
            lines: 0,
            omitted_lines: 0,
            too_large_files: 0,
            is_incomplete: false,
            max_lines: workspace.limits.max_entries,
            max_bytes: workspace.limits.max_shown_bytes,
        }
    }

    fn push_line(&mut self, line: impl FnOnce() -> String) {
        if self.lines >= self.max_lines || self.text.len() >= self.max_bytes {
            self.omitted_lines += 1;
            return;
        }
        self.text.push_str(&line());
        self.text.push('\n');
        self.lines += 1;
    }

    fn into_text(mut self, nothing: &str, what: &str) -> String {
        if self.lines == 0 {
            self.text = format!("{nothing}\n");
        }
        if self.omitted_lines > 0 {
            self.text.push_str(&format!(
                "[{} more {what} are left out: name a folder or a narrower pattern]\n",
                self.omitted_lines
            ));
        }
        if self.too_large_files > 0 {
            self.text
                .push_str(&format!("[{} files are too large and were not searched]\n", self.too_large_files));
        }
        if self.is_incomplete {
            self.text.push_str("[the search was cut short: name a folder]\n");
        }
        self.text
    }
}
