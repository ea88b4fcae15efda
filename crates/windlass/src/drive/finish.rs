//! The end of a run: a final output is evaluated, type-checked and guarded, or a failure is handled.

use std::sync::Arc;

use windlass_core::{
    failure::RunFailure,
    id::AgentName,
    item::Item,
    journal::{JournalEntry, RunFinished},
    run::{OutputCandidate, OutputCandidateSource},
};

use super::Driver;
use crate::agent::{Agent, ToolUsePolicy};
use crate::error::truncate_message;
use crate::guardrail::check_final_output;
use crate::hook::HookEvent;
use crate::run::DriveError;

impl<C: Send + Sync + 'static> Driver<C> {
    /// Calls the agent's custom function to decide if the results of the turn are final.
    pub(super) async fn evaluate_results(&mut self, name: &AgentName) -> Result<(), DriveError> {
        let agent = self.find_agent(name)?;
        let results = self.scope.with_run(|run| run.turn_results());
        let first = results.first().map(|result| result.call.clone());
        let verdict = match &agent.inner.tool_use_policy {
            ToolUsePolicy::CustomFunction(judge) => {
                let ctx = self.scope.run_context(name);
                self.scope.unless_stopped(async { judge(ctx, results).await }).await?
            }
            // The agent was changed while the run was paused.
            ToolUsePolicy::RunModelAgain | ToolUsePolicy::StopOnFirstTool | ToolUsePolicy::StopAtTools(_) => {
                None
            }
        };
        match (verdict, first) {
            (Some(output), Some(call)) => {
                let source = OutputCandidateSource::Tool(call);
                self.finish_run(OutputCandidate { agent: name.clone(), output, source }).await
            }
            _ => self.scope.record_entry(JournalEntry::TurnContinued).await,
        }
    }

    /// Ends the run with an output, if it passes the type check and the guardrails.
    pub(super) async fn finish_run(&mut self, candidate: OutputCandidate) -> Result<(), DriveError> {
        self.wait_for_guardrails().await?;
        let agent = self.find_agent(&candidate.agent)?;
        let output = match (&candidate.source, &agent.inner.output_type) {
            (OutputCandidateSource::Refusal, _) => {
                return self.fail_or_handle(RunFailure::ModelRefused { message: candidate.output }).await;
            }
            (OutputCandidateSource::Message, Some(output)) => match output.parse_output(&candidate.output) {
                Ok(output) => output,
                Err(message) => return self.correct_output(&agent, message).await,
            },
            (OutputCandidateSource::Message, None) | (OutputCandidateSource::Tool(_), _) => candidate.output,
        };
        self.end_with_output(&candidate.agent, RunFinished { output, message: None }).await
    }

    /// Asks the model to correct a final output that does not match its type. Fails the run if it was asked often enough
    /// or has no turn left.
    async fn correct_output(&mut self, agent: &Agent<C>, problem: String) -> Result<(), DriveError> {
        let max_corrections = agent.inner.max_output_corrections;
        match self.scope.with_run(|run| run.correct_output(&problem, max_corrections)) {
            Ok(rejected) => self.scope.record_entry(JournalEntry::OutputRejected(rejected)).await?,
            Err(failure) => return self.fail_or_handle(failure).await,
        }
        let message =
            truncate_message(format!("the output of agent `{}` is not valid: {problem}", agent.name()));
        self.scope.emit_warning(message).await;
        Ok(())
    }

    async fn end_with_output(&mut self, name: &AgentName, finished: RunFinished) -> Result<(), DriveError> {
        let agent = self.find_agent(name)?;
        let ctx = self.scope.run_context(name);
        let output: Arc<str> = finished.output.as_str().into();
        let moment = HookEvent::AgentEnded { ctx: ctx.clone(), output: output.clone() };
        self.scope.notify_hooks_or_fail(&agent, || moment).await?;
        let of_run = self.shared.config.output_guardrails.iter().filter(|_| self.scope.is_outermost());
        let guardrails: Vec<_> = agent.inner.output_guardrails.iter().chain(of_run).collect();
        self.scope.unless_stopped(check_final_output(&guardrails, &ctx, &output)).await??;
        self.scope.record_entry(JournalEntry::RunFinished(finished)).await
    }

    /// Fails the run, unless the failure handler returns an output to end with.
    pub(super) async fn fail_or_handle(&mut self, failure: RunFailure) -> Result<(), DriveError> {
        let name = self.scope.with_run(|run| run.agent().clone());
        let handled = match &self.shared.config.failure_handlers.on_failure {
            Some(handler) if self.scope.is_outermost() => {
                let ctx = self.scope.run_context(&name);
                self.scope.unless_stopped(async { handler(ctx, failure.clone()).await }).await?
            }
            _ => None,
        };
        match handled {
            Some(handled) => {
                let message = handled
                    .include_in_history
                    .then(|| Arc::new(Item::assistant(handled.final_output.as_str())));
                self.end_with_output(&name, RunFinished { output: handled.final_output, message }).await
            }
            None => Err(failure.into()),
        }
    }
}
