//! One simulated process that drives the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{
    failure::RunFailure,
    id::{CallId, CallPath},
    item::Item,
};
use windlass::run::{CancelHandle, HandledFailure, LoopPolicy, OnUnknownTool, PendingApprovals};
use windlass::store::Store;
use windlass::{
    error::{RunError, StoreError},
    event::{RunEvent, RunEventKind},
    run::{PausedRun, RunBuilder, RunResult},
    session::Session,
};
use windlass_sim::SimSessions;

use crate::build;
use crate::observer::WorldObserver;
use crate::spec::{CancelSpec, MissingToolSpec};

/// Time after which the lease of a crashed process has expired.
const LEASE_EXPIRED_AFTER: Duration = Duration::from_secs(31);
/// Time limit of a run; longer than any run takes.
const RUN_TIMEOUT: Duration = Duration::from_secs(12 * 3600);
/// Time that hooks and the store may delay a cancelled run, in addition to its drain.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// The starting point of a process.
pub(crate) enum ProcessOrigin {
    Fresh,
    Stored,
    Paused(Box<PausedRun>),
}

/// The outcome of a process, as observed from outside.
pub(crate) struct ProcessReport {
    pub(crate) result: Result<RunResult, RunError>,
    /// Number of starts and settlements of each call that watchers received.
    pub(crate) events: BTreeMap<CallPath, (u64, u64)>,
    /// Calls whose event made the watcher cancel the run.
    pub(crate) cancelled_on: Vec<CallId>,
}

impl ProcessReport {
    fn unwatched(result: Result<RunResult, RunError>) -> Self {
        Self { result, events: BTreeMap::new(), cancelled_on: Vec::new() }
    }
}

pub(crate) async fn run_process(
    lab: Arc<WorldObserver>,
    sessions: Arc<SimSessions>,
    origin: ProcessOrigin,
    is_after_loss: bool,
) -> ProcessReport {
    if is_after_loss {
        tokio::time::sleep(LEASE_EXPIRED_AFTER).await;
    }
    let life = lab.sim.process_number();
    let builder = build_run(&lab, &sessions, origin);
    if let Some((_, ms)) = lab.spec.faults.crash_at.filter(|(at, _)| *at == life) {
        let lab = lab.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            if lab.take_crash() {
                match lab.sim.crash().await {}
            }
        });
    }
    let cancelling = lab.spec.faults.cancel_at.filter(|(at, _, _)| *at == life).map(|(_, ms, how)| {
        let (lab, cancel) = (lab.clone(), builder.cancel_handle());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            cancel_run(&cancel, how);
            (lab.sim.elapsed(), how)
        })
    });
    let person = (lab.spec.additions.live_decision_percent > 0)
        .then(|| tokio::spawn(lab.clone().decide_while_running()));
    let run = async {
        if lab.spec.run.is_streamed {
            watch_run(&lab, builder).await
        } else {
            ProcessReport::unwatched(builder.await)
        }
    };
    let lived = tokio::time::timeout(RUN_TIMEOUT, run).await;
    if let Some(person) = person {
        person.abort();
    }
    let Ok(lived) = lived else {
        lab.report_violation("the run does not end");
        return ProcessReport::unwatched(Err(StoreError::new("endless").into()));
    };
    if let Some(cancelling) = cancelling.filter(tokio::task::JoinHandle::is_finished)
        && let Ok((since, how)) = cancelling.await
        && how != CancelSpec::AfterTurn
    {
        let took = lab.sim.elapsed().saturating_sub(since);
        if took > CANCEL_GRACE + Duration::from_millis(lab.spec.run.drain_ms) {
            lab.report_violation(format!("the run ended {took:?} after it was cancelled"));
        }
    }
    let before = (lab.world.total_count(), lab.count_records_before_late_ends());
    tokio::time::sleep(Duration::from_secs(100)).await;
    if before != (lab.world.total_count(), lab.count_records_before_late_ends()) {
        lab.report_violation("something happened after the run had come to its outcome");
    }
    lived
}

fn cancel_run(cancel: &CancelHandle, how: CancelSpec) {
    match how {
        CancelSpec::Now => cancel.cancel(),
        CancelSpec::KeepApprovals => cancel.cancel_with(PendingApprovals::Keep),
        CancelSpec::AfterTurn => cancel.cancel_after_turn(),
        CancelSpec::Detach => cancel.detach(),
    }
}

