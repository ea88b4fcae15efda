//! Guardrails of the run's input: the ones that come first, and the ones beside the model.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use windlass_core::Failure;

use super::{Driver, Halt};
use crate::agent::Agent;
use crate::error::readable;
use crate::guardrail::{GuardrailError, InputGuardrail, Timing, Verdict};

/// Guardrails that run beside the model.
#[derive(Default)]
pub(super) struct Overlap {
    running: FuturesUnordered<BoxFuture<'static, (usize, Option<Failure>)>>,
    tripped: Option<(usize, Failure)>,
}

impl Overlap {
    /// Waits until one of them trips. Never ends where none does, or where there are none.
    pub(super) async fn trips(overlap: Option<&mut Box<Self>>) -> Failure {
        let settled = match overlap {
            Some(overlap) => overlap.settle().await,
            None => Ok(()),
        };
        match settled {
            Err(failure) => failure,
            Ok(()) => std::future::pending().await,
        }
    }

    /// Waits until all have settled, or one has tripped. Of several that trip at once the first in order counts.
    pub(super) async fn settle(&mut self) -> Result<(), Failure> {
        while self.tripped.is_none() {
            match self.running.next().await {
                Some(verdict) => self.take(verdict),
                None => return Ok(()),
            }
            while let Some(Some(verdict)) = self.running.next().now_or_never() {
                self.take(verdict);
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

    /// Lets them do what they can without waiting.
    fn begin(&mut self) -> Result<(), Failure> {
        self.settle().now_or_never().unwrap_or(Ok(()))
    }

    fn take(&mut self, (place, verdict): (usize, Option<Failure>)) {
        if let Some(failure) = verdict
            && self.tripped.as_ref().is_none_or(|(first, _)| place < *first)
        {
            self.tripped = Some((place, failure));
        }
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Runs the guardrails that come before anything else.
    pub(super) async fn guard_first(&mut self, agent: &Agent<C>) -> Result<(), Halt> {
        match self.guardrails(agent, Timing::First) {
            Some(mut first) => self.unless_stopped(first.settle()).await?.map_err(Halt::from),
            None => Ok(()),
        }
    }

    /// Starts the guardrails that run beside the model.
    pub(super) fn guard_beside(&mut self, agent: &Agent<C>) -> Result<(), Halt> {
        let mut overlap = self.guardrails(agent, Timing::Overlapping);
        let begun = overlap.as_mut().map_or(Ok(()), |overlap| overlap.begin());
        self.overlap = Mutex::new(overlap);
        begun.map_err(Halt::from)
    }

    /// Nothing takes effect before the guardrails beside the model have settled.
    pub(super) async fn guards_settled(&mut self) -> Result<(), Halt> {
        if !self.guarded && !self.run().has_acted() {
            // An earlier driver ended before they did, and nobody knows what they would have said.
            self.guarded = true;
            let name = self.run().agent().clone();
            let agent = self.agent(&name)?;
            self.guard_beside(&agent)?;
        }
        let overlap = self.overlap.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(overlap) = overlap else { return Ok(()) };
        let stop = self.stop.clone();
        tokio::select! {
            biased;
            settled = overlap.settle() => settled.map_err(Halt::from),
            () = stop.cancelled() => Err(Halt::Cancelled),
        }
    }

    /// The guardrails of a timing, where there are any.
    fn guardrails(&mut self, agent: &Agent<C>, timing: Timing) -> Option<Box<Overlap>> {
        let (shared, is_outermost) = (self.shared.clone(), self.path.is_empty());
        let of_run = shared.config.input_guardrails.iter().filter(|_| is_outermost);
        let guardrails = agent.inner.input_guardrails.iter().chain(of_run).filter(|one| one.timing == timing);
        let mut guardrails = guardrails.peekable();
        guardrails.peek()?;
        let ctx = self.context(agent.name());
        let input: Arc<[_]> = self.run().asked_with().into();
        let overlap = Overlap::default();
        for (place, guardrail) in guardrails.cloned().enumerate() {
            let (ctx, input) = (ctx.clone(), input.clone());
            let checked = async move { (place, verdict(&guardrail, guardrail.check(ctx, input).await)) };
            overlap.running.push(checked.boxed());
        }
        Some(Box::new(overlap))
    }
}

fn verdict<C>(guardrail: &InputGuardrail<C>, verdict: Result<Verdict, GuardrailError>) -> Option<Failure> {
    let name = guardrail.name.to_string();
    match verdict {
        Ok(Verdict::Pass) => None,
        Ok(Verdict::Trip) => Some(Failure::InputGuardrail { guardrail: name }),
        Err(error) => {
            Some(Failure::GuardrailFailed { guardrail: name, message: readable(error.to_string()) })
        }
    }
}
