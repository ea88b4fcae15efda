//! Handoffs between agents.

use std::panic::{AssertUnwindSafe, catch_unwind};

use windlass_core::{
    failure::RunFailure,
    id::{AgentName, CallId},
    journal::{CallSettled, HandoffRecorded, JournalEntry},
    run::CallResult,
};

use super::Driver;
use crate::agent::{HandoffInput, ResolvedToolset};
use crate::error::truncate_message;
use crate::hook::HookEvent;
use crate::observe::HookObservation;
use crate::run::{DriveError, application_panicked};

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
        let ctx = self.scope.run_context(&from);
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => self.resolve_tools(&agent).await?,
        };
        self.find_agent(&to)?;
        let name = self.scope.with_run(|run| run.tool_of_call(&call).map(|key| key.name().to_owned()));
        let name = name.unwrap_or_default();
        let handoff = tools.find_handoff(&name).cloned();
        let is_enabled = match &handoff {
            Some(handoff) => self.scope.unless_stopped(handoff.enabled.evaluate(&ctx)).await?,
            None => false,
        };
        let Some(handoff) = handoff.filter(|_| is_enabled) else {
            return self.decline_handoff(call, &name, &from, &tools).await;
        };
        if let Some(act) = handoff.on_handoff.clone() {
            let arguments = serde_json::from_str(&arguments).unwrap_or_default();
            let input = HandoffInput { ctx: ctx.clone(), to: to.clone(), arguments };
            self.scope.unless_stopped(async { act(input).await }).await?.map_err(|message| {
                DriveError::from(RunFailure::HandoffFailed {
                    to: to.to_string(),
                    message: truncate_message(message),
                })
            })?;
        }
        let history = match handoff.history_filter.clone() {
            Some(filter) => {
                let history = self.scope.with_run(|run| run.history_after_handoff(&call, &to));
                let history = history.map_err(|why| self.scope.invalid_entry_error(&why))?;
                let filtered = catch_unwind(AssertUnwindSafe(|| filter(history)));
                let filtered = filtered.map_err(application_panicked)?;
                Some(self.scope.keep_pairs_and_warn("the handoff's history filter", filtered).await)
            }
            None => None,
        };
        let recorded = HandoffRecorded { call, to, filtered_history: history };
        let observed = self.scope.record_observed(JournalEntry::HandoffRecorded(recorded)).await?;
        self.announced_agent = None;
        if let Some(HookObservation::HandedOff { to, seq }) = observed {
            let event = HookEvent::HandedOff { ctx, to, seq, is_repeated: false };
            self.scope.notify_hooks_or_fail(&agent, || event).await?;
        }
        self.scope.emitter.wait_until_handled().await;
        Ok(())
    }

    /// Answers a handoff that is not enabled any more as the call of an unknown tool.
    async fn decline_handoff(
        &mut self,
        call: CallId,
        name: &str,
        from: &AgentName,
        tools: &ResolvedToolset<C>,
    ) -> Result<(), DriveError> {
        let ctx = self.scope.run_context(from);
        let available = self.scope.unless_stopped(tools.enabled_names(&ctx)).await?;
        let CallResult { status, output, run_failure } =
            self.shared.config.on_unknown_tool.call_result(name, from, available);
        let settled = CallSettled { run_failure, ..CallSettled::new(call, status, output) };
        self.scope.record_entry(JournalEntry::CallSettled(settled)).await?;
        self.scope.emitter.wait_until_handled().await;
        Ok(())
    }
}
