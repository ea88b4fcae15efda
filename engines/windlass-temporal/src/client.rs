//! The client of the workflows of runs.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use temporalio_client::errors::{WorkflowStartError, WorkflowUpdateError};
use temporalio_client::{Client, WorkflowExecuteUpdateOptions, WorkflowSignalOptions, WorkflowStartOptions};
use windlass::core::id::{RunId, Timestamp};
use windlass::fleet::{DecisionRequest, DispatchError, NextWake, RunDispatch};

use crate::run_workflow::{RunWorkflow, WorkflowInput};

/// An error of Temporal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemporalError {
    /// No workflow of the run is running: the run was not woken, or has ended.
    #[error("run `{run}` has no workflow that is running")]
    NotRunning {
        /// The run.
        run: RunId,
    },
    /// The decision was refused: it is not valid, or an earlier one is taken.
    #[error("the decision was refused: {0}")]
    Refused(String),
    /// The worker could not be registered in its queue.
    #[error(transparent)]
    Store(#[from] windlass::error::StoreError),
    /// Temporal failed, or cannot be reached.
    #[error("Temporal failed: {0}")]
    Engine(String),
}

/// Dispatches the runs of one task queue. It needs no access to the store.
#[derive(Clone)]
pub struct TemporalDispatch {
    pub(crate) client: Client,
    pub(crate) task_queue: String,
}

impl TemporalDispatch {
    /// Creates a client of the runs whose workers poll this task queue.
    pub fn new(client: Client, task_queue: impl Into<String>) -> Self {
        Self { client, task_queue: task_queue.into() }
    }

    /// Posts a decision about a call, and waits until it is in the store.
    ///
    /// # Errors
    ///
    /// Returns [`TemporalError::Refused`] if an earlier decision is taken, and [`TemporalError::NotRunning`] if the run has
    /// ended.
    pub async fn decide(&self, run: &RunId, request: DecisionRequest) -> Result<(), TemporalError> {
        let workflow = self.client.get_workflow_handle::<RunWorkflow>(run.as_str());
        let options = WorkflowExecuteUpdateOptions::default();
        match workflow.execute_update(RunWorkflow::decide, request, options).await {
            Ok(()) => Ok(()),
            Err(WorkflowUpdateError::NotFound(_)) => Err(TemporalError::NotRunning { run: run.clone() }),
            Err(WorkflowUpdateError::Failed(failure)) => Err(TemporalError::Refused(failure.message.clone())),
            Err(error) => Err(TemporalError::Engine(error.to_string())),
        }
    }

    /// Cancels a run, wherever it is driven.
    ///
    /// # Errors
    ///
    /// Returns [`TemporalError::Engine`] if no workflow of the run is running.
    pub async fn cancel_run(&self, run: &RunId) -> Result<(), TemporalError> {
        let workflow = self.client.get_workflow_handle::<RunWorkflow>(run.as_str());
        let sent = workflow.signal(RunWorkflow::cancel, (), WorkflowSignalOptions::default()).await;
        sent.map_err(|error| TemporalError::Engine(error.to_string()))
    }

    async fn signal_or_start(&self, run: &RunId, wait: NextWake) -> Result<(), WorkflowStartError> {
        let input = WorkflowInput { run: run.as_str().to_owned(), wait };
        let options = WorkflowStartOptions::new(self.task_queue.clone(), run.as_str()).build();
        self.client
            .signal_with_start_workflow(RunWorkflow::run, input, RunWorkflow::wake, (), options)
            .await
            .map(|_| ())
    }
}

impl std::fmt::Debug for TemporalDispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TemporalDispatch").field("task_queue", &self.task_queue).finish_non_exhaustive()
    }
}

impl RunDispatch for TemporalDispatch {
    // The signal wakes the workflow at once; the queue says that the run's time has not come, and the workflow waits for it.
    fn wake_run<'a>(
        &'a self,
        run: &'a RunId,
        _at: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<(), DispatchError>> {
        async move {
            let sent = self.signal_or_start(run, NextWake::Now).await;
            sent.map_err(|error| DispatchError::Engine(error.to_string()))
        }
        .boxed()
    }
}
