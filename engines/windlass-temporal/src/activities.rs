//! The activities of a workflow: everything that touches the store.

// The macros of the SDK make public items of these.
#![allow(unreachable_pub)]

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use temporalio_common::error::ApplicationFailure;
use temporalio_macros::activities;
use temporalio_sdk::activities::{ActivityContext, ActivityError};
use windlass::core::id::RunId;
use windlass::error::{StoreError, StoreErrorKind};
use windlass::fleet::{
    DecisionRequest, DispatchError, NextWake, QueueOrder, RunQueue, SegmentDispatcher, SegmentReport,
};
use windlass::store::PostDecisionError;

/// Time between two heartbeats of a segment.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A decision about a call of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunDecision {
    /// The run.
    pub run: String,
    /// The decision.
    pub request: DecisionRequest,
}

/// The activities of runs.
pub struct RunActivities {
    pub(crate) queue: Arc<dyn RunQueue>,
    pub(crate) dispatcher: SegmentDispatcher,
}

#[activities]
impl RunActivities {
    /// Drives a run for one segment. Repeated in the same process, it attaches to the segment.
    #[activity]
    pub async fn drive_segment(
        self: Arc<Self>,
        ctx: ActivityContext,
        run: String,
    ) -> Result<SegmentReport, ActivityError> {
        let run = RunId::from(run);
        let segment = self.dispatcher.drive_segment(&run);
        tokio::pin!(segment);
        loop {
            tokio::select! {
                biased;
                result = &mut segment => return finish_segment(result),
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => ctx.record_heartbeat(0_u32).await?,
            }
        }
    }

    /// Posts a decision. One that is refused is not tried again.
    #[activity]
    pub async fn post_decision(
        self: Arc<Self>,
        _ctx: ActivityContext,
        decision: RunDecision,
    ) -> Result<(), ActivityError> {
        let run = RunId::from(decision.run);
        decision.request.post(&*self.queue, &run).await.map_err(|error| match error.is_final() {
            true => ActivityError::application(ApplicationFailure::non_retryable(error)),
            false => error.into(),
        })
    }

    /// Orders the cancellation of a run.
    #[activity]
    pub async fn order_cancel(
        self: Arc<Self>,
        _ctx: ActivityContext,
        run: String,
    ) -> Result<(), ActivityError> {
        let run = RunId::from(run);
        match self.queue.post_order(&run, &QueueOrder::Cancel).await {
            Ok(_) => Ok(()),
            Err(error) => Err(store_failure(error)),
        }
    }
}

fn finish_segment(result: Result<SegmentReport, DispatchError>) -> Result<SegmentReport, ActivityError> {
    match result {
        Ok(report) => Ok(report),
        // The run was deleted: the workflow ends.
        Err(DispatchError::NotSubmitted { .. }) => {
            let (agent, state) = ("".into(), "unknown".to_owned());
            Ok(SegmentReport { agent, state, wake: NextWake::Never })
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the failure of an activity: final if repeating the operation cannot help.
fn store_failure(error: StoreError) -> ActivityError {
    match error.is_final() {
        true => ActivityError::application(ApplicationFailure::non_retryable(error)),
        false => error.into(),
    }
}
