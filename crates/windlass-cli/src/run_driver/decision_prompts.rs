//! Prompts for decisions about pending calls.
//!
//! **Invariant:** a call is approved only after all of it was displayed, and the decision records the digest of
//! what was displayed.

use std::time::Duration;

use serde_json::Value;
use windlass::core::decision::{DecisionScope, HoldReason, PendingCall, PersonQuestion};
use windlass::run::PausedRun;
use windlass::store::{PostedDecision, load_posted_decisions};
use windlass_text::SafeText;

use super::call_review::CallReview;
use super::command_rule::{CommandRule, is_command_tool};
use super::review_pager::{PagerChoice, ReviewPager};
use super::{ApproverMode, RunDriver};
use crate::approver_identity::ApproverIdentity;
use crate::cli_error::CliError;
use crate::terminal::{OutputFormat, PromptInput, StyledText, TextStyle, paint, styled, summarize_arguments};

/// Interval at which the store is polled for a decision from elsewhere.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// The result of prompting for all pending calls.
pub(super) enum DecisionRound {
    /// At least one call was decided.
    Resume(PausedRun),
    /// No call was decided: the run stays paused.
    StayPaused(PausedRun),
}

/// The result of prompting for one call.
pub(super) enum PersonDecision {
    Decided,
    Deferred,
}

/// The reply to one prompt.
pub(super) enum PromptReply {
    Line(String),
    /// The user ended the input or interrupted the prompt.
    NoInput,
    /// The call was decided elsewhere; the driver applies that decision.
    DecidedElsewhere,
}

/// The end of a display.
pub(super) enum DisplayEnd {
    /// All of the call was displayed.
    Complete,
    /// The user rejected the call before its end.
    Rejected,
    /// The user put the decision off.
    Deferred,
    /// The call was decided elsewhere.
    DecidedElsewhere,
}

