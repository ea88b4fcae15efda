//! The driver: carries out what the run machine asks for, and records what came of it.
//!
//! There is one path. A fresh run, a resumed one, a streamed one and an agent inside a tool all go through
//! [`Driver::drive`]. Inside one driver, calls run side by side as futures of one task, so the machine needs
//! no lock that is ever contended; bodies that are not known to be quick are tasks of their own, so that one that
//! blocks harms nobody else.

mod begin;
mod body;
mod call;
mod call_guard;
mod calls;
mod finish;
mod given;
mod guard;
mod handoff;
mod journal;
mod ledger;
mod model;
mod nested;
mod prepare;
mod receipt;
mod running;
mod secret;
mod snapshots;
mod stop;
mod told;

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use windlass_core::{
    AgentName, CallId, Cancelled, Decided, Decision, End, Entry, Failed, Failure, Illegal, Item, Next,
    Produced, Reach, Run, RunId,
};

use crate::agent::{Agent, Graph, Toolset};
use crate::artefact::Artefacts;
use crate::error::{ConfigError, FailedRun, RunError, StoreError, readable};
use crate::event::{Emitter, EventKind};
use crate::hook::{Hook, HookError, Moment};
use crate::model::ModelError;
use crate::run::{
    AtEnd, Cancel, CancelledRun, FinishedRun, Outcome, Paused, RunConfig, RunRecord, Settlement,
};
use crate::session::Session;
use crate::store::{Posted, RunStatus};
use crate::tool::RunContext;

use self::guard::Overlap;
use self::journal::{Journal, Writing};
use self::prepare::Ready;
use self::secret::Secrets;

pub(crate) use self::begin::run;
pub(crate) use self::given::Given;
pub(crate) use self::ledger::Ledger;
pub(crate) use self::running::Pace;
pub(crate) use self::secret::{Visibility, is_without, without};
pub(crate) use crate::run::Origin;

/// What the drivers of one run share: the run itself and the agents nested in it.
struct Shared<C> {
    app: Arc<C>,
    config: RunConfig<C>,
    journal: Arc<Journal>,
    ledger: Arc<Ledger>,
    secrets: Secrets,
    artefacts: Arc<Artefacts>,
    cancel: Cancel,
    draining: Mutex<Vec<CallId>>,
}

/// Moves one run on: the outermost, or one inside a call.
struct Driver<C> {
    shared: Arc<Shared<C>>,
    graph: Arc<Graph<C>>,
    /// The calls that lead to this run.
    path: Arc<[CallId]>,
    run_id: RunId,
    run: Mutex<Run>,
    emitter: Emitter,
    /// Stops this run now.
    stop: CancellationToken,
    hooks: Vec<Hook<C>>,
    session: Option<Session>,
    /// How many produced items the session has.
    saved: usize,
    /// The agent that was told of in this driver as having started.
    greeted: Option<AgentName>,
    tools: Option<Arc<Toolset<C>>>,
    /// Calls of the last answer, with their arguments read.
    ready: VecDeque<(CallId, Ready<C>)>,
    /// The guardrails beside the model, where there are any.
    overlap: Mutex<Option<Box<Overlap>>>,
    guarded: bool,
    model_error: Option<Box<ModelError>>,
    /// The calls of the open turn whose outputs watchers were shown.
    shown: BTreeSet<CallId>,
    /// What is to be done when this driver leaves the run.
    at_end: AtEnd,
}

/// Why a driver leaves its loop.
enum Stop {
    Paused,
    Over,
    /// Left for another driver.
    Left,
}

/// Why something that was asked for did not come about.
enum Halt {
    /// The run fails with this.
    Failure(Box<Failure>),
    /// The run was told to stop.
    Cancelled,
    /// The run cannot go on here, and stays as it is.
    Error(Box<RunError>),
}

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure.into())
    }
}

impl From<RunError> for Halt {
    fn from(error: RunError) -> Self {
        Self::Error(error.into())
    }
}

impl From<ConfigError> for Halt {
    fn from(error: ConfigError) -> Self {
        RunError::from(error).into()
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        RunError::from(error).into()
    }
}

