//! The virtual object of a run.
//!
//! Invariant: the commands of a handler follow from results that Restate has recorded (`ctx.run`), so that a repeated handler
//! issues the same commands, whatever happened to the run in between.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use restate_sdk::prelude::*;
use restate_sdk::serde::Json;
use windlass::core::id::{RunId, Timestamp};
use windlass::error::{StoreError, StoreErrorKind};
use windlass::fleet::{
    DecisionRequest, DispatchError, NextWake, QueueOrder, RunQueue, RunSubmission, SegmentDispatcher,
};
use windlass::store::PostDecisionError;

use crate::request::{RunState, delay_until};

/// Name of the virtual object of runs.
pub const OBJECT_NAME: &str = "WindlassRun";

/// The object of a run. The key is the run's id.
pub(crate) struct RunObject {
    pub(crate) queue: Arc<dyn RunQueue>,
    pub(crate) dispatcher: SegmentDispatcher,
}

// A handler that waits for a long segment is aborted and repeated after the timeouts, and attaches to its segment again.
#[restate_sdk::object(
    name = "WindlassRun",
    client_visibility = "pub(crate)",
    inactivity_timeout = "1h",
    abort_timeout = "1h",
    journal_retention = "0s",
    idempotency_retention = "1 day",
    invocation_retry_policy(
        initial_interval = "100ms",
        max_interval = "5s",
        factor = 2.0,
        max_attempts = 4000000000,
        on_max_attempts = "pause"
    )
)]
impl RunObject {
    /// Drives the run for one segment, and wakes it again when it is due.
    #[handler]
    async fn drive(&self, ctx: ObjectContext<'_>) -> HandlerResult<()> {
        let run = RunId::from(ctx.key().to_owned());
        let dispatcher = self.dispatcher.clone();
        let segment = || async move {
            match dispatcher.drive_segment(&run).await {
                Ok(report) => Ok(Json((report.wake, now().0))),
                // A dead wake-up: the run was deleted.
                Err(DispatchError::NotSubmitted { .. }) => Ok(Json((NextWake::Never, 0))),
                Err(error) => Err(error.into()),
            }
        };
        let Json((wake, at)) = ctx.run(segment).name("segment").await?;
        if let Some(delay) = delay_until(wake, at) {
            wake_again(&ctx, delay);
        }
        Ok(())
    }

    /// Submits the run, and wakes it.
    #[handler]
    async fn submit(
        &self,
        ctx: SharedObjectContext<'_>,
        submission: Json<RunSubmission>,
    ) -> HandlerResult<()> {
        let Json(submission) = submission;
        if submission.run.as_str() != ctx.key() {
            let message = format!("the submission is of run `{}`", submission.run);
            return Err(TerminalError::new_with_code(400, message).into());
        }
        let (queue, start_at) = (self.queue.clone(), submission.start_at);
        let submit = || async move {
            queue.submit_run(&submission, now()).await.map_err(refuse_store_error)?;
            let wake = start_at.map_or(NextWake::Now, |time| NextWake::At { time });
            Ok(Json((wake, now().0)))
        };
        let Json((wake, at)) = ctx.run(submit).name("submit").await?;
        wake_again(&ctx, delay_until(wake, at).unwrap_or_default());
        Ok(())
    }

    /// Posts a decision, and wakes the run.
    #[handler]
    async fn decide(
        &self,
        ctx: SharedObjectContext<'_>,
        request: Json<DecisionRequest>,
    ) -> HandlerResult<()> {
        let (run, queue) = (RunId::from(ctx.key().to_owned()), self.queue.clone());
        let Json(request) = request;
        ctx.run(|| async move { post(&*queue, &run, request).await }).name("decide").await?;
        wake_again(&ctx, Duration::ZERO);
        Ok(())
    }