/// Watches a run, and sometimes cancels it when a call is announced.
async fn watch_run(lab: &WorldObserver, builder: RunBuilder) -> ProcessReport {
    let mut stream = builder.event_buffer_size(4).stream();
    let cancel = stream.cancel_handle();
    let mut events: BTreeMap<CallPath, (u64, u64)> = BTreeMap::new();
    let mut stopped_on = Vec::new();
    while let Some(event) = stream.next().await {
        lab.note_text("an event", &format!("{event:?}"));
        let RunEvent { path, kind, is_repeated, .. } = event;
        match kind {
            RunEventKind::CallStarted { call, .. } => {
                events.entry(CallPath::new(&path, call)).or_default().0 += 1;
            }
            // The process before this one ended without notice.
            RunEventKind::CallSettled { .. } if is_repeated => {}
            RunEventKind::CallSettled { call, .. } => {
                events.entry(CallPath::new(&path, call)).or_default().1 += 1;
            }
            RunEventKind::Item(produced) if path.is_empty() => {
                if let Item::Call(call) = &*produced.item
                    && lab.sim.chance(lab.spec.faults.watcher_cancel_percent)
                {
                    cancel.cancel();
                    stopped_on.push(call.id.clone());
                }
            }
            // The clock of the machine decides whether a body is reported as one that blocks its thread.
            RunEventKind::Warning { .. } => continue,
            _ => {}
        }
        lab.random_delay(3).await;
    }
    ProcessReport { result: stream.result().await, events, cancelled_on: stopped_on }
}

fn build_run(lab: &Arc<WorldObserver>, sessions: &Arc<SimSessions>, origin: ProcessOrigin) -> RunBuilder {
    let agents = build::build_agents(lab);
    let store: Arc<dyn Store> = lab.store.clone();
    let mut builder = match origin {
        ProcessOrigin::Fresh => {
            let run = agents[0].run("Please do what is needed.").store(store).run_id(lab.run.clone());
            // A seed decides everything.
            run.key_nonce("nonce")
        }
        ProcessOrigin::Stored => agents[0].recover(lab.run.clone(), store),
        ProcessOrigin::Paused(paused) => agents[0].resume(*paused).store(store),
    };
    builder = builder.known_agents(agents.iter().cloned());
    let spec = &lab.spec.run;
    builder = match spec.max_turns {
        Some(turns) => builder.max_turns(turns),
        None => builder.unlimited_turns(),
    };
    if let Some(limit) = spec.concurrency {
        builder = builder.max_concurrent_calls(limit);
    }
    if spec.early_guardrails {
        builder = builder.pre_approval_guardrails();
    }
    builder = builder.on_unknown_tool(match spec.missing_tool {
        MissingToolSpec::Tell => OnUnknownTool::TellModel,
        MissingToolSpec::Say => OnUnknownTool::custom_message(|name, _| format!("there is no {name}")),
        MissingToolSpec::Fail => OnUnknownTool::FailRun,
    });
    builder = builder.drain_timeout(Duration::from_millis(spec.drain_ms));
    builder = builder.loop_policy(LoopPolicy { warn_after: 1, fail_after: spec.max_repetitions });
    for guard in &spec.input_guardrails {
        builder = builder.input_guardrail(build::input_guardrail(lab, guard));
    }
    for guard in &spec.output_guardrails {
        builder = builder.output_guardrail(build::output_guardrail(lab, guard));
    }
    if spec.has_session {
        builder = builder.session(&Session::new("session", sessions.clone()));
    }
    if spec.has_failure_handler {
        builder = builder.on_failure(|_, failure| async move {
            let in_history = matches!(failure, RunFailure::MaxTurnsExceeded { .. });
            Some(HandledFailure {
                final_output: format!("in place of: {failure}"),
                include_in_history: in_history,
            })
        });
    }
    if spec.has_layers {
        builder = with_layers(lab, builder);
    }
    if let Some(filter) = lab.spec.additions.input_filter {
        builder = builder.input_filter(move |_, mut input| async move {
            input.items = filter.apply(input.items);
            input
        });
    }
    // The innermost layer waits for bodies on threads.
    if lab.spec.additions.blocking_tools.is_empty() {
        builder
    } else {
        build::with_thread_layer(lab, builder)
    }
}

fn with_layers(lab: &Arc<WorldObserver>, builder: RunBuilder) -> RunBuilder {
    let lab = lab.clone();
    let builder = builder.call_layer(move |_, next| {
        let lab = lab.clone();
        async move {
            lab.random_delay(5).await;
            next.run().await
        }
    });
    builder.input_filter(|_, mut input| async move {
        input.items.insert(0, Arc::new(Item::user("Remember where you are.")));
        input
    })
}
