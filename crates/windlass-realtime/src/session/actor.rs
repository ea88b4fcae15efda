//! The task that owns a session: its machine, its connection, and every task that it started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use windlass::Store;
use windlass::agent::{Agent, Checked, Resolved, SharedReceipts};
use windlass::core::RunId;
use windlass::guardrail::{OutputGuardrail, Verdict};
use windlass::hook::Hook;

use super::builder::{
    CONNECTED, EnterError, OnGuardrailFailure, Reconnect, configuration, opened, supported,
};
use super::close::CloseReport;
use super::handle::Shared;
use super::outbox::Outbox;
use super::requests::Request;
use super::runs::{LiveRun, Notice, StandingDecision};
use crate::event::{ChangeCause, CloseReason, LiveError, LiveEvent, Retrying};
use crate::id::ResponseId;
use crate::journal::{CallsRecord, LiveJournal};
use crate::machine::{AgentKey, Check, Effect, Machine};
use crate::metrics::SessionMetrics;
use crate::model::{ConnectError, Connection, Lost, ModelEvents, RealtimeModel, Retry};
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
    /// Every agent that was current, as it was then.
    pub(super) agents: BTreeMap<u32, Resolved<C>>,
    next_agent: u32,
    pub(super) runs: BTreeMap<RunId, LiveRun>,
    pub(super) standing: Vec<StandingDecision>,
    pub(super) notices: mpsc::Receiver<Notice>,
    pub(super) notify: mpsc::Sender<Notice>,
    pub(super) forwarders: JoinSet<()>,
    checks: JoinSet<Vec<Checked>>,
    checking: BTreeMap<Id, (ResponseId, Arc<str>)>,
    resolving: JoinSet<Resolution<C>>,
    changing: BTreeMap<u32, oneshot::Sender<Result<(), String>>>,
    pub(super) outbox: Option<Outbox>,
    events: Option<Box<dyn ModelEvents>>,
    reconnecting: Option<BoxFuture<'static, Result<(Connection, u32), ConnectError>>>,
    began: Instant,
    pub(super) end: Option<CloseReason>,
}

/// What came of resolving an agent.
struct Resolution<C> {
    name: windlass::core::AgentName,
    cause: ChangeCause,
    reply: Option<oneshot::Sender<Result<(), String>>>,
    result: Result<Resolved<C>, String>,
}

