//! Prompts: reads one line at a time. A decision never uses input that was typed before its prompt.

use std::io::BufRead;

use tokio::sync::mpsc;

use super::{StyledText, Terminal};
use crate::run_driver::SignalCounter;

/// The result of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptInput {
    /// A line, without its line end.
    Line(String),
    /// End of input.
    EndOfInput,
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

/// A reader of lines from standard input, on its own thread. A blocking read cannot be cancelled, so the next
/// prompt receives the line that an abandoned prompt was waiting for.
pub(crate) struct LinePrompter {
    read_requests: std::sync::mpsc::Sender<()>,
    lines: mpsc::Receiver<Option<String>>,
    is_reading: bool,
}

impl LinePrompter {
    pub(crate) fn spawn_reader() -> Self {
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
        Self { read_requests: wanted, lines, is_reading: false }
    }

    /// Prints the prompt and reads a line.
    pub(crate) async fn read_line(
        &mut self,
        term: &Terminal,
        prompt: impl Into<StyledText>,
        signals: &mut SignalCounter,
    ) -> PromptInput {
        term.eprint_prompt(prompt);
        if !self.is_reading {
            if self.read_requests.send(()).is_err() {
                return PromptInput::EndOfInput;
            }
            self.is_reading = true;
        }
        tokio::select! {
            line = self.lines.recv() => {
                self.is_reading = false;
                line.flatten().map_or(PromptInput::EndOfInput, PromptInput::Line)
            }
            _ = signals.next() => PromptInput::Interrupted,
        }
    }

    /// Discards type-ahead, then behaves like [`LinePrompter::read_line`]; for decisions that must not be
    /// made by accident.
    pub(crate) async fn read_decision(
        &mut self,
        term: &Terminal,
        prompt: impl Into<StyledText>,
        signals: &mut SignalCounter,
    ) -> PromptInput {
        discard_typeahead();
        self.read_line(term, prompt, signals).await
    }
}

#[cfg(unix)]
fn discard_typeahead() {
    // The call fails only if standard input is not a terminal, and then there is no type-ahead.
    let _flushed = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
}

#[cfg(not(unix))]
fn discard_typeahead() {}
