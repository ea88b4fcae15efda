//! A run from its beginning to its end, through as many lives, pauses and decisions as it takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{
    CallId, CallPath, Decided, Decision, Entry, Failure, HoldReason, Item, Pending, Reach, Record, Timestamp,
};
use windlass::run::{Approvals, CancelHandle, Handled, LoopPolicy, MissingTool, RunRecord};
use windlass::store::{Posted, Store};
use windlass::{Event, EventKind, Outcome, Paused, RunBuilder, RunError, Session};
use windlass_sim::{Life, Sim, SimSessions, check_history, check_record};

use crate::build;
use crate::lab::Lab;
use crate::spec::{CancelSpec, MissingSpec, Spec};

/// More lives than any run needs.
const LIVES: u64 = 80;
/// Longer than a lease lasts without a sign of life.
const LEASE_IS_OVER: Duration = Duration::from_secs(31);
/// Longer than any run takes.
const ENDLESS: Duration = Duration::from_secs(12 * 3600);
/// How long hooks and the store may hold up a run that was cancelled, besides its drain.
const PROMPT: Duration = Duration::from_secs(3);
/// After so many rounds everything is decided.
const ROUNDS: u64 = 4;

/// Where a life begins.
enum Origin {
    Fresh,
    Stored,
    Paused(Box<Paused>),
}

/// What a life came to, seen from outside.
struct Lived {
    result: Result<Outcome, RunError>,
    events: BTreeMap<CallPath, (u64, u64)>,
}

/// Simulates one seed. Gives an account of it that another simulation of the same seed gives too.
pub(crate) fn simulate(seed: u64) -> String {
    let sim = Sim::new(seed);
    let lab = Lab::new(&sim, Spec::of(seed));
    let sessions = Arc::new(SimSessions::new(&sim).longest(Duration::from_millis(lab.spec.faults.store_latency_ms)));
    sessions.set_failing(lab.spec.faults.session_failing);
    lab.store.set_failing(lab.spec.faults.store_failing);
    let mut whole = Whole { lab, sessions, rounds: 0, was_hurt: false };
    let account = whole.live_out();
    let wrong = whole.lab.all_wrong();
    assert!(wrong.is_empty(), "{}\n{:#?}\n{account}", wrong.join("\n"), whole.lab.spec);
    account
}

struct Whole {
    lab: Arc<Lab>,
    sessions: Arc<SimSessions>,
    rounds: u64,
    /// Whether anything crashed or failed to be written.
    was_hurt: bool,
}

impl Whole {
    fn live_out(&mut self) -> String {
        let mut origin = Origin::Fresh;
        let mut is_after_loss = false;
        for _ in 0..LIVES {
            self.lab.new_life();
            let life = one_life(self.lab.clone(), self.sessions.clone(), origin, is_after_loss);
            let ended = self.lab.sim.live(life);
            self.lab.look();
            let lived = match ended {
                Life::Crashed => {
                    (self.was_hurt, is_after_loss) = (true, true);
                    origin = self.what_is_stored();
                    continue;
                }
                Life::Ended(lived) => lived,
            };
            is_after_loss = false;
            match self.after(lived) {
                Ok(next) => origin = next,
                Err(Over::Lost) => {
                    (self.was_hurt, is_after_loss) = (true, true);
                    self.lab.store.set_failing(0);
                    self.sessions.set_failing(0);
                    origin = self.what_is_stored();
                }
                Err(Over::Ended(account)) => return account,
            }
            if !self.lab.all_wrong().is_empty() {
                return self.account("stopped", &self.lab.store.durable_from(&self.lab.run, 0));
            }
        }
        self.lab.wrong("the run has not ended after many lives");
        self.account("endless", &self.lab.store.durable_from(&self.lab.run, 0))
    }

    fn what_is_stored(&self) -> Origin {
        if self.lab.store.durable_from(&self.lab.run, 0).is_empty() { Origin::Fresh } else { Origin::Stored }
    }

