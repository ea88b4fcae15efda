//! The service: a worker of Windlass behind a worker of Temporal.

use std::sync::Arc;

use temporalio_sdk::{Runtime, Worker as TemporalWorker, WorkerOptions};
use windlass::fleet::{Worker, WorkerReport};

use crate::activities::RunActivities;
use crate::client::{TemporalDispatch, TemporalError};
use crate::run_workflow::RunWorkflow;

/// A worker that Temporal dispatches. Any number of them may poll one task queue, if they share the store.
pub struct TemporalService<C = ()> {
    worker: Worker<C>,
    dispatch: TemporalDispatch,
}

impl<C: Send + Sync + 'static> TemporalService<C> {
    /// Creates a service for the task queue of the dispatch. Runs that Temporal has lost are woken through it.
    pub fn new(worker: Worker<C>, dispatch: TemporalDispatch) -> Self {
        Self { worker, dispatch }
    }

    /// Serves until the worker is told to drain ([`Worker::stop_handle`]). It must run on a tokio runtime with I/O and time.
    ///
    /// # Errors
    ///
    /// Returns an error if Temporal refuses the worker, or the worker cannot be registered in its queue.
    pub async fn serve(self) -> Result<WorkerReport, TemporalError> {
        let failed = |error: &dyn std::fmt::Display| TemporalError::Engine(error.to_string());
        let queue = self.worker.queue().clone();
        let (client, task_queue) = (self.dispatch.client.clone(), self.dispatch.task_queue.clone());
        let (dispatcher, work) = self.worker.into_dispatched(Arc::new(self.dispatch));
        let runtime = Runtime::from_current_tokio(Default::default()).map_err(|error| failed(&error))?;
        let options = WorkerOptions::new(task_queue)
            .register_workflow::<RunWorkflow>()
            .map_err(|error| failed(&error))?
            .register_activities(RunActivities { queue, dispatcher })
            .build();
        let mut poller = TemporalWorker::new(&runtime, client, options).map_err(|error| failed(&error))?;
        let stop_polling = poller.shutdown_handle();
        let working = async {
            let report = work.await;
            // Activities of runs that were left have ended, and new ones fail until the worker stops polling.
            stop_polling();
            report
        };
        let (report, polled) = tokio::join!(working, poller.run());
        polled.map_err(|error| failed(&error))?;
        Ok(report?)
    }
}
