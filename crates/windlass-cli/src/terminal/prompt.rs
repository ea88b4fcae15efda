//! Prompts: reads one line at a time. A decision never uses input that was typed before its prompt.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::line_editor::{
    DraftCheck, EditEnd, EditPrompt, EditPurpose, EditRequest, LineCompletions, LineEditor,
};
use super::{StyledText, Terminal, end_paste_marks};
use crate::run_driver::{SignalCounter, StopSignal};

/// Interval at which a reader notices that its prompt was abandoned, in milliseconds.
#[cfg(unix)]
const ABANDON_POLL_MS: i64 = 50;

/// The result of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptInput {
    /// A line, without its line end. A message may have several lines.
    Line(String),
    /// End of input; for a message also SIGTERM.
    EndOfInput,
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

/// A request to the thread that reads.
enum ReadRequest {
    Line,
    Edit(EditRequest),
    Remember(String),
}

/// A reply of the thread that reads.
enum ReadReply {
    Input(PromptInput),
    /// The prompt was abandoned, and nothing was read.
    Abandoned,
}

/// A reader of lines from standard input, on its own thread. It is the only reader, so that two prompts never share
/// the keys of one user: a prompt that was abandoned ends before the next one begins.
pub(crate) struct LinePrompter {
    read_requests: std::sync::mpsc::Sender<ReadRequest>,
    replies: mpsc::Receiver<ReadReply>,
    is_reading: bool,
    is_abandoned: Arc<AtomicBool>,
    /// The edit that nobody waits for at the moment, with the mode of the terminal before it.
    open_edit: Option<TerminalMode>,
}

impl Drop for LinePrompter {
    fn drop(&mut self) {
        if let Some(mode) = &self.open_edit {
            mode.restore();
        }
    }
}

impl LinePrompter {
    /// Starts the reader, with the history of a file for messages.
    pub(crate) fn spawn_reader(history_file: Option<PathBuf>) -> Self {
        let (wanted, asked) = std::sync::mpsc::channel::<ReadRequest>();
        let (send, replies) = mpsc::channel(1);
        let is_abandoned = Arc::new(AtomicBool::new(false));
        let abandoned = is_abandoned.clone();
        std::thread::spawn(move || {
            let mut editor: Option<LineEditor> = None;
            while let Ok(request) = asked.recv() {
                let reply = match request {
                    ReadRequest::Line => read_plain_line(&abandoned),
                    ReadRequest::Edit(request) => {
                        ReadReply::Input(edit_line(&mut editor, history_file.clone(), request))
                    }
                    ReadRequest::Remember(line) => {
                        if let Some(editor) = &mut editor {
                            editor.remember(&line);
                        }
                        continue;
                    }
                };
                if send.blocking_send(reply).is_err() {
                    return;
                }
            }
        });
        Self { read_requests: wanted, replies, is_reading: false, is_abandoned, open_edit: None }
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
            if self.read_requests.send(ReadRequest::Line).is_err() {
                return PromptInput::EndOfInput;
            }
            self.is_reading = true;
        }
        tokio::select! {
            reply = self.replies.recv() => {
                self.is_reading = false;
                match reply {
                    Some(ReadReply::Input(input)) => input,
                    Some(ReadReply::Abandoned) | None => PromptInput::EndOfInput,
                }
            }
            // The end of the input may be an answer, such as an empty reason. A signal never is.
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
        self.end_abandoned_read().await;
        discard_typeahead();
        self.read_line(term, prompt, signals).await
    }

    /// Reads a message of a conversation. A user at a terminal edits it, with a history and completions.
    pub(crate) async fn read_message(
        &mut self,
        term: &Terminal,
        prompt: StyledText,
        completions: Arc<LineCompletions>,
        signals: &mut SignalCounter,
    ) -> PromptInput {
        if !term.can_edit() {
            return self.read_line(term, prompt, signals).await;
        }
        let input = self.edit(term, &prompt, EditPurpose::Message(completions), signals).await;
        if let PromptInput::Line(line) = &input
            && !line.trim().is_empty()
        {
            // The reader has ended if this fails, and then the next prompt reports it.
            let _sent = self.read_requests.send(ReadRequest::Remember(line.clone()));
        }
        match input {
            // A backslash before a line break only continued the line.
            PromptInput::Line(line) => PromptInput::Line(line.replace("\\\n", "\n")),
            other => other,
        }
    }

    /// Lets the user edit a text that is there already. It is checked when the user accepts it, and an empty one ends
    /// the edit.
    pub(crate) async fn edit_draft(
        &mut self,
        term: &Terminal,
        prompt: impl Into<StyledText>,
        draft: &str,
        check: DraftCheck,
        signals: &mut SignalCounter,
    ) -> PromptInput {
        let purpose = EditPurpose::Draft { text: draft.to_owned(), check };
        self.edit(term, &prompt.into(), purpose, signals).await
    }

