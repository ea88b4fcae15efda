//! MCP tasks of the server: calls that a client polls.
//!
//! A task is a run with the same id. With a store, any server process that is asked for a task can recover and
//! continue its run. No run blocks on a client: a run that needs an answer pauses and is resumed with the answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{CallToolResult, DetailedTask, JsonObject, Task, TaskPayload, TaskStatus};
use rmcp::task_manager::current_timestamp;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use windlass::core::id::RunId;
use windlass::store::{load_paused, load_posted_decisions};
use windlass::{
    error::{RunError, StoreErrorKind},
    run::{PausedRun, RunBuilder, RunResult},
};

use super::SharedMcpServer;
use super::caller::RequestCaller;
use super::elicitation;
use super::notify::ClientNotifier;

/// Maximum number of tasks in memory. The oldest ended task is evicted; if none has ended, calls do not
/// become tasks.
const MAX_TASKS: usize = 256;

/// Poll interval suggested to clients, in milliseconds.
const POLL_INTERVAL_MS: u64 = 500;

/// The policy that decides which calls are answered with a task, for clients that support tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskPolicy {
    /// No call; the client waits for the result.
    Never,
    /// Calls that take longer than this.
    WhenSlow(Duration),
    /// Every call, if the client supports tasks.
    Always,
    /// Every call; clients without task support are refused.
    Required,
}

impl Default for TaskPolicy {
    fn default() -> Self {
        Self::WhenSlow(Duration::from_secs(10))
    }
}

/// One call that a client can poll.
pub(super) struct ServerTask {
    id: RunId,
    created_at: String,
    /// The source of answers to the call's questions.
    pub(super) answer_source: AnswerSource,
    state: Mutex<ServerTaskState>,
    /// Notified whenever the run ends or pauses.
    pub(super) stopped: Notify,
    cancel_token: CancellationToken,
}

/// The source of answers to a call's questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerSource {
    /// The client, by elicitation.
    Client,
    /// An approver who decides through the store.
    Store,
}

/// The mutable state of a task.
struct ServerTaskState {
    status: ServerTaskStatus,
    updated_at: String,
    status_message: Option<String>,
}

/// The status of a task, with its payload.
pub(super) enum ServerTaskStatus {
    Working,
    Paused(Box<PausedRun>),
    Completed(CallToolResult),
    Failed(ErrorData),
    /// The driver stopped with this error before the run ended, for example because the store could not be written.
    Interrupted(ErrorData),
    Cancelled,
}

impl ServerTask {
    pub(super) fn new(id: RunId, asks: AnswerSource) -> Arc<Self> {
        let created = current_timestamp();
        let state = ServerTaskState {
            status: ServerTaskStatus::Working,
            updated_at: created.clone(),
            status_message: None,
        };
        Arc::new(Self {
            id,
            created_at: created,
            answer_source: asks,
            state: Mutex::new(state),
            stopped: Notify::new(),
            cancel_token: CancellationToken::new(),
        })
    }

    fn lock_state(&self) -> MutexGuard<'_, ServerTaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the status, unless the task is working, and leaves it as working for other observers.
    pub(super) fn take_status(&self) -> Option<ServerTaskStatus> {
        let mut state = self.lock_state();
        match &state.status {
            ServerTaskStatus::Working => None,
            ServerTaskStatus::Paused(_)
            | ServerTaskStatus::Completed(_)
            | ServerTaskStatus::Failed(_)
            | ServerTaskStatus::Interrupted(_)
            | ServerTaskStatus::Cancelled => {
                Some(std::mem::replace(&mut state.status, ServerTaskStatus::Working))
            }
        }
    }

    pub(super) fn set_status(&self, stand: ServerTaskStatus) {
        let mut state = self.lock_state();
        (state.status, state.updated_at) = (stand, current_timestamp());
    }

    fn set_message(&self, words: String) {
        let mut state = self.lock_state();
        (state.status_message, state.updated_at) = (Some(words), current_timestamp());
    }

    fn has_ended(&self) -> bool {
        matches!(
            self.lock_state().status,
            ServerTaskStatus::Completed(_)
                | ServerTaskStatus::Failed(_)
                | ServerTaskStatus::Interrupted(_)
                | ServerTaskStatus::Cancelled
        )
    }

    /// Requests cancellation of the task's run.
    pub(super) fn cancel(&self) {
        self.cancel_token.cancel();
    }

