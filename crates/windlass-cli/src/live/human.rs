//! A run for a person: text as it comes, calls as they run, each with its time.

use std::time::Instant;

use windlass::core::{CallPath, How, Item, Role};
use windlass::run::RunRecord;
use windlass::{Event, EventKind, OutputContent};

use super::view::Calls;
use crate::term::{Lines, Paint, Term, clip, fields, one_line, time};

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// How much room a note has at least, in columns.
const SHORTEST_NOTE: usize = 7;

/// A run on the screen.
pub(super) struct Human {
    term: Term,
    running: Vec<Running>,
    lines: Lines,
    frame: usize,
    /// What stands on the line that is being written.
    writing: Writing,
    /// Whether what comes next stands apart from the text before it.
    is_after_text: bool,
    /// Whether the message that comes as an item was seen as it came.
    was_streamed: bool,
    /// Since when the model thinks, where it does.
    thinking: Option<Instant>,
}

struct Running {
    path: CallPath,
    since: Instant,
    progress: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    Nothing,
    Text,
    Reasoning,
}

impl Human {
    pub(super) fn new(term: Term) -> Self {
        Self {
            term,
            running: Vec::new(),
            lines: Lines::default(),
            frame: 0,
            writing: Writing::Nothing,
            is_after_text: false,
            was_streamed: false,
            thinking: None,
        }
    }

    pub(super) fn event(&mut self, event: &Event, calls: &Calls) {
        let is_nested = !event.path.is_empty();
        let at = |call: &_| CallPath::new(&event.path, Clone::clone(call));
        match &event.kind {
            EventKind::Agent { .. } if !is_nested => self.thinking = Some(Instant::now()),
            EventKind::TextDelta { delta } if !is_nested => {
                self.was_streamed = true;
                self.write(Writing::Text, delta);
            }
            EventKind::ReasoningDelta { delta } if !is_nested => self.write(Writing::Reasoning, delta),
            EventKind::Item(produced) if !is_nested => self.item(&produced.item),
            EventKind::Held(held) => {
                let (tool, arguments) = calls.of(&held.path);
                let line = self.line("?", Paint::Wait, &held.path, tool, arguments, "waits for a person");
                self.print(&line);
            }
            EventKind::CallStarted { call, .. } => {
                self.thinking = None;
                self.running.push(Running { path: at(call), since: Instant::now(), progress: None });
                self.frame(calls);
            }
            EventKind::Progress { call, progress } => {
                let path = at(call);
                let words = progress.as_str().map_or_else(|| progress.to_string(), str::to_owned);
                if let Some(running) = self.running.iter_mut().find(|running| running.path == path) {
                    running.progress = Some(one_line(&words));
                }
            }
            EventKind::CallSettled { call, how, output } => self.settled(&at(call), how, output, calls),
            EventKind::Warning { message } => {
                let mark = self.term.paint().of(Paint::Wait, "!");
                self.print(&format!("{mark} {}", one_line(message)));
            }
            _ => {}
        }
    }

    /// Draws what moves: the calls that run, or that the model thinks.
    pub(super) fn frame(&mut self, calls: &Calls) {
        if !self.term.is_live() || self.writing != Writing::Nothing {
            return;
        }
        self.frame = (self.frame + 1) % FRAMES.len();
        let mark = FRAMES.get(self.frame).copied().unwrap_or("·");
        let mut lines: Vec<String> = self
            .running
            .iter()
            .map(|running| {
                let (tool, arguments) = calls.of(&running.path);
                let took = time(running.since.elapsed());
                let note = match &running.progress {
                    Some(progress) => format!("{took}  {progress}"),
                    None => took,
                };
                self.line(mark, Paint::Name, &running.path, tool, arguments, &note)
            })
            .collect();
        if lines.is_empty()
            && let Some(since) = self.thinking
        {
            let paint = self.term.paint();
            let note = format!("thinking {}", time(since.elapsed()));
            lines.push(format!("  {} {}", paint.of(Paint::Name, mark), paint.of(Paint::Faint, &note)));
        }
        self.lines.draw(&self.term, &lines);
    }

    pub(super) fn rest(&mut self) {
        self.lines.clear(&self.term);
        self.end_text();
        self.running.clear();
        self.thinking = None;
    }

    pub(super) fn stopping(&mut self) {
        let note = "stopping; Ctrl-C again leaves at once";
        self.print(&self.term.paint().of(Paint::Faint, &format!("  {note}")));
    }

