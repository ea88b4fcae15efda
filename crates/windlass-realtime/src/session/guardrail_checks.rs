//! Output guardrails, run concurrently with the conversation.

use tokio::task::Id;
use windlass::agent::GuardrailResult;
use windlass::guardrail::GuardrailVerdict;

use super::actor::SessionActor;
use super::builder::GuardrailFailurePolicy;
use crate::event::{RealtimeError, RealtimeEvent};
use crate::machine::TranscriptCheck;

/// Name under which the failure of a whole check is reported.
const ALL_GUARDRAILS: &str = "guardrails";

impl<C: Send + Sync + 'static> SessionActor<C> {
    pub(super) fn start_check(&mut self, check: TranscriptCheck) {
        let Some(resolved) = self.resolved_agents.get(&check.agent.number).cloned() else { return };
        let (session, also) = (self.context.session_id.clone(), self.config.guardrails.clone());
        let (text, timeout) = (check.text.clone(), self.config.guardrail_timeout);
        let task = self
            .check_tasks
            .spawn(async move { resolved.check_output(&session, &also, text, timeout).await });
        self.pending_checks.insert(task.id(), (check.response, check.text));
    }

    pub(super) fn on_check_finished(
        &mut self,
        done: Result<(Id, Vec<GuardrailResult>), tokio::task::JoinError>,
    ) {
        let (id, checked) = match done {
            Ok(done) => done,
            Err(error) => {
                let verdict = Err(error.to_string().into());
                (error.id(), vec![GuardrailResult { guardrail: ALL_GUARDRAILS.into(), verdict }])
            }
        };
        let Some((response, text)) = self.pending_checks.remove(&id) else { return };
        let mut objections = Vec::new();
        for GuardrailResult { guardrail, verdict } in checked {
            match verdict {
                Ok(GuardrailVerdict::Pass) => {}
                Ok(GuardrailVerdict::Tripwire) => objections.push(guardrail.to_string()),
                Err(error) => {
                    tracing::warn!(%guardrail, %error, "a guardrail failed");
                    let (guardrail, message) = (guardrail.to_string(), error.to_string());
                    // A failure of the whole check is one of the strict guardrails too.
                    let is_strict = match guardrail == ALL_GUARDRAILS {
                        true => !self.config.strict_guardrails.is_empty(),
                        false => self.config.strict_guardrails.contains(guardrail.as_str()),
                    };
                    if is_strict || self.config.guardrail_failure_policy == GuardrailFailurePolicy::Trip {
                        objections.push(guardrail.clone());
                    }
                    self.emit_event(RealtimeEvent::Error(RealtimeError::GuardrailFailed {
                        guardrail,
                        message,
                    }));
                }
            }
        }
        let now = self.elapsed();
        self.machine.advance_to(now).on_check_result(&response, &text, objections);
    }
}
