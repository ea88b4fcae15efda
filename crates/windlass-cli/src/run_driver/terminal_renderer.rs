//! The renderer of a run for people: streamed text, and running calls with their elapsed time.

use std::time::Instant;

use windlass::core::{
    id::CallPath,
    item::{Item, Role},
    journal::CallStatus,
};
use windlass::run::RunRecord;
use windlass::{
    core::item::OutputContent,
    event::{RunEvent, RunEventKind},
};

use super::run_renderer::CallIndex;
use super::status_label::StatusLabel;
use crate::terminal::{
    LiveLines, MarkdownMode, MarkdownRenderer, StyledText, Terminal, TextStyle, format_duration, paint,
    styled, summarize_arguments,
};
use windlass_text::SafeText;

const SPINNER_FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Minimum width of the note after a call, in columns.
const MIN_NOTE_WIDTH: usize = 7;

/// The renderer of a run in the terminal.
pub(super) struct TerminalRenderer {
    term: Terminal,
    running_calls: Vec<RunningCall>,
    live_lines: LiveLines,
    spinner_frame: usize,
    /// Kind of the text that is being written.
    open_line: OpenLine,
    /// Renders the text that is being written.
    markdown: MarkdownRenderer,
    /// True if a blank line must separate the next line from the text before it.
    needs_blank_line: bool,
    /// True if the text of the next message item was already streamed.
    was_streamed: bool,
    /// Time since which the model has been thinking.
    thinking_since: Option<Instant>,
    /// The next attempt of a model request that failed.
    model_retry: Option<ScheduledRetry>,
}

/// A model request that will be repeated.
struct ScheduledRetry {
    error: SafeText,
    /// Number of the next attempt.
    attempt: u32,
    at: Instant,
}

struct RunningCall {
    path: CallPath,
    started_at: Instant,
    progress: Option<SafeText>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenLine {
    Empty,
    Text,
    Reasoning,
}

impl ScheduledRetry {
    /// Formats the retry on one line, with the time until it.
    fn line(&self, width: usize) -> StyledText {
        let left = self.at.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
        let when = if left > 0.0 { format!("again in {left} s") } else { "trying again".to_owned() };
        let note = format!("{when}, attempt {}", self.attempt);
        let room = width.saturating_sub(note.len() + 27);
        let error = self.error.truncate(room.max(8));
        styled![
            "  ",
            paint(TextStyle::Waiting, "!"),
            " the model is away: ",
            error,
            "  ",
            paint(TextStyle::Faint, note),
        ]
    }
}

impl TerminalRenderer {
    pub(super) fn new(term: Terminal) -> Self {
        Self {
            markdown: MarkdownRenderer::new(MarkdownMode::Plain),
            term,
            running_calls: Vec::new(),
            live_lines: LiveLines::default(),
            spinner_frame: 0,
            open_line: OpenLine::Empty,
            needs_blank_line: false,
            was_streamed: false,
            thinking_since: None,
            model_retry: None,
        }
    }

    pub(super) fn render_event(&mut self, event: &RunEvent, calls: &CallIndex) {
        let is_nested = !event.path.is_empty();
        let at = |call: &_| CallPath::new(&event.path, Clone::clone(call));
        match &event.kind {
            RunEventKind::AgentUpdated { .. } if !is_nested => self.thinking_since = Some(Instant::now()),
            RunEventKind::TextDelta { delta } if !is_nested => {
                self.was_streamed = true;
                self.write_text(OpenLine::Text, delta);
            }
            RunEventKind::ReasoningDelta { delta } if !is_nested => {
                self.write_text(OpenLine::Reasoning, delta)
            }
            RunEventKind::Item(produced) if !is_nested => self.render_item(&produced.item),
            RunEventKind::CallHeld(held) => {
                let (tool, arguments) = calls.tool_and_arguments(&held.path);
                let line = self.call_line(
                    "?",
                    TextStyle::Waiting,
                    &held.path,
                    tool,
                    arguments,
                    "waits for a person",
                );
                self.print_line(line);
            }
            RunEventKind::CallStarted { call, .. } => {
                self.thinking_since = None;
                self.running_calls.push(RunningCall {
                    path: at(call),
                    started_at: Instant::now(),
                    progress: None,
                });
                self.draw_frame(calls);
            }
            RunEventKind::CallProgress { call, progress } => {
                let path = at(call);
                let words = progress.as_str().map_or_else(|| progress.to_string(), str::to_owned);
                if let Some(running) = self.running_calls.iter_mut().find(|running| running.path == path) {
                    running.progress = Some(SafeText::from_words(&words));
                }
            }
            RunEventKind::CallSettled { call, status, output, .. } => {
                self.render_settled(&at(call), status, output, calls)
            }
            RunEventKind::ModelRetryScheduled { error, delay } => {
                if !is_nested {
                    self.break_off_answer();
                }
                let attempt = self.model_retry.take().map_or(2, |retry| retry.attempt + 1);
                let error = SafeText::from_words(error);
                let retry = ScheduledRetry { error, attempt, at: Instant::now() + *delay };
                if !self.term.can_redraw() {
                    self.print_line(retry.line(self.term.width()));
                }
                self.thinking_since = None;
                self.model_retry = Some(retry);
            }
            RunEventKind::DeltasDiscarded if !is_nested => self.break_off_answer(),
            RunEventKind::ModelResponded(_) => self.model_retry = None,
            RunEventKind::HistoryCompacted { tokens_before, tokens_after, .. } => {
                let message = format!(
                    "the conversation is compacted: about {tokens_before} tokens become {tokens_after}"
                );
                self.print_line(styled![paint(TextStyle::Waiting, "!"), " ", SafeText::from_words(&message)]);
            }
            RunEventKind::BudgetReached { budget, .. } => {
                let message = SafeText::from_words(&budget.to_string());
                self.print_line(styled![paint(TextStyle::Waiting, "!"), " ", message]);
            }
            RunEventKind::Warning { message } => {
                let message = SafeText::from_words(message);
                self.print_line(styled![paint(TextStyle::Waiting, "!"), " ", message]);
            }
            _ => {}
        }
    }

