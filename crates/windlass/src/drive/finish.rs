//! How a run ends: an output is judged, typed and guarded, or a failure is handled.

use std::sync::Arc;

use futures_util::future::join_all;
use windlass_core::{AgentName, Candidate, CandidateSource, Entry, Failure, Finished, Item};

use super::{Driver, Halt};
use crate::agent::ToolUse;
use crate::error::readable;
use crate::guardrail::Verdict;
use crate::hook::Moment;

impl<C: Send + Sync + 'static> Driver<C> {
    /// Asks the agent's function whether the results of the turn are final.
    pub(super) async fn judge(&mut self, name: &AgentName) -> Result<(), Halt> {
        let agent = self.agent(name)?;
        let results = self.run().turn_results();
        let first = results.first().map(|result| result.call.clone());
        let verdict = match &agent.inner.tool_use {
            ToolUse::Judge(judge) => self.unless_stopped(judge(self.context(name), results)).await?,
            // The agent was changed while the run was paused.
            ToolUse::RunAgain | ToolUse::StopOnFirst | ToolUse::StopAt(_) => None,
        };
        match (verdict, first) {
            (Some(output), Some(call)) => {
                let source = CandidateSource::Tool(call);
                self.finish(Candidate { agent: name.clone(), output, source }).await
            }
            _ => self.record(Entry::WentOn).await,
        }
    }

    /// Ends the run with an output, if its type and its guards agree.
    pub(super) async fn finish(&mut self, candidate: Candidate) -> Result<(), Halt> {
        self.guards_settled().await?;
        let agent = self.agent(&candidate.agent)?;
        let output = match (&candidate.source, &agent.inner.output) {
            (CandidateSource::Refusal, _) => {
                return self.fail_or_handle(Failure::Refused { message: candidate.output }).await;
            }
            (CandidateSource::Message, Some(output)) => match output.accept(&candidate.output) {
                Ok(output) => output,
                Err(message) => return self.fail_or_handle(Failure::InvalidOutput { message }).await,
            },
            (CandidateSource::Message, None) | (CandidateSource::Tool(_), _) => candidate.output,
        };
        self.end_with(&candidate.agent, Finished { output, message: None }).await
    }

    async fn end_with(&mut self, name: &AgentName, finished: Finished) -> Result<(), Halt> {
        let agent = self.agent(name)?;
        let ctx = self.context(name);
        let output: Arc<str> = finished.output.as_str().into();
        let moment = Moment::AgentEnded { ctx: ctx.clone(), output: output.clone() };
        self.tell_or_fail(&agent, || moment).await?;
        let of_run = self.shared.config.output_guardrails.iter().filter(|_| self.path.is_empty());
        let guardrails: Vec<_> = agent.inner.output_guardrails.iter().chain(of_run).collect();
        let checks = guardrails.iter().map(|guardrail| guardrail.check(ctx.clone(), output.clone()));
        let verdicts = self.unless_stopped(join_all(checks)).await?;
        for (guardrail, verdict) in guardrails.iter().zip(verdicts) {
            let name = guardrail.name.to_string();
            match verdict {
                Ok(Verdict::Pass) => {}
                Ok(Verdict::Trip) => return Err(Failure::OutputGuardrail { guardrail: name }.into()),
                Err(error) => {
                    let message = readable(error.to_string());
                    return Err(Failure::GuardrailFailed { guardrail: name, message }.into());
                }
            }
        }
        self.record(Entry::Finished(finished)).await
    }

    /// Fails the run, unless a handler has an output to end with instead.
    pub(super) async fn fail_or_handle(&mut self, failure: Failure) -> Result<(), Halt> {
        let name = self.run().agent().clone();
        let handled = match &self.shared.config.handlers.on_failure {
            Some(handler) if self.path.is_empty() => {
                self.unless_stopped(handler(self.context(&name), failure.clone())).await?
            }
            _ => None,
        };
        match handled {
            Some(handled) => {
                let message = handled.in_history.then(|| Arc::new(Item::assistant(handled.output.as_str())));
                self.end_with(&name, Finished { output: handled.output, message }).await
            }
            None => Err(failure.into()),
        }
    }
}
