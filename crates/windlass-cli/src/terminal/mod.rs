//! The terminal: output streams, colours, width and prompts.
//!
//! Answers go to standard output and everything else to standard error, so that a pipe receives only the
//! answer.

mod layout;
mod prompt;
mod style;

pub(crate) use layout::{
    LiveLines, format_arguments, format_duration, pad_to_width, pluralise, to_one_line, truncate_to_width,
};
pub(crate) use prompt::{LinePrompter, PromptInput};
pub(crate) use style::{ColourMode, TextStyle};

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use crate::args::{CliArgs, ColourChoice};
use crate::cli_error::CliError;

/// Width assumed for a terminal that does not report one.
const DEFAULT_WIDTH: usize = 80;
/// Minimum width for the layout.
const MIN_WIDTH: usize = 20;

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
        }
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

    /// Returns true if standard output is a terminal.
    pub(crate) fn is_stdout_terminal(&self) -> bool {
        std::io::stdout().is_terminal()
    }

    /// Returns the width for the layout, in columns.
    pub(crate) fn width(&self) -> usize {
        let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        named.or_else(window_width).unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH)
    }

    /// Returns the colour mode of standard error.
    pub(crate) fn stderr_colour(&self) -> ColourMode {
        self.stderr_colour
    }

    /// Returns the colour mode of standard output.
    pub(crate) fn stdout_colour(&self) -> ColourMode {
        self.stdout_colour
    }

    /// Prints a line to standard output. Write errors are ignored, because the reader may have closed the
    /// pipe.
    pub(crate) fn print_line(&self, line: impl AsRef<str>) {
        let mut out = std::io::stdout().lock();
        let _written = writeln!(out, "{}", line.as_ref());
    }

    /// Prints text to standard output and flushes it.
    pub(crate) fn print_text(&self, piece: &str) {
        let mut out = std::io::stdout().lock();
        let _written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
    }

    /// Prints a JSON object as one line to standard output.
    pub(crate) fn print_json(&self, value: &Value) {
        self.print_line(value.to_string());
    }

    /// Prints a line to standard error.
    pub(crate) fn eprint_line(&self, line: impl AsRef<str>) {
        let mut err = std::io::stderr().lock();
        let _written = writeln!(err, "{}", line.as_ref());
    }

    /// Prints text to standard error and flushes it.
    pub(crate) fn eprint_text(&self, piece: &str) {
        let mut err = std::io::stderr().lock();
        let _written = err.write_all(piece.as_bytes()).and_then(|()| err.flush());
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
                let paint = self.stderr_colour;
                self.eprint_line(format!("{} {problem}", paint.paint(TextStyle::Failure, "error:")));
                if let Some(hint) = problem.hint_text() {
                    self.eprint_line(format!("{} {hint}", paint.paint(TextStyle::Hint, "hint:")));
                }
            }
        }
    }

    /// Reports a panic of this program.
    pub(crate) fn report_panic(&self, what: &str) {
        let what = if what.is_empty() { "no message" } else { what };
        let version = env!("CARGO_PKG_VERSION");
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        self.eprint_line(format!(
            "\n{} windlass stopped because of an internal error, which is a bug in windlass.",
            { self.stderr_colour.paint(TextStyle::Failure, "error:") }
        ));
        self.eprint_line(
            "The journals are safe: `windlass runs` lists the runs, `windlass resume` resumes one.",
        );
        self.eprint_line(format!(
            "{} please report this line:",
            self.stderr_colour.paint(TextStyle::Hint, "hint:")
        ));
        self.eprint_line(format!("  windlass {version}, {os} {arch}: {}", to_one_line(what)));
    }
}

#[cfg(unix)]
fn window_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    let size = size.or_else(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok())?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(not(unix))]
fn window_width() -> Option<usize> {
    None
}