    /// Ends an answer that was begun and is void. What follows is another answer.
    fn break_off_answer(&mut self) {
        if self.open_line == OpenLine::Empty && !self.was_streamed {
            return;
        }
        self.live_lines.clear(&self.term);
        self.end_text();
        self.was_streamed = false;
        self.print_line(paint(TextStyle::Faint, "  the answer broke off; it begins anew"));
    }

    /// Redraws the live lines: the running calls, or the thinking indicator.
    pub(super) fn draw_frame(&mut self, calls: &CallIndex) {
        if !self.term.can_redraw() {
            return;
        }
        if self.open_line != OpenLine::Empty {
            return self.draw_preview();
        }
        self.spinner_frame = (self.spinner_frame + 1) % SPINNER_FRAMES.len();
        let mark = SPINNER_FRAMES.get(self.spinner_frame).copied().unwrap_or("·");
        let mut lines: Vec<StyledText> = self
            .running_calls
            .iter()
            .map(|running| {
                let (tool, arguments) = calls.tool_and_arguments(&running.path);
                let took = format_duration(running.started_at.elapsed());
                let note = match &running.progress {
                    Some(progress) => format!("{took}  {progress}"),
                    None => took,
                };
                self.call_line(mark, TextStyle::Name, &running.path, tool, arguments, &note)
            })
            .collect();
        if let Some(retry) = &self.model_retry {
            lines.push(retry.line(self.text_width()));
        }
        if lines.is_empty()
            && let Some(since) = self.thinking_since
        {
            let note = format!("thinking {}", format_duration(since.elapsed()));
            lines.push(styled!["  ", paint(TextStyle::Name, mark), " ", paint(TextStyle::Faint, note)]);
        }
        self.live_lines.draw(&self.term, &lines);
    }

    pub(super) fn finish_output(&mut self) {
        self.live_lines.clear(&self.term);
        self.end_text();
        self.running_calls.clear();
        self.thinking_since = None;
        self.model_retry = None;
    }

    pub(super) fn show_stopping(&mut self) {
        let note = "stopping; press Ctrl-C again to quit at once";
        self.print_line(paint(TextStyle::Faint, format!("  {note}")));
    }

    pub(super) fn reset_stream(&mut self, _record: &RunRecord) {
        self.was_streamed = false;
    }

    fn render_item(&mut self, item: &Item) {
        match item {
            Item::Message(message) if message.role == Role::Assistant => {
                if !self.was_streamed {
                    self.write_text(OpenLine::Text, &message.text());
                }
                self.was_streamed = false;
                self.end_text();
            }
            Item::Output(_) => self.thinking_since = Some(Instant::now()),
            _ => {}
        }
    }

