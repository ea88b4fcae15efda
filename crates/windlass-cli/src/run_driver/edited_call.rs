//! A decision about a call with edited arguments.

use std::sync::Arc;

use serde_json::Value;
use windlass::core::decision::PendingCall;
use windlass::{error::DecisionError, run::PausedRun};
use windlass_text::SafeText;

use super::RunDriver;
use super::argument_editor::edit_arguments;
use super::call_review::CallReview;
use super::decision_prompts::{DisplayEnd, PersonDecision, PromptReply, choice_prompt};
use crate::cli_error::CliError;
use crate::terminal::{DraftCheck, PromptInput, TextStyle, paint, styled};

impl RunDriver {
    /// Lets the user edit the arguments, displays the edited call, and asks about that. Returns `None` if the user
    /// went back to the call as the model made it.
    pub(super) async fn edit_call(
        &mut self,
        paused: &mut PausedRun,
        pending: &PendingCall,
    ) -> Result<Option<PersonDecision>, CliError> {
        let displayed_before = CallReview::new(paused.record().run_id(), pending, Some(&self.file)).digest();
        let mut draft = pending.arguments.clone();
        loop {
            let check = self.argument_check(pending);
            let Some(edited) =
                edit_arguments(&self.term, &mut self.prompter, &mut self.signals, &draft, check.clone())
                    .await?
            else {
                return Ok(None);
            };
            draft.clone_from(&edited);
            let changed = PendingCall { arguments: edited.clone(), ..pending.clone() };
            let review = CallReview::new(paused.record().run_id(), &changed, Some(&self.file));
            let refusal = review.refusal().map(|why| format!("The call {why}"));
            if let Some(problem) = check(&edited).err().or(refusal) {
                for line in SafeText::from_lines(&problem) {
                    self.term.eprint_line(styled!["  ", paint(TextStyle::Failure, line)]);
                }
                let prompt = styled!["  ", choice_prompt(&[("e", "dit again"), ("b", "ack")]), " "];
                match self.prompter.read_decision(&self.term, prompt, &mut self.signals).await {
                    PromptInput::Line(line) if line.trim() == "e" => continue,
                    PromptInput::Line(_) => return Ok(None),
                    PromptInput::EndOfInput | PromptInput::Interrupted => {
                        return Ok(Some(self.defer_call()));
                    }
                }
            }
            match self.display_review(paused, pending, &review).await? {
                DisplayEnd::Complete => paused.display_as(Some(review.digest())),
                DisplayEnd::Rejected => return self.reject_call(paused, pending).await.map(Some),
                DisplayEnd::Deferred => return Ok(Some(PersonDecision::Deferred)),
                DisplayEnd::DecidedElsewhere => return Ok(Some(PersonDecision::Decided)),
            }
            let offered = [("y", "es"), ("e", "dit again"), ("b", "ack to the model's call")];
            let prompt = styled!["  Allow it with these arguments? ", choice_prompt(&offered), " "];
            let answer = match self.prompt_decision(paused, pending, prompt).await? {
                PromptReply::Line(answer) => answer,
                PromptReply::NoInput => return Ok(Some(self.defer_call())),
                PromptReply::DecidedElsewhere => return Ok(Some(PersonDecision::Decided)),
            };
            match answer.trim().to_lowercase().as_str() {
                "y" | "yes" => match paused.approve_edited(pending.path.clone(), &edited) {
                    Ok(()) => return Ok(Some(PersonDecision::Decided)),
                    Err(error @ DecisionError::InvalidArguments(_)) => {
                        self.term.eprint_line(format!("  {error}"));
                    }
                    Err(error) => return Err(error.into()),
                },
                "e" | "edit" => {}
                _ => {
                    paused.display_as(Some(displayed_before));
                    return Ok(None);
                }
            }
        }
    }

    /// Returns the check of edited arguments, which is the tool's own, so that an edit that cannot run is not approved.
    fn argument_check(&self, pending: &PendingCall) -> DraftCheck {
        match self.agent.tool_list().find(|tool| *tool.key() == pending.tool) {
            Some(tool) => {
                let tool = tool.clone();
                Arc::new(move |edited| tool.check_arguments(edited))
            }
            // The tool of a server is known to the driver alone; it refuses what does not fit.
            None => Arc::new(|edited| {
                serde_json::from_str::<serde_json::Map<String, Value>>(edited)
                    .map(drop)
                    .map_err(|error| format!("`arguments` must be a JSON object: {error}"))
            }),
        }
    }
}
