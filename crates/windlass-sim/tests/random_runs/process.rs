//! One life of the process that drives the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{CallId, CallPath, Failure, Item};
use windlass::run::{Approvals, CancelHandle, Handled, LoopPolicy, MissingTool};
use windlass::store::Store;
use windlass::{Event, EventKind, Outcome, Paused, RunBuilder, RunError, Session, StoreError};
use windlass_sim::SimSessions;

use crate::build;
use crate::lab::Lab;
use crate::spec::{CancelSpec, MissingSpec};

/// Longer than a lease lasts without a sign of life.
const LEASE_IS_OVER: Duration = Duration::from_secs(31);
/// Longer than any run takes.
const ENDLESS: Duration = Duration::from_secs(12 * 3600);
/// How long hooks and the store may hold up a run that was cancelled, besides its drain.
const PROMPT: Duration = Duration::from_secs(3);

/// Where a life begins.
pub(crate) enum Origin {
    Fresh,
    Stored,
    Paused(Box<Paused>),
}

/// What a life came to, seen from outside.
pub(crate) struct Lived {
    pub(crate) result: Result<Outcome, RunError>,
    /// How often watchers saw each call start and settle.
    pub(crate) events: BTreeMap<CallPath, (u64, u64)>,
    /// Calls on whose sight the watcher cancelled the run.
    pub(crate) stopped_on: Vec<CallId>,
}

impl Lived {
    fn unseen(result: Result<Outcome, RunError>) -> Self {
        Self { result, events: BTreeMap::new(), stopped_on: Vec::new() }
    }
}

pub(crate) async fn one_life(
    lab: Arc<Lab>,
    sessions: Arc<SimSessions>,
    origin: Origin,
    is_after_loss: bool,
) -> Lived {
    if is_after_loss {
        tokio::time::sleep(LEASE_IS_OVER).await;
    }
    let life = lab.sim.life();
    let builder = begin(&lab, &sessions, origin);
    if let Some((_, ms)) = lab.spec.faults.crash_at.filter(|(at, _)| *at == life) {
        let lab = lab.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            if lab.count_crash() {
                match lab.sim.crash().await {}
            }
        });
    }
    let cancelling = lab.spec.faults.cancel_at.filter(|(at, _, _)| *at == life).map(|(_, ms, how)| {
        let (lab, cancel) = (lab.clone(), builder.cancel_handle());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            cancel_as(&cancel, how);
            (lab.sim.now(), how)
        })
    });
    let run = async {
        if lab.spec.run.streams { watch(&lab, builder).await } else { Lived::unseen(builder.await) }
    };
    let Ok(lived) = tokio::time::timeout(ENDLESS, run).await else {
        lab.wrong("the run does not end");
        return Lived::unseen(Err(StoreError::new("endless").into()));
    };
    if let Some(cancelling) = cancelling.filter(tokio::task::JoinHandle::is_finished)
        && let Ok((since, how)) = cancelling.await
        && how != CancelSpec::AfterTurn
    {
        let took = lab.sim.now().saturating_sub(since);
        if took > PROMPT + Duration::from_millis(lab.spec.run.drain_ms) {
            lab.wrong(format!("the run ended {took:?} after it was cancelled"));
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

/// Watches a run, and sometimes stops it on what is seen.
async fn watch(lab: &Lab, builder: RunBuilder) -> Lived {
    let mut stream = builder.event_buffer(4).stream();
    let cancel = stream.cancel();
    let mut events: BTreeMap<CallPath, (u64, u64)> = BTreeMap::new();
    let mut stopped_on = Vec::new();
    while let Some(Event { path, kind, .. }) = stream.next().await {
        match kind {
            EventKind::CallStarted { call, .. } => {
                events.entry(CallPath::new(&path, call)).or_default().0 += 1;
            }
            EventKind::CallSettled { call, .. } => {
                events.entry(CallPath::new(&path, call)).or_default().1 += 1;
            }
            EventKind::Item(produced) if path.is_empty() => {
                if let Item::Call(call) = &*produced.item
                    && lab.sim.chance(lab.spec.faults.watcher_stops)
                {
                    cancel.now();
                    stopped_on.push(call.id.clone());
                }
            }
            _ => {}
        }
        lab.dawdle(3).await;
    }
    Lived { result: stream.outcome().await, events, stopped_on }
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
    if spec.layered { layered(lab, builder) } else { builder }
}

fn layered(lab: &Arc<Lab>, builder: RunBuilder) -> RunBuilder {
    let lab = lab.clone();
    let builder = builder.around_calls(move |_, next| {
        let lab = lab.clone();
        async move {
            lab.dawdle(5).await;
            next.run().await
        }
    });
    builder.input_filter(|_, mut input| async move {
        input.items.insert(0, Arc::new(Item::user("Remember where you are.")));
        input
    })
}