    async fn edit(
        &mut self,
        term: &Terminal,
        prompt: &StyledText,
        purpose: EditPurpose,
        signals: &mut SignalCounter,
    ) -> PromptInput {
        self.end_abandoned_read().await;
        let can_be_left = matches!(purpose, EditPurpose::Message(_));
        if self.open_edit.is_none() {
            let mode = TerminalMode::save();
            let request = EditRequest { prompt: EditPrompt::new(term, prompt), purpose };
            if self.read_requests.send(ReadRequest::Edit(request)).is_err() {
                return PromptInput::EndOfInput;
            }
            self.open_edit = Some(mode);
        }
        loop {
            tokio::select! {
                reply = self.replies.recv() => {
                    self.open_edit = None;
                    return match reply {
                        Some(ReadReply::Input(input)) => input,
                        Some(ReadReply::Abandoned) | None => PromptInput::EndOfInput,
                    };
                }
                // The editor reads Ctrl-C as a key, unless it was pressed before the editor was ready. The edit cannot be
                // ended then; the next prompt goes on with it.
                signal = signals.next() => match signal {
                    StopSignal::Terminate => {
                        // The process prints its last lines in the usual mode of the terminal.
                        if let Some(mode) = &self.open_edit {
                            mode.restore();
                        }
                        return PromptInput::EndOfInput;
                    }
                    StopSignal::Interrupt if can_be_left => return PromptInput::Interrupted,
                    StopSignal::Interrupt => {}
                },
            }
        }
    }

    /// Ends the read of a prompt that was abandoned, so that later keys belong to the next prompt. A line that was typed
    /// for the abandoned prompt is discarded.
    pub(crate) async fn end_abandoned_read(&mut self) {
        if !self.is_reading || !std::io::stdin().is_terminal() {
            return;
        }
        self.is_abandoned.store(true, Ordering::SeqCst);
        let _reply = self.replies.recv().await;
        self.is_abandoned.store(false, Ordering::SeqCst);
        self.is_reading = false;
    }
}

/// Reads a line as the terminal or the pipe gives it.
fn read_plain_line(is_abandoned: &AtomicBool) -> ReadReply {
    if std::io::stdin().is_terminal() && !wait_for_input(is_abandoned) {
        return ReadReply::Abandoned;
    }
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    ReadReply::Input(match read {
        Ok(0) | Err(_) => PromptInput::EndOfInput,
        Ok(_) => PromptInput::Line(line.trim_end_matches(['\r', '\n']).to_owned()),
    })
}

/// Waits for input of the terminal. Returns false if the prompt was abandoned before there was any.
#[cfg(unix)]
fn wait_for_input(is_abandoned: &AtomicBool) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let stdin = std::io::stdin();
    let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: ABANDON_POLL_MS * 1_000_000 };
    loop {
        if is_abandoned.load(Ordering::SeqCst) {
            return false;
        }
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            // A closed terminal is readable, and a failed poll leaves the report to the read.
            Ok(_) | Err(_) => return true,
        }
    }
}

#[cfg(not(unix))]
fn wait_for_input(_is_abandoned: &AtomicBool) -> bool {
    true
}

fn edit_line(
    editor: &mut Option<LineEditor>,
    history_file: Option<PathBuf>,
    request: EditRequest,
) -> PromptInput {
    if editor.is_none() {
        *editor = LineEditor::new(history_file).ok();
    }
    match editor.as_mut().map_or(EditEnd::EndOfInput, |editor| editor.edit(request)) {
        EditEnd::Line(line) => PromptInput::Line(line),
        EditEnd::Interrupted => PromptInput::Interrupted,
        EditEnd::EndOfInput => PromptInput::EndOfInput,
    }
}

/// The mode of the terminal before a line was edited.
struct TerminalMode {
    #[cfg(unix)]
    saved: Option<rustix::termios::Termios>,
}

impl TerminalMode {
    #[cfg(unix)]
    fn save() -> Self {
        Self { saved: rustix::termios::tcgetattr(std::io::stdin()).ok() }
    }

    #[cfg(not(unix))]
    fn save() -> Self {
        Self {}
    }

    /// Restores the mode after an edit that did not end.
    fn restore(&self) {
        #[cfg(unix)]
        if let Some(saved) = &self.saved {
            use rustix::termios::{OptionalActions, tcsetattr};
            // A terminal that is gone has no mode to restore.
            let _restored = tcsetattr(std::io::stdin(), OptionalActions::Now, saved);
        }
        end_paste_marks();
    }
}

#[cfg(unix)]
fn discard_typeahead() {
    // The call fails only if standard input is not a terminal, and then there is no type-ahead.
    let _flushed = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
}

#[cfg(not(unix))]
fn discard_typeahead() {}
