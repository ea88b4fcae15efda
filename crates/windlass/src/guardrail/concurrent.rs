//! Guardrails of a run: of its input, blocking or concurrently with the model, and of its final output.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use windlass_core::failure::RunFailure;
use windlass_core::item::Item;

use super::{GuardrailError, GuardrailTiming, GuardrailVerdict, InputGuardrail, OutputGuardrail};
use crate::agent::Agent;
use crate::error::truncate_message;
use crate::run::{DriveError, RunScope};
use crate::tasks::unless_stopped;
use crate::tool::RunContext;

/// The input guardrails of one run: they run once, before its first model request or concurrently with it.
#[derive(Default)]
pub(crate) struct RunInputGuardrails {
    /// Guardrails that run concurrently with the model. The lock makes them shareable and is never contended.
    concurrent: Mutex<Option<Box<ConcurrentGuardrails>>>,
    has_begun: bool,
}

impl RunInputGuardrails {
    /// Runs the blocking guardrails of the agent and of the run, if this is the first request of the run. Returns true if
    /// it is.
    pub(crate) async fn run_blocking<C: Send + Sync + 'static>(
        &mut self,
        scope: &RunScope<C>,
        agent: &Agent<C>,
        of_run: &[InputGuardrail<C>],
    ) -> Result<bool, DriveError> {
        if self.has_begun || scope.with_run(|run| run.turn()) != 0 {
            return Ok(false);
        }
        self.has_begun = true;
        if let Some(mut blocking) = with_timing(GuardrailTiming::Blocking, scope, agent, of_run) {
            scope.unless_stopped(blocking.wait_settled()).boxed().await??;
        }
        Ok(true)
    }

    /// Starts the guardrails that run concurrently with the model.
    pub(crate) fn start_concurrent<C: Send + Sync + 'static>(
        &mut self,
        scope: &RunScope<C>,
        agent: &Agent<C>,
        of_run: &[InputGuardrail<C>],
    ) -> Result<(), DriveError> {
        self.has_begun = true;
        let mut concurrent = with_timing(GuardrailTiming::Concurrent, scope, agent, of_run);
        let begun = concurrent.as_mut().map_or(Ok(()), |concurrent| concurrent.poll_once());
        self.concurrent = Mutex::new(concurrent);
        begun.map_err(DriveError::from)
    }

    /// Returns true if an earlier driver ended before the guardrails did, and nobody knows what they would have said.
    pub(crate) fn must_begin_again<C: Send + Sync + 'static>(&self, scope: &RunScope<C>) -> bool {
        !self.has_begun && !scope.with_run(|run| run.has_call_activity())
    }

    /// Returns the guardrails that run concurrently with the model, if there are any.
    pub(crate) fn concurrent(&mut self) -> Option<&mut ConcurrentGuardrails> {
        self.concurrent.get_mut().unwrap_or_else(PoisonError::into_inner).as_deref_mut()
    }

    /// Waits until the concurrent guardrails have settled. No call takes effect before.
    pub(crate) async fn wait_settled<C: Send + Sync + 'static>(
        &mut self,
        scope: &RunScope<C>,
    ) -> Result<(), DriveError> {
        let Some(concurrent) = self.concurrent() else { return Ok(()) };
        let settled = unless_stopped(&scope.stop, concurrent.wait_settled()).await;
        settled.ok_or(DriveError::Cancelled)?.map_err(DriveError::from)
    }
}

/// Returns the guardrails of the agent and of the outermost run with this timing, if there are any.
fn with_timing<C: Send + Sync + 'static>(
    timing: GuardrailTiming,
    scope: &RunScope<C>,
    agent: &Agent<C>,
    of_run: &[InputGuardrail<C>],
) -> Option<Box<ConcurrentGuardrails>> {
    let of_run = of_run.iter().filter(|_| scope.is_outermost());
    let guardrails = agent.inner.input_guardrails.iter().chain(of_run).filter(|one| one.timing == timing);
    let guardrails: Vec<_> = guardrails.cloned().collect();
    if guardrails.is_empty() {
        return None;
    }
    let input = scope.with_run(|run| run.last_model_input().into());
    ConcurrentGuardrails::new(guardrails, &scope.run_context(agent.name()), input)
}

/// Guardrails that run concurrently with the model.
#[derive(Default)]
pub(crate) struct ConcurrentGuardrails {
    running: FuturesUnordered<BoxFuture<'static, (usize, Option<RunFailure>)>>,
    tripped: Option<(usize, RunFailure)>,
}

impl ConcurrentGuardrails {
    /// Creates the futures of guardrails, which run when they are polled. Returns `None` if there are no guardrails.
    pub(crate) fn new<C: Send + Sync + 'static>(
        guardrails: Vec<InputGuardrail<C>>,
        ctx: &RunContext<C>,
        input: Arc<[Arc<Item>]>,
    ) -> Option<Box<Self>> {
        if guardrails.is_empty() {
            return None;
        }
        let overlap = Self::default();
        for (place, guardrail) in guardrails.into_iter().enumerate() {
            let (ctx, input) = (ctx.clone(), input.clone());
            let checked =
                async move { (place, failure_of_verdict(&guardrail, guardrail.check(ctx, input).await)) };
            overlap.running.push(checked.boxed());
        }
        Some(Box::new(overlap))
    }

    /// Waits until a guardrail trips. Never resolves if none does.
    pub(crate) async fn wait_for_trip(overlap: Option<&mut Self>) -> RunFailure {
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
    pub(crate) async fn wait_settled(&mut self) -> Result<(), RunFailure> {
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
    pub(crate) fn poll_once(&mut self) -> Result<(), RunFailure> {
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

/// Runs the guardrails of a final output concurrently. The first in order that trips or fails counts.
pub(crate) async fn check_final_output<C: Send + Sync + 'static>(
    guardrails: &[&OutputGuardrail<C>],
    ctx: &RunContext<C>,
    output: &Arc<str>,
) -> Result<(), RunFailure> {
    let checks = guardrails.iter().map(|guardrail| guardrail.check(ctx.clone(), output.clone()));
    for (guardrail, verdict) in guardrails.iter().zip(join_all(checks).await) {
        let guardrail = guardrail.name.to_string();
        match verdict {
            Ok(GuardrailVerdict::Pass) => {}
            Ok(GuardrailVerdict::Tripwire) => return Err(RunFailure::OutputGuardrailTripped { guardrail }),
            Err(error) => {
                let message = truncate_message(error.to_string());
                return Err(RunFailure::GuardrailFailed { guardrail, message });
            }
        }
    }
    Ok(())
}
