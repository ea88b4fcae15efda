//! The line editor: history, completion, several lines, and drafts that are checked before they are accepted.
//!
//! The editor draws on the terminal itself. It shows nothing but the prompt of this module, the text of the user and
//! the names of this module's completions; hidden characters in them are replaced or left out.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ColorMode, CompletionType, Config, Context, Editor, Helper, KeyCode, KeyEvent, Modifiers, Prompt,
};
use windlass_text::{SafeText, is_hidden};

use super::style::ColourMode;
use super::{StyledText, Terminal};

/// Maximum number of lines in the history.
const MAX_HISTORY: usize = 1_000;
/// Maximum number of completions.
const MAX_COMPLETIONS: usize = 200;
/// Maximum length of a line that is kept in the history, in bytes.
const MAX_HISTORY_LINE: usize = 64 << 10;

/// The names that a line can be completed with.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineCompletions {
    /// Commands at the start of a line, each with its possible arguments.
    pub(crate) commands: Vec<(String, Vec<String>)>,
    /// Folder of the files that are completed.
    pub(crate) folder: PathBuf,
}

/// A check of a draft. It returns the problem.
pub(crate) type DraftCheck = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// A request to edit a line.
pub(super) struct EditRequest {
    pub(super) prompt: EditPrompt,
    pub(super) purpose: EditPurpose,
}

/// The prompt of a line, without and with its styles.
pub(super) struct EditPrompt {
    plain: String,
    styled: String,
    is_drawn: Cell<bool>,
}

impl EditPrompt {
    pub(super) fn new(term: &Terminal, prompt: &StyledText) -> Self {
        let plain = prompt.plain().to_string();
        let styled = match term.stdout_colour {
            ColourMode::Coloured => prompt.to_ansi(ColourMode::Coloured),
            ColourMode::Plain => plain.clone(),
        };
        Self { plain, styled, is_drawn: Cell::new(false) }
    }
}

impl Prompt for EditPrompt {
    fn raw(&self) -> &str {
        &self.plain
    }

    /// Returns the prompt as it is drawn.
    ///
    /// The editor reads the size of the window before it listens for changes of the size, and a change in between would
    /// be lost. It listens when it draws its prompt for the first time, so it is told then to read the size again.
    fn styled(&self) -> &str {
        if !self.is_drawn.replace(true) {
            announce_window_size();
        }
        &self.styled
    }
}

#[cfg(unix)]
fn announce_window_size() {
    // The thread sends it to itself, so that the editor has it before it reads a key.
    let _sent = nix::sys::signal::raise(nix::sys::signal::Signal::SIGWINCH);
}

#[cfg(not(unix))]
fn announce_window_size() {}

/// The purpose of an edited line.
pub(super) enum EditPurpose {
    /// A message of a conversation.
    Message(Arc<LineCompletions>),
    /// A text that is there already and is checked when the user accepts it.
    Draft { text: String, check: DraftCheck },
}

/// The end of an edit.
pub(super) enum EditEnd {
    Line(String),
    Interrupted,
    EndOfInput,
}

/// The editor of messages, with its history.
pub(super) struct LineEditor {
    messages: Editor<EditorHelper, MemHistory>,
    history_file: Option<PathBuf>,
}

impl LineEditor {
    /// Creates the editor, with the history of a file if there is one.
    pub(super) fn new(history_file: Option<PathBuf>) -> Result<Self, ReadlineError> {
        let mut messages = create_editor()?;
        for line in history_file.as_deref().map(read_history).unwrap_or_default() {
            messages.add_history_entry(line)?;
        }
        Ok(Self { messages, history_file })
    }

    /// Reads a line.
    pub(super) fn edit(&mut self, request: EditRequest) -> EditEnd {
        let prompt = request.prompt;
        let read = match request.purpose {
            EditPurpose::Message(completions) => {
                self.messages.set_helper(Some(EditorHelper::Message(completions)));
                self.messages.readline(&prompt)
            }
            EditPurpose::Draft { text, check } => create_editor().and_then(|mut editor| {
                editor.set_helper(Some(EditorHelper::Draft(check)));
                editor.readline_with_initial(&prompt, (&text, ""))
            }),
        };
        match read {
            Ok(line) => EditEnd::Line(line),
            Err(ReadlineError::Interrupted) => EditEnd::Interrupted,
            Err(_) => EditEnd::EndOfInput,
        }
    }

    /// Adds a message to the history.
    pub(super) fn remember(&mut self, line: &str) {
        let is_new = line.len() <= MAX_HISTORY_LINE && self.messages.add_history_entry(line).unwrap_or(false);
        if let (true, Some(file)) = (is_new, &self.history_file) {
            // A history that cannot be written is shorter next time, and nothing else.
            let _appended = append_history(file, line);
        }
    }
}

fn create_editor() -> Result<Editor<EditorHelper, MemHistory>, ReadlineError> {
    let config = Config::builder()
        .max_history_size(MAX_HISTORY)?
        .history_ignore_space(true)
        .completion_type(CompletionType::List)
        .completion_show_all_if_ambiguous(true)
        // The highlighter replaces hidden characters, so it is needed without colours too.
        .color_mode(ColorMode::Forced)
        .build();
    let history = MemHistory::with_config(&config);
    let mut editor = Editor::with_history(config, history)?;
    // Alt-Enter, also if it was typed before the editor read single keys.
    for key in [KeyEvent(KeyCode::Enter, Modifiers::ALT), KeyEvent(KeyCode::Char('J'), Modifiers::CTRL_ALT)] {
        editor.bind_sequence(key, Cmd::Newline);
    }
    Ok(editor)
}