    /// What comes after a life that did not crash.
    fn after(&mut self, lived: Lived) -> Result<Origin, Over> {
        let Lived { result, events } = lived;
        let (record, end) = match &result {
            Ok(outcome) => (outcome.record(), outcome_name(outcome)),
            Err(RunError::Failed(failed)) => (&failed.record, "failed"),
            Err(RunError::Store(error)) if error.to_string().contains("would become invalid") => {
                self.lab.wrong(error.to_string());
                return Err(Over::Lost);
            }
            Err(RunError::Store(_) | RunError::Session(_)) => return Err(Over::Lost),
            Err(error) => {
                self.lab.wrong(format!("the run cannot go on: {error}"));
                return Err(Over::Lost);
            }
        };
        self.check_journal(record);
        self.check_told(record, &events);
        self.check_session(record);
        match result {
            Ok(Outcome::Paused(paused)) => Ok(self.decide(paused)),
            Ok(Outcome::HandedOver(_)) => Ok(Origin::Stored),
            Ok(outcome @ (Outcome::Finished(_) | Outcome::Cancelled(_))) => {
                if let Outcome::Cancelled(cancelled) = &outcome {
                    self.check_settlement(cancelled);
                }
                Err(Over::Ended(self.account(end, outcome.record().journal())))
            }
            Err(RunError::Failed(failed)) => Err(Over::Ended(self.account(end, failed.record.journal()))),
            Err(_) => Err(Over::Lost),
        }
    }

    fn check_journal(&self, record: &RunRecord) {
        if let Err(broken) = check_record(record) {
            self.lab.wrong(broken.to_string());
        }
        match self.lab.store.durable(&self.lab.run) {
            Ok(durable) => {
                if !record.journal().starts_with(&durable) || durable.len() + 2 < record.journal().len() {
                    let (kept, written) = (durable.len(), record.journal().len());
                    self.lab.wrong(format!("the store has {kept} records that are not the {written} of the run"));
                }
            }
            Err(error) => self.lab.wrong(format!("what is durable cannot be read: {error}")),
        }
    }

    /// Every start that hooks and watchers were told of has its end, but for calls that are still open.
    fn check_told(&self, record: &RunRecord, events: &BTreeMap<CallPath, (u64, u64)>) {
        let is_open = |path: &CallPath| {
            let run = path.within().iter().try_fold(record.state(), |run, call| run.child(call));
            run.is_some_and(|run| run.end().is_none() && run.unsettled().contains(path.call()))
        };
        for (path, (started, settled)) in events {
            let fits = *settled == 1 || (*settled == 0 && is_open(path));
            if *started > 1 || (*started == 1 && !fits) || *settled > 1 {
                self.lab.wrong(format!("watchers saw call {path} start {started} times and settle {settled} times"));
            }
        }
        for path in self.lab.unended() {
            if !is_open(&CallPath::from(path.as_str())) {
                self.lab.wrong(format!("hooks were not told the end of call {path}"));
            }
        }
    }

    fn check_session(&self, record: &RunRecord) {
        let Some(session) = record.state().session() else { return };
        let items = self.sessions.items(session);
        if let Err(broken) = check_history(&items) {
            self.lab.wrong(format!("the session is broken: {broken}"));
        }
        let is_whole = !self.was_hurt && matches!(record.state().end(), Some(windlass::core::End::Finished(_)));
        if is_whole {
            let mut expected = record.state().input().to_vec();
            expected.extend(record.state().for_session(0));
            if !items.ends_with(&expected) {
                self.lab.wrong(format!("the session holds {items:#?}, and the run {expected:#?}"));
            }
        }
    }

    /// A call that must not happen twice, and that was begun and not seen to end, is reported in doubt.
    fn check_settlement(&self, cancelled: &windlass::run::CancelledRun) {
        let settlement = &cancelled.settlement;
        let lists = [&settlement.finished, &settlement.stopped, &settlement.in_doubt];
        let Some(last) = last_answer(cancelled.record.journal()) else { return };
        for call in last {
            let times = lists.iter().filter(|list| list.contains(&call.0)).count();
            if times != 1 {
                self.lab.wrong(format!("the report names call {} {times} times: {settlement:?}", call.0));
            }
            if call.1 && !settlement.in_doubt.contains(&call.0) {
                self.lab.wrong(format!("call {} may have happened and is not reported in doubt", call.0));
            }
        }
    }

