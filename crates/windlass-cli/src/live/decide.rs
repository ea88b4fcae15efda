//! Asking a person about a call, where the run shows it.

use std::time::Duration;

use serde_json::Value;
use windlass::core::{HoldReason, Pending, Question, Reach};
use windlass::store::{Posted, Store};
use windlass::{DecideError, Paused};

use super::{Answers, Driving};
use crate::problem::Problem;
use crate::term::{Form, Paint, Style, Term, Typed, clip, fields, one_line, pad};

/// How long one argument may be in a question, in lines.
const LONGEST_ARGUMENT: usize = 20;
/// How often a question looks whether it was answered elsewhere.
const LOOK: Duration = Duration::from_millis(300);
/// How much of a change is shown, in lines.
const LONGEST_CHANGE: usize = 60;

/// What came of asking.
pub(super) enum Decided {
    /// Something was decided.
    GoOn(Paused),
    /// Nothing was: the run waits.
    Wait(Paused),
}

/// What a person said about one call.
enum Said {
    Something,
    Later,
}

/// What came of a question.
enum Heard {
    Line(String),
    /// The person left.
    Nothing,
    /// Somebody else decided; whoever drives the run takes that.
    Elsewhere,
}

impl Driving {
    /// Asks about every call that waits.
    pub(super) async fn decide(&mut self, mut paused: Paused) -> Result<Decided, Problem> {
        let mut is_any_decided = false;
        paused.decide_as(person());
        for pending in paused.pending() {
            let said = match (self.answers, &pending.reason) {
                (Answers::Leave, _) => Said::Later,
                (Answers::Yes, HoldReason::Approval) => {
                    paused.approve(pending.path.clone())?;
                    if self.term.form() == Form::Human {
                        let said = format!("  ! {} is approved, because of --yes", pending.tool);
                        self.term.note(self.term.paint().of(Paint::Note, &said));
                    }
                    Said::Something
                }
                (Answers::Yes, _) if !self.term.can_ask() => Said::Later,
                (Answers::Ask, HoldReason::Approval) => self.ask_approval(&mut paused, &pending).await?,
                (Answers::Yes | Answers::Ask, HoldReason::InDoubt) => {
                    self.ask_what_happened(&mut paused, &pending).await?
                }
                (Answers::Yes | Answers::Ask, HoldReason::Question(question)) => {
                    self.ask_question(&mut paused, &pending, question).await?
                }
                // A question of a kind that this version does not know is nobody's to answer here.
                (Answers::Yes | Answers::Ask, _) => Said::Later,
            };
            match said {
                Said::Something => is_any_decided = true,
                Said::Later => break,
            }
        }
        Ok(if is_any_decided { Decided::GoOn(paused) } else { Decided::Wait(paused) })
    }

