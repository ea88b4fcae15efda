//! The task that owns a session: its machine, its connection, and every task that it started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use windlass::Store;
use windlass::agent::{Agent, Checked, Resolved, SharedReceipts};
use windlass::core::RunId;
use windlass::guardrail::OutputGuardrail;
use windlass::hook::Hook;

use super::builder::{CONNECTED, EnterError, OnGuardrailFailure, Reconnect, opened};
use super::change::Resolution;
use super::close::{CloseReport, EndGuard};
use super::decisions::StandingDecision;
use super::handle::Shared;
use super::keep::Secret;
use super::link::{Reconnecting, heard, tried, written};
use super::outbox::Outbox;
use super::requests::Request;
use super::runs::{LiveRun, Notice};
use crate::event::{CloseReason, LiveError, LiveEvent};
use crate::id::ResponseId;
use crate::journal::{CallsRecord, LiveJournal};
use crate::machine::{Effect, Machine};
use crate::metrics::SessionMetrics;
use crate::model::{ConnectError, Connection, Lost, ModelEvent, ModelEvents, RealtimeModel};
use crate::settings::LiveSettings;

/// How a session goes, in what the machine does not decide.
pub(super) struct Plan<C> {
    pub(super) store: Option<Arc<dyn Store>>,
    pub(super) journal: Option<Arc<dyn LiveJournal>>,
    pub(super) known: Vec<Agent<C>>,
    pub(super) guardrails: Vec<OutputGuardrail<C>>,
    pub(super) on_guardrail_failure: OnGuardrailFailure,
    pub(super) guardrail_timeout: Duration,
    pub(super) concurrency: Option<usize>,
    pub(super) early_guardrails: bool,
    pub(super) approval_expiry: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) hooks: Vec<Hook<C>>,
    pub(super) drain: Duration,
    pub(super) patience: Duration,
    pub(super) reconnect: Reconnect,
    pub(super) audio_buffer: usize,
}

impl<C> Default for Plan<C> {
    fn default() -> Self {
        Self {
            store: None,
            journal: None,
            known: Vec::new(),
            guardrails: Vec::new(),
            on_guardrail_failure: OnGuardrailFailure::Skip,
            guardrail_timeout: Duration::from_secs(10),
            concurrency: None,
            early_guardrails: false,
            approval_expiry: None,
            lease: None,
            hooks: Vec::new(),
            drain: Duration::from_millis(250),
            patience: Duration::from_secs(10),
            reconnect: Reconnect::default(),
            audio_buffer: 256,
        }
    }
}

/// What a session is a session of.
pub(super) struct Setting<C> {
    pub(super) app: Arc<C>,
    pub(super) model: Arc<dyn RealtimeModel>,
    pub(super) settings: LiveSettings,
    pub(super) session: RunId,
    pub(super) root: Agent<C>,
    pub(super) receipts: SharedReceipts,
    pub(super) journal_at: u64,
}

/// Where a session meets the application.
pub(super) struct Ends<C> {
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: mpsc::Receiver<Request<C>>,
    pub(super) closed: watch::Sender<Option<Arc<CloseReport>>>,
    pub(super) ready: Option<oneshot::Sender<Result<(), EnterError>>>,
}

pub(super) struct Actor<C> {
    pub(super) machine: Machine,
    pub(super) ends: Ends<C>,
    pub(super) plan: Plan<C>,
    pub(super) setting: Setting<C>,
    /// The agents that were current, as they were then; of very many, the last.
    pub(super) agents: BTreeMap<u32, Resolved<C>>,
    pub(super) next_agent: u32,
    pub(super) runs: BTreeMap<RunId, LiveRun>,
    pub(super) standing: Vec<StandingDecision>,
    pub(super) secret: Secret,
    pub(super) notices: mpsc::Receiver<Notice>,
    pub(super) notify: mpsc::Sender<Notice>,
    pub(super) forwarders: JoinSet<()>,
    pub(super) checks: JoinSet<Vec<Checked>>,
    pub(super) checking: BTreeMap<Id, (ResponseId, Arc<str>)>,
    pub(super) resolving: JoinSet<Resolution<C>>,
    pub(super) changing: BTreeMap<u32, oneshot::Sender<Result<(), String>>>,
    pub(super) outbox: Option<Outbox>,
    pub(super) events: Option<Box<dyn ModelEvents>>,
    pub(super) reconnecting: Option<Reconnecting>,
    began: Instant,
    pub(super) end: Option<CloseReason>,
}