    /// Returns the task as in a `CreateTaskResult`.
    pub(super) fn summary(&self) -> Task {
        self.details().task
    }

    /// Returns the task as in a `GetTaskResult`.
    pub(super) fn details(&self) -> DetailedTask {
        let state = self.lock_state();
        let mut task =
            Task::new(self.id.as_str(), TaskStatus::Working, &*self.created_at, &*state.updated_at);
        task.poll_interval_ms = Some(POLL_INTERVAL_MS);
        task.status_message = state.status_message.clone();
        let payload = match &state.status {
            ServerTaskStatus::Working => TaskPayload::Working,
            ServerTaskStatus::Paused(_) if self.answer_source == AnswerSource::Store => {
                task.status_message = Some("It waits for a person's decision.".to_owned());
                TaskPayload::Working
            }
            ServerTaskStatus::Paused(paused) => {
                TaskPayload::InputRequired { input_requests: elicitation::input_requests(paused) }
            }
            ServerTaskStatus::Completed(result) => TaskPayload::Completed { result: json_object(result) },
            ServerTaskStatus::Failed(error) | ServerTaskStatus::Interrupted(error) => {
                TaskPayload::Failed { error: json_object(error) }
            }
            ServerTaskStatus::Cancelled => TaskPayload::Cancelled,
        };
        DetailedTask::new(task, payload)
    }
}

/// The tasks of a server that are in memory.
#[derive(Default)]
pub(super) struct ServerTaskTable(Mutex<VecDeque<Arc<ServerTask>>>);

impl ServerTaskTable {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<ServerTask>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &str) -> Option<Arc<ServerTask>> {
        self.lock().iter().find(|job| job.id.as_str() == id).cloned()
    }

    /// Adds a task. Returns false if the table is full.
    pub(super) fn insert(&self, job: &Arc<ServerTask>) -> bool {
        let mut jobs = self.lock();
        if jobs.iter().any(|known| Arc::ptr_eq(known, job)) {
            return true;
        }
        if jobs.len() >= MAX_TASKS {
            let Some(ended) = jobs.iter().position(|job| job.has_ended()) else { return false };
            jobs.remove(ended);
        }
        jobs.push_back(job.clone());
        true
    }

    pub(super) fn remove(&self, gone: &ServerTask) {
        self.lock().retain(|job| job.id != gone.id);
    }
}