    /// Says something about what waits, and how the run goes on.
    fn decide(&mut self, mut paused: Paused) -> Origin {
        self.rounds += 1;
        let pending = paused.pending();
        if pending.is_empty() {
            self.lab.wrong("the run is paused and waits for nothing");
            return Origin::Stored;
        }
        let sim = self.lab.sim.clone();
        let by_post = sim.chance(30);
        let mut posts = Vec::new();
        for pending in pending {
            if self.rounds <= ROUNDS && sim.chance(25) {
                continue;
            }
            let (decision, reach) = self.say(&pending);
            if by_post {
                let call = pending.call().clone();
                let by = Some("somebody".to_owned());
                let decided = Decided { call, digest: pending.digest, decision, reach, by };
                posts.push(Posted { path: pending.path.clone(), attempt: pending.attempt, decided });
                continue;
            }
            if sim.chance(10) && !is_covered_by_another(&paused, &pending.path) {
                // A hasty second word, about a call that has been decided, does not count.
                let second = paused.clone();
                self.say_twice(second, &pending);
            }
            let said = paused.decide(pending.path.clone(), decision.clone(), reach);
            if let Err(error) = said
                && !is_covered_by_another(&paused, &pending.path)
            {
                self.lab.wrong(format!("a decision about call {} does not count: {error}", pending.path));
            }
        }
        if by_post {
            return self.post(posts);
        }
        match sim.draw(|rng| rng.below(3)) {
            0 => match Paused::from_text(&paused.to_text()) {
                Ok(restored) => Origin::Paused(Box::new(restored)),
                Err(error) => {
                    self.lab.wrong(format!("a saved run cannot be restored: {error}"));
                    Origin::Stored
                }
            },
            _ => Origin::Paused(Box::new(paused)),
        }
    }

    /// Sends decisions through the store, where whoever drives the run finds them.
    fn post(&self, posts: Vec<Posted>) -> Origin {
        let (store, run, lab) = (self.lab.store.clone(), self.lab.run.clone(), self.lab.clone());
        let posted = self.lab.sim.live(async move {
            for post in posts {
                let path = post.path.clone();
                // The disk may fail; a person then simply says it again later.
                if let Err(error) = store.post(&run, post).await
                    && !error.to_string().contains("disk")
                {
                    lab.wrong(format!("a decision about call {path} cannot be posted: {error}"));
                }
            }
        });
        debug_assert_eq!(posted, Life::Ended(()));
        Origin::Stored
    }

    fn say_twice(&self, mut paused: Paused, pending: &Pending) {
        if pending.reason != HoldReason::Approval {
            return;
        }
        let first = paused.approve(pending.path.clone());
        let again = paused.approve(pending.path.clone());
        let otherwise = paused.reject(pending.path.clone());
        if first.is_err() || again.is_err() || otherwise.is_ok() {
            self.lab.wrong(format!("decisions about call {}: {first:?}, {again:?}, {otherwise:?}", pending.path));
        }
    }

    fn say(&self, pending: &Pending) -> (Decision, Reach) {
        let sim = &self.lab.sim;
        let happened = self.lab.world.by_call(pending.path.clone()) > 0;
        let is_agent = pending.value().get("input").is_some();
        match pending.reason {
            HoldReason::InDoubt => {
                let lies = sim.chance(self.lab.spec.faults.lies);
                let decision = match (sim.chance(25), happened != lies) {
                    (true, _) => Decision::Unknown,
                    (false, true) => Decision::Happened { output: "it had happened".into() },
                    (false, false) => {
                        self.lab.denied(&pending.path);
                        Decision::DidNotHappen
                    }
                };
                (decision, Reach::Call)
            }
            _ => match sim.draw(|rng| rng.below(10)) {
                0 | 1 => (Decision::Reject { message: None }, Reach::Call),
                2 => (Decision::Reject { message: Some("not today".to_owned()) }, Reach::Call),
                3 => (Decision::Reject { message: None }, Reach::Always),
                4 => (Decision::Approve, Reach::Always),
                5 if !is_agent => {
                    let arguments = format!("{{\"n\":{}}}", sim.draw(|rng| rng.below(3)));
                    (Decision::ApproveEdited { arguments }, Reach::Call)
                }
                _ => (Decision::Approve, Reach::Call),
            },
        }
    }

