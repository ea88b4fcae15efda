//! Guardrails of a run: of its input, blocking or concurrently with the model, and of its final output.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use windlass_core::failure::RunFailure;
use windlass_core::item::Item;

use super::{GuardrailError, GuardrailVerdict, InputGuardrail, OutputGuardrail};
use crate::error::truncate_message;
use crate::tool::RunContext;

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
    pub(crate) async fn wait_for_trip(overlap: Option<&mut Box<Self>>) -> RunFailure {
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