impl<C: Send + Sync + 'static> SharedMcpServer<C> {
    /// Spawns a call's run and drives it until it ends or pauses.
    pub(super) fn spawn_run(
        self: &Arc<Self>,
        job: &Arc<ServerTask>,
        run: RunBuilder<C>,
        teller: Option<ClientNotifier>,
    ) {
        let (served, job) = (self.clone(), job.clone());
        let run = served.with_store(run);
        tokio::spawn(async move {
            let stand = served.drive_run(&job, run, teller).await;
            if let Some(stand) = stand {
                job.set_status(stand);
            } else {
                // Another process holds the run's lease; the task is recovered again at the client's next poll.
                served.task_table.remove(&job);
            }
            job.stopped.notify_one();
        });
    }

    async fn drive_run(
        &self,
        job: &ServerTask,
        run: RunBuilder<C>,
        mut teller: Option<ClientNotifier>,
    ) -> Option<ServerTaskStatus> {
        let mut stream = run.stream();
        let stop = stream.cancel_handle();
        let mut told_to_stop = false;
        loop {
            let event = tokio::select! {
                biased;
                () = job.cancel_token.cancelled(), if !told_to_stop => {
                    told_to_stop = true;
                    stop.cancel();
                    continue;
                }
                event = stream.next() => event,
            };
            let Some(event) = event else { break };
            if let Some(teller) = &mut teller
                && let Some(words) = teller.forward_event(event.kind).await
            {
                job.set_message(words);
            }
        }
        Some(match stream.result().await {
            Ok(RunResult::Paused(paused)) => ServerTaskStatus::Paused(Box::new(paused)),
            Ok(RunResult::Cancelled(_)) => ServerTaskStatus::Cancelled,
            Ok(outcome) => ServerTaskStatus::Completed(self.call_result(&outcome).await),
            Err(RunError::Store(error)) if error.kind() == StoreErrorKind::LeaseHeld => return None,
            Err(error @ (RunError::Failed(_) | RunError::Config(_))) => {
                ServerTaskStatus::Failed(run_failure(&error))
            }
            Err(error) => ServerTaskStatus::Interrupted(run_failure(&error)),
        })
    }

    /// Returns a task from memory, or recovers its run from the store.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such task or the task table is full.
    async fn find_or_recover(
        self: &Arc<Self>,
        id: &str,
        caller: &RequestCaller<C>,
    ) -> Result<Arc<ServerTask>, ErrorData> {
        let unknown = || ErrorData::invalid_params(format!("there is no task `{id}`"), None);
        if !caller.owns(id) {
            return Err(unknown());
        }
        if let Some(job) = self.task_table.find(id) {
            return Ok(job);
        }
        let store = self.store.clone().ok_or_else(unknown)?;
        let run = RunId::new(id);
        let stored = load_paused(&*store, &run).await.map_err(|_| unknown())?;
        if stored.record().last_agent() != self.agent.name() {
            return Err(unknown());
        }
        let asks = if self.has_approvers() { AnswerSource::Store } else { AnswerSource::Client };
        let job = ServerTask::new(run.clone(), asks);
        if !self.task_table.insert(&job) {
            return Err(ErrorData::internal_error("there are too many tasks", None));
        }
        self.spawn_run(&job, self.agent.recover_with_context(run, store, caller.context.clone()), None);
        Ok(job)
    }

    pub(super) async fn task_details(
        self: &Arc<Self>,
        id: &str,
        caller: &RequestCaller<C>,
    ) -> Result<DetailedTask, ErrorData> {
        let job = self.find_or_recover(id, caller).await?;
        self.resume_if_decided(&job, caller).await;
        Ok(job.details())
    }

    /// Resumes a paused task if an approver has decided through the store.
    async fn resume_if_decided(self: &Arc<Self>, job: &Arc<ServerTask>, caller: &RequestCaller<C>) {
        let Some(store) = &self.store else { return };
        let waiting = match &job.lock_state().status {
            ServerTaskStatus::Paused(paused) => paused.pending_calls(),
            _ => return,
        };
        let Ok(posted) = load_posted_decisions(&**store, &job.id).await else { return };
        let is_decided = posted.authentic.iter().any(|posted| {
            waiting.iter().any(|pending| pending.path == posted.path && pending.attempt == posted.attempt)
        });
        if is_decided && matches!(job.take_status(), Some(ServerTaskStatus::Paused(_))) {
            let run = self.agent.recover_with_context(job.id.clone(), store.clone(), caller.context.clone());
            self.spawn_run(job, run, None);
        }
    }

    /// Applies a client's answers. The run resumes once all questions are answered.
    pub(super) async fn submit_responses(
        self: &Arc<Self>,
        id: &str,
        responses: BTreeMap<String, Value>,
        caller: &RequestCaller<C>,
    ) -> Result<(), ErrorData> {
        let job = self.find_or_recover(id, caller).await?;
        let Some(stand) = job.take_status() else { return Ok(()) };
        let ServerTaskStatus::Paused(mut paused) = stand else {
            job.set_status(stand);
            return Ok(());
        };
        elicitation::apply_responses(&mut paused, &responses);
        if paused.pending_calls().is_empty() {
            self.spawn_run(&job, self.resume_run(*paused, caller.context.clone()), None);
        } else {
            job.set_status(ServerTaskStatus::Paused(paused));
        }
        Ok(())
    }

    /// Cancels a task and its run. Idempotent.
    pub(super) async fn cancel_task(
        self: &Arc<Self>,
        id: &str,
        caller: &RequestCaller<C>,
    ) -> Result<(), ErrorData> {
        let job = self.find_or_recover(id, caller).await?;
        job.cancel();
        let Some(stand) = job.take_status() else { return Ok(()) };
        let ServerTaskStatus::Paused(paused) = stand else {
            job.set_status(stand);
            return Ok(());
        };
        self.spawn_run(&job, self.resume_run(*paused, caller.context.clone()), None);
        Ok(())
    }
}

/// Logs a run error for the operator and returns a generic error for the client.
pub(super) fn run_failure(error: &RunError) -> ErrorData {
    tracing::warn!(%error, "a call of an MCP client failed");
    ErrorData::internal_error("the call could not be carried out", None)
}

fn json_object<T: serde::Serialize>(value: &T) -> JsonObject {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => JsonObject::new(),
    }
}
