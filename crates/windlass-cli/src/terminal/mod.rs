//! The terminal: output streams, colours, size and prompts.
//!
//! Answers go to standard output and everything else to standard error, so that a pipe receives only the
//! answer.
//!
//! **Invariant:** only this module writes to a terminal, and it writes nothing but [`StyledText`], whose pieces are
//! escaped, and the control sequences of this module. Data for machines is exact in a pipe and escaped on a
//! terminal. A test forbids every other module to write.

mod layout;
mod line_editor;
mod markdown;
mod prompt;
mod style;

pub(crate) use layout::{LiveLines, format_arguments, format_duration, pluralise, summarize_arguments};
pub(crate) use line_editor::{DraftCheck, LineCompletions};
pub(crate) use markdown::{MarkdownMode, MarkdownRenderer};
pub(crate) use prompt::{LinePrompter, PromptInput};
pub(crate) use style::{StyledText, TextStyle, paint, styled};

use std::io::{IsTerminal, Write};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use windlass_text::{SafeText, escape_json};

use self::style::ColourMode;
use crate::args::{CliArgs, ColourChoice};
use crate::cli_error::CliError;

/// Width assumed for a terminal that does not report one.
const DEFAULT_WIDTH: usize = 80;
/// Minimum width for the layout.
const MIN_WIDTH: usize = 20;
/// Height assumed for a terminal that does not report one.
const DEFAULT_HEIGHT: usize = 24;
/// Minimum height for the layout.
const MIN_HEIGHT: usize = 6;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// Text for people.
    Text,
    /// JSON, one object per line.
    Json,
}

/// The terminal, or the pipes in its place.
#[derive(Clone, Debug)]
pub(crate) struct Terminal {
    output_format: OutputFormat,
    stdout_colour: ColourMode,
    stderr_colour: ColourMode,
    can_redraw: bool,
    can_prompt: bool,
    can_edit: bool,
    /// The command that a person types to reach the project from here, for hints.
    command_prefix: Arc<OnceLock<String>>,
}

impl Terminal {
    pub(crate) fn from_args(args: &CliArgs) -> Self {
        let stderr = std::io::stderr().is_terminal();
        let form = if args.json { OutputFormat::Json } else { OutputFormat::Text };
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colours = |is_terminal: bool| match args.colour {
            ColourChoice::Always => ColourMode::Coloured,
            ColourChoice::Never => ColourMode::Plain,
            ColourChoice::Auto => {
                let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
                if is_terminal && wanted && !dumb { ColourMode::Coloured } else { ColourMode::Plain }
            }
        };
        Self {
            output_format: form,
            stdout_colour: colours(std::io::stdout().is_terminal()),
            stderr_colour: colours(stderr),
            can_redraw: stderr && !dumb && form == OutputFormat::Text,
            can_prompt: stderr && std::io::stdin().is_terminal() && form == OutputFormat::Text,
            can_edit: stderr
                && std::io::stdin().is_terminal()
                && std::io::stdout().is_terminal()
                && !dumb
                && form == OutputFormat::Text,
            command_prefix: Arc::default(),
        }
    }

    /// Sets the command that a person types to reach the project, such as `windlass -C demo`.
    pub(crate) fn set_command_prefix(&self, prefix: String) {
        // The first project of a command stays the one that hints are about.
        let _first = self.command_prefix.set(prefix);
    }

    /// Returns the command that a person types to reach the project: `windlass`, or `windlass -C folder`.
    pub(crate) fn command_prefix(&self) -> &str {
        self.command_prefix.get().map_or("windlass", String::as_str)
    }

    pub(crate) fn output_format(&self) -> OutputFormat {
        self.output_format
    }

    /// Returns true if lines can be redrawn, for spinners.
    pub(crate) fn can_redraw(&self) -> bool {
        self.can_redraw
    }

    /// Returns true if a user can be prompted.
    pub(crate) fn can_prompt(&self) -> bool {
        self.can_prompt
    }

    /// Returns true if a user can edit lines, with a history.
    pub(crate) fn can_edit(&self) -> bool {
        self.can_edit
    }

    /// Returns true if a user watches the answer of a model.
    pub(crate) fn shows_answers(&self) -> bool {
        self.output_format == OutputFormat::Text
            && (std::io::stdout().is_terminal() || std::io::stderr().is_terminal())
    }

    /// Returns the treatment of Markdown in answers.
    pub(crate) fn markdown_mode(&self) -> MarkdownMode {
        let colour = if self.is_stdout_terminal() { self.stdout_colour } else { self.stderr_colour };
        match colour {
            ColourMode::Coloured => MarkdownMode::Styled,
            ColourMode::Plain => MarkdownMode::Plain,
        }
    }

    /// Returns true if standard output is a terminal.
    pub(crate) fn is_stdout_terminal(&self) -> bool {
        std::io::stdout().is_terminal()
    }

