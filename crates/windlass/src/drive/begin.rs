//! A driver from its beginning to its outcome.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{Run, RunId, Started};

use super::journal::{Journal, Terms};
use super::secret::Secrets;
use super::{Driver, Origin, Shared, Stop, output_of};
use crate::agent::{Agent, Graph};
use crate::artefact::Artefacts;
use crate::error::{ConfigError, RunError};
use crate::event::{Emitter, Watched};
use crate::run::{AtEnd, Cancel, Leaving, Outcome, RunConfig};

/// Runs an agent from its origin to an outcome.
pub(crate) fn run<C: Send + Sync + 'static>(
    agent: Agent<C>,
    origin: Origin,
    app: Arc<C>,
    config: RunConfig<C>,
    cancel: Cancel,
    watched: Option<Watched>,
) -> BoxFuture<'static, Result<Outcome, RunError>> {
    // What it takes to begin is not held on to while the run goes on.
    let beginning = begin(agent, origin, app, config, cancel, watched).boxed();
    async move {
        let (mut driver, is_fresh) = beginning.await?;
        let driven = driver.drive_from(is_fresh).await;
        driver.at_end.run(leaving(&driven)).boxed().await;
        let stop = driven?;
        let status = driver.status(&stop);
        driver.shared.journal.leave(status).await?;
        driver.outcome(stop)
    }
    .boxed()
}

/// The driver of a run, and whether the run is a new one.
async fn begin<C: Send + Sync + 'static>(
    agent: Agent<C>,
    origin: Origin,
    app: Arc<C>,
    mut config: RunConfig<C>,
    cancel: Cancel,
    watched: Option<Watched>,
) -> Result<(Box<Driver<C>>, bool), RunError> {
    let graph = Arc::new(Graph::new(&agent, &config.agents)?);
    graph.check_models(config.model.as_ref())?;
    let session = config.session.clone();
    let hooks = std::mem::take(&mut config.hooks);
    let terms = Terms { lasting: config.lease, lost: cancel.clone() };
    let (journal, run, receipts, is_fresh) = match origin {
        Origin::Input(input) => {
            let history = match &session {
                Some(session) => session.items().await.map_err(RunError::Session)?,
                None => Vec::new(),
            };
            let id = config.run_id.clone().unwrap_or_else(|| RunId::new(uuid::Uuid::now_v7().to_string()));
            let started = Started {
                run: id,
                agent: agent.name().clone(),
                history,
                input,
                max_turns: config.max_turns,
                session: session.as_ref().map(|session| session.id().clone()),
                origin: None,
            };
            let run = Run::start(started.clone());
            let journal = Journal::begin(started, config.store.clone(), terms).await?;
            (journal, run, BTreeMap::new(), true)
        }
        Origin::Paused(paused) => {
            let (record, receipts) = paused.into_parts();
            let run = record.run.clone();
            let journal = Journal::resume(record, config.store.clone(), terms).await?;
            (journal, run, receipts, false)
        }
        Origin::Stored(run) => {
            let Some(store) = config.store.clone() else { return Err(ConfigError::NoStore { run }.into()) };
            let (journal, replay) = Journal::open(&run, store, terms).await?;
            (journal, replay.run, replay.receipts, false)
        }
    };
    let journal = Arc::new(journal);
    let ledger = config.given.as_ref().map(|given| given.ledger.clone()).unwrap_or_default();
    ledger.take_in(receipts);
    let tools = config.given.as_ref().map(|given| given.tools.clone());
    let artefacts = Arc::new(Artefacts::new(run.id().clone(), config.store.clone(), run.history()));
    let emitter = Emitter::new(watched, journal.sequence());
    let saved = run.settled_len();
    let shown = run.produced_in_open_turn().iter().filter_map(output_of).collect();
    let driver = Driver {
        stop: cancel.now.clone(),
        shared: Arc::new(Shared {
            app,
            config,
            journal,
            ledger,
            secrets: Secrets::default(),
            artefacts,
            cancel,
            draining: Mutex::default(),
        }),
        graph,
        path: [].into(),
        run_id: run.id().clone(),
        run: Mutex::new(run),
        emitter,
        hooks,
        session,
        saved,
        greeted: None,
        tools,
        ready: VecDeque::new(),
        overlap: Mutex::default(),
        guarded: false,
        model_error: None,
        shown,
        at_end: AtEnd::default(),
    };
    Ok((Box::new(driver), is_fresh))
}

/// How a driver leaves its run.
pub(super) fn leaving(driven: &Result<Stop, RunError>) -> Leaving {
    match driven {
        Ok(Stop::Paused) => Leaving::Paused,
        Ok(Stop::Left) => Leaving::HandedOver,
        Ok(Stop::Over) | Err(_) => Leaving::Over,
    }
}