/// What happened.
enum Happened<C> {
    Closing,
    Event(Option<Result<crate::model::ModelEvent, Lost>>),
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
        let guard = EndGuard { shared: self.ends.shared.clone(), closed: self.ends.closed.clone() };
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
        self.checks.shutdown().await;
        self.resolving.shutdown().await;
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
        match journal.append(&self.setting.session, self.setting.journal_at, entries).await {
            Ok(()) => self.setting.journal_at += count,
            Err(error) => {
                let message = error.to_string();
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

    fn plug_in(&mut self, connection: Connection) {
        self.outbox = Some(Outbox::new(connection.commands, self.plan.audio_buffer));
        self.events = Some(connection.events);
    }

    /// The connection is gone: it is made again, or the session ends.
    fn lost(&mut self, lost: Lost) {
        self.outbox = None;
        self.events = None;
        let now = self.now();
        self.machine.at(now).disconnected();
        let policy = self.plan.reconnect;
        let retrying = match lost.retry {
            Retry::MayHelp if policy.attempts > 0 && self.ends.ready.is_none() => Retrying::Yes,
            Retry::MayHelp | Retry::IsOfNoUse => Retrying::No,
        };
        self.emit(LiveEvent::Disconnected { reason: lost.message.clone(), retrying });
        if retrying == Retrying::No {
            self.end.get_or_insert(CloseReason::Lost(lost.message));
            return;
        }
        let (model, patience) = (self.setting.model.clone(), self.plan.patience);
        let current = self.agents.get(&self.machine.agent().number);
        let Some(first) = current.map(|agent| configuration(agent, &self.setting.settings)) else { return };
        let trying = async move {
            let mut attempt = 0;
            loop {
                let wait = policy.base.saturating_mul(1 << attempt.min(16)).min(policy.longest);
                tokio::time::sleep(wait).await;
                attempt += 1;
                let tried = tokio::time::timeout(patience, model.connect(&first)).await;
                match tried.unwrap_or_else(|_| Err(ConnectError::new("it took too long to connect"))) {
                    Ok(connection) => return Ok((connection, attempt)),
                    Err(error) if attempt >= policy.attempts || error.retry == Retry::IsOfNoUse => {
                        return Err(error);
                    }
                    Err(error) => tracing::debug!(%error, attempt, "no connection yet"),
                }
            }
        };
        self.reconnecting = Some(trying.boxed());
    }

    fn reconnected(&mut self, result: Result<(Connection, u32), ConnectError>) {
        self.reconnecting = None;
        match result {
            Ok((connection, attempts)) => {
                self.plug_in(connection);
                let now = self.now();
                self.machine.at(now).connected();
                self.machine.metrics_mut().reconnects += 1;
                self.emit(LiveEvent::Reconnected { attempts });
            }
            Err(error) => {
                let reason = error.to_string();
                self.emit(LiveEvent::Disconnected { reason: reason.clone(), retrying: Retrying::No });
                self.end.get_or_insert(CloseReason::Lost(reason));
            }
        }
    }

    fn check(&mut self, check: Check) {
        let Some(resolved) = self.agents.get(&check.agent.number).cloned() else { return };
        let (session, also) = (self.setting.session.clone(), self.plan.guardrails.clone());
        let (text, timeout) = (check.text.clone(), self.plan.guardrail_timeout);
        let task = self.checks.spawn(async move {
            let checking = resolved.check_output(&session, &also, text);
            tokio::time::timeout(timeout, checking).await.unwrap_or_else(|_| {
                let verdict = Err(format!("it took longer than {timeout:?}").into());
                vec![Checked { guardrail: "guardrails".into(), verdict }]
            })
        });
        self.checking.insert(task.id(), (check.response, check.text));
    }

    fn checked(&mut self, done: Result<(Id, Vec<Checked>), tokio::task::JoinError>) {
        let (id, checked) = match done {
            Ok(done) => done,
            Err(error) => {
                let verdict = Err(error.to_string().into());
                (error.id(), vec![Checked { guardrail: "guardrails".into(), verdict }])
            }
        };
        let Some((response, text)) = self.checking.remove(&id) else { return };
        let mut objections = Vec::new();
        for Checked { guardrail, verdict } in checked {
            match verdict {
                Ok(Verdict::Pass) => {}
                Ok(Verdict::Trip) => objections.push(guardrail.to_string()),
                Err(error) => {
                    tracing::warn!(%guardrail, %error, "a guardrail failed");
                    let (guardrail, message) = (guardrail.to_string(), error.to_string());
                    if self.plan.on_guardrail_failure == OnGuardrailFailure::Trip {
                        objections.push(guardrail.clone());
                    }
                    self.emit(LiveEvent::Error(LiveError::Guardrail { guardrail, message }));
                }
            }
        }
        let now = self.now();
        self.machine.at(now).checked(&response, &text, objections);
    }

    /// Asks for the instructions and tools of an agent, once; then it becomes current.
    pub(super) fn resolve(
        &mut self,
        agent: Agent<C>,
        cause: ChangeCause,
        reply: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        let (session, app) = (self.setting.session.clone(), self.setting.app.clone());
        let (known, patience) = (self.plan.known.clone(), self.plan.patience);
        self.resolving.spawn(async move {
            let name = agent.name().clone();
            let resolving = agent.resolve_with(&session, app, &known);
            let result = match tokio::time::timeout(patience, resolving).await {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => Err(format!("its instructions and tools were not there within {patience:?}")),
            };
            Resolution { name, cause, reply, result }
        });
    }

    fn resolved(&mut self, done: Result<Resolution<C>, tokio::task::JoinError>) {
        let Ok(Resolution { name, cause, reply, result }) = done else { return };
        let now = self.now();
        let is_supported = |resolved: Resolved<C>| match supported(&*self.setting.model, &resolved) {
            Ok(()) => Ok(resolved),
            Err(error) => Err(error.to_string()),
        };
        match result.and_then(is_supported) {
            Ok(resolved) => {
                let agent = AgentKey { number: self.next_agent, name };
                self.next_agent += 1;
                let configuration = Arc::new(configuration(&resolved, &self.setting.settings));
                let is_checked = resolved.is_checked() || !self.plan.guardrails.is_empty();
                self.agents.insert(agent.number, resolved);
                if let Some(reply) = reply {
                    self.changing.insert(agent.number, reply);
                }
                self.machine.at(now).change_agent(agent, configuration, is_checked, cause);
            }
            Err(message) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Err(message.clone()));
                }
                match cause {
                    ChangeCause::Handoff(call) => self.machine.at(now).handoff_failed(&call, &name, message),
                    ChangeCause::Application => {
                        self.emit(LiveEvent::Error(LiveError::AgentNotChanged { to: name, message }));
                    }
                }
            }
        }
    }
}

async fn written(outbox: &mut Option<Outbox>) -> Option<Lost> {
    let lost = &mut outbox.as_mut()?.lost;
    // The writer ends without a word only when it is told to.
    Some(lost.await.unwrap_or_else(|_| Lost::new("the writer of the connection is gone")))
}

async fn heard(
    events: &mut Option<Box<dyn ModelEvents>>,
) -> Option<Option<Result<crate::model::ModelEvent, Lost>>> {
    Some(events.as_mut()?.next().await)
}

async fn tried(
    trying: &mut Option<BoxFuture<'static, Result<(Connection, u32), ConnectError>>>,
) -> Option<Result<(Connection, u32), ConnectError>> {
    Some(trying.as_mut()?.await)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Whatever becomes of the session's task, nobody waits for it in vain.
struct EndGuard {
    shared: Arc<Shared>,
    closed: watch::Sender<Option<Arc<CloseReport>>>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let is_new = self.closed.send_if_modified(|report| {
            let is_new = report.is_none();
            if is_new {
                let reason = CloseReason::Lost("the session's task was stopped".to_owned());
                *report = Some(Arc::new(CloseReport { reason, ..CloseReport::default() }));
            }
            is_new
        });
        if is_new {
            let reason = CloseReason::Lost("the session's task was stopped".to_owned());
            self.shared.fanout.end(&LiveEvent::Closed(reason));
        }
    }
}