    /// Returns the width for the layout, in columns.
    pub(crate) fn width(&self) -> usize {
        let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let window = window_size().map(|(columns, _)| columns);
        // Lines that are longer than the window would make pages that are longer than it, too.
        named.into_iter().chain(window).min().unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH)
    }

    /// Returns the height of the terminal, in rows.
    pub(crate) fn height(&self) -> usize {
        window_size().map_or(DEFAULT_HEIGHT, |(_, rows)| rows).max(MIN_HEIGHT)
    }

    /// Returns true if the window is smaller than the smallest layout, so that lines scroll past unseen.
    pub(crate) fn is_window_too_small(&self) -> bool {
        window_size().is_some_and(|(columns, rows)| columns < MIN_WIDTH || rows < MIN_HEIGHT)
    }

    /// Prints a line to standard output. Write errors are ignored, because the reader may have closed the
    /// pipe.
    pub(crate) fn print_line(&self, line: impl Into<StyledText>) {
        let mut out = std::io::stdout().lock();
        let _written = writeln!(out, "{}", line.into().to_ansi(self.stdout_colour));
    }

    /// Prints a line to standard output, in as many lines of the terminal as it needs. In a pipe it stays one line.
    pub(crate) fn print_wrapped(&self, indent: usize, line: impl Into<StyledText>) {
        let line = line.into();
        if !self.is_stdout_terminal() {
            return self.print_line(line);
        }
        let width = self.width().saturating_sub(1 + indent);
        for (place, part) in line.wrap(width).into_iter().enumerate() {
            let indent = " ".repeat(if place == 0 { 0 } else { indent });
            self.print_line(styled![indent, part]);
        }
    }

    /// Prints a line to standard output, broken between words if the terminal is too narrow for it. The later lines have
    /// the indent of the first one. In a pipe it stays one line.
    pub(crate) fn print_words(&self, line: impl Into<StyledText>) {
        let line = line.into();
        match self.is_stdout_terminal() {
            true => self.break_line(&line, 0).into_iter().for_each(|part| self.print_line(part)),
            false => self.print_line(line),
        }
    }

    /// Prints a line to standard error, broken as [`Terminal::print_words`] breaks it.
    pub(crate) fn eprint_words(&self, line: impl Into<StyledText>) {
        let line = line.into();
        match std::io::stderr().is_terminal() {
            true => self.break_line(&line, 0).into_iter().for_each(|part| self.eprint_line(part)),
            false => self.eprint_line(line),
        }
    }

    /// Prints a line with a label to standard error, broken as [`Terminal::print_words`] breaks it. The later lines are
    /// indented, so that none can pass for a line with a label.
    pub(crate) fn eprint_labelled(&self, line: StyledText) {
        match std::io::stderr().is_terminal() {
            true => self.break_line(&line, 2).into_iter().for_each(|part| self.eprint_line(part)),
            false => self.eprint_line(line),
        }
    }

    /// Breaks a line between words. The later lines have the indent of the first one, and at least `min_indent`.
    fn break_line(&self, line: &StyledText, min_indent: usize) -> Vec<StyledText> {
        let width = self.width().saturating_sub(1);
        if line.plain().width() <= width {
            return vec![line.clone()];
        }
        let indent = line.plain().as_str().chars().take_while(|letter| *letter == ' ').count();
        let indent = indent.max(min_indent).min(width / 2);
        let parts = line.wrap_around_code(width - indent);
        // The first part keeps its own indent, and so may be as wide as the others with theirs.
        let indented = |(place, part): (usize, StyledText)| match place {
            0 => part,
            _ => styled![" ".repeat(indent), part],
        };
        parts.into_iter().enumerate().map(indented).collect()
    }

    /// Prints data for another program to standard output: exact in a pipe, escaped on a terminal.
    pub(crate) fn print_data(&self, data: &str) {
        let mut out = std::io::stdout().lock();
        let escaped;
        let data = if out.is_terminal() {
            escaped = SafeText::from_lines(data).iter().map(SafeText::as_str).collect::<Vec<_>>().join("\n");
            escaped.as_str()
        } else {
            data
        };
        let _written = out.write_all(data.as_bytes()).and_then(|()| out.flush());
    }

    /// Prints a line of a model's answer to standard output, or to standard error if that is a pipe.
    pub(crate) fn print_answer_line(&self, line: StyledText) {
        if self.is_stdout_terminal() { self.print_line(line) } else { self.eprint_line(line) }
    }

    /// Prints a JSON object as one line to standard output. Hidden characters are JSON escapes.
    pub(crate) fn print_json(&self, value: &Value) {
        let mut out = std::io::stdout().lock();
        let _written = writeln!(out, "{}", escape_json(&value.to_string()));
    }

    /// Prints a line to standard error.
    pub(crate) fn eprint_line(&self, line: impl Into<StyledText>) {
        self.write_stderr(&(line.into().to_ansi(self.stderr_colour) + "\n"));
    }

    /// Prints an empty line to standard error.
    pub(crate) fn eprint_blank(&self) {
        self.write_stderr("\n");
    }

    /// Prints the text of a prompt to standard error, without a line end.
    pub(crate) fn eprint_prompt(&self, prompt: impl Into<StyledText>) {
        self.write_stderr(&prompt.into().to_ansi(self.stderr_colour));
    }

    /// Prints a hint to standard error.
    pub(crate) fn eprint_hint(&self, hint: impl Into<StyledText>) {
        self.eprint_labelled(styled![paint(TextStyle::Hint, "hint:"), " ", hint.into()]);
    }

    /// Erases the last lines on standard error, and prints others in their place.
    fn redraw_lines(&self, erased_count: usize, lines: &[StyledText]) {
        let mut text = String::new();
        if erased_count > 0 {
            text.push_str(&format!("\x1b[{erased_count}A\r\x1b[J"));
        }
        for line in lines {
            text.push_str(&line.to_ansi(self.stderr_colour));
            text.push_str("\x1b[K\n");
        }
        if !text.is_empty() {
            self.write_stderr(&text);
        }
    }

    fn write_stderr(&self, text: &str) {
        let mut err = std::io::stderr().lock();
        let _written = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }

    /// Reports an error and its hint.
    pub(crate) fn report_error(&self, problem: &CliError) {
        match self.output_format {
            OutputFormat::Json => self.print_json(&json!({
                "type": "error",
                "message": problem.to_string(),
                "hint": problem.hint_text(),
                "exit": problem.exit().code(),
            })),
            OutputFormat::Text => {
                self.print_message(TextStyle::Failure, "error:", &problem.to_string());
                if let Some(hint) = problem.hint_text() {
                    self.print_message(TextStyle::Hint, "hint:", hint);
                }
            }
        }
    }

    /// Prints a message of one or more lines. All lines but the first are indented, so that none can pass for a line
    /// of its own.
    fn print_message(&self, style: TextStyle, label: &str, message: &str) {
        for (place, line) in SafeText::from_lines(message).iter().enumerate() {
            if place == 0 {
                self.eprint_labelled(styled![paint(style, label), " ", line]);
            } else {
                self.eprint_labelled(styled!["  ", line]);
            }
        }
    }

    /// Reports a panic of this program.
    pub(crate) fn report_panic(&self, what: &str) {
        let what = if what.is_empty() { "no message" } else { what };
        let version = env!("CARGO_PKG_VERSION");
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        self.eprint_blank();
        self.eprint_line(styled![
            paint(TextStyle::Failure, "error:"),
            " windlass stopped because of an internal error, which is a bug in windlass.",
        ]);
        self.eprint_line(
            "The journals are safe: `windlass runs` lists the runs, `windlass resume` resumes one.",
        );
        self.eprint_hint("please report this line:");
        self.eprint_line(format!("  windlass {version}, {os} {arch}: {}", SafeText::from_words(what)));
    }
}

