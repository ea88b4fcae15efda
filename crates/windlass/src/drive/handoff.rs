//! Handoffs between agents.

use std::panic::AssertUnwindSafe;

use windlass_core::{
    failure::RunFailure,
    history::keep_pairs,
    id::{AgentName, CallId},
    journal::{HandoffRecorded, JournalEntry},
    run::RunItemKind,
};

use super::{DriveError, Driver};
use crate::agent::HandoffInput;
use crate::error::truncate_message;
use crate::event::RunEventKind;
use crate::hook::HookEvent;

impl<C: Send + Sync + 'static> Driver<C> {
    pub(super) async fn hand_off(
        &mut self,
        call: CallId,
        from: AgentName,
        to: AgentName,
        arguments: String,
    ) -> Result<(), DriveError> {
        self.wait_for_guardrails().await?;
        let agent = self.find_agent(&from)?;
        let ctx = self.run_context(&from);
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => self.unless_stopped(agent.resolve_toolset(&ctx, &self.graph)).await??,
        };
        self.find_agent(&to)?;
        let name =
            self.with_run(|run| run.tool_of_call(&call).map(|key| key.name().to_owned())).unwrap_or_default();
        let handoff = tools.find_handoff(&name);
        if let Some(act) = handoff.and_then(|handoff| handoff.on_handoff.clone()) {
            let arguments = serde_json::from_str(&arguments).unwrap_or_default();
            let input = HandoffInput { ctx: ctx.clone(), to: to.clone(), arguments };
            self.unless_stopped(async { act(input).await }).await?.map_err(|message| {
                DriveError::from(RunFailure::HandoffFailed {
                    to: to.to_string(),
                    message: truncate_message(message),
                })
            })?;
        }
        let moment = HookEvent::HandedOff { ctx, to: to.clone() };
        self.notify_hooks_or_fail(&agent, || moment).await?;
        self.emit_open_outputs().await;
        let history = match handoff.and_then(|handoff| handoff.history_filter.clone()) {
            Some(filter) => {
                let mut before = self.with_run(|run| run.clone());
                let entry = JournalEntry::HandoffRecorded(HandoffRecorded {
                    call: call.clone(),
                    to: to.clone(),
                    filtered_history: None,
                });
                before.apply(&entry).map_err(|why| self.invalid_entry_error(&why))?;
                let filter = AssertUnwindSafe(|| filter(before.history().to_vec()));
                let filtered = std::panic::catch_unwind(filter).map_err(super::application_panicked)?;
                let paired = keep_pairs(filtered);
                if !paired.removed.is_empty() {
                    let message = format!("the handoff's history filter left {}", paired.describe_removed());
                    self.emitter.emit(RunEventKind::Warning { message }).await;
                }
                Some(paired.items)
            }
            None => None,
        };
        self.record_entry(JournalEntry::HandoffRecorded(HandoffRecorded {
            call,
            to: to.clone(),
            filtered_history: history,
        }))
        .await?;
        if self.emitter.is_watched() {
            let handoff = self.with_run(|run| {
                run.items().last().filter(|last| last.kind == RunItemKind::HandoffOutput).cloned()
            });
            if let Some(handoff) = handoff {
                self.emitter.emit(RunEventKind::Item(handoff)).await;
            }
            self.emitter.emit(RunEventKind::AgentUpdated { agent: to }).await;
            self.emitter.wait_until_handled().await;
        }
        self.announced_agent = None;
        Ok(())
    }
}
