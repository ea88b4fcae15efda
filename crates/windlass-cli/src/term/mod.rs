//! The terminal: what is written where, in which colours, and how wide.
//!
//! Answers go to standard output, everything else to standard error, so that a pipe gets the answer alone.

mod ask;
mod lines;
mod style;

pub(crate) use ask::{Asker, Typed};
pub(crate) use lines::{Lines, clip, count, fields, one_line, pad, time};
pub(crate) use style::{Paint, Style};

use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use crate::args::{Args, ColourChoice};
use crate::problem::Problem;

/// How wide a terminal is taken to be where it does not say.
const USUAL_WIDTH: usize = 80;
/// Narrower than this, nothing is laid out any more.
const NARROWEST: usize = 20;

/// How the command talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// To a person.
    Human,
    /// To a machine: JSON, one object a line.
    Json,
}

/// The terminal, or what stands in for one.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    form: Form,
    out: Style,
    err: Style,
    is_live: bool,
    can_ask: bool,
}

impl Term {
    pub(crate) fn of(args: &Args) -> Self {
        let stderr = std::io::stderr().is_terminal();
        let form = if args.json { Form::Json } else { Form::Human };
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colours = |is_terminal: bool| match args.colour {
            ColourChoice::Always => Style::Colour,
            ColourChoice::Never => Style::Plain,
            ColourChoice::Auto => {
                let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
                if is_terminal && wanted && !dumb { Style::Colour } else { Style::Plain }
            }
        };
        Self {
            form,
            out: colours(std::io::stdout().is_terminal()),
            err: colours(stderr),
            is_live: stderr && !dumb && form == Form::Human,
            can_ask: stderr && std::io::stdin().is_terminal() && form == Form::Human,
        }
    }

    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Whether lines can be drawn again, for spinners.
    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Whether there is a person to ask.
    pub(crate) fn can_ask(&self) -> bool {
        self.can_ask
    }

    /// Whether what goes to standard output is seen by a person beside what goes to standard error.
    pub(crate) fn answers_on_screen(&self) -> bool {
        std::io::stdout().is_terminal()
    }

    /// How wide lines may be.
    pub(crate) fn width(&self) -> usize {
        let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        named.or_else(window_width).unwrap_or(USUAL_WIDTH).max(NARROWEST)
    }

    /// Paints what goes to standard error.
    pub(crate) fn paint(&self) -> Style {
        self.err
    }

    /// Paints what goes to standard output.
    pub(crate) fn paint_out(&self) -> Style {
        self.out
    }

    /// A line of the answer, to standard output. Nobody is told where nobody reads any more.
    pub(crate) fn say(&self, line: impl AsRef<str>) {
        let mut out = std::io::stdout().lock();
        let _written = writeln!(out, "{}", line.as_ref());
    }

    /// A piece of the answer, to standard output, at once.
    pub(crate) fn say_piece(&self, piece: &str) {
        let mut out = std::io::stdout().lock();
        let _written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
    }

    /// One object of the answer, to standard output.
    pub(crate) fn say_json(&self, value: &Value) {
        self.say(value.to_string());
    }

    /// A line about the answer, to standard error.
    pub(crate) fn note(&self, line: impl AsRef<str>) {
        let mut err = std::io::stderr().lock();
        let _written = writeln!(err, "{}", line.as_ref());
    }

    /// A piece about the answer, to standard error.
    pub(crate) fn note_piece(&self, piece: &str) {
        let mut err = std::io::stderr().lock();
        let _written = err.write_all(piece.as_bytes()).and_then(|()| err.flush());
    }

    /// What went wrong, and what to do about it.
    pub(crate) fn problem(&self, problem: &Problem) {
        match self.form {
            Form::Json => self.say_json(&json!({
                "type": "error",
                "message": problem.to_string(),
                "hint": problem.hint_text(),
                "exit": problem.exit().code(),
            })),
            Form::Human => {
                let paint = self.err;
                self.note(format!("{} {problem}", paint.of(Paint::Bad, "error:")));
                if let Some(hint) = problem.hint_text() {
                    self.note(format!("{} {hint}", paint.of(Paint::Note, "hint:")));
                }
            }
        }
    }

    /// What a person is told of a defect of ours.
    pub(crate) fn apologise(&self, what: &str) {
        let what = if what.is_empty() { "no message" } else { what };
        let version = env!("CARGO_PKG_VERSION");
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        self.note(format!("\n{} windlass has a defect, and stopped because of it. We are sorry.", {
            self.err.of(Paint::Bad, "error:")
        }));
        self.note(
            "What runs had written down is safe: `windlass runs` lists them, `windlass resume` goes on.",
        );
        self.note(format!("{} please report this line:", self.err.of(Paint::Note, "hint:")));
        self.note(format!("  windlass {version}, {os} {arch}: {}", one_line(what)));
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