    /// What can be compared with another simulation of the same seed. The time of day is not decided by it.
    fn account(&self, end: &str, journal: &[Record]) -> String {
        let mut journal = journal.to_vec();
        for record in &mut journal {
            record.at = Timestamp(0);
        }
        let lines: Vec<String> = journal.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
        let effects = self.lab.world.effects();
        let lives = self.lab.sim.life();
        format!("{end} after {lives} lives at {:?}\n{}\n{effects:#?}", self.lab.sim.now(), lines.join("\n"))
    }
}

/// Why there is no next life as usual.
enum Over {
    /// The run could not be written, and must be recovered.
    Lost,
    Ended(String),
}

/// A decision for good may have covered other calls that waited.
fn is_covered_by_another(paused: &Paused, path: &CallPath) -> bool {
    paused.pending().iter().all(|pending| pending.path != *path)
}

/// The calls with bodies of the last answer, and whether each may have happened once and not been seen to end.
fn last_answer(journal: &[Record]) -> Option<Vec<(CallId, bool)>> {
    use windlass::core::{BodyKind, Effect, How, Work};
    let of_run = journal.iter().filter(|record| record.path.is_empty());
    let mut calls: Option<Vec<(CallId, bool)>> = None;
    let mut once: Vec<CallId> = Vec::new();
    for record in of_run {
        match &record.entry {
            Entry::Answered(answered) => {
                let has_body = |work: &Work| matches!(work, Work::Body { .. });
                let is_once = |work: &Work| {
                    matches!(work, Work::Body { body: BodyKind::Function, effect: Effect::Once, .. })
                };
                let planned = answered.calls.iter();
                once = planned.clone().filter(|one| is_once(&one.work)).map(|one| one.call.clone()).collect();
                calls = Some(planned.filter(|one| has_body(&one.work)).map(|one| (one.call.clone(), false)).collect());
            }
            Entry::CallStarted(started) if once.contains(&started.call) => {
                calls.iter_mut().flatten().filter(|one| one.0 == started.call).for_each(|one| one.1 = true);
            }
            Entry::CallSettled(settled) if !matches!(settled.how, How::Cancelled | How::LeftRunning) => {
                calls.iter_mut().flatten().filter(|one| one.0 == settled.call).for_each(|one| one.1 = false);
            }
            _ => {}
        }
    }
    calls
}

fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Finished(_) => "finished",
        Outcome::Paused(_) => "paused",
        Outcome::Cancelled(_) => "cancelled",
        Outcome::HandedOver(_) => "handed over",
    }
}

async fn one_life(lab: Arc<Lab>, sessions: Arc<SimSessions>, origin: Origin, is_after_loss: bool) -> Lived {
    if is_after_loss {
        tokio::time::sleep(LEASE_IS_OVER).await;
    }
    let life = lab.sim.life();
    let builder = begin(&lab, &sessions, origin);
    if let Some((at, ms)) = lab.spec.faults.crash_at.filter(|(at, _)| *at == life) {
        let lab = lab.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms + at)).await;
            if lab.count_crash() {
                match lab.sim.crash().await {}
            }
        });
    }
    let cancelled = lab.spec.faults.cancel_at.filter(|(at, _, _)| *at == life).map(|(_, ms, how)| {
        let (lab, cancel) = (lab.clone(), builder.cancel_handle());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            cancel_as(&cancel, how);
            (lab.sim.now(), how)
        })
    });
    let run = async {
        if lab.spec.run.streams { watch(builder).await } else { Lived { result: builder.await, events: BTreeMap::new() } }
    };
    let Ok(lived) = tokio::time::timeout(ENDLESS, run).await else {
        lab.wrong("the run does not end");
        return Lived { result: Err(windlass::StoreError::new("endless").into()), events: BTreeMap::new() };
    };
    if let Some(cancelled) = cancelled {
        let is_due = cancelled.is_finished();
        cancelled.abort();
        if let (true, Ok((since, how))) = (is_due, cancelled.await)
            && how != CancelSpec::AfterTurn
        {
            let took = lab.sim.now().saturating_sub(since);
            if took > PROMPT + Duration::from_millis(lab.spec.run.drain_ms) {
                lab.wrong(format!("the run ended {took:?} after it was cancelled"));
            }
        }
    }
    let before = (lab.world.total(), lab.look());
    tokio::time::sleep(Duration::from_secs(100)).await;
    if before != (lab.world.total(), lab.look()) {
        lab.wrong("something happened after the run had come to its outcome");
    }
    lived
}

