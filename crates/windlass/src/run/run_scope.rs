//! One run among those of a driver: its place, its state, and the one way in which it records entries and tells watchers
//! and hooks of them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use windlass_core::{
    failure::RunFailure,
    id::{AgentName, CallId, CallPath, RunId},
    journal::JournalEntry,
    run::{ApplyError, Run},
};

use super::{BudgetControl, DriveError, call_unless_stopped};
use crate::agent::{Agent, AgentGraph};
use crate::error::{RunError, truncate_message};
use crate::event::{EventEmitter, RunEventKind};
use crate::hook::{Hook, HookError, HookEvent};
use crate::journal::{RecordedEntry, RunRecorder};
use crate::observe::HookObservation;
use crate::receipts::ReceiptDestination;
use crate::tasks::{CallStop, DrainDeadline};
use crate::tool::{ProgressQueue, RunContext, ToolContext};

/// Time after which a hook is dropped that continues in the background because its run has stopped.
const HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// One run: the outermost, or one nested in a call.
pub(crate) struct RunScope<C> {
    pub(crate) app: Arc<C>,
    pub(crate) run_id: RunId,
    /// Calls that contain this run; empty for the outermost.
    pub(crate) parent_calls: Arc<[CallId]>,
    pub(crate) recorder: Arc<RunRecorder>,
    pub(crate) emitter: EventEmitter,
    pub(crate) hooks: Vec<Hook<C>>,
    /// True if the run is watched, or one of its agents may have hooks.
    pub(crate) is_observed: bool,
    /// Token that cancels this run immediately.
    pub(crate) stop: CancellationToken,
    pub(crate) drain: Arc<DrainDeadline>,
    pub(crate) budget: Arc<BudgetControl>,
}