/// Turns off the marks around pasted text, which the line editor turns on, and ends the line.
fn end_paste_marks() {
    // A failure to print cannot be reported anywhere.
    let _printed = std::io::stderr().lock().write_all(b"\x1b[?2004l\r\n");
}

/// Prints the help, or the error about the arguments of the command, before there is a [`Terminal`].
pub(crate) fn print_usage(error: &clap::Error) {
    let text = error.render().to_string();
    let text: Vec<SafeText> = SafeText::from_lines(text.trim_end_matches('\n'));
    let text = text.iter().map(|line| line.as_str().to_owned() + "\n").collect::<String>();
    // A failure to print cannot be reported anywhere.
    let _printed = if error.use_stderr() {
        std::io::stderr().lock().write_all(text.as_bytes())
    } else {
        std::io::stdout().lock().write_all(text.as_bytes())
    };
}

/// Prints the address at which a person authorises an MCP server.
#[cfg(feature = "mcp")]
pub(crate) fn print_authorisation_address(server: &str, address: &str) {
    let (server, address) = (SafeText::from_words(server), SafeText::from_words(address));
    let line = format!("MCP server `{server}` requires authorisation. Open {address}\n");
    // A failure to print cannot be reported anywhere.
    let _printed = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Prints a warning about a store, wherever it is opened.
pub(crate) fn print_store_warning(path: &std::path::Path, warning: &windlass::store::StoreWarning) {
    let path = SafeText::from_words(&path.display().to_string());
    let line = format!("warning: {path}: {}\n", SafeText::from_words(&warning.to_string()));
    // A failure to print cannot be reported anywhere.
    let _printed = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Prints a warning that concerns no store and no run.
#[cfg(feature = "otlp")]
pub(crate) fn print_warning(text: &str) {
    let line = format!("warning: {}\n", SafeText::from_words(text));
    // A failure to print cannot be reported anywhere.
    let _printed = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Prints the progress of a download of weights on one line.
#[cfg(feature = "local")]
pub(crate) fn print_download_progress(there: u64, all: u64) {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        let end = if there >= all { "\n" } else { "" };
        let percent = there.saturating_mul(100).checked_div(all).unwrap_or(100);
        let _written = write!(err, "\rdownloading weights: {percent} %{end}").and_then(|()| err.flush());
    }
}

/// Returns the columns and rows of the terminal.
#[cfg(unix)]
fn window_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    let size = size.or_else(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok())?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((usize::from(size.ws_col), usize::from(size.ws_row)))
}

#[cfg(not(unix))]
fn window_size() -> Option<(usize, usize)> {
    None
}