    pub(super) fn ended(&mut self, _record: &RunRecord) {
        self.was_streamed = false;
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Message(message) if message.role == Role::Assistant => {
                if !self.was_streamed {
                    self.write(Writing::Text, &message.text());
                }
                self.was_streamed = false;
                self.end_text();
            }
            Item::Output(_) => self.thinking = Some(Instant::now()),
            _ => {}
        }
    }

    /// Text goes where the answer goes, if that is the screen; otherwise it is told at the end.
    fn write(&mut self, what: Writing, piece: &str) {
        if !self.term.is_live() {
            return;
        }
        self.lines.clear(&self.term);
        self.thinking = None;
        if self.writing != what {
            self.end_text();
            self.term.note_piece("\n");
            self.writing = what;
        }
        let piece: String = piece
            .chars()
            .filter(|letter| *letter == '\n' || *letter == '\t' || !letter.is_control())
            .collect();
        match what {
            Writing::Reasoning => self.term.note_piece(&self.term.paint().of(Paint::Faint, &piece)),
            Writing::Text if self.term.answers_on_screen() => self.term.say_piece(&piece),
            Writing::Text | Writing::Nothing => self.term.note_piece(&piece),
        }
    }

    fn end_text(&mut self) {
        if self.writing != Writing::Nothing {
            self.term.note_piece("\n");
            self.writing = Writing::Nothing;
            self.is_after_text = true;
        }
    }

    fn settled(&mut self, path: &CallPath, how: &How, output: &OutputContent, calls: &Calls) {
        let place = self.running.iter().position(|running| running.path == *path);
        let took = place.map(|place| self.running.remove(place).since.elapsed());
        let (tool, arguments) = calls.of(path);
        let (mark, paint, words) = told(how);
        let note = match (words.is_empty(), took) {
            (true, Some(took)) => time(took),
            (true, None) => String::new(),
            (false, Some(took)) => format!("{words}, {}", time(took)),
            (false, None) => words.to_owned(),
        };
        let line = self.line(mark, paint, path, tool, arguments, &note);
        self.print(&line);
        let said = one_line(&output.text());
        if !said.is_empty() {
            let indent = "  ".repeat(path.within().len());
            let width = self.term.width().saturating_sub(7 + indent.len());
            self.print(&self.term.paint().of(Paint::Faint, &format!("  {indent}  ╰ {}", clip(&said, width))));
        }
        self.frame(calls);
    }

    /// A line that stays.
    fn print(&mut self, line: &str) {
        self.lines.clear(&self.term);
        self.end_text();
        if std::mem::take(&mut self.is_after_text) {
            self.term.note("");
        }
        self.term.note(line);
    }

    /// A call in a line that fits the width: the arguments give way first.
    fn line(
        &self,
        mark: &str,
        paint: Paint,
        path: &CallPath,
        tool: &str,
        arguments: &str,
        note: &str,
    ) -> String {
        let style = self.term.paint();
        let indent = "  ".repeat(path.within().len());
        let width = self.term.width().saturating_sub(1);
        let tool = clip(tool, width.saturating_sub(indent.len() + 5));
        let fixed = indent.len() + 4 + tool.chars().count() + 2;
        let note = clip(note, width.saturating_sub(fixed));
        // A line does not jump because a time has one more digit.
        let room = width.saturating_sub(fixed + note.chars().count().max(SHORTEST_NOTE) + 2);
        let given = fields(arguments);
        let given = if room < 8 { String::new() } else { clip(&given, room) };
        let gap = if given.is_empty() { "" } else { "  " };
        format!(
            "  {indent}{} {}{gap}{given}  {}",
            style.of(paint, mark),
            style.of(Paint::Title, &tool),
            style.of(Paint::Faint, &note)
        )
    }
}

/// How a call ended: a mark, and words where the mark does not say enough.
fn told(how: &How) -> (&'static str, Paint, &'static str) {
    match how {
        How::Succeeded => ("✓", Paint::Good, ""),
        How::Receipt => ("✓", Paint::Good, "done before, not done again"),
        How::Reconciled => ("✓", Paint::Good, "had happened already, not done again"),
        How::Failed => ("✗", Paint::Bad, "failed"),
        How::TimedOut => ("✗", Paint::Bad, "took too long"),
        How::LeftRunning => ("✗", Paint::Bad, "took too long, and may still be running"),
        How::Invalid => ("✗", Paint::Bad, "arguments that cannot be used"),
        How::Missing => ("✗", Paint::Bad, "no such tool"),
        How::Ignored => ("–", Paint::Faint, "one handoff too many"),
        How::Rejected => ("✗", Paint::Wait, "a person said no"),
        How::Guarded => ("✗", Paint::Wait, "stopped by a guardrail"),
        How::Cancelled => ("■", Paint::Wait, "stopped"),
        How::Unknown => ("?", Paint::Wait, "nobody knows whether it happened"),
    }
}