impl<C: Send + Sync + 'static> RunScope<C> {
    /// Returns the scope of the run at a path inside this one.
    pub(crate) fn nested_scope(
        &self,
        path: Arc<[CallId]>,
        graph: &AgentGraph<C>,
        stop: CancellationToken,
    ) -> Self {
        let run_id = self.recorder.with_root(|run| run.at_path(&path).map(|nested| nested.id().clone()));
        let emitter = self.emitter.for_nested_agent(&path);
        Self {
            app: self.app.clone(),
            run_id: run_id.unwrap_or_else(|| self.run_id.clone()),
            parent_calls: path,
            recorder: self.recorder.clone(),
            is_observed: emitter.is_watched() || !self.hooks.is_empty() || graph.has_hooks(),
            emitter,
            hooks: self.hooks.clone(),
            stop,
            drain: DrainDeadline::nested_in(&self.drain),
            budget: self.budget.clone(),
        }
    }

    /// Returns true for the run that no call contains.
    pub(crate) fn is_outermost(&self) -> bool {
        self.parent_calls.is_empty()
    }

    /// Reads the state of this run.
    pub(crate) fn with_run<T>(&self, read: impl FnOnce(&Run) -> T) -> T {
        self.recorder.with_run(&self.parent_calls, read)
    }

    /// Returns true if this run, or a run around it, ends because it fails: it pauses no more.
    pub(crate) fn is_any_run_failing(&self) -> bool {
        let path = &self.parent_calls;
        (0..=path.len()).any(|depth| self.recorder.with_run(&path[..depth], Run::is_failing))
    }

    /// Returns the context for functions of the application.
    pub(crate) fn run_context(&self, agent: &AgentName) -> RunContext<C> {
        RunContext::new(self.app.clone(), self.run_id.clone(), agent.clone(), self.parent_calls.clone())
    }

    /// Returns the path of a call of this run.
    pub(crate) fn call_path(&self, call: &CallId) -> CallPath {
        CallPath::new(&self.parent_calls, call.clone())
    }

    /// Applies an entry to the run state, and waits until the journal has it and its events are delivered.
    pub(crate) async fn record_entry(&self, entry: JournalEntry) -> Result<(), DriveError> {
        self.record_observed(entry).await.map(|_| ())
    }

    /// Records an entry as [`RunScope::record_entry`] does, and returns its observation for hooks.
    pub(crate) async fn record_observed(
        &self,
        entry: JournalEntry,
    ) -> Result<Option<HookObservation>, DriveError> {
        self.wait_recorded(self.apply_and_enqueue(entry)?).await
    }

    /// Applies an entry to the run state and enqueues it for the journal. [`RunScope::wait_recorded`] waits for the store.
    pub(crate) fn apply_and_enqueue(&self, entry: JournalEntry) -> Result<RecordedEntry<'_>, DriveError> {
        self.enqueue_settlement(entry, None)
    }

    /// Applies the settlement of a call as [`RunScope::apply_and_enqueue`] does, with the place of its shared receipt.
    pub(crate) fn enqueue_settlement(
        &self,
        mut entry: JournalEntry,
        receipt_to: Option<ReceiptDestination>,
    ) -> Result<RecordedEntry<'_>, DriveError> {
        if self.recorder.with_root(|run| run.budget_ledger().is_some()) {
            entry.set_active_ms(self.budget.active_ms());
        }
        Ok(self.recorder.enqueue(&self.parent_calls, entry, self.is_observed, receipt_to)?)
    }

    /// Waits until an entry is durable, where its kind requires it, and delivers the events up to it.
    pub(crate) async fn wait_recorded(
        &self,
        recorded: RecordedEntry<'_>,
    ) -> Result<Option<HookObservation>, DriveError> {
        let watcher = self.is_observed.then_some(&self.emitter);
        Ok(self.recorder.wait_recorded(recorded, watcher).await?)
    }

    /// Returns the error for an entry that the run state rejected: a defect of the driver, after which the run
    /// must not continue.
    pub(crate) fn invalid_entry_error(&self, why: &ApplyError) -> DriveError {
        self.recorder.invalid_entry_error(why).into()
    }

    /// Writes the items of the last settled turn of the outermost run to a session that is not in the run's store.
    pub(crate) async fn save_turn_to_session(&self) -> Result<(), RunError> {
        if self.is_outermost() { self.recorder.save_turn_to_session().await } else { Ok(()) }
    }

    /// Writes all that the session lacks of the outermost run.
    pub(crate) async fn update_session(&self) -> Result<(), RunError> {
        if self.is_outermost() { self.recorder.update_session().await } else { Ok(()) }
    }

    /// Returns the result of application code, or an error if the run is cancelled first. A panic fails the run.
    pub(crate) async fn unless_stopped<F: Future>(&self, future: F) -> Result<F::Output, DriveError> {
        call_unless_stopped(&self.stop, future).await
    }

    /// Emits a warning. Texts of the application may repeat the secrets of a call.
    pub(crate) async fn emit_warning(&self, message: String) {
        let message = self.recorder.secrets.mask_text(message);
        self.emitter.emit(RunEventKind::Warning { message }).await;
    }

    /// Returns true if the run or the agent has hooks.
    pub(crate) fn has_hooks(&self, agent: &Agent<C>) -> bool {
        !self.hooks.is_empty() || !agent.inner.hooks.is_empty()
    }

    /// Notifies the hooks of the run and of the agent concurrently, and waits for all. Returns `None` if there
    /// are no hooks.
    pub(crate) fn notify_hooks(
        &self,
        agent: &Agent<C>,
        moment: impl FnOnce() -> HookEvent<C>,
    ) -> Option<BoxFuture<'static, Result<(), HookError>>> {
        if !self.has_hooks(agent) {
            return None;
        }
        let moment = moment();
        let told = self.hooks.iter().chain(&agent.inner.hooks).map(|hook| {
            let (hook, moment) = (hook.clone(), moment.clone());
            async move { hook.notify(moment).await }
        });
        let told = futures_util::future::join_all(told);
        Some(async move { told.await.into_iter().collect() }.boxed())
    }

    /// Notifies the hooks as [`RunScope::notify_hooks`] does, and fails the run if a hook fails.
    pub(crate) async fn notify_hooks_or_fail(
        &self,
        agent: &Agent<C>,
        moment: impl FnOnce() -> HookEvent<C>,
    ) -> Result<(), DriveError> {
        let mut name = "";
        let told = self.notify_hooks(agent, || {
            let moment = moment();
            name = moment.name();
            moment
        });
        let Some(told) = told else { return Ok(()) };
        self.unless_stopped(told).await?.map_err(|error| {
            RunFailure::HookFailed { hook: name.to_owned(), message: truncate_message(error.to_string()) }
                .into()
        })
    }

    /// Notifies the hooks of an event that they cannot change. One that fails or does not return leads to a warning.
    pub(crate) async fn notify_hooks_after(&self, agent: &Agent<C>, event: HookEvent<C>, stop: CallStop<'_>) {
        let name = event.name();
        let Some(mut notified) = self.notify_hooks(agent, || event) else { return };
        let message = match stop.within_drain(&mut notified).await {
            Some(notified) => {
                notified.err().map(|error| truncate_message(format!("hook `{name}` failed: {error}")))
            }
            None => {
                // The run does not wait for it, and it is not cut off: it may be in the middle of a write.
                tokio::spawn(tokio::time::timeout(HOOK_TIMEOUT, notified));
                Some(format!("hook `{name}` did not come back"))
            }
        };
        if let Some(message) = message {
            self.emit_warning(message).await;
        }
    }

    /// Relays the progress reports of a call's body until it ends. What it reported last comes before its end.
    pub(crate) async fn relay_progress<T>(
        &self,
        progress: &ProgressQueue,
        body: impl Future<Output = T>,
        (agent, ctx): (&Agent<C>, &ToolContext<C>),
        stop: CallStop<'_>,
    ) -> T {
        let mut body = pin!(body);
        let mut relaying: Option<BoxFuture<'_, ()>> = None;
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut body => break ended,
                () = async { if let Some(relaying) = &mut relaying { relaying.await } }, if relaying.is_some() => {
                    relaying = None;
                }
                report = progress.next(), if relaying.is_none() => {
                    relaying = Some(self.announce_progress(report, agent, ctx).boxed());
                }
            }
        };
        let rest = async {
            if let Some(relaying) = relaying {
                relaying.await;
            }
            while let Some(report) = progress.try_next() {
                self.announce_progress(report, agent, ctx).await;
            }
        };
        if stop.within_drain(rest).await.is_none() {
            tracing::warn!(call = %ctx.call_path(), "the last progress was not taken in time");
        }
        ended
    }

    async fn announce_progress(&self, progress: Value, agent: &Agent<C>, ctx: &ToolContext<C>) {
        let progress = self.recorder.secrets.mask_json(progress);
        let told = self
            .notify_hooks(agent, || HookEvent::CallProgress { ctx: ctx.clone(), progress: progress.clone() });
        if self.emitter.is_watched() {
            let call = ctx.call_path().call().clone();
            self.emitter.emit(RunEventKind::CallProgress { call, progress }).await;
        }
        if let Some(told) = told
            && let Err(error) = told.await
        {
            let message = truncate_message(format!("hook `call_progress` failed: {error}"));
            self.emit_warning(message).await;
        }
    }
}
