//! Start and end of a driver: from the source of the run to its outcome.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::{Driver, RunSource, SharedRunState};
use crate::agent::{Agent, AgentGraph};
use crate::artefact::RunArtefacts;
use crate::error::RunError;
use crate::event::{EventEmitter, EventSender, RunEventKind};
use crate::journal::{RunRecorder, WithheldOutputs};
use crate::observe::trace_span::in_agent_span;
use crate::redaction::SecretRegistry;
use crate::run::{
    BudgetControl, CancelSignal, OpenRun, RunConfig, RunExit, RunResult, RunScope, key_scopes, open_run,
};
use crate::session::RunSession;
use crate::store::DeltaRelay;
use crate::tasks::{DecisionSignal, DrainDeadline, WokenRun};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// Drives an agent's run from its source to an outcome.
pub(crate) fn run_agent<C: Send + Sync + 'static>(
    agent: Agent<C>,
    origin: RunSource,
    app: Arc<C>,
    config: RunConfig<C>,
    cancel: CancelSignal,
    watched: Option<EventSender>,
) -> BoxFuture<'static, Result<RunResult, RunError>> {
    // Boxed separately, so that the state of the start-up is freed before the run is driven.
    let beginning = start_driver(agent, origin, app, config, cancel, watched).boxed();
    let run = in_agent_span(async move {
        let (mut driver, is_fresh) = beginning.await?;
        let shared = driver.shared.clone();
        let SharedRunState { withheld, journal, recorder, artefacts, config, .. } = &*shared;
        let withheld_calls = || recorder.with_root(|run| run.withheld_calls());
        let driven = async {
            for (name, body) in &config.artefacts {
                artefacts.save(name, body).boxed().await?;
            }
            if !is_fresh {
                withheld.restore(journal, &withheld_calls()).boxed().await.map_err(RunError::Store)?;
            }
            let driven = driver.start_driving(is_fresh).await;
            driver.at_end.run_callbacks(RunExit::of_driver(&driven)).boxed().await;
            let stop = driven?;
            if stop != RunExit::Ended {
                journal.mark_announced(driver.scope.is_observed).boxed().await;
                withheld.take_along(journal, withheld_calls()).boxed().await.map_err(RunError::Store)?;
            }
            recorder.release_session().boxed().await;
            let status = recorder.with_root(|run| stop.run_status(run));
            journal.release_run(status).await?;
            Ok(stop)
        }
        .await;
        match driven {
            Ok(stop) => driver.into_result(stop),
            Err(error) => {
                recorder.release_session().boxed().await;
                journal.release_after_failure().boxed().await;
                Err(error)
            }
        }
    })
    .boxed();
    WokenRun::new(run).boxed()
}

/// Creates the driver of a run. The flag is true if the run is new.
async fn start_driver<C: Send + Sync + 'static>(
    agent: Agent<C>,
    origin: RunSource,
    app: Arc<C>,
    mut config: RunConfig<C>,
    cancel: CancelSignal,
    watched: Option<EventSender>,
) -> Result<(Box<Driver<C>>, bool), RunError> {
    let graph = AgentGraph::new(&agent, &config.known_agents)?;
    graph.check_models(config.model.as_ref())?;
    let hooks = std::mem::take(&mut config.hooks);
    let relays_deltas = config.relays_deltas(&agent);
    let opened = open_run(&agent, &graph, origin, &config, &cancel).await?;
    let OpenRun { journal, run, kept, session, warnings, spent_by_others, is_fresh } = opened;
    let journal = Arc::new(journal);
    let ledger = config.given_response.as_ref().map(|given| given.receipt_cache.clone()).unwrap_or_default();
    ledger.restore_receipts(kept.receipts);
    let tools = config.given_response.as_ref().map(|given| given.tools.clone());
    let artefacts = Arc::new(RunArtefacts::new(run.id().clone(), journal.store_and_lease(), run.history()));
    let relay = journal.store_and_lease().filter(|_| relays_deltas);
    let relay = relay.and_then(|(store, lease)| DeltaRelay::new(store, lease));
    let emitter = EventEmitter::new(watched, journal.last_sequence()).with_relay(relay);
    let is_observed = emitter.is_watched() || !hooks.is_empty() || graph.has_hooks();
    let (events, unannounced) = match is_fresh {
        true => Default::default(),
        false => journal.resume_events(is_observed).boxed().await,
    };
    for message in warnings {
        emitter.emit(RunEventKind::Warning { message }).await;
    }
    let run_id = run.id().clone();
    let is_session_in_store = session.as_ref().is_some_and(RunSession::is_in_store);
    let key_scopes = Arc::new(key_scopes(&run_id, run.session(), is_session_in_store, &config));
    let body_permits = config.max_concurrent_calls.map(|limit| Arc::new(Semaphore::new(limit.max(1))));
    let stop = cancel.token.clone();
    let budget = Arc::new(BudgetControl::new(&run, spent_by_others));
    let has_held_calls = !is_fresh && !run.pending_calls().is_empty();
    let mask = config.given_response.as_ref().map(|given| given.mask.clone()).unwrap_or_default();
    let secrets = if is_fresh { SecretRegistry::new(mask) } else { journal.resume_secrets(&run, mask) };
    let recorder = Arc::new(RunRecorder::new(run, journal.clone(), ledger, secrets, events, session));
    let drain = DrainDeadline::new(config.drain_timeout);
    let shared = SharedRunState {
        config,
        recorder: recorder.clone(),
        journal,
        key_scopes,
        artefacts,
        cancel,
        draining_calls: Mutex::default(),
        run_id: run_id.clone(),
        withheld: WithheldOutputs::new(kept.withheld),
        body_permits,
        decisions: DecisionSignal::default(),
        has_held_calls: AtomicBool::new(has_held_calls),
        is_aborted: AtomicBool::new(false),
        budget,
    };
    let (parent_calls, budget) = ([].into(), shared.budget.clone());
    let scope =
        RunScope { app, run_id, parent_calls, recorder, emitter, hooks, is_observed, stop, drain, budget };
    let mut driver = Driver::new(shared.into(), graph, scope);
    (driver.tools, driver.unannounced) = (tools, unannounced);
    Ok((Box::new(driver), is_fresh))
}