impl RunDriver {
    /// Decides the pending calls according to the approver mode.
    pub(super) async fn decide_pending(&mut self, mut paused: PausedRun) -> Result<DecisionRound, CliError> {
        let mut is_any_decided = false;
        for pending in paused.pending_calls() {
            paused.decide_as(self.identity.name_or(current_user));
            paused.sign_with(self.identity.signer());
            paused.display_as(None);
            let said = match (self.approver, &pending.reason) {
                (ApproverMode::Defer, _) => PersonDecision::Deferred,
                (ApproverMode::Prompt, _) if self.identity.refusal(&pending).is_some() => {
                    self.await_approver(&mut paused, &pending).await?
                }
                (ApproverMode::ApproveAll, HoldReason::Approval) => {
                    paused.approve(pending.path.clone())?;
                    self.note_decision(format!("  ! {} is approved by --yes", pending.tool));
                    PersonDecision::Decided
                }
                (ApproverMode::ApproveAll, _) if !self.term.can_prompt() => PersonDecision::Deferred,
                (ApproverMode::Prompt, HoldReason::Approval) => {
                    if self.apply_command_rules(&mut paused, &pending)? {
                        PersonDecision::Decided
                    } else {
                        self.ask_approval(&mut paused, &pending).await?
                    }
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

    /// Approves a command that one of the user's rules covers. Returns true if it did.
    fn apply_command_rules(&self, paused: &mut PausedRun, pending: &PendingCall) -> Result<bool, CliError> {
        if self.file.policy().asks_each_time(pending) {
            return Ok(false);
        }
        let run = paused.record().run_id().clone();
        let Some(rule) = self.command_rules.iter().find(|rule| rule.covers(&run, pending)) else {
            return Ok(false);
        };
        // An approver signs in his or her own name only.
        if let ApproverIdentity::NotRequired = self.identity {
            paused.decide_as(format!("{}, by the rule: {rule}", current_user()));
        }
        paused.approve(pending.path.clone())?;
        self.note_decision(format!("  ! {} is approved by your rule: {rule}", pending.tool));
        Ok(true)
    }

    /// Displays a call to a user who is no approver, and waits for the decision of one. The user can reject the call.
    async fn await_approver(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
    ) -> Result<PersonDecision, CliError> {
        let review = CallReview::new(paused.record().run_id(), pending, Some(&self.file));
        match self.display_review(paused, pending, &review).await? {
            DisplayEnd::Complete => paused.display_as(Some(review.digest())),
            DisplayEnd::Rejected => return self.reject_call(paused, pending).await,
            DisplayEnd::Deferred => return Ok(PersonDecision::Deferred),
            DisplayEnd::DecidedElsewhere => return Ok(PersonDecision::Decided),
        }
        let reason = self.identity.refusal(pending).unwrap_or_default();
        self.term
            .eprint_line(styled!["  ", paint(TextStyle::Waiting, format!("You cannot allow it: {reason}."))]);
        let can_reject = pending.reason == HoldReason::Approval;
        let offered = if can_reject { vec![("n", "o"), ("l", "ater")] } else { vec![("l", "ater")] };
        loop {
            let prompt = styled!["  It waits for an approver. ", choice_prompt(&offered), " "];
            let answer = match self.prompt_decision(paused, pending, prompt).await? {
                PromptReply::Line(answer) => answer,
                PromptReply::NoInput => return Ok(self.defer_call()),
                PromptReply::DecidedElsewhere => return Ok(PersonDecision::Decided),
            };
            match answer.trim().to_lowercase().as_str() {
                "n" | "no" if can_reject => return self.reject_call(paused, pending).await,
                "l" | "later" => return Ok(PersonDecision::Deferred),
                _ => {}
            }
        }
    }

    async fn ask_approval(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
    ) -> Result<PersonDecision, CliError> {
        let review = CallReview::new(paused.record().run_id(), pending, Some(&self.file));
        if let Some(why) = review.refusal() {
            // The call could have no effect, so nobody is asked about it. The model learns the reason.
            paused.decide_as("windlass");
            paused.sign_with(None);
            paused.reject_because(pending.path.clone(), format!("The call {why}"))?;
            self.note_decision(format!("  ! {} is not asked about: it {why}", pending.tool));
            return Ok(PersonDecision::Decided);
        }
        match self.display_review(paused, pending, &review).await? {
            DisplayEnd::Complete => paused.display_as(Some(review.digest())),
            DisplayEnd::Rejected => return self.reject_call(paused, pending).await,
            DisplayEnd::Deferred => return Ok(PersonDecision::Deferred),
            DisplayEnd::DecidedElsewhere => return Ok(PersonDecision::Decided),
        }
        let (yes, always, no) = (("y", "es"), ("a", "lways in this run"), ("n", "o"));
        let (edit, later) = (("e", "dit"), ("l", "ater"));
        let offered = match pending.max_approval_scope {
            DecisionScope::ToolForRun => vec![yes, no, always, edit, later],
            DecisionScope::ThisCall => vec![yes, no, edit, later],
        };
        loop {
            let prompt = styled!["  Allow it? ", choice_prompt(&offered), " "];
            let answer = match self.prompt_decision(paused, pending, prompt).await? {
                PromptReply::Line(answer) => answer,
                PromptReply::NoInput => return Ok(self.defer_call()),
                PromptReply::DecidedElsewhere => return Ok(PersonDecision::Decided),
            };
            let path = pending.path.clone();
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => paused.approve(path)?,
                "a" | "always" if pending.max_approval_scope == DecisionScope::ToolForRun => {
                    if is_command_tool(&pending.tool) {
                        if !self.add_command_rule(paused, pending).await? {
                            continue;
                        }
                        paused.approve(path)?;
                    } else {
                        paused.approve_always(path)?;
                    }
                }
                "n" | "no" => return self.reject_call(paused, pending).await,
                "e" | "edit" => match self.edit_call(paused, pending).await? {
                    Some(said) => return Ok(said),
                    None => continue,
                },
                "l" | "later" => return Ok(PersonDecision::Deferred),
                _ => continue,
            }
            return Ok(PersonDecision::Decided);
        }
    }

    /// Rejects a call, with the reason that the user gives.
    pub(super) async fn reject_call(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
    ) -> Result<PersonDecision, CliError> {
        let path = pending.path.clone();
        let prompt = "  Why? (Enter for no reason) ";
        match self.prompter.read_line(&self.term, prompt, &mut self.signals).await {
            PromptInput::Line(why) if !why.trim().is_empty() => paused.reject_because(path, why.trim())?,
            PromptInput::Line(_) | PromptInput::EndOfInput => paused.reject(path)?,
            PromptInput::Interrupted => return Ok(self.defer_call()),
        }
        Ok(PersonDecision::Decided)
    }

    /// Asks which later commands to approve, and adds the rule. Returns false if the user chose none.
    async fn add_command_rule(
        &mut self,
        paused: &PausedRun,
        pending: &PendingCall,
    ) -> Result<bool, CliError> {
        let run = paused.record().run_id();
        let exact = CommandRule::exact(run, pending);
        self.term.eprint_line("  Which later commands of this run are approved without a question?");
        self.term.eprint_line(styled!["  ", paint(TextStyle::Title, "1"), format!("  {exact}")]);
        let can_have_pattern = CommandRule::can_have_pattern(pending);
        if can_have_pattern {
            self.term.eprint_line(styled![
                "  ",
                paint(TextStyle::Title, "2"),
                "  this program with arguments by a pattern that you write",
            ]);
        }
        let prompt = "  Number, or Enter to go back › ";
        let chosen = self.prompter.read_decision(&self.term, prompt, &mut self.signals).await;
        let rule = match chosen {
            PromptInput::Line(line) if line.trim() == "1" => exact,
            PromptInput::Line(line) if line.trim() == "2" && can_have_pattern => {
                self.term.eprint_line(
                    "  Write the arguments as a JSON list; `*` stands for any text within one argument.",
                );
                let proposed = CommandRule::proposed_pattern(pending);
                let proposed = SafeText::from_json(&proposed);
                self.term.eprint_line(styled!["  ", paint(TextStyle::Faint, &proposed)]);
                let prompt = "  Pattern › ";
                let PromptInput::Line(line) =
                    self.prompter.read_line(&self.term, prompt, &mut self.signals).await
                else {
                    return Ok(false);
                };
                match CommandRule::pattern(run, pending, line.trim()) {
                    Ok(rule) => rule,
                    Err(problem) => {
                        self.term.eprint_line(format!("  {problem}"));
                        return Ok(false);
                    }
                }
            }
            _ => return Ok(false),
        };
        self.command_rules.push(rule);
        Ok(true)
    }

    async fn ask_settlement(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
    ) -> Result<PersonDecision, CliError> {
        let review = CallReview::new(paused.record().run_id(), pending, Some(&self.file));
        match self.display_review(paused, pending, &review).await? {
            DisplayEnd::Complete => paused.display_as(Some(review.digest())),
            DisplayEnd::Rejected | DisplayEnd::Deferred => return Ok(PersonDecision::Deferred),
            DisplayEnd::DecidedElsewhere => return Ok(PersonDecision::Decided),
        }
        let offered = [("h", "appened"), ("r", "un it, it did not happen"), ("u", "nknown"), ("l", "ater")];
        loop {
            let prompt = styled!["  Say what you know: ", choice_prompt(&offered), " "];
            let answer = match self.prompt_decision(paused, pending, prompt).await? {
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
        let review = CallReview::new(paused.record().run_id(), pending, Some(&self.file));
        match self.display_review(paused, pending, &review).await? {
            DisplayEnd::Complete => paused.display_as(Some(review.digest())),
            DisplayEnd::Rejected | DisplayEnd::Deferred => return Ok(PersonDecision::Deferred),
            DisplayEnd::DecidedElsewhere => return Ok(PersonDecision::Decided),
        }
        loop {
            let prompt = "  Your answer (Enter for later) › ";
            let answer = match self.prompt_decision(paused, pending, prompt.into()).await? {
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
                Err(error) => {
                    for line in SafeText::from_lines(&error.to_string()) {
                        self.term.eprint_line(styled!["  ", line]);
                    }
                }
            }
        }
    }

    /// Displays a call, page by page if it does not fit the screen.
    pub(super) async fn display_review(
        &mut self,
        paused: &PausedRun,
        pending: &PendingCall,
        review: &CallReview,
    ) -> Result<DisplayEnd, CliError> {
        self.term.eprint_blank();
        let mut pager = ReviewPager::new(&self.term, review);
        loop {
            pager.print_page(&self.term);
            if pager.is_at_end() {
                return Ok(DisplayEnd::Complete);
            }
            loop {
                let can_reject = pending.reason == HoldReason::Approval;
                let answer = match self.prompt_decision(paused, pending, pager.prompt(can_reject)).await? {
                    PromptReply::Line(answer) => answer,
                    PromptReply::NoInput => {
                        self.term.eprint_blank();
                        return Ok(DisplayEnd::Deferred);
                    }
                    PromptReply::DecidedElsewhere => return Ok(DisplayEnd::DecidedElsewhere),
                };
                match PagerChoice::parse(&answer) {
                    Some(PagerChoice::NextPage) => break,
                    Some(PagerChoice::Reject) if can_reject => return Ok(DisplayEnd::Rejected),
                    Some(PagerChoice::Later) => return Ok(DisplayEnd::Deferred),
                    Some(PagerChoice::Reject) | None => pager.print_refusal(&self.term),
                }
            }
        }
    }

    /// Prompts for a decision while polling the store for one from elsewhere; the first decision wins.
    pub(super) async fn prompt_decision(
        &mut self,
        paused: &PausedRun,
        pending: &PendingCall,
        prompt: StyledText,
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
                if load_posted_decisions(&*store, &run).await?.authentic.iter().any(is_same) {
                    break None;
                }
            }
        };
        let posted = load_posted_decisions(&*store, &run).await?.authentic.into_iter().find(is_same);
        match (posted, heard) {
            (Some(posted), _) => {
                self.prompter.end_abandoned_read().await;
                let by = posted.decision.decided_by.unwrap_or_else(|| "somebody".to_owned());
                self.term.eprint_blank();
                self.note_decision(format!("  ! {} decided this call elsewhere", SafeText::from_words(&by)));
                Ok(PromptReply::DecidedElsewhere)
            }
            (None, Some(PromptInput::Line(line))) => Ok(PromptReply::Line(line)),
            (None, Some(PromptInput::EndOfInput | PromptInput::Interrupted) | None) => {
                Ok(PromptReply::NoInput)
            }
        }
    }

    /// Prints that a call was decided without a prompt.
    fn note_decision(&self, note: String) {
        if self.term.output_format() == OutputFormat::Text {
            self.term.eprint_labelled(paint(TextStyle::Hint, note));
        }
    }

    pub(super) fn defer_call(&self) -> PersonDecision {
        self.term.eprint_blank();
        PersonDecision::Deferred
    }
}

/// Formats the choices of a prompt: `[y]es [n]o ›`.
pub(crate) fn choice_prompt(choices: &[(&str, &str)]) -> StyledText {
    let mut prompt = StyledText::default();
    for (key, rest) in choices {
        prompt = prompt.with("[").with(paint(TextStyle::Title, *key)).with(format!("]{rest} "));
    }
    prompt.with("›")
}

/// Summarises a pending call on one line. The summary may be truncated; [`CallReview`] is what decides.
pub(crate) fn pending_line(pending: &PendingCall, width: usize) -> SafeText {
    let why = match pending.reason {
        HoldReason::Approval => "",
        HoldReason::InDoubt => "  (in doubt)",
        _ => "  (a question)",
    };
    let posted = if pending.posted.is_some() { "  (decided, not taken)" } else { "" };
    let arguments = summarize_arguments(&pending.arguments);
    SafeText::from_line(&format!("{}  {}  {arguments}{why}{posted}", pending.path, pending.tool))
        .truncate(width)
}

/// Returns the name under which decisions from this terminal are recorded.
pub(crate) fn current_user() -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    named("USER").or_else(|| named("LOGNAME")).or_else(|| named("USERNAME")).unwrap_or_else(user_number)
}

#[cfg(unix)]
fn user_number() -> String {
    format!("user {}", rustix::process::getuid().as_raw())
}

#[cfg(not(unix))]
fn user_number() -> String {
    "an unnamed user".to_owned()
}