    /// Writes streamed text: complete lines for good, the others as live lines. A pipe gets the whole answer at the end.
    fn write_text(&mut self, what: OpenLine, piece: &str) {
        if !self.term.shows_answers() {
            return;
        }
        self.thinking_since = None;
        self.model_retry = None;
        if self.open_line != what {
            self.live_lines.clear(&self.term);
            self.end_text();
            self.term.eprint_blank();
            self.open_line = what;
            let mode = match what {
                OpenLine::Reasoning => MarkdownMode::Plain,
                OpenLine::Text | OpenLine::Empty => self.term.markdown_mode(),
            };
            self.markdown = MarkdownRenderer::new(mode);
        }
        let lines = self.markdown.push(piece, self.text_width());
        self.print_text_lines(lines);
    }

    fn print_text_lines(&mut self, lines: Vec<StyledText>) {
        if lines.is_empty() {
            return;
        }
        self.live_lines.clear(&self.term);
        for line in lines {
            match self.open_line {
                OpenLine::Reasoning => self.term.eprint_line(paint(TextStyle::Faint, line)),
                OpenLine::Text | OpenLine::Empty => self.term.print_answer_line(line),
            }
        }
    }

    /// Draws the end of the text that is not complete. It is drawn whole when it is complete.
    fn draw_preview(&mut self) {
        let mut lines = self.markdown.preview(self.text_width());
        let hidden = lines.len().saturating_sub(self.term.height().saturating_sub(2));
        lines.drain(..hidden);
        if self.open_line == OpenLine::Reasoning {
            lines = lines.into_iter().map(|line| paint(TextStyle::Faint, line)).collect();
        }
        self.live_lines.draw(&self.term, &lines);
    }

    /// Returns the width of text, which leaves the last column free.
    fn text_width(&self) -> usize {
        self.term.width().saturating_sub(1)
    }

    fn end_text(&mut self) {
        if self.open_line != OpenLine::Empty {
            self.live_lines.clear(&self.term);
            let lines = self.markdown.finish(self.text_width());
            self.print_text_lines(lines);
            self.open_line = OpenLine::Empty;
            self.needs_blank_line = true;
        }
    }

    fn render_settled(
        &mut self,
        path: &CallPath,
        status: &CallStatus,
        output: &OutputContent,
        calls: &CallIndex,
    ) {
        let place = self.running_calls.iter().position(|running| running.path == *path);
        let took = place.map(|place| self.running_calls.remove(place).started_at.elapsed());
        let (tool, arguments) = calls.tool_and_arguments(path);
        let StatusLabel { mark, style, note } = StatusLabel::for_status(status);
        let note = match (note.is_empty(), took) {
            (true, Some(took)) => format_duration(took),
            (true, None) => String::new(),
            (false, Some(took)) => format!("{note}, {}", format_duration(took)),
            (false, None) => note.to_owned(),
        };
        let line = self.call_line(mark, style, path, tool, arguments, &note);
        self.print_line(line);
        let said = SafeText::from_words(&output.text());
        if !said.is_empty() {
            let indent = "  ".repeat(path.parent_calls().len());
            let width = self.term.width().saturating_sub(7 + indent.len());
            self.print_line(paint(TextStyle::Faint, format!("  {indent}  ╰ {}", said.truncate(width))));
        }
        self.draw_frame(calls);
    }

    /// Prints a permanent line above the live lines.
    fn print_line(&mut self, line: StyledText) {
        self.live_lines.clear(&self.term);
        self.end_text();
        if std::mem::take(&mut self.needs_blank_line) {
            self.term.eprint_blank();
        }
        self.term.eprint_line(line);
    }

    /// Formats a call on one line; the arguments are shortened first.
    fn call_line(
        &self,
        mark: &str,
        mark_style: TextStyle,
        path: &CallPath,
        tool: &str,
        arguments: &str,
        note: &str,
    ) -> StyledText {
        let indent = "  ".repeat(path.parent_calls().len());
        let width = self.term.width().saturating_sub(1);
        // A tool's name of any length leaves room for the note, so that the line stays one.
        let tool = SafeText::from_words(tool);
        let tool = tool.truncate(width.saturating_sub(indent.len() + 6 + MIN_NOTE_WIDTH));
        let fixed = indent.len() + 4 + tool.width() + 2;
        let note = SafeText::from_words(note).truncate(width.saturating_sub(fixed));
        // The note has a minimum width, so that the line does not shift when a duration grows by a digit.
        let room = width.saturating_sub(fixed + note.width().max(MIN_NOTE_WIDTH) + 2);
        let summary = summarize_arguments(arguments);
        let summary = if room < 8 { SafeText::default() } else { summary.truncate(room) };
        let gap = if summary.is_empty() { "" } else { "  " };
        styled![
            format!("  {indent}"),
            paint(mark_style, mark),
            " ",
            paint(TextStyle::Title, tool),
            gap,
            summary,
            "  ",
            paint(TextStyle::Faint, note),
        ]
    }
}
