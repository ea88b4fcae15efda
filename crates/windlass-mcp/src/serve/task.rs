//! Calls that a client comes back for. A task is a run: its id is the run's, and where the server has a store it is
//! gone on with by whichever process is asked for it.
//!
//! Nothing waits for a client: a run that needs an answer is put aside, and driven on when the answer comes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{CallToolResult, DetailedTask, JsonObject, Task, TaskPayload, TaskStatus};
use rmcp::task_manager::current_timestamp;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use windlass::core::RunId;
use windlass::store::paused;
use windlass::{Outcome, Paused, RunBuilder, RunError, StoreErrorKind};

use super::Served;
use super::tell::Teller;
use super::{ask, content};

/// How many tasks are known at once. The oldest that has ended makes room; without one, calls are not made tasks.
const MOST: usize = 256;

/// How often a client should ask, in milliseconds.
const POLL: u64 = 500;

/// When a call is answered with a task that the client comes back for, where the client knows of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// Never: the client waits.
    Never,
    /// When it takes longer than this.
    WhenSlow(Duration),
    /// Always, where the client can.
    Always,
    /// Always, and a client that cannot is refused.
    Only,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::WhenSlow(Duration::from_secs(10))
    }
}

/// One call that a client may come back for.
pub(super) struct Job {
    id: RunId,
    created: String,
    /// Whether the client can ask a person.
    pub(super) asks: Asks,
    state: Mutex<State>,
    /// Told whenever the run stops, for good or for an answer.
    pub(super) stopped: Notify,
    cancel: CancellationToken,
}

/// Who answers what a call asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// A person at the client.
    Client,
    /// Whoever decides through the store.
    Elsewhere,
}

struct State {
    stand: Stand,
    updated: String,
    message: Option<String>,
}

/// How a call stands.
pub(super) enum Stand {
    Working,
    Waiting(Box<Paused>),
    Done(CallToolResult),
    Failed(ErrorData),
    Cancelled,
}

impl Job {
    pub(super) fn new(id: RunId, asks: Asks) -> Arc<Self> {
        let created = current_timestamp();
        let state = State { stand: Stand::Working, updated: created.clone(), message: None };
        Arc::new(Self {
            id,
            created,
            asks,
            state: Mutex::new(state),
            stopped: Notify::new(),
            cancel: CancellationToken::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came of it, where something has; it is working from then on as far as others see.
    pub(super) fn take_stand(&self) -> Option<Stand> {
        let mut state = self.state();
        match &state.stand {
            Stand::Working => None,
            Stand::Waiting(_) | Stand::Done(_) | Stand::Failed(_) | Stand::Cancelled => {
                Some(std::mem::replace(&mut state.stand, Stand::Working))
            }
        }
    }

    pub(super) fn put(&self, stand: Stand) {
        let mut state = self.state();
        (state.stand, state.updated) = (stand, current_timestamp());
    }

    fn say(&self, words: String) {
        let mut state = self.state();
        (state.message, state.updated) = (Some(words), current_timestamp());
    }

    fn has_ended(&self) -> bool {
        matches!(self.state().stand, Stand::Done(_) | Stand::Failed(_) | Stand::Cancelled)
    }

    /// It is not wanted any more.
    pub(super) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// What a client is first told of it.
    pub(super) fn seed(&self) -> Task {
        self.detailed().task
    }

    /// All that a client is told of it.
    pub(super) fn detailed(&self) -> DetailedTask {
        let state = self.state();
        let mut task = Task::new(self.id.as_str(), TaskStatus::Working, &*self.created, &*state.updated);
        task.poll_interval_ms = Some(POLL);
        task.status_message = state.message.clone();
        let payload = match &state.stand {
            Stand::Working => TaskPayload::Working,
            Stand::Waiting(_) if self.asks == Asks::Elsewhere => {
                task.status_message = Some("It waits for a person's decision.".to_owned());
                TaskPayload::Working
            }
            Stand::Waiting(paused) => TaskPayload::InputRequired { input_requests: ask::questions(paused) },
            Stand::Done(result) => TaskPayload::Completed { result: object(result) },
            Stand::Failed(error) => TaskPayload::Failed { error: object(error) },
            Stand::Cancelled => TaskPayload::Cancelled,
        };
        DetailedTask::new(task, payload)
    }
}

/// The tasks of a server.
#[derive(Default)]
pub(super) struct Jobs(Mutex<VecDeque<Arc<Job>>>);

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &str) -> Option<Arc<Job>> {
        self.lock().iter().find(|job| job.id.as_str() == id).cloned()
    }

    /// Keeps a call as a task, where there is room.
    pub(super) fn keep(&self, job: &Arc<Job>) -> bool {
        let mut jobs = self.lock();
        if jobs.iter().any(|known| Arc::ptr_eq(known, job)) {
            return true;
        }
        if jobs.len() >= MOST {
            let Some(ended) = jobs.iter().position(|job| job.has_ended()) else { return false };
            jobs.remove(ended);
        }
        jobs.push_back(job.clone());
        true
    }

    pub(super) fn forget(&self, gone: &Job) {
        self.lock().retain(|job| job.id != gone.id);
    }
}

impl<C: Send + Sync + 'static> Served<C> {
    /// Drives a call's run until it stops, for good or for an answer.
    pub(super) fn start(self: &Arc<Self>, job: &Arc<Job>, run: RunBuilder<C>, teller: Option<Teller>) {
        let (served, job) = (self.clone(), job.clone());
        let run = served.stored(run);
        tokio::spawn(async move {
            let stand = served.driven(&job, run, teller).await;
            if let Some(stand) = stand {
                job.put(stand);
            } else {
                // Another process still owns it. It is looked for again when the client asks again.
                served.jobs.forget(&job);
            }
            job.stopped.notify_one();
        });
    }