/// Reads the history of a file: one JSON string for each line.
fn read_history(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<String> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let first = lines.len().saturating_sub(MAX_HISTORY);
    if first > MAX_HISTORY {
        // Long files are shortened now and then.
        let kept: String =
            lines.iter().skip(first).map(|line| serde_json::json!(line).to_string() + "\n").collect();
        let _written = std::fs::write(file, kept);
    }
    lines.into_iter().skip(first).collect()
}

fn append_history(file: &Path, line: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all((serde_json::json!(line).to_string() + "\n").as_bytes())
}

/// The behaviour of the editor for one purpose.
enum EditorHelper {
    Message(Arc<LineCompletions>),
    Draft(DraftCheck),
}

impl Helper for EditorHelper {}

impl Hinter for EditorHelper {
    type Hint = String;
}

impl Highlighter for EditorHelper {
    fn highlight<'l>(&self, line: &'l str, _pos: usize) -> Cow<'l, str> {
        if !has_hidden(line) {
            return Cow::Borrowed(line);
        }
        let show = |letter: char| if letter != '\n' && is_hidden(letter) { '\u{fffd}' } else { letter };
        Cow::Owned(line.chars().map(show).collect())
    }

    fn highlight_char(&self, line: &str, _pos: usize, _kind: CmdKind) -> bool {
        has_hidden(line)
    }
}

fn has_hidden(line: &str) -> bool {
    line.chars().any(|letter| letter != '\n' && is_hidden(letter))
}

impl Validator for EditorHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match self {
            // A backslash at the end of a line continues it.
            Self::Message(_) if context.input().ends_with('\\') => ValidationResult::Incomplete,
            Self::Message(_) => ValidationResult::Valid(None),
            Self::Draft(_) if context.input().trim().is_empty() => ValidationResult::Valid(None),
            Self::Draft(check) => match check(context.input()) {
                Ok(()) => ValidationResult::Valid(None),
                Err(problem) => {
                    let problem: Vec<SafeText> = SafeText::from_lines(&problem);
                    let lines: String = problem.iter().map(|line| format!("\n    {line}")).collect();
                    ValidationResult::Invalid(Some(lines))
                }
            },
        })
    }
}

impl Completer for EditorHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = line.get(..pos).unwrap_or(line);
        Ok(match self {
            Self::Message(completions) => completions.complete(before),
            Self::Draft(_) => (pos, Vec::new()),
        })
    }
}

impl LineCompletions {
    /// Completes the last word of a text. Returns the start of the word, and what may stand there.
    fn complete(&self, before: &str) -> (usize, Vec<Pair>) {
        let start = before.rfind([' ', '\n']).map_or(0, |at| at + 1);
        let word = before.get(start..).unwrap_or_default();
        let pair = |name: &str, replacement: String| Pair { display: name.to_owned(), replacement };
        let of_line = before.split_once(' ');
        if start == 0 && word.starts_with('/') {
            let matching = self.commands.iter().filter(|(name, _)| name.starts_with(word));
            let matching = matching.map(|(name, arguments)| {
                let end = if arguments.is_empty() { "" } else { " " };
                pair(name, format!("{name}{end}"))
            });
            return (0, matching.collect());
        }
        if let Some((command, argument)) = of_line
            && let Some((_, arguments)) = self.commands.iter().find(|(name, _)| name == command)
        {
            let is_matching = |name: &&String| name.starts_with(argument) && !has_hidden(name);
            let matching = arguments.iter().filter(is_matching).map(|name| pair(name, name.clone()));
            return (command.len() + 1, matching.collect());
        }
        (start, self.complete_file(word))
    }

    /// Completes the path of a file. Names with hidden characters are left out.
    fn complete_file(&self, word: &str) -> Vec<Pair> {
        let (parent, prefix) = word.rsplit_once('/').map_or(("", word), |(parent, name)| (parent, name));
        let typed = word.strip_suffix(prefix).unwrap_or_default();
        let folder = match (parent, typed) {
            ("", "/") => PathBuf::from("/"),
            _ => self.folder.join(parent),
        };
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let mut found: Vec<Pair> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().into_string().ok()?;
                let is_dotted = name.starts_with('.') && !prefix.starts_with('.');
                let is_usable = name.starts_with(prefix)
                    && !is_dotted
                    && !has_hidden(&name)
                    && !name.contains(['\n', ' ']);
                let end = if entry.path().is_dir() { "/" } else { "" };
                is_usable.then(|| Pair {
                    display: format!("{name}{end}"),
                    replacement: format!("{typed}{name}{end}"),
                })
            })
            .take(MAX_COMPLETIONS)
            .collect();
        found.sort_by(|one, other| one.display.cmp(&other.display));
        found
    }
}

#[cfg(test)]
#[path = "line_editor_tests.rs"]
mod tests;