    /// Orders the cancellation of the run, and wakes it.
    #[handler]
    async fn cancel(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<()> {
        let (run, queue) = (RunId::from(ctx.key().to_owned()), self.queue.clone());
        let order = || async move {
            queue.post_order(&run, &QueueOrder::Cancel).await.map_err(refuse_store_error)?;
            Ok(())
        };
        ctx.run(order).name("cancel").await?;
        wake_again(&ctx, Duration::ZERO);
        Ok(())
    }

    /// Makes a dead letter ready again, and wakes the run.
    #[handler]
    async fn revive(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<()> {
        let (run, queue) = (RunId::from(ctx.key().to_owned()), self.queue.clone());
        let revive = || async move { queue.revive_run(&run).await.map_err(refuse_store_error) };
        ctx.run(revive).name("revive").await?;
        wake_again(&ctx, Duration::ZERO);
        Ok(())
    }

    /// Returns the state of the run in the queue.
    #[handler]
    async fn status(&self, ctx: SharedObjectContext<'_>) -> HandlerResult<Json<RunState>> {
        let run = RunId::from(ctx.key().to_owned());
        match self.queue.load_queued_run(&run).await? {
            Some(queued) => Ok(Json(RunState::from(queued))),
            None => Err(TerminalError::new_with_code(404, format!("run `{run}` was not submitted")).into()),
        }
    }
}

/// Sends the object of a handler to its next segment.
fn wake_again<'ctx>(ctx: &(impl ContextClient<'ctx> + ObjectKey), delay: Duration) {
    let object = ctx.object_client::<RunObjectClient<'_>>(ctx.object_key());
    match delay.is_zero() {
        true => object.drive().send(),
        false => object.drive().send_after(delay),
    };
}

/// A context of an object.
trait ObjectKey {
    fn object_key(&self) -> String;
}

impl ObjectKey for ObjectContext<'_> {
    fn object_key(&self) -> String {
        self.key().to_owned()
    }
}

impl ObjectKey for SharedObjectContext<'_> {
    fn object_key(&self) -> String {
        self.key().to_owned()
    }
}

async fn post(queue: &dyn RunQueue, run: &RunId, request: DecisionRequest) -> HandlerResult<()> {
    request.post(queue, run).await.map_err(|error| match decision_error_code(&error) {
        Some(code) => TerminalError::new_with_code(code, error.to_string()).into(),
        None => error.into(),
    })
}

/// Returns the error of a handler: final if repeating the operation cannot help.
fn refuse_store_error(error: StoreError) -> HandlerError {
    match store_error_code(&error) {
        Some(code) => TerminalError::new_with_code(code, error.to_string()).into(),
        None => error.into(),
    }
}

/// Returns the status code of a decision that is refused for good; `None` if the same decision may be posted later.
fn decision_error_code(error: &PostDecisionError) -> Option<u16> {
    error.store_error().map_or(Some(409), store_error_code)
}

/// Returns the status code of an operation that is refused for good; `None` if it may succeed later.
fn store_error_code(error: &StoreError) -> Option<u16> {
    match error.kind() {
        _ if !error.is_final() => None,
        StoreErrorKind::RunNotFound => Some(404),
        StoreErrorKind::AlreadyExists | StoreErrorKind::AlreadyDecided => Some(409),
        _ => Some(422),
    }
}

/// Returns the time of the wall clock.
fn now() -> Timestamp {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use windlass::error::DecisionError;
    use windlass::store::OpenRunError;

    use super::*;

    #[test]
    fn a_decision_is_refused_for_good_only_if_it_can_never_be_posted() {
        let of = |kind| StoreError::with_kind(kind, "no");
        // A store that is away when the run is opened has refused nothing.
        let cases = [
            (StoreErrorKind::Other, None),
            (StoreErrorKind::Disk, None),
            (StoreErrorKind::LeaseHeld, None),
            (StoreErrorKind::RunNotFound, Some(404)),
            (StoreErrorKind::AlreadyDecided, Some(409)),
            (StoreErrorKind::Corrupt, Some(422)),
            (StoreErrorKind::UnknownKey, Some(422)),
            (StoreErrorKind::NotRestored, Some(422)),
        ];
        for (kind, code) in cases {
            let opened = PostDecisionError::Open(OpenRunError::Store(of(kind)));
            assert_eq!(decision_error_code(&opened), code, "{kind:?}");
            assert_eq!(decision_error_code(&PostDecisionError::Store(of(kind))), code, "{kind:?}");
            assert_eq!(opened.is_final(), code.is_some(), "{kind:?}");
        }
        let unknown = DecisionError::NotPending("c1".into());
        assert_eq!(decision_error_code(&PostDecisionError::Decide(unknown)), Some(409));
    }
}