    async fn driven(&self, job: &Job, run: RunBuilder<C>, mut teller: Option<Teller>) -> Option<Stand> {
        let mut stream = run.stream();
        let stop = stream.cancel();
        let mut told_to_stop = false;
        loop {
            let event = tokio::select! {
                biased;
                () = job.cancel.cancelled(), if !told_to_stop => {
                    told_to_stop = true;
                    stop.now();
                    continue;
                }
                event = stream.next() => event,
            };
            let Some(event) = event else { break };
            if let Some(teller) = &mut teller
                && let Some(words) = teller.tell(event.kind).await
            {
                job.say(words);
            }
        }
        Some(match stream.outcome().await {
            Ok(Outcome::Paused(paused)) => Stand::Waiting(Box::new(paused)),
            Ok(Outcome::Cancelled(_)) => Stand::Cancelled,
            Ok(outcome) => Stand::Done(content::result(&outcome, self.store.as_deref()).await),
            Err(RunError::Store(error)) if error.kind() == StoreErrorKind::Leased => return None,
            Err(error) => Stand::Failed(failed(&error)),
        })
    }

    /// A task, wherever it is: here, or in the store.
    async fn job(self: &Arc<Self>, id: &str) -> Result<Arc<Job>, ErrorData> {
        if let Some(job) = self.jobs.find(id) {
            return Ok(job);
        }
        let unknown = || ErrorData::invalid_params(format!("there is no task `{id}`"), None);
        let store = self.store.clone().ok_or_else(unknown)?;
        let run = RunId::new(id);
        let stored = paused(&*store, &run).await.map_err(|_| unknown())?;
        if stored.record().last_agent() != self.agent.name() {
            return Err(unknown());
        }
        let job = Job::new(run.clone(), Asks::Client);
        if !self.jobs.keep(&job) {
            return Err(ErrorData::internal_error("there are too many tasks", None));
        }
        self.start(&job, self.agent.recover_with(run, store, self.context.clone()), None);
        Ok(job)
    }

    pub(super) async fn task(self: &Arc<Self>, id: &str) -> Result<DetailedTask, ErrorData> {
        let job = self.job(id).await?;
        self.take_posted(&job).await;
        Ok(job.detailed())
    }

    /// Somebody may have decided through the store.
    async fn take_posted(self: &Arc<Self>, job: &Arc<Job>) {
        let Some(store) = &self.store else { return };
        let waiting = match &job.state().stand {
            Stand::Waiting(paused) => paused.pending(),
            _ => return,
        };
        let Ok(posted) = store.posted(&job.id).await else { return };
        let is_decided = posted.iter().any(|posted| {
            waiting.iter().any(|pending| pending.path == posted.path && pending.attempt == posted.attempt)
        });
        if is_decided && matches!(job.take_stand(), Some(Stand::Waiting(_))) {
            let run = self.agent.recover_with(job.id.clone(), store.clone(), self.context.clone());
            self.start(job, run, None);
        }
    }

    /// Takes the answers that a client came back with. The run goes on when it has them all.
    pub(super) async fn update(
        self: &Arc<Self>,
        id: &str,
        responses: BTreeMap<String, Value>,
    ) -> Result<(), ErrorData> {
        let job = self.job(id).await?;
        let Some(stand) = job.take_stand() else { return Ok(()) };
        let Stand::Waiting(mut paused) = stand else {
            job.put(stand);
            return Ok(());
        };
        ask::answered(&mut paused, &responses);
        if paused.pending().is_empty() {
            self.start(&job, self.agent.resume_with(*paused, self.context.clone()), None);
        } else {
            job.put(Stand::Waiting(paused));
        }
        Ok(())
    }

    /// Cancels a task, and the run with it. Doing it again does nothing.
    pub(super) async fn cancel(self: &Arc<Self>, id: &str) -> Result<(), ErrorData> {
        let job = self.job(id).await?;
        job.cancel();
        let Some(stand) = job.take_stand() else { return Ok(()) };
        let Stand::Waiting(paused) = stand else {
            job.put(stand);
            return Ok(());
        };
        self.start(&job, self.agent.resume_with(*paused, self.context.clone()), None);
        Ok(())
    }
}

/// A run that could not be carried out is a failure of the server, and its words are the operator's.
pub(super) fn failed(error: &RunError) -> ErrorData {
    tracing::warn!(%error, "a call of an MCP client failed");
    ErrorData::internal_error("the call could not be carried out", None)
}

fn object<T: serde::Serialize>(value: &T) -> JsonObject {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) | Err(_) => JsonObject::new(),
    }
}