impl<C: Send + Sync + 'static> Driver<C> {
    async fn drive_from(&mut self, is_fresh: bool) -> Result<Stop, RunError> {
        let agent = self.run().agent().clone();
        self.emitter.emit(EventKind::Agent { agent }).await;
        self.emitter.settled().await;
        if is_fresh
            && (!self.stop.is_cancelled() || self.shared.cancel.hands_over())
            && !self.stops_after_turn()
            && let Some(session) = &self.session
        {
            let input = self.locked(|run| run.input().to_vec());
            session.append(input).await.map_err(RunError::Session)?;
        }
        if !is_fresh {
            // What was decided in time counts, though nobody was there to take it in time.
            self.take_posted().boxed().await?;
            self.expire().boxed().await?;
        }
        self.drive().await
    }

    /// Moves the run until it pauses or ends.
    async fn drive(&mut self) -> Result<Stop, RunError> {
        loop {
            let next = self.run().next();
            if self.stop.is_cancelled() && !matches!(next, Next::Over) && !self.pauses_instead(&next) {
                if self.shared.cancel.hands_over() {
                    self.save_turn().await?;
                    return Ok(Stop::Left);
                }
                self.cancelled().boxed().await?;
                continue;
            }
            let pauses_instead = self.pauses_instead(&next);
            let moved = match next {
                Next::Model { .. } | Next::Exhausted { .. } if self.stops_after_turn() => {
                    Err(Halt::Cancelled)
                }
                Next::Model { .. } if self.is_given() => self.take_given().boxed().await,
                Next::Model { turn, .. } => self.ask_model(turn).boxed().await,
                Next::Calls(steps) => self.work(steps).await,
                // What happens once in a run, or never, has its state on the side: a run in flight holds room for
                // the largest of these futures.
                Next::Exhausted { max_turns } => {
                    self.fail_or_handle(Failure::TurnsExhausted { max_turns }).boxed().await
                }
                Next::HandOff { call, from, to, arguments } => {
                    self.hand_off(call, from, to, arguments).boxed().await
                }
                Next::Judge { agent } => self.judge(&agent).boxed().await,
                Next::Finish(candidate) => self.finish(candidate).boxed().await,
                Next::Fail(failure) => Err(failure.into()),
                Next::Pause(_) => {
                    self.show_outputs().await;
                    self.emitter.settled().await;
                    // A watcher may cancel on what it was just shown.
                    if self.stop.is_cancelled() && !pauses_instead {
                        continue;
                    }
                    if self.take_posted().boxed().await? {
                        continue;
                    }
                    return Ok(Stop::Paused);
                }
                Next::Over => return Ok(Stop::Over),
            };
            match moved {
                Ok(()) => {
                    self.save_turn().await?;
                    if self.path.is_empty()
                        && self.run().is_ready()
                        && let Some(snapshot) = self.shared.journal.between_turns()
                    {
                        self.shared.journal.keep(snapshot).boxed().await;
                    }
                }
                // A call ended the run while it is handed over: whoever goes on ends it, and what is open in it.
                Err(Halt::Failure(_))
                    if self.shared.cancel.hands_over() && !self.run().begun().is_empty() =>
                {
                    return Ok(Stop::Left);
                }
                Err(Halt::Failure(failure)) => {
                    self.end_as(Entry::Failed(Failed { failure: *failure })).boxed().await?;
                }
                // What is open now says whether the run is cancelled, pauses instead, or is left.
                Err(Halt::Cancelled) if self.stop.is_cancelled() => {}
                Err(Halt::Cancelled) => self.cancelled().boxed().await?,
                Err(Halt::Error(error)) => return Err(*error),
            }
        }
    }

    /// A cancelled run that is to keep its approvals pauses, where nothing but they are open.
    fn pauses_instead(&self, next: &Next) -> bool {
        matches!(next, Next::Pause(_)) && self.shared.cancel.keeps_approvals()
    }

    /// Whether the outermost run was told to stop when a turn has settled.
    fn stops_after_turn(&self) -> bool {
        self.path.is_empty() && self.shared.cancel.is_due_after_turn()
    }

    /// Takes decisions that were posted in the store while this driver worked. Says whether there were any.
    async fn take_posted(&mut self) -> Result<bool, RunError> {
        if !self.path.is_empty() {
            return Ok(false);
        }
        let mut took_any = false;
        for Posted { path, attempt, decided } in self.shared.journal.posted().await? {
            let is_pending =
                self.run().pending().iter().any(|one| one.path == path && one.attempt == attempt);
            let entry = Entry::Decided(decided);
            if is_pending && self.run().apply_at(path.within(), &entry).is_ok() {
                self.shared.journal.append(path.within(), entry).await?;
                took_any = true;
            }
        }
        Ok(took_any)
    }

    /// Rejects what was waited for too long, in nobody's name.
    async fn expire(&mut self) -> Result<(), RunError> {
        let now = self.shared.journal.now();
        for pending in self.run().pending().into_iter().filter(|pending| pending.is_over(now)) {
            let entry = Entry::Decided(Decided {
                call: pending.call().clone(),
                digest: pending.digest,
                decision: Decision::Reject { message: Some(windlass_core::text::EXPIRED.to_owned()) },
                reach: Reach::Call,
                by: Some("expiry".to_owned()),
            });
            let path = pending.path.within();
            if self.run().apply_at(path, &entry).is_ok() {
                self.shared.journal.append(path, entry).await?;
            }
        }
        Ok(())
    }

    fn status(&self, stop: &Stop) -> RunStatus {
        match (stop, self.locked(|run| run.end().cloned())) {
            (Stop::Paused, _) => RunStatus::Paused,
            (Stop::Left, _) | (Stop::Over, None) => RunStatus::Running,
            (Stop::Over, Some(End::Finished(_))) => RunStatus::Finished,
            (Stop::Over, Some(End::Failed(_))) => RunStatus::Failed,
            (Stop::Over, Some(End::Cancelled)) => RunStatus::Cancelled,
        }
    }

    /// Ends the run as cancelled. Calls that were under way have settled by now; others never started.
    async fn cancelled(&mut self) -> Result<(), RunError> {
        let draining = std::mem::take(&mut *lock(&self.shared.draining));
        self.end_as(Entry::Cancelled(Cancelled { draining })).await
    }

    async fn end_as(&mut self, end: Entry) -> Result<(), RunError> {
        match self.end_begun().await {
            // Whoever cannot be told does not keep the run from ending.
            Ok(()) | Err(Halt::Failure(_) | Halt::Cancelled) => {}
            Err(Halt::Error(error)) => return Err(*error),
        }
        match self.record(end).await {
            Ok(()) => self.save_turn().await,
            Err(Halt::Error(error)) => Err(*error),
            Err(Halt::Failure(_) | Halt::Cancelled) => Ok(()),
        }
    }

    /// Moves the machine and writes the journal.
    async fn record(&self, entry: Entry) -> Result<(), Halt> {
        self.recorded(self.move_by(entry)?).await
    }

    /// Moves the machine and gives the entry its place in the journal. [`Driver::recorded`] waits for the store.
    fn move_by(&self, entry: Entry) -> Result<Option<Writing<'_>>, Halt> {
        let applied = self.locked(|run| run.apply(&entry)).map_err(|why| self.broken(&why))?;
        if let Some((digest, output)) = applied.receipt {
            self.shared.ledger.keep(digest, output, self.shared.journal.now());
        }
        Ok(self.shared.journal.place(&self.path, self.shared.secrets.entry(&self.path, entry))?)
    }

    async fn recorded(&self, writing: Option<Writing<'_>>) -> Result<(), Halt> {
        if let Some(writing) = writing {
            self.shared.journal.written(writing).await?;
        }
        Ok(())
    }

    /// The machine refused what this driver recorded: a defect here, and the run must not go on.
    fn broken(&self, why: &Illegal) -> Halt {
        StoreError::new(format!("run `{}` would become invalid: {why}", self.run_id)).into()
    }

    /// Adds what the settled turn produced to the session, all at once.
    async fn save_turn(&mut self) -> Result<(), RunError> {
        let Some(session) = &self.session else { return Ok(()) };
        let run = self.run.get_mut().unwrap_or_else(PoisonError::into_inner);
        let items = self.shared.secrets.items(&[], run.for_session(self.saved));
        self.saved = self.saved.max(run.settled_len());
        session.append(items).await.map_err(RunError::Session)
    }

    /// Shows watchers the outputs that the open turn has so far.
    async fn show_outputs(&mut self) {
        if !self.emitter.is_watched() {
            return;
        }
        let outputs = self.locked(|run| run.produced_in_open_turn());
        self.show(outputs).await;
    }

    /// Shows watchers those outputs that they have not seen.
    async fn show(&mut self, outputs: Vec<Produced>) {
        for output in outputs {
            if output_of(&output).is_some_and(|call| self.shown.insert(call)) {
                self.emitter.emit(EventKind::Item(output)).await;
            }
        }
    }

    fn outcome(self: Box<Self>, stop: Stop) -> Result<Outcome, RunError> {
        let run = self.run.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (records, usage) = self.shared.journal.take();
        let end = run.end().cloned();
        let record = RunRecord { run, records, usage };
        let receipts = self.shared.ledger.receipts();
        match (stop, end) {
            (Stop::Paused, _) | (Stop::Over, None) => Ok(Outcome::Paused(Paused::new(record, receipts))),
            (Stop::Left, _) => Ok(Outcome::HandedOver(Paused::new(record, receipts))),
            (Stop::Over, Some(End::Finished(output))) => {
                Ok(Outcome::Finished(FinishedRun { output, record }))
            }
            (Stop::Over, Some(End::Failed(failure))) => {
                let model_error = self.model_error.map(|error| *error);
                Err(RunError::Failed(Box::new(FailedRun { failure, record, model_error })))
            }
            (Stop::Over, Some(End::Cancelled)) => {
                let settlement = Settlement::of(record.journal());
                Ok(Outcome::Cancelled(CancelledRun { settlement, record }))
            }
        }
    }

    fn context(&self, agent: &AgentName) -> RunContext<C> {
        RunContext::new(self.shared.app.clone(), self.run_id.clone(), agent.clone())
    }

    fn agent(&self, name: &AgentName) -> Result<Agent<C>, ConfigError> {
        self.graph.agent(name).cloned()
    }

    /// Tells the run's hooks and the agent's, side by side, and waits for all. None where there are none.
    fn tell<'a>(
        &'a self,
        agent: &'a Agent<C>,
        moment: impl FnOnce() -> Moment<C>,
    ) -> Option<BoxFuture<'a, Result<(), HookError>>> {
        if !self.has_hooks(agent) {
            return None;
        }
        let moment = moment();
        let told = self.hooks.iter().chain(&agent.inner.hooks).map(move |hook| hook.tell(moment.clone()));
        let told = futures_util::future::join_all(told);
        Some(async move { told.await.into_iter().collect() }.boxed())
    }

    fn has_hooks(&self, agent: &Agent<C>) -> bool {
        !self.hooks.is_empty() || !agent.inner.hooks.is_empty()
    }

    /// As [`Driver::tell`], for moments whose failure is the run's.
    async fn tell_or_fail(&self, agent: &Agent<C>, moment: impl FnOnce() -> Moment<C>) -> Result<(), Halt> {
        let mut name = "";
        let told = self.tell(agent, || {
            let moment = moment();
            name = moment.name();
            moment
        });
        let Some(told) = told else { return Ok(()) };
        self.unless_stopped(told).await?.map_err(|error| {
            Failure::Hook { hook: name.to_owned(), message: readable(error.to_string()) }.into()
        })
    }

    /// What a function of the application gives, unless the run is stopped first: it need not ever come back.
    async fn unless_stopped<F: Future>(&self, future: F) -> Result<F::Output, Halt> {
        stop::unless_stopped(&self.stop, future).await.ok_or(Halt::Cancelled)
    }

    /// The machine, for a driver that holds no calls under way.
    fn run(&mut self) -> &mut Run {
        self.run.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine, for a moment.
    fn locked<T>(&self, act: impl FnOnce(&mut Run) -> T) -> T {
        act(&mut lock(&self.run))
    }
}

/// The call whose output this is.
fn output_of(produced: &Produced) -> Option<CallId> {
    match &*produced.item {
        Item::Output(output) => Some(output.call.clone()),
        _ => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
