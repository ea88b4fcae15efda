//! Input guardrails of a run: blocking ones, and those that run concurrently with the model.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use windlass_core::failure::RunFailure;

use super::{DriveError, Driver};
use crate::agent::Agent;
use crate::error::truncate_message;
use crate::guardrail::{GuardrailError, GuardrailTiming, GuardrailVerdict, InputGuardrail};

/// Guardrails that run concurrently with the model.
#[derive(Default)]
pub(super) struct ConcurrentGuardrails {
    running: FuturesUnordered<BoxFuture<'static, (usize, Option<RunFailure>)>>,
    tripped: Option<(usize, RunFailure)>,
}

impl ConcurrentGuardrails {
    /// Waits until a guardrail trips. Never resolves if none does.
    pub(super) async fn wait_for_trip(overlap: Option<&mut Box<Self>>) -> RunFailure {
        let settled = match overlap {
            Some(overlap) => overlap.wait_settled().await,
            None => Ok(()),
        };
        match settled {
            Err(failure) => failure,
            Ok(()) => std::future::pending().await,
        }
    }

    /// Waits until all guardrails have settled or one has tripped. If several trip at once, the first in order
    /// counts.
    pub(super) async fn wait_settled(&mut self) -> Result<(), RunFailure> {
        while self.tripped.is_none() {
            match self.running.next().await {
                Some(verdict) => self.record_verdict(verdict),
                None => return Ok(()),
            }
            while let Some(Some(verdict)) = self.running.next().now_or_never() {
                self.record_verdict(verdict);
            }
        }
        match self.tripped.take() {
            Some((_, failure)) => {
                self.running.clear();
                Err(failure)
            }
            None => Ok(()),
        }
    }

    /// Polls the guardrails once, without waiting.
    fn poll_once(&mut self) -> Result<(), RunFailure> {
        self.wait_settled().now_or_never().unwrap_or(Ok(()))
    }

    fn record_verdict(&mut self, (place, verdict): (usize, Option<RunFailure>)) {
        if let Some(failure) = verdict
            && self.tripped.as_ref().is_none_or(|(first, _)| place < *first)
        {
            self.tripped = Some((place, failure));
        }
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the blocking guardrails.
    pub(super) async fn run_blocking_guardrails(&mut self, agent: &Agent<C>) -> Result<(), DriveError> {
        match self.guardrails_with_timing(agent, GuardrailTiming::Blocking) {
            Some(mut first) => self.unless_stopped(first.wait_settled()).await?.map_err(DriveError::from),
            None => Ok(()),
        }
    }

    /// Starts the concurrent guardrails.
    pub(super) fn start_concurrent_guardrails(&mut self, agent: &Agent<C>) -> Result<(), DriveError> {
        let mut overlap = self.guardrails_with_timing(agent, GuardrailTiming::Concurrent);
        let begun = overlap.as_mut().map_or(Ok(()), |overlap| overlap.poll_once());
        self.concurrent_guardrails = Mutex::new(overlap);
        begun.map_err(DriveError::from)
    }

    /// Waits until the concurrent guardrails have settled. No call takes effect before.
    pub(super) async fn wait_for_guardrails(&mut self) -> Result<(), DriveError> {
        if !self.has_run_guardrails && !self.with_run(|run| run.has_call_activity()) {
            // An earlier driver ended before they did, and nobody knows what they would have said.
            self.has_run_guardrails = true;
            let name = self.with_run(|run| run.agent().clone());
            let agent = self.find_agent(&name)?;
            self.start_concurrent_guardrails(&agent)?;
        }
        let overlap = self.concurrent_guardrails.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(overlap) = overlap else { return Ok(()) };
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            settled = overlap.wait_settled() => settled.map_err(DriveError::from),
            () = stop.cancelled() => Err(DriveError::Cancelled),
        }
    }

    /// Returns the guardrails with this timing, if any.
    fn guardrails_with_timing(
        &mut self,
        agent: &Agent<C>,
        timing: GuardrailTiming,
    ) -> Option<Box<ConcurrentGuardrails>> {
        let (shared, is_outermost) = (self.shared.clone(), self.parent_calls.is_empty());
        let of_run = shared.config.input_guardrails.iter().filter(|_| is_outermost);
        let guardrails = agent.inner.input_guardrails.iter().chain(of_run).filter(|one| one.timing == timing);
        let mut guardrails = guardrails.peekable();
        guardrails.peek()?;
        let ctx = self.run_context(agent.name());
        let input: Arc<[_]> = self.with_run(|run| run.last_model_input().into());
        let overlap = ConcurrentGuardrails::default();
        for (place, guardrail) in guardrails.cloned().enumerate() {
            let (ctx, input) = (ctx.clone(), input.clone());
            let checked =
                async move { (place, failure_of_verdict(&guardrail, guardrail.check(ctx, input).await)) };
            overlap.running.push(checked.boxed());
        }
        Some(Box::new(overlap))
    }
}

fn failure_of_verdict<C>(
    guardrail: &InputGuardrail<C>,
    verdict: Result<GuardrailVerdict, GuardrailError>,
) -> Option<RunFailure> {
    let name = guardrail.name.to_string();
    match verdict {
        Ok(GuardrailVerdict::Pass) => None,
        Ok(GuardrailVerdict::Tripwire) => Some(RunFailure::InputGuardrailTripped { guardrail: name }),
        Err(error) => Some(RunFailure::GuardrailFailed {
            guardrail: name,
            message: truncate_message(error.to_string()),
        }),
    }
}
