//! Prompts for decisions about pending calls.

use std::time::Duration;

use serde_json::Value;
use windlass::core::decision::{DecisionScope, HoldReason, PendingCall, PersonQuestion};
use windlass::store::{PostedDecision, Store};
use windlass::{error::DecisionError, run::PausedRun};

use super::{ApproverMode, RunDriver};
use crate::cli_error::CliError;
use crate::terminal::{
    ColourMode, OutputFormat, PromptInput, Terminal, TextStyle, format_arguments, pad_to_width, to_one_line,
    truncate_to_width,
};

/// Maximum number of lines shown of one argument.
const MAX_ARGUMENT_LINES: usize = 20;
/// Interval at which the store is polled for a decision from elsewhere.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Maximum number of lines shown of a diff.
const MAX_DIFF_LINES: usize = 60;

/// The result of prompting for all pending calls.
pub(super) enum DecisionRound {
    /// At least one call was decided.
    Resume(PausedRun),
    /// No call was decided: the run stays paused.
    StayPaused(PausedRun),
}

/// The result of prompting for one call.
enum PersonDecision {
    Decided,
    Deferred,
}

/// The reply to one prompt.
enum PromptReply {
    Line(String),
    /// The user ended the input or interrupted the prompt.
    NoInput,
    /// The call was decided elsewhere; the driver applies that decision.
    DecidedElsewhere,
}

impl RunDriver {
    /// Decides the pending calls according to the approver mode.
    pub(super) async fn decide_pending(&mut self, mut paused: PausedRun) -> Result<DecisionRound, CliError> {
        let mut is_any_decided = false;
        paused.decide_as(current_user());
        for pending in paused.pending_calls() {
            let said = match (self.approver, &pending.reason) {
                (ApproverMode::Defer, _) => PersonDecision::Deferred,
                (ApproverMode::ApproveAll, HoldReason::Approval) => {
                    paused.approve(pending.path.clone())?;
                    if self.term.output_format() == OutputFormat::Text {
                        let said = format!("  ! {} is approved by --yes", pending.tool);
                        self.term.eprint_line(self.term.stderr_colour().paint(TextStyle::Hint, &said));
                    }
                    PersonDecision::Decided
                }
                (ApproverMode::ApproveAll, _) if !self.term.can_prompt() => PersonDecision::Deferred,
                (ApproverMode::Prompt, HoldReason::Approval) => {
                    self.ask_approval(&mut paused, &pending).await?
                }
                (ApproverMode::ApproveAll | ApproverMode::Prompt, HoldReason::InDoubt) => {
                    self.ask_settlement(&mut paused, &pending).await?
                }
                (ApproverMode::ApproveAll | ApproverMode::Prompt, HoldReason::Question(question)) => {
                    self.ask_question(&mut paused, &pending, question).await?
                }
                // This version cannot ask about other hold reasons.
                (ApproverMode::ApproveAll | ApproverMode::Prompt, _) => PersonDecision::Deferred,
            };
            match said {
                PersonDecision::Decided => is_any_decided = true,
                PersonDecision::Deferred => break,
            }
        }
        Ok(if is_any_decided { DecisionRound::Resume(paused) } else { DecisionRound::StayPaused(paused) })
    }

