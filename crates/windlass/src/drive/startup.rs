//! Start and end of a driver: from the source of the run to its outcome.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use windlass_core::{
    id::{RunId, SessionId},
    journal::RunStarted,
    run::Run,
};

use super::decision_signal::DecisionSignal;
use super::run_session::{RunSession, SessionHold};
use super::session_hold::{LocalSessionHold, SessionWait};
use super::{DriveEnd, Driver, RunSource, SharedRunState};
use crate::agent::{Agent, AgentGraph};
use crate::artefact::RunArtefacts;
use crate::error::{ConfigError, RunError};
use crate::event::{EventEmitter, EventSender, RunEventKind};
use crate::journal::{LeaseTerms, RunJournal, WithheldOutputs};
use crate::receipts::KeyScopes;
use crate::redaction::SecretRegistry;
use crate::run::{CancelSignal, KeptResults, RunConfig, RunExit, RunResult};
use crate::tasks::WokenRun;

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
    let run = async move {
        let (mut driver, is_fresh) = beginning.await?;
        let driven = async {
            if !is_fresh {
                let withheld = driver.with_root(|run| run.withheld_calls());
                let SharedRunState { withheld: outputs, journal, .. } = &*driver.shared;
                outputs.save_brought_along(journal).boxed().await.map_err(RunError::Store)?;
                outputs.erase_leftovers(journal, &withheld).boxed().await.map_err(RunError::Store)?;
            }
            let driven = driver.start_driving(is_fresh).await;
            driver.at_end.run_callbacks(leave_reason(&driven)).boxed().await;
            let stop = driven?;
            if !matches!(stop, DriveEnd::Ended) {
                driver.shared.journal.mark_announced(driver.is_observed).boxed().await;
                let withheld = driver.with_root(|run| run.withheld_calls());
                let SharedRunState { withheld: outputs, journal, .. } = &*driver.shared;
                outputs.take_along(journal, withheld).boxed().await.map_err(RunError::Store)?;
            }
            let status = driver.run_status(&stop);
            driver.shared.journal.release_run(status).await?;
            Ok(stop)
        }
        .await;
        match driven {
            Ok(stop) => driver.into_outcome(stop),
            Err(error) => {
                driver.shared.journal.release_after_failure().boxed().await;
                Err(error)
            }
        }
    }
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
    let session = config.session.clone();
    let hooks = std::mem::take(&mut config.hooks);
    let terms = LeaseTerms {
        lease_duration: config.lease_duration,
        observer: config.lease_observer.clone(),
        cancel_on_loss: cancel.clone(),
    };
    let mut session_warning = None;
    let mut local_hold = None;
    let (journal, run, kept, is_fresh) = match origin {
        RunSource::Input(input) => {
            let id = config.run_id.clone().unwrap_or_else(|| RunId::new(uuid::Uuid::now_v7().to_string()));
            graph.check_receipt_scopes(&key_scopes(&id, None, &config))?;
            check_stored_conversation(&agent, &config)?;
            let mut started = RunStarted::new(id, agent.name().clone());
            (started.input, started.max_turns) = (input, config.max_turns);
            started.session = session.as_ref().map(|session| session.id().clone());
            started.previous_response_id = config.previous_response_id.clone();
            let is_in_store = match (&session, &config.store) {
                (Some(session), Some(store)) => session.is_in_store(&**store),
                _ => false,
            };
            if let Some(session) = session.as_ref().filter(|_| !is_in_store) {
                local_hold = Some(LocalSessionHold::acquire(session, config.on_session_busy, &cancel).await?);
            }
            let in_store = session.as_ref().map(|session| session.id()).zip(config.store.as_ref());
            let mut wait = SessionWait::new(config.on_session_busy, &cancel, in_store);
            let journal = loop {
                if let Some(session) = &session {
                    let history = session.load_history().await.map_err(RunError::Session)?;
                    session_warning = (!history.removed.is_empty()).then(|| history.removed.clone());
                    started.history = history.into_start(session.id(), is_in_store);
                }
                match RunJournal::create(started.clone(), config.store.clone(), terms.clone()).await {
                    Ok(journal) => break journal,
                    Err(error) => wait.wait_after(error).await?,
                }
            };
            (journal, Run::start(started), KeptResults::default(), true)
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
    let session = session.or_else(|| kept.session.clone());
    let hold = SessionHold {
        journal: &journal,
        policy: config.on_session_busy,
        cancel: &cancel,
        acquired: local_hold,
    };
    let session = match RunSession::find(&run, session, config.store.as_ref(), hold).await {
        Ok(session) => session,
        Err(error) => {
            journal.release_after_failure().boxed().await;
            return Err(error);
        }
    };
    let journal = Arc::new(journal);
    let ledger = config.given_response.as_ref().map(|given| given.receipt_cache.clone()).unwrap_or_default();
    ledger.restore_receipts(kept.receipts);
    let tools = config.given_response.as_ref().map(|given| given.tools.clone());
    let artefacts = Arc::new(RunArtefacts::new(run.id().clone(), journal.store_and_lease(), run.history()));
    for (name, body) in &config.artefacts {
        artefacts.save(name, body).await?;
    }
    let emitter = EventEmitter::new(watched, journal.last_sequence());
    let is_observed = emitter.is_watched() || !hooks.is_empty() || graph.has_hooks();
    let (events, unannounced) = match is_fresh {
        true => Default::default(),
        false => journal.resume_events(is_observed).boxed().await,
    };
    if let Some(left_out) = session_warning {
        let message = format!("the session has {left_out}");
        emitter.emit(RunEventKind::Warning { message }).await;
    }
    let run_id = run.id().clone();
    let key_scopes = Arc::new(key_scopes(&run_id, run.session(), &config));
    let body_permits = config.max_concurrent_calls.map(|limit| Arc::new(Semaphore::new(limit.max(1))));
    let stop = cancel.token.clone();
    let shared = SharedRunState {
        app,
        config,
        journal,
        receipt_cache: ledger,
        key_scopes,
        secrets: SecretRegistry::default(),
        artefacts,
        cancel,
        draining_calls: Mutex::default(),
        run_id: run_id.clone(),
        withheld: WithheldOutputs::new(kept.withheld),
        body_permits,
        decisions: DecisionSignal::default(),
        has_held_calls: AtomicBool::new(!is_fresh && !run.pending_calls().is_empty()),
        run: Mutex::new(run),
        events,
    };
    let mut driver = Driver::new(shared.into(), graph, ([].into(), run_id), emitter, stop, hooks);
    (driver.session, driver.tools, driver.unannounced) = (session, tools, unannounced);
    Ok((Box::new(driver), is_fresh))
}

/// Checks that a run that continues a conversation of its provider needs no other store for it.
fn check_stored_conversation<C: Send + Sync + 'static>(
    agent: &Agent<C>,
    config: &RunConfig<C>,
) -> Result<(), ConfigError> {
    let other = match &config.previous_response_id {
        None => return Ok(()),
        Some(_) if config.session.is_some() => "a session",
        // The provider would keep an output that a guardrail blocked.
        Some(_) if agent.has_output_guardrails() || !config.output_guardrails.is_empty() => {
            "output guardrails"
        }
        Some(_) => return Ok(()),
    };
    Err(ConfigError::StoredConversation { other })
}

/// Returns the scopes of a run's idempotency keys. `recorded` is the session in the journal, which the caller of a resumed
/// run may have left out.
fn key_scopes<C>(run: &RunId, recorded: Option<&SessionId>, config: &RunConfig<C>) -> KeyScopes {
    let conversation = config.given_response.as_ref().and_then(|given| given.conversation.clone());
    let session = recorded.or_else(|| config.session.as_ref().map(|session| session.id())).cloned();
    KeyScopes::new(run.clone(), conversation, session, config.store.clone())
}

/// Returns the kind of a driver's exit.
pub(super) fn leave_reason(driven: &Result<DriveEnd, RunError>) -> RunExit {
    match driven {
        Ok(DriveEnd::Paused) => RunExit::Paused,
        Ok(DriveEnd::Detached) => RunExit::Detached,
        Ok(DriveEnd::Ended) | Err(_) => RunExit::Ended,
    }
}