/// What happened.
enum Happened<C> {
    Closing,
    Event(Option<Result<ModelEvent, Lost>>),
    Unwritten(Lost),
    Notice(Notice),
    Checked(Result<(Id, Vec<Checked>), tokio::task::JoinError>),
    Resolved(Result<Resolution<C>, tokio::task::JoinError>),
    Request(Option<Request<C>>),
    Reconnected(Result<(Connection, u32), ConnectError>),
    Tick,
}

impl<C: Send + Sync + 'static> Actor<C> {
    pub(super) fn new(
        machine: Machine,
        resolved: Resolved<C>,
        ends: Ends<C>,
        plan: Plan<C>,
        setting: Setting<C>,
    ) -> Self {
        let (notify, notices) = mpsc::channel(256);
        Self {
            machine,
            ends,
            plan,
            setting,
            agents: BTreeMap::from([(0, resolved)]),
            next_agent: 1,
            runs: BTreeMap::new(),
            standing: Vec::new(),
            secret: Secret::default(),
            notices,
            notify,
            forwarders: JoinSet::new(),
            checks: JoinSet::new(),
            checking: BTreeMap::new(),
            resolving: JoinSet::new(),
            changing: BTreeMap::new(),
            outbox: None,
            events: None,
            reconnecting: None,
            began: Instant::now(),
            end: None,
        }
    }

    /// Lives.
    pub(super) async fn run(mut self, connection: Connection, open: Vec<CallsRecord>) {
        let guard = EndGuard::new(&self.ends);
        self.plug_in(connection);
        self.machine.connected();
        let opened = opened(self.machine.agent());
        self.write_down(vec![opened]).await;
        self.recover(open).await;
        let deadline = Instant::now() + self.plan.patience;
        loop {
            self.carry_out_effects().await;
            self.say_ready(deadline);
            if self.end.is_some() {
                break;
            }
            match self.next(deadline).await {
                Happened::Closing => break,
                Happened::Event(Some(Ok(event))) => {
                    let now = self.now();
                    self.machine.at(now).heard(event);
                }
                Happened::Event(Some(Err(lost))) | Happened::Unwritten(lost) => self.lost(lost),
                Happened::Event(None) => self.end = Some(CloseReason::Finished),
                Happened::Notice(Notice::Again { run }) => self.try_again(&run).await,
                Happened::Notice(notice) => self.notice(notice),
                Happened::Checked(done) => self.checked(done),
                Happened::Resolved(done) => self.resolved(done),
                Happened::Request(Some(request)) => self.take(request),
                Happened::Request(None) => break,
                Happened::Reconnected(result) => self.reconnected(result),
                Happened::Tick => {
                    let now = self.now();
                    self.machine.at(now).tick();
                }
            }
        }
        self.shut().await;
        drop(guard);
    }

    async fn next(&mut self, ready_by: Instant) -> Happened<C> {
        let deadline = self.machine.deadline().map(|deadline| self.began + deadline);
        let deadline = match &self.ends.ready {
            Some(_) => Some(deadline.map_or(ready_by, |deadline| deadline.min(ready_by))),
            None => deadline,
        };
        let Self { ends, events, outbox, notices, checks, resolving, reconnecting, .. } = self;
        tokio::select! {
            biased;
            () = ends.shared.closing.cancelled() => Happened::Closing,
            Some(notice) = notices.recv() => Happened::Notice(notice),
            Some(done) = checks.join_next_with_id() => Happened::Checked(done),
            Some(done) = resolving.join_next() => Happened::Resolved(done),
            Some(lost) = written(outbox) => Happened::Unwritten(lost),
            Some(event) = heard(events) => Happened::Event(event),
            Some(result) = tried(reconnecting) => Happened::Reconnected(result),
            request = ends.inbox.recv() => Happened::Request(request),
            () = until(deadline) => Happened::Tick,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Carries out what the machine asks for, in order.
    pub(super) async fn carry_out_effects(&mut self) {
        loop {
            let now = self.now();
            let effects = self.machine.at(now).effects();
            if effects.is_empty() {
                return;
            }
            // What must be written down is, before anything that follows from it happens.
            let entries: Vec<_> = effects
                .iter()
                .filter_map(|effect| match effect {
                    Effect::Journal(entry) => Some(entry.clone()),
                    _ => None,
                })
                .collect();
            self.write_down(entries).await;
            for effect in effects {
                match effect {
                    Effect::Journal(_) => {}
                    Effect::Send(command) => {
                        let sent = self.outbox.as_ref().map(|outbox| outbox.put(command));
                        match sent {
                            Some(Ok(dropped)) => self.machine.metrics_mut().dropped_input += dropped,
                            Some(Err(lost)) => self.lost(lost),
                            None => {}
                        }
                    }
                    Effect::Emit(event) => self.ends.shared.fanout.emit(&event),
                    Effect::CarryOut(batch) if self.end.is_none() => self.carry_out(batch),
                    Effect::CarryOut(_) => {}
                    Effect::Check(check) => self.check(check),
                    Effect::Changed { agent, result } => {
                        if result.is_err() {
                            self.agents.remove(&agent.number);
                        }
                        if let Some(reply) = self.changing.remove(&agent.number) {
                            let _ = reply.send(result);
                        }
                    }
                }
            }
        }
    }

    /// Writes entries down. A session that cannot be written down any more ends, before it does what nobody would know
    /// of.
    pub(super) async fn write_down(&mut self, entries: Vec<crate::journal::LiveEntry>) {
        let Some(journal) = self.plan.journal.clone().filter(|_| !entries.is_empty()) else { return };
        let count = entries.len() as u64;
        let entries = entries.into_iter().map(|entry| self.for_keeping(entry)).collect();
        let appending = journal.append(&self.setting.session, self.setting.journal_at, entries);
        let patience = self.plan.patience;
        let appended = match tokio::time::timeout(patience, appending).await {
            Ok(appended) => appended.map_err(|error| error.to_string()),
            Err(_) => Err(format!("nothing was written within {patience:?}")),
        };
        match appended {
            Ok(()) => self.setting.journal_at += count,
            Err(message) => {
                self.emit(LiveEvent::Error(LiveError::Journal { message: message.clone() }));
                self.end.get_or_insert(CloseReason::Journal(message));
            }
        }
    }

    pub(super) fn emit(&self, event: LiveEvent) {
        self.ends.shared.fanout.emit(&event);
    }

    pub(super) fn metrics(&self) -> SessionMetrics {
        let mut metrics = self.machine.metrics().clone();
        metrics.dropped_input += self.ends.shared.dropped_input.load(Ordering::Relaxed);
        metrics.dropped_output = self.ends.shared.fanout.dropped_audio();
        metrics
    }

    /// Tells whoever entered the session that it has begun, or could not.
    fn say_ready(&mut self, deadline: Instant) {
        let result = match (self.machine.ready(), &self.end) {
            (_, Some(reason)) => Err(format!("the session ended at once: {reason:?}")),
            (Some(result), None) => result.clone(),
            (None, None) if Instant::now() >= deadline => Err("it did not answer in time".to_owned()),
            (None, None) => return,
        };
        let Some(ready) = self.ends.ready.take() else { return };
        match result {
            Ok(()) => {
                self.emit(CONNECTED);
                let _ = ready.send(Ok(()));
            }
            Err(message) => {
                self.end.get_or_insert(CloseReason::Lost(message.clone()));
                let _ = ready.send(Err(EnterError::Refused(message)));
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
