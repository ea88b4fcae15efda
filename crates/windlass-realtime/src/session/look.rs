//! Guardrails look at what is said, beside the conversation.

use tokio::task::Id;
use windlass::agent::Checked;
use windlass::guardrail::Verdict;

use super::actor::Actor;
use super::builder::OnGuardrailFailure;
use crate::event::{LiveError, LiveEvent};
use crate::machine::Check;

impl<C: Send + Sync + 'static> Actor<C> {
    pub(super) fn check(&mut self, check: Check) {
        let Some(resolved) = self.agents.get(&check.agent.number).cloned() else { return };
        let (session, also) = (self.setting.session.clone(), self.plan.guardrails.clone());
        let (text, timeout) = (check.text.clone(), self.plan.guardrail_timeout);
        let task = self.checks.spawn(async move {
            let checking = resolved.check_output(&session, &also, text);
            tokio::time::timeout(timeout, checking).await.unwrap_or_else(|_| {
                let verdict = Err(format!("it took longer than {timeout:?}").into());
                vec![Checked { guardrail: "guardrails".into(), verdict }]
            })
        });
        self.checking.insert(task.id(), (check.response, check.text));
    }

    pub(super) fn checked(&mut self, done: Result<(Id, Vec<Checked>), tokio::task::JoinError>) {
        let (id, checked) = match done {
            Ok(done) => done,
            Err(error) => {
                let verdict = Err(error.to_string().into());
                (error.id(), vec![Checked { guardrail: "guardrails".into(), verdict }])
            }
        };
        let Some((response, text)) = self.checking.remove(&id) else { return };
        let mut objections = Vec::new();
        for Checked { guardrail, verdict } in checked {
            match verdict {
                Ok(Verdict::Pass) => {}
                Ok(Verdict::Trip) => objections.push(guardrail.to_string()),
                Err(error) => {
                    tracing::warn!(%guardrail, %error, "a guardrail failed");
                    let (guardrail, message) = (guardrail.to_string(), error.to_string());
                    if self.plan.on_guardrail_failure == OnGuardrailFailure::Trip {
                        objections.push(guardrail.clone());
                    }
                    self.emit(LiveEvent::Error(LiveError::Guardrail { guardrail, message }));
                }
            }
        }
        let now = self.now();
        self.machine.at(now).checked(&response, &text, objections);
    }
}
