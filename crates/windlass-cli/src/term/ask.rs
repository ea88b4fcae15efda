//! Asking a person: one line at a time, and never one that was typed before the question.

use std::io::BufRead;

use tokio::sync::mpsc;

use super::Term;
use crate::live::Signals;

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// A line, without its end.
    Line(String),
    /// There is nothing more to read.
    End,
    /// Ctrl-C, or somebody wants the process to end.
    Interrupt,
}

/// Reads lines when it is asked to, on a thread of its own: a read cannot be taken back, so the next question
/// gets what one that was given up was waiting for.
pub(crate) struct Asker {
    wanted: std::sync::mpsc::Sender<()>,
    lines: mpsc::Receiver<Option<String>>,
    is_reading: bool,
}

impl Asker {
    pub(crate) fn start() -> Self {
        let (wanted, asked) = std::sync::mpsc::channel::<()>();
        let (send, lines) = mpsc::channel(1);
        std::thread::spawn(move || {
            while asked.recv().is_ok() {
                let mut line = String::new();
                let read = std::io::stdin().lock().read_line(&mut line);
                let line = match read {
                    Ok(0) | Err(_) => None,
                    Ok(_) => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
                };
                if send.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self { wanted, lines, is_reading: false }
    }

    /// Shows the prompt and reads a line.
    pub(crate) async fn line(&mut self, term: &Term, prompt: &str, signals: &mut Signals) -> Typed {
        term.note_piece(prompt);
        if !self.is_reading {
            if self.wanted.send(()).is_err() {
                return Typed::End;
            }
            self.is_reading = true;
        }
        tokio::select! {
            line = self.lines.recv() => {
                self.is_reading = false;
                line.flatten().map_or(Typed::End, Typed::Line)
            }
            _ = signals.next() => Typed::Interrupt,
        }
    }

    /// As [`Asker::line`], for what must not be answered by accident: what was typed ahead is let go.
    pub(crate) async fn decision(&mut self, term: &Term, prompt: &str, signals: &mut Signals) -> Typed {
        forget_what_was_typed();
        self.line(term, prompt, signals).await
    }
}

#[cfg(unix)]
fn forget_what_was_typed() {
    // Where this cannot be done there is no terminal, and nobody has typed.
    let _flushed = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
}

#[cfg(not(unix))]
fn forget_what_was_typed() {}