fn cancel_as(cancel: &CancelHandle, how: CancelSpec) {
    match how {
        CancelSpec::Now => cancel.now(),
        CancelSpec::KeepApprovals => cancel.now_with(Approvals::Keep),
        CancelSpec::AfterTurn => cancel.after_turn(),
        CancelSpec::HandOver => cancel.hand_over(),
    }
}

async fn watch(builder: RunBuilder) -> Lived {
    let mut stream = builder.event_buffer(4).stream();
    let mut events: BTreeMap<CallPath, (u64, u64)> = BTreeMap::new();
    while let Some(Event { path, kind, .. }) = stream.next().await {
        match kind {
            EventKind::CallStarted { call, .. } => events.entry(CallPath::new(&path, call)).or_default().0 += 1,
            EventKind::CallSettled { call, .. } => events.entry(CallPath::new(&path, call)).or_default().1 += 1,
            _ => {}
        }
    }
    Lived { result: stream.outcome().await, events }
}

fn begin(lab: &Arc<Lab>, sessions: &Arc<SimSessions>, origin: Origin) -> RunBuilder {
    let agents = build::agents(lab);
    let store: Arc<dyn Store> = lab.store.clone();
    let mut builder = match origin {
        Origin::Fresh => agents[0].run("Please do what is needed.").store(store).run_id(lab.run.clone()),
        Origin::Stored => agents[0].recover(lab.run.clone(), store),
        Origin::Paused(paused) => agents[0].resume(*paused).store(store),
    };
    builder = builder.agents(agents.iter().cloned());
    let spec = &lab.spec.run;
    builder = match spec.max_turns {
        Some(turns) => builder.max_turns(turns),
        None => builder.unlimited_turns(),
    };
    if let Some(limit) = spec.concurrency {
        builder = builder.concurrency(limit);
    }
    if spec.early_guardrails {
        builder = builder.early_guardrails();
    }
    builder = builder.missing_tool(match spec.missing {
        MissingSpec::Tell => MissingTool::Tell,
        MissingSpec::Say => MissingTool::say(|name, _| format!("there is no {name}")),
        MissingSpec::Fail => MissingTool::Fail,
    });
    builder = builder.drain(Duration::from_millis(spec.drain_ms));
    builder = builder.loops(LoopPolicy { warn: 1, stop: spec.loop_stop });
    for guard in &spec.input_guards {
        builder = builder.input_guardrail(build::input_guard(lab, guard));
    }
    for guard in &spec.output_guards {
        builder = builder.output_guardrail(build::output_guard(lab, guard));
    }
    if spec.has_session {
        builder = builder.session(&Session::new("session", sessions.clone()));
    }
    if spec.handler {
        builder = builder.on_failure(|_, failure| async move {
            let in_history = matches!(failure, Failure::TurnsExhausted { .. });
            Some(Handled { output: format!("in place of: {failure}"), in_history })
        });
    }
    if spec.layered {
        let lab = lab.clone();
        builder = builder.around_calls(move |_, next| {
            let lab = lab.clone();
            async move {
                lab.dawdle(5).await;
                next.run().await
            }
        });
        builder = builder.input_filter(|_, mut input| async move {
            input.items.insert(0, Arc::new(Item::user("Remember where you are.")));
            input
        });
    }
    builder
}
