//! `list_files` and `search_files`.

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use windlass::{Effect, Tool, ToolContext};

use crate::error::Refusal;
use crate::files::{Place, Walk};
use crate::text::cut;
use crate::workspace::Workspace;

/// The longest line of a file that is shown.
const LINE: usize = 300;
/// How much memory a pattern may take.
const PATTERN_BYTES: usize = 1024 * 1024;
/// How many files are looked at before a search gives up.
const FILES: usize = 200_000;

/// What `list_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
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
pub(crate) struct SearchFiles {
    /// What to look for in each line.
    text: String,
    /// How `text` is meant. Without it: literally.
    kind: Option<Kind>,
    /// Whether capital and small letters are the same. Without it: they are not.
    case: Option<Case>,
    /// The folder to search, relative to the workspace. Without it: the workspace.
    folder: Option<String>,
    /// Which files, as a pattern such as `*.rs` or `src/**/*.toml`. Without it: all.
    pattern: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Literal,
    Regex,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Case {
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
        move |ctx, arguments: ListFiles| list(&here, &ctx, &arguments).map_err(Refusal::told),
    )
    .effect(Effect::Pure)
}

pub(crate) fn search_files<C: Send + Sync + 'static>(workspace: &Workspace) -> Tool<C> {
    let here = workspace.clone();
    Tool::blocking(
        "search_files",
        "Finds lines in the text files of the workspace. Each answer line is `path:line: text`. What Git \
         ignores is left out, and so are links.",
        move |ctx, arguments: SearchFiles| search(&here, &ctx, &arguments).map_err(Refusal::told),
    )
    .effect(Effect::Pure)
}

fn list<C>(workspace: &Workspace, ctx: &ToolContext<C>, arguments: &ListFiles) -> Result<String, Refusal> {
    let start = workspace.enter(arguments.folder.as_deref())?;
    let wanted = arguments.pattern.as_deref().map(pattern).transpose()?;
    let depth = arguments.depth.unwrap_or(usize::MAX).max(1);
    let base = start.0.parts().count();
    let mut shown = Shown::new(workspace);
    let mut looked_at = 0;
    workspace.walk(&start, &mut |found| {
        looked_at += 1;
        if looked_at > FILES || ctx.is_cancelled() {
            shown.incomplete = true;
            return Walk::Stop;
        }
        let fits = match &wanted {
            None => true,
            Some(wanted) => !found.is_folder && fits(wanted, &found.place),
        };
        if fits {
            shown.add(|| format!("{}{}", found.place, if found.is_folder { "/" } else { "" }));
        }
        if found.is_folder && found.place.parts().count() - base >= depth { Walk::Past } else { Walk::On }
    })?;
    Ok(shown.told("no files", "paths"))
}

fn search<C>(
    workspace: &Workspace,
    ctx: &ToolContext<C>,
    arguments: &SearchFiles,
) -> Result<String, Refusal> {
    if arguments.text.is_empty() {
        return Err(Refusal::Arguments { what: "`text` is empty: say what to look for".into() });
    }
    let lines = lines_with(arguments)?;
    let start = workspace.enter(arguments.folder.as_deref())?;
    let wanted = arguments.pattern.as_deref().map(pattern).transpose()?;
    let mut shown = Shown::new(workspace);
    let mut looked_at = 0;
    workspace.walk(&start, &mut |found| {
        looked_at += 1;
        if looked_at > FILES || ctx.is_cancelled() {
            shown.incomplete = true;
            return Walk::Stop;
        }
        if found.is_folder || wanted.as_ref().is_some_and(|wanted| !fits(wanted, &found.place)) {
            return Walk::On;
        }
        match found.text(workspace.limits.file_bytes) {
            Ok(text) => {
                for (number, line) in text.lines().enumerate().filter(|(_, line)| lines.is_match(line)) {
                    shown.add(|| format!("{}:{}: {}", found.place, number + 1, cut(line.trim_end(), LINE)));
                }
            }
            Err(Refusal::TooLarge { .. }) => shown.too_large += 1,
            // Pictures and programs are not searched, and what cannot be read is passed over.
            Err(_) => {}
        }
        Walk::On
    })?;
    Ok(shown.told("nothing was found", "lines"))
}

fn lines_with(arguments: &SearchFiles) -> Result<Regex, Refusal> {
    let text = match arguments.kind.unwrap_or_default() {
        Kind::Literal => regex::escape(&arguments.text),
        Kind::Regex => arguments.text.clone(),
    };
    RegexBuilder::new(&text)
        .case_insensitive(arguments.case.unwrap_or_default() == Case::Ignored)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES)
        .build()
        .map_err(|error| Refusal::Pattern { what: cut(&error.to_string(), LINE) })
}

/// Patterns mean what they mean in a `.gitignore`: without a slash they fit at any depth.
fn pattern(text: &str) -> Result<Gitignore, Refusal> {
    let mut builder = GitignoreBuilder::new("");
    let refused = |error: ignore::Error| Refusal::Pattern { what: cut(&error.to_string(), LINE) };
    builder.add_line(None, text).map_err(refused)?;
    builder.build().map_err(refused)
}

fn fits(wanted: &Gitignore, place: &Place) -> bool {
    wanted.matched_path_or_any_parents(place.as_path(), false).is_ignore()
}

/// Lines that are shown, as many as there is room for.
struct Shown {
    text: String,
    lines: usize,
    left_out: usize,
    too_large: usize,
    incomplete: bool,
    most_lines: usize,
    most_bytes: usize,
}

impl Shown {
    fn new(workspace: &Workspace) -> Self {
        Self {
            text: String::new(),
            lines: 0,
            left_out: 0,
            too_large: 0,
            incomplete: false,
            most_lines: workspace.limits.entries,
            most_bytes: workspace.limits.shown_bytes,
        }
    }

    fn add(&mut self, line: impl FnOnce() -> String) {
        if self.lines >= self.most_lines || self.text.len() >= self.most_bytes {
            self.left_out += 1;
            return;
        }
        self.text.push_str(&line());
        self.text.push('\n');
        self.lines += 1;
    }

    fn told(mut self, nothing: &str, what: &str) -> String {
        if self.lines == 0 {
            self.text = format!("{nothing}\n");
        }
        if self.left_out > 0 {
            self.text.push_str(&format!(
                "[{} more {what} are left out: name a folder or a narrower pattern]\n",
                self.left_out
            ));
        }
        if self.too_large > 0 {
            self.text.push_str(&format!("[{} files are too large and were not searched]\n", self.too_large));
        }
        if self.incomplete {
            self.text.push_str("[the search was cut short: name a folder]\n");
        }
        self.text
    }
}