    async fn ask_approval(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
    ) -> Result<PersonDecision, CliError> {
        let tool = pending.tool.to_string();
        self.print_call(pending, &format!("{} would like to call {tool}:", pending.agent));
        let (yes, always, no) = (("y", "es"), ("a", "lways in this run"), ("n", "o"));
        let (edit, later) = (("e", "dit"), ("l", "ater"));
        let offered = match pending.max_approval_scope {
            DecisionScope::ToolForRun => vec![yes, no, always, edit, later],
            DecisionScope::ThisCall => vec![yes, no, edit, later],
        };
        loop {
            let prompt = format!("  Allow it? {} ", choice_prompt(&self.term, &offered));
            let answer = match self.prompt_decision(paused, pending, &prompt).await? {
                PromptReply::Line(answer) => answer,
                PromptReply::NoInput => return Ok(self.defer_call()),
                PromptReply::DecidedElsewhere => return Ok(PersonDecision::Decided),
            };
            let path = pending.path.clone();
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => paused.approve(path)?,
                "a" | "always" if pending.max_approval_scope == DecisionScope::ToolForRun => {
                    paused.approve_always(path)?
                }
                "n" | "no" => match self
                    .prompter
                    .read_line(&self.term, "  Why? (Enter for no reason) ", &mut self.signals)
                    .await
                {
                    PromptInput::Line(why) if !why.trim().is_empty() => {
                        paused.reject_because(path, why.trim())?
                    }
                    PromptInput::Line(_) | PromptInput::EndOfInput => paused.reject(path)?,
                    PromptInput::Interrupted => return Ok(self.defer_call()),
                },
                "e" | "edit" => {
                    self.term.eprint_line(format!(
                        "  {}",
                        self.term.stderr_colour().paint(TextStyle::Faint, &pending.arguments)
                    ));
                    let edited = self
                        .prompter
                        .read_line(&self.term, "  New arguments, as JSON: ", &mut self.signals)
                        .await;
                    let PromptInput::Line(edited) = edited else { return Ok(self.defer_call()) };
                    match paused.approve_edited(path, &edited) {
                        Ok(()) => {}
                        Err(error @ DecisionError::InvalidArguments(_)) => {
                            self.term.eprint_line(format!("  {error}"));
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                "l" | "later" => return Ok(PersonDecision::Deferred),
                _ => continue,
            }
            return Ok(PersonDecision::Decided);
        }
    }

    async fn ask_settlement(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
    ) -> Result<PersonDecision, CliError> {
        let tool = pending.tool.to_string();
        self.print_call(pending, &format!("{tool} had started when its process ended. Did it happen?"));
        loop {
            let prompt = format!(
                "  Say what you know: {} ",
                choice_prompt(
                    &self.term,
                    &[("h", "appened"), ("r", "un it, it did not happen"), ("u", "nknown"), ("l", "ater"),]
                )
            );
            let answer = match self.prompt_decision(paused, pending, &prompt).await? {
                PromptReply::Line(answer) => answer,
                PromptReply::NoInput => return Ok(self.defer_call()),
                PromptReply::DecidedElsewhere => return Ok(PersonDecision::Decided),
            };
            let path = pending.path.clone();
            match answer.trim().to_lowercase().as_str() {
                "h" | "happened" => {
                    let prompt = "  What was its output? (for the model) ";
                    let PromptInput::Line(output) =
                        self.prompter.read_line(&self.term, prompt, &mut self.signals).await
                    else {
                        return Ok(self.defer_call());
                    };
                    paused.confirm_executed(path, output)?;
                }
                "r" | "run" => paused.confirm_not_executed(path)?,
                "u" | "unknown" => paused.mark_outcome_unknown(path)?,
                "l" | "later" => return Ok(PersonDecision::Deferred),
                _ => continue,
            }
            return Ok(PersonDecision::Decided);
        }
    }

    /// Prompts for the answer to a tool's question. It is parsed as JSON if the question has a schema, and
    /// falls back to text.
    async fn ask_question(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
        question: &PersonQuestion,
    ) -> Result<PersonDecision, CliError> {
        self.print_call(pending, &format!("{} asks: {}", pending.tool, to_one_line(&question.text)));
        if let Some(schema) = &question.schema {
            let shape = format!("  The answer must match {schema}");
            self.term.eprint_line(
                self.term
                    .stderr_colour()
                    .paint(TextStyle::Faint, &truncate_to_width(&shape, self.term.width() * 4)),
            );
        }
        loop {
            let prompt = "  Your answer (Enter for later) › ";
            let answer = match self.prompt_decision(paused, pending, prompt).await? {
                PromptReply::Line(answer) => answer,
                PromptReply::NoInput => return Ok(self.defer_call()),
                PromptReply::DecidedElsewhere => return Ok(PersonDecision::Decided),
            };
            if answer.trim().is_empty() {
                return Ok(PersonDecision::Deferred);
            }
            let text = Value::from(answer.trim());
            let as_json = serde_json::from_str(answer.trim()).unwrap_or_else(|_| text.clone());
            // Without a schema the answer is plain text.
            let first = if question.schema.is_some() { as_json } else { text.clone() };
            let said = paused.answer_question(pending.path.clone(), first);
            match said.or_else(|_| paused.answer_question(pending.path.clone(), text)) {
                Ok(()) => return Ok(PersonDecision::Decided),
                Err(error) => self.term.eprint_line(format!("  {error}")),
            }
        }
    }

    /// Prompts for a decision while polling the store for one from elsewhere; the first decision wins.
    async fn prompt_decision(
        &mut self,
        paused: &PausedRun,
        pending: &PendingCall,
        prompt: &str,
    ) -> Result<PromptReply, CliError> {
        let (store, run) = (self.store.clone(), paused.record().run_id().clone());
        let is_same =
            |posted: &PostedDecision| posted.path == pending.path && posted.attempt == pending.attempt;
        let mut looks = tokio::time::interval(POLL_INTERVAL);
        let heard = {
            let typed = self.prompter.read_decision(&self.term, prompt, &mut self.signals);
            tokio::pin!(typed);
            loop {
                tokio::select! {
                    typed = &mut typed => break Some(typed),
                    _ = looks.tick() => {}
                }
                if store.posted_decisions(&run).await?.iter().any(is_same) {
                    break None;
                }
            }
        };
        let posted = store.posted_decisions(&run).await?.into_iter().find(is_same);
        match (posted, heard) {
            (Some(posted), _) => {
                let by = posted.decision.decided_by.unwrap_or_else(|| "somebody".to_owned());
                let said = format!("\n  ! {} decided this call elsewhere", to_one_line(&by));
                self.term.eprint_line(self.term.stderr_colour().paint(TextStyle::Hint, &said));
                Ok(PromptReply::DecidedElsewhere)
            }
            (None, Some(PromptInput::Line(line))) => Ok(PromptReply::Line(line)),
            (None, Some(PromptInput::EndOfInput | PromptInput::Interrupted) | None) => {
                Ok(PromptReply::NoInput)
            }
        }
    }

    fn defer_call(&self) -> PersonDecision {
        self.term.eprint_line("");
        PersonDecision::Deferred
    }

    /// Prints a call for review: the diff it would make, or its arguments.
    fn print_call(&self, pending: &PendingCall, title: &str) {
        let paint = self.term.stderr_colour();
        let width = self.term.width().saturating_sub(5);
        self.term.eprint_line(format!("\n  {}", paint.paint(TextStyle::Waiting, title)));
        let bar = paint.paint(TextStyle::Faint, "│");
        match self.file.preview_change(pending.tool.name(), &pending.arguments) {
            Some(preview) => {
                self.term.eprint_line(format!(
                    "  {bar} {}",
                    truncate_to_width(&to_one_line(&preview.title), width)
                ));
                for line in diff_lines(&preview.lines, paint, width) {
                    self.term.eprint_line(format!("  {bar} {line}"));
                }
            }
            None => {
                for line in argument_lines(pending, width) {
                    self.term.eprint_line(format!("  {bar} {line}"));
                }
            }
        }
    }
}

/// Colours the lines of a diff and truncates a long one.
fn diff_lines(lines: &[String], paint: ColourMode, width: usize) -> Vec<String> {
    let shown = lines.iter().take(MAX_DIFF_LINES).map(|line| {
        let meaning = match line.chars().next() {
            Some('+') => TextStyle::Success,
            Some('-') => TextStyle::Failure,
            Some('@') => TextStyle::Name,
            _ => TextStyle::Faint,
        };
        paint.paint(meaning, &truncate_to_width(&replace_control_chars(line), width))
    });
    let mut shown: Vec<String> = shown.collect();
    if let Some(more @ 1..) = lines.len().checked_sub(MAX_DIFF_LINES) {
        shown.push(paint.paint(TextStyle::Faint, &format!("⋯ {more} more lines")));
    }
    shown
}

/// Formats arguments, one or more lines each.
fn argument_lines(pending: &PendingCall, width: usize) -> Vec<String> {
    let value = pending.arguments_value();
    let Some(fields) = value.as_object() else {
        return vec![truncate_to_width(&to_one_line(&pending.arguments), width)];
    };
    let name_width = fields.keys().map(|name| name.chars().count()).max().unwrap_or(0).min(16);
    let mut lines = Vec::new();
    for (name, value) in fields {
        let text = match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        let all: Vec<&str> = text.lines().collect();
        let shown = all.iter().take(MAX_ARGUMENT_LINES);
        for (place, line) in shown.enumerate() {
            let name = if place == 0 { name.as_str() } else { "" };
            lines.push(truncate_to_width(
                &format!("{}  {}", pad_to_width(name, name_width), replace_control_chars(line)),
                width,
            ));
        }
        match all.len() {
            0 => lines.push(name.clone()),
            count if count > MAX_ARGUMENT_LINES => {
                let more = count - MAX_ARGUMENT_LINES;
                lines.push(format!("{}  ⋯ {more} more lines", pad_to_width("", name_width)));
            }
            _ => {}
        }
    }
    if lines.is_empty() {
        lines.push("no arguments".to_owned());
    }
    lines
}

/// Replaces control characters, which a terminal would interpret.
fn replace_control_chars(line: &str) -> String {
    line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn choice_prompt(term: &Terminal, choices: &[(&str, &str)]) -> String {
    let paint = term.stderr_colour();
    let choices = choices.iter().map(|(key, rest)| format!("[{}]{rest}", paint.paint(TextStyle::Title, key)));
    format!("{} ›", choices.collect::<Vec<_>>().join(" "))
}

/// Formats a pending call on one line.
pub(crate) fn pending_line(pending: &PendingCall, width: usize) -> String {
    let why = match pending.reason {
        HoldReason::Approval => "",
        HoldReason::InDoubt => "  (in doubt)",
        _ => "  (a question)",
    };
    let line = format!("{}  {}  {}{why}", pending.path, pending.tool, format_arguments(&pending.arguments));
    truncate_to_width(&line, width)
}

/// Returns the name under which decisions from this terminal are recorded.
pub(crate) fn current_user() -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    named("USER").or_else(|| named("USERNAME")).unwrap_or_else(|| "somebody at the terminal".to_owned())
}
