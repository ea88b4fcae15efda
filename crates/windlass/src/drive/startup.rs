//! Start and end of a driver: from the source of the run to its outcome.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use windlass_core::{id::RunId, journal::RunStarted, run::Run};

use super::decision_signal::DecisionSignal;
use super::redaction::SecretRegistry;
use super::run_journal::{LeaseTerms, RunJournal};
use super::withheld::WithheldOutputs;
use super::{DriveEnd, Driver, RunSource, SharedRunState, call_of_output};
use crate::agent::{Agent, AgentGraph};
use crate::artefact::RunArtefacts;
use crate::error::{ConfigError, RunError};
use crate::event::{EventEmitter, EventSender};
use crate::run::{CancelSignal, ExitCallbacks, KeptResults, RunConfig, RunExit, RunResult};

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
    async move {
        let (mut driver, is_fresh) = beginning.await?;
        let driven = driver.start_driving(is_fresh).await;
        driver.at_end.run_callbacks(leave_reason(&driven)).boxed().await;
        let stop = driven?;
        let status = driver.run_status(&stop);
        driver.shared.journal.release_run(status).await?;
        driver.into_outcome(stop)
    }
    .boxed()
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
    let graph = Arc::new(AgentGraph::new(&agent, &config.known_agents)?);
    graph.check_models(config.model.as_ref())?;
    let session = config.session.clone();
    let hooks = std::mem::take(&mut config.hooks);
    let terms = LeaseTerms { lease_duration: config.lease_duration, cancel_on_loss: cancel.clone() };
    let (journal, run, kept, is_fresh) = match origin {
        RunSource::Input(input) => {
            let history = match &session {
                Some(session) => session.items().await.map_err(RunError::Session)?,
                None => Vec::new(),
            };
            let id = config.run_id.clone().unwrap_or_else(|| RunId::new(uuid::Uuid::now_v7().to_string()));
            let started = RunStarted {
                run: id,
                agent: agent.name().clone(),
                history,
                input,
                max_turns: config.max_turns,
                session: session.as_ref().map(|session| session.id().clone()),
                origin: None,
            };
            let run = Run::start(started.clone());
            let journal = RunJournal::create(started, config.store.clone(), terms).await?;
            (journal, run, KeptResults::default(), true)
        }
        RunSource::Paused(paused) => {
            let (record, kept) = paused.into_parts();
            let run = record.run.clone();
            let journal = RunJournal::resume(record, config.store.clone(), terms).await?;
            (journal, run, kept, false)
        }
        RunSource::Stored(run) => {
            let Some(store) = config.store.clone() else { return Err(ConfigError::NoStore { run }.into()) };
            let (journal, replay) = RunJournal::open(&run, store, terms).await?;
            let kept = KeptResults { receipts: replay.receipts, ..KeptResults::default() };
            (journal, replay.run, kept, false)
        }
    };
    let journal = Arc::new(journal);
    let ledger = config.given_response.as_ref().map(|given| given.receipt_cache.clone()).unwrap_or_default();
    ledger.restore_receipts(kept.receipts);
    let tools = config.given_response.as_ref().map(|given| given.tools.clone());
    let artefacts = Arc::new(RunArtefacts::new(run.id().clone(), config.store.clone(), run.history()));
    let emitter = EventEmitter::new(watched, journal.last_sequence());
    let saved = run.settled_item_count();
    let shown = run.open_turn_items().iter().filter_map(call_of_output).collect();
    let run_id = run.id().clone();
    let body_permits = config.max_concurrent_calls.map(|limit| Arc::new(Semaphore::new(limit.max(1))));
    let driver = Driver {
        stop: cancel.token.clone(),
        shared: Arc::new(SharedRunState {
            app,
            config,
            journal,
            receipt_cache: ledger,
            secrets: SecretRegistry::default(),
            artefacts,
            cancel,
            draining_calls: Mutex::default(),
            run_id: run.id().clone(),
            withheld: WithheldOutputs::new(kept.withheld),
            body_permits,
            decisions: DecisionSignal::default(),
            has_held_calls: AtomicBool::new(!is_fresh && !run.pending_calls().is_empty()),
            run: Mutex::new(run),
        }),
        graph,
        parent_calls: [].into(),
        run_id,
        emitter,
        hooks,
        session,
        saved_item_count: saved,
        announced_agent: None,
        tools,
        prepared_calls: VecDeque::new(),
        concurrent_guardrails: Mutex::default(),
        has_run_guardrails: false,
        model_error: None,
        shown_outputs: shown,
        has_worked: false,
        at_end: ExitCallbacks::default(),
    };
    Ok((Box::new(driver), is_fresh))
}

/// Returns the kind of a driver's exit.
pub(super) fn leave_reason(driven: &Result<DriveEnd, RunError>) -> RunExit {
    match driven {
        Ok(DriveEnd::Paused) => RunExit::Paused,
        Ok(DriveEnd::Detached) => RunExit::Detached,
        Ok(DriveEnd::Ended) | Err(_) => RunExit::Ended,
    }
}