    async fn ask_approval(&mut self, paused: &mut Paused, pending: &Pending) -> Result<Said, Problem> {
        let tool = pending.tool.to_string();
        self.show(pending, &format!("{} would like to call {tool}:", pending.agent));
        let (yes, always, no) = (("y", "es"), ("a", "lways in this run"), ("n", "o"));
        let (edit, later) = (("e", "dit"), ("l", "ater"));
        let offered = match pending.reach {
            Reach::Always => vec![yes, no, always, edit, later],
            Reach::Call => vec![yes, no, edit, later],
        };
        loop {
            let prompt = format!("  Allow it? {} ", choices(&self.term, &offered));
            let answer = match self.asked(paused, pending, &prompt).await? {
                Heard::Line(answer) => answer,
                Heard::Nothing => return Ok(self.leave()),
                Heard::Elsewhere => return Ok(Said::Something),
            };
            let path = pending.path.clone();
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => paused.approve(path)?,
                "a" | "always" if pending.reach == Reach::Always => paused.approve_always(path)?,
                "n" | "no" => match self
                    .asker
                    .line(&self.term, "  Why? (Enter for no reason) ", &mut self.signals)
                    .await
                {
                    Typed::Line(why) if !why.trim().is_empty() => paused.reject_because(path, why.trim())?,
                    Typed::Line(_) | Typed::End => paused.reject(path)?,
                    Typed::Interrupt => return Ok(self.leave()),
                },
                "e" | "edit" => {
                    self.term.note(format!("  {}", self.term.paint().of(Paint::Faint, &pending.arguments)));
                    let edited =
                        self.asker.line(&self.term, "  Other arguments, as JSON: ", &mut self.signals).await;
                    let Typed::Line(edited) = edited else { return Ok(self.leave()) };
                    match paused.approve_edited(path, &edited) {
                        Ok(()) => {}
                        Err(error @ DecideError::Arguments(_)) => {
                            self.term.note(format!("  {error}"));
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                "l" | "later" => return Ok(Said::Later),
                _ => continue,
            }
            return Ok(Said::Something);
        }
    }

    async fn ask_what_happened(&mut self, paused: &mut Paused, pending: &Pending) -> Result<Said, Problem> {
        let tool = pending.tool.to_string();
        self.show(pending, &format!("{tool} had started when its process ended. Did it happen?"));
        loop {
            let prompt = format!(
                "  Say what you know: {} ",
                choices(
                    &self.term,
                    &[("h", "appened"), ("r", "un it, it did not happen"), ("u", "nknown"), ("l", "ater"),]
                )
            );
            let answer = match self.asked(paused, pending, &prompt).await? {
                Heard::Line(answer) => answer,
                Heard::Nothing => return Ok(self.leave()),
                Heard::Elsewhere => return Ok(Said::Something),
            };
            let path = pending.path.clone();
            match answer.trim().to_lowercase().as_str() {
                "h" | "happened" => {
                    let prompt = "  What did it give? (for the model) ";
                    let Typed::Line(output) = self.asker.line(&self.term, prompt, &mut self.signals).await
                    else {
                        return Ok(self.leave());
                    };
                    paused.it_happened(path, output)?;
                }
                "r" | "run" => paused.it_did_not_happen(path)?,
                "u" | "unknown" => paused.nobody_knows(path)?,
                "l" | "later" => return Ok(Said::Later),
                _ => continue,
            }
            return Ok(Said::Something);
        }
    }

    /// What a tool wants to know. Text is taken as it is where text fits, and as JSON where it must be.
    async fn ask_question(
        &mut self,
        paused: &mut Paused,
        pending: &Pending,
        question: &Question,
    ) -> Result<Said, Problem> {
        self.show(pending, &format!("{} asks: {}", pending.tool, one_line(&question.text)));
        if let Some(schema) = &question.schema {
            let shape = format!("  The answer must fit {schema}");
            self.term.note(self.term.paint().of(Paint::Faint, &clip(&shape, self.term.width() * 4)));
        }
        loop {
            let prompt = "  Your answer (Enter for later) › ";
            let answer = match self.asked(paused, pending, prompt).await? {
                Heard::Line(answer) => answer,
                Heard::Nothing => return Ok(self.leave()),
                Heard::Elsewhere => return Ok(Said::Something),
            };
            if answer.trim().is_empty() {
                return Ok(Said::Later);
            }
            let text = Value::from(answer.trim());
            let as_json = serde_json::from_str(answer.trim()).unwrap_or_else(|_| text.clone());
            // Without a schema the words are meant as they stand.
            let first = if question.schema.is_some() { as_json } else { text.clone() };
            let said = paused.answer(pending.path.clone(), first);
            match said.or_else(|_| paused.answer(pending.path.clone(), text)) {
                Ok(()) => return Ok(Said::Something),
                Err(error) => self.term.note(format!("  {error}")),
            }
        }
    }

    /// Asks, and listens whether somebody else decides meanwhile: whoever is first has decided.
    async fn asked(&mut self, paused: &Paused, pending: &Pending, prompt: &str) -> Result<Heard, Problem> {
        let (store, run) = (self.store.clone(), paused.record().run_id().clone());
        let is_same = |posted: &Posted| posted.path == pending.path && posted.attempt == pending.attempt;
        let mut looks = tokio::time::interval(LOOK);
        let heard = {
            let typed = self.asker.decision(&self.term, prompt, &mut self.signals);
            tokio::pin!(typed);
            loop {
                tokio::select! {
                    typed = &mut typed => break Some(typed),
                    _ = looks.tick() => {}
                }
                if store.posted(&run).await?.iter().any(is_same) {
                    break None;
                }
            }
        };
        let posted = store.posted(&run).await?.into_iter().find(is_same);
        match (posted, heard) {
            (Some(posted), _) => {
                let by = posted.decided.by.unwrap_or_else(|| "somebody".to_owned());
                let said = format!("\n  ! {} decided about it meanwhile, elsewhere", one_line(&by));
                self.term.note(self.term.paint().of(Paint::Note, &said));
                Ok(Heard::Elsewhere)
            }
            (None, Some(Typed::Line(line))) => Ok(Heard::Line(line)),
            (None, Some(Typed::End | Typed::Interrupt) | None) => Ok(Heard::Nothing),
        }
    }

    fn leave(&self) -> Said {
        self.term.note("");
        Said::Later
    }

    /// Shows a call, so that it can be read: an argument a line, long ones in several.
    fn show(&self, pending: &Pending, title: &str) {
        let paint = self.term.paint();
        let width = self.term.width().saturating_sub(5);
        self.term.note(format!("\n  {}", paint.of(Paint::Wait, title)));
        let bar = paint.of(Paint::Faint, "│");
        match self.file.preview(pending.tool.name(), &pending.arguments) {
            Some(preview) => {
                self.term.note(format!("  {bar} {}", clip(&one_line(&preview.title), width)));
                for line in change(&preview.lines, paint, width) {
                    self.term.note(format!("  {bar} {line}"));
                }
            }
            None => {
                for line in arguments(pending, width) {
                    self.term.note(format!("  {bar} {line}"));
                }
            }
        }
    }
}

/// The lines of a change, coloured. Of a long one, as many as can be read.
fn change(lines: &[String], paint: Style, width: usize) -> Vec<String> {
    let shown = lines.iter().take(LONGEST_CHANGE).map(|line| {
        let meaning = match line.chars().next() {
            Some('+') => Paint::Good,
            Some('-') => Paint::Bad,
            Some('@') => Paint::Name,
            _ => Paint::Faint,
        };
        paint.of(meaning, &clip(&plain(line), width))
    });
    let mut shown: Vec<String> = shown.collect();
    if let Some(more @ 1..) = lines.len().checked_sub(LONGEST_CHANGE) {
        shown.push(paint.of(Paint::Faint, &format!("⋯ {more} lines more")));
    }
    shown
}

/// Arguments, one a line.
fn arguments(pending: &Pending, width: usize) -> Vec<String> {
    let value = pending.value();
    let Some(fields) = value.as_object() else { return vec![clip(&one_line(&pending.arguments), width)] };
    let name_width = fields.keys().map(|name| name.chars().count()).max().unwrap_or(0).min(16);
    let mut lines = Vec::new();
    for (name, value) in fields {
        let text = match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        let all: Vec<&str> = text.lines().collect();
        let shown = all.iter().take(LONGEST_ARGUMENT);
        for (place, line) in shown.enumerate() {
            let name = if place == 0 { name.as_str() } else { "" };
            lines.push(clip(&format!("{}  {}", pad(name, name_width), plain(line)), width));
        }
        match all.len() {
            0 => lines.push(name.clone()),
            count if count > LONGEST_ARGUMENT => {
                let more = count - LONGEST_ARGUMENT;
                lines.push(format!("{}  ⋯ {more} lines more", pad("", name_width)));
            }
            _ => {}
        }
    }
    if lines.is_empty() {
        lines.push("no arguments".to_owned());
    }
    lines
}

/// A line with nothing in it that a terminal would take for an order.
fn plain(line: &str) -> String {
    line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn choices(term: &Term, choices: &[(&str, &str)]) -> String {
    let paint = term.paint();
    let choices = choices.iter().map(|(key, rest)| format!("[{}]{rest}", paint.of(Paint::Title, key)));
    format!("{} ›", choices.collect::<Vec<_>>().join(" "))
}

/// A call that waits, on one line.
pub(crate) fn pending_line(pending: &Pending, width: usize) -> String {
    let why = match pending.reason {
        HoldReason::Approval => "",
        HoldReason::InDoubt => "  (in doubt)",
        _ => "  (a question)",
    };
    let line = format!("{}  {}  {}{why}", pending.path, pending.tool, fields(&pending.arguments));
    clip(&line, width)
}

/// In whose name decisions are made at this terminal.
pub(crate) fn person() -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    named("USER").or_else(|| named("USERNAME")).unwrap_or_else(|| "somebody at the terminal".to_owned())
}
