//! The workflow of a run. It is deterministic: it only waits, and starts activities.

// The macros of the SDK make constants without documentation.
#![allow(missing_docs)]

use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use temporalio_common::RetryPolicy;
use temporalio_common::search_attributes::SearchAttributeKey;
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::{
    ActivityOptions, ContinueAsNewOptions, SyncWorkflowContext, WorkflowContext, WorkflowContextView,
    WorkflowResult,
};
use windlass::fleet::{DecisionRequest, NextWake, SegmentReport};

use crate::activities::{RunActivities, RunDecision};

/// Search attribute of type keyword: the agent of a run.
pub const AGENT_ATTRIBUTE: SearchAttributeKey<String> = SearchAttributeKey::keyword("WindlassAgent");
/// Search attribute of type keyword: the state of a run in the queue.
pub const STATUS_ATTRIBUTE: SearchAttributeKey<String> = SearchAttributeKey::keyword("WindlassStatus");

/// Longest time that a segment may take before its activity is repeated, which attaches to it.
const SEGMENT_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);
/// Time without a heartbeat after which the process of a segment counts as dead.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of segments after which the workflow continues as a new one, because the server bounds the history of each.
const MAX_SEGMENTS: u32 = 500;
/// Longest time of an activity that only writes to the store.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Input of the workflow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowInput {
    /// Id of the run.
    pub run: String,
    /// The wait with which the workflow begins.
    pub wait: NextWake,
}

/// The workflow of a run.
#[workflow]
pub struct RunWorkflow {
    input: WorkflowInput,
    /// Number of signals and decisions so far.
    wakes: u64,
    /// Number of handlers that are under way.
    handlers: u64,
}

#[workflow_methods]
impl RunWorkflow {
    #[init]
    fn new(_ctx: &WorkflowContextView, input: WorkflowInput) -> Self {
        Self { input, wakes: 0, handlers: 0 }
    }

    /// Drives the run, a segment at a time, and returns its last state.
    #[run]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<String> {
        let input = ctx.state(|state| state.input.clone());
        wait_for_wake(ctx, input.wait, 0).await?;
        let mut segments = 0;
        loop {
            segments += 1;
            let seen = ctx.state(|state| state.wakes);
            let options = ActivityOptions::with_start_to_close_timeout(SEGMENT_TIMEOUT)
                .heartbeat_timeout(HEARTBEAT_TIMEOUT)
                .retry_policy(retry_forever())
                .build();
            let report: SegmentReport =
                ctx.execute_activity(RunActivities::drive_segment, input.run.clone(), options).await?;
            ctx.upsert_search_attributes([
                AGENT_ATTRIBUTE.value_set(report.agent.as_str().to_owned()),
                STATUS_ATTRIBUTE.value_set(report.state.clone()),
            ]);
            // A handler that is under way would be lost.
            ctx.wait_condition(|state: &Self| state.handlers == 0).await?;
            let is_woken = ctx.state(|state| state.wakes) != seen;
            let wait = if is_woken { NextWake::Now } else { report.wake };
            match wait {
                NextWake::Now if segments < MAX_SEGMENTS => {}
                NextWake::Never => return Ok(report.state),
                NextWake::Now | NextWake::At { .. } | NextWake::AfterSignal => {
                    let next = WorkflowInput { run: input.run.clone(), wait };
                    ctx.continue_as_new(next, ContinueAsNewOptions::default())?;
                }
            }
        }
    }

    /// Wakes the run.
    #[signal]
    pub fn wake(&mut self, _ctx: &mut SyncWorkflowContext<Self>) {
        self.wakes += 1;
    }

    /// Cancels the run, wherever it is driven.
    #[signal]
    pub async fn cancel(ctx: &mut WorkflowContext<Self>) {
        let run = begin_handler(ctx);
        let ordered = ctx.execute_activity(RunActivities::order_cancel, run, write_options()).await;
        ctx.state_mut(|state| {
            state.handlers -= 1;
            state.wakes += u64::from(ordered.is_ok());
        });
    }

    /// Posts a decision. Fails if it is not valid, or an earlier one is taken.
    #[update]
    pub async fn decide(
        ctx: &mut WorkflowContext<Self>,
        request: DecisionRequest,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let run = begin_handler(ctx);
        let decision = RunDecision { run, request };
        let posted = ctx.execute_activity(RunActivities::post_decision, decision, write_options()).await;
        ctx.state_mut(|state| {
            state.handlers -= 1;
            state.wakes += u64::from(posted.is_ok());
        });
        Ok(posted?)
    }
}

/// Counts a handler that begins, and returns the run.
fn begin_handler(ctx: &WorkflowContext<RunWorkflow>) -> String {
    ctx.state_mut(|state| {
        state.handlers += 1;
        state.input.run.clone()
    })
}

async fn wait_for_wake(
    ctx: &mut WorkflowContext<RunWorkflow>,
    wait: NextWake,
    seen: u64,
) -> WorkflowResult<()> {
    let is_woken = move |state: &RunWorkflow| state.wakes != seen;
    match wait {
        NextWake::Now | NextWake::Never => {}
        NextWake::AfterSignal => ctx.wait_condition(is_woken).await?,
        NextWake::At { time } => {
            let now =
                ctx.workflow_time().and_then(|now| now.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
            let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            temporalio_sdk::workflows::select! {
                _ = ctx.timer(Duration::from_millis(time.0.saturating_sub(now))) => {}
                _ = ctx.wait_condition(is_woken) => {}
            }
        }
    }
    Ok(())
}

/// A segment is repeated until it succeeds: the journal says what may run again.
fn retry_forever() -> RetryPolicy {
    RetryPolicy::builder()
        .initial_interval(Duration::from_millis(100))
        .maximum_interval(Duration::from_secs(5))
        .maximum_attempts(0)
        .build()
}

fn write_options() -> ActivityOptions {
    ActivityOptions::with_start_to_close_timeout(WRITE_TIMEOUT).retry_policy(retry_forever()).build()
}
