//! The state that the drivers of one run share, made when the run is opened.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use windlass_core::id::{CallId, CallPath, RunId};

use super::{
    BudgetControl, CancelSignal, KeptResults, OpenRun, RunConfig, RunExit, RunRecord, RunResult, RunScope,
    RunSource, key_scopes, open_run,
};
use crate::agent::{Agent, AgentGraph};
use crate::artefact::RunArtefacts;
use crate::error::RunError;
use crate::event::{EventEmitter, EventSender, RunEventKind};
use crate::journal::{RunJournal, RunRecorder, WithheldOutputs};
use crate::lock_unpoisoned;
use crate::model::ModelError;
use crate::observe::UnannouncedRecord;
use crate::receipts::{BodyLimit, KeyScopes, LateConflictKeys};
use crate::redaction::SecretRegistry;
use crate::session::RunSession;
use crate::store::DeltaRelay;
use crate::tasks::{DecisionSignal, DrainDeadline};

/// The state that the drivers of one run share: the outermost driver and those of nested agents.
pub(crate) struct SharedRunState<C> {
    pub(crate) config: RunConfig<C>,
    pub(crate) journal: Arc<RunJournal>,
    pub(crate) recorder: Arc<RunRecorder>,
    pub(crate) key_scopes: Arc<KeyScopes>,
    pub(crate) artefacts: Arc<RunArtefacts>,
    pub(crate) cancel: CancelSignal,
    pub(crate) draining_calls: Mutex<Vec<CallPath>>,
    pub(crate) run_id: RunId,
    pub(crate) withheld: WithheldOutputs,
    /// Limit on the bodies of the whole run, nested agents included.
    pub(crate) body_limit: Option<Arc<BodyLimit>>,
    pub(crate) late_keys: Arc<LateConflictKeys>,
    pub(crate) decisions: DecisionSignal,
    /// True if a call may wait for a person.
    pub(crate) has_held_calls: AtomicBool,
    /// True if a driver cannot continue: the run keeps its state, for a later one.
    pub(crate) is_aborted: AtomicBool,
    /// The requests that are under way, for budgets.
    pub(crate) budget: Arc<BudgetControl>,
}

/// A run that was opened for its outermost driver.
pub(crate) struct OpenedRun<C> {
    pub(crate) shared: Arc<SharedRunState<C>>,
    pub(crate) scope: RunScope<C>,
    /// Records that the last driver of the run may not have announced.
    pub(crate) unannounced: Vec<UnannouncedRecord>,
    pub(crate) is_fresh: bool,
}

impl<C: Send + Sync + 'static> SharedRunState<C> {
    /// Opens a run, with the state of its drivers and the scope of the outermost one.
    pub(crate) async fn open(
        agent: &Agent<C>,
        graph: &AgentGraph<C>,
        origin: RunSource,
        app: Arc<C>,
        mut config: RunConfig<C>,
        cancel: CancelSignal,
        watched: Option<EventSender>,
    ) -> Result<OpenedRun<C>, RunError> {
        let hooks = std::mem::take(&mut config.hooks);
        let relays_deltas = config.relays_deltas(agent);
        let opened = open_run(agent, graph, origin, &config, &cancel).await?;
        let OpenRun { journal, run, kept, session, warnings, spent_by_others, is_fresh } = opened;
        let journal = Arc::new(journal);
        let ledger =
            config.given_response.as_ref().map(|given| given.receipt_cache.clone()).unwrap_or_default();
        ledger.restore_receipts(kept.receipts);
        let artefacts =
            Arc::new(RunArtefacts::new(run.id().clone(), journal.store_and_lease(), run.history()));
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
        let key_scopes = Arc::new(key_scopes(&run, is_session_in_store, &config));
        let body_limit = config.max_concurrent_calls.map(BodyLimit::new);
        let late_keys =
            config.given_response.as_ref().map(|given| given.late_keys.clone()).unwrap_or_default();
        let stop = cancel.token.clone();
        let budget = Arc::new(BudgetControl::new(&run, spent_by_others));
        let has_held_calls = !is_fresh && !run.pending_calls().is_empty();
        let mask = config.given_response.as_ref().map(|given| given.mask.clone()).unwrap_or_default();
        let secrets = if is_fresh { SecretRegistry::new(mask) } else { journal.resume_secrets(&run, mask) };
        let recorder = Arc::new(RunRecorder::new(run, journal.clone(), ledger, secrets, events, session));
        let drain = DrainDeadline::new(config.drain_timeout);
        let shared = Self {
            config,
            recorder: recorder.clone(),
            journal,
            key_scopes,
            artefacts,
            cancel,
            draining_calls: Mutex::default(),
            run_id: run_id.clone(),
            withheld: WithheldOutputs::new(kept.withheld),
            body_limit,
            late_keys,
            decisions: DecisionSignal::default(),
            has_held_calls: AtomicBool::new(has_held_calls),
            is_aborted: AtomicBool::new(false),
            budget,
        };
        let (parent_calls, budget) = ([].into(), shared.budget.clone());
        let scope = RunScope {
            app,
            run_id,
            parent_calls,
            recorder,
            emitter,
            hooks,
            is_observed,
            stop,
            drain,
            budget,
        };
        Ok(OpenedRun { shared: shared.into(), scope, unannounced, is_fresh })
    }

    /// Takes the calls of a run whose bodies still run. Those of the runs around it and inside its calls stay.
    pub(crate) fn take_draining_calls(&self, parent_calls: &[CallId]) -> Vec<CallId> {
        let mut all = lock_unpoisoned(&self.draining_calls);
        let own = all.extract_if(.., |path| path.parent_calls() == parent_calls);
        own.map(|path| path.call().clone()).collect()
    }

    /// Returns the result of a run that its driver leaves.
    pub(crate) fn take_result(
        &self,
        exit: RunExit,
        model_error: Option<Box<ModelError>>,
    ) -> Result<RunResult, RunError> {
        let recorder = &self.recorder;
        let (records, usage) = self.journal.take_records();
        let record = RunRecord { run: recorder.take_run().into(), records, usage };
        let kept = KeptResults {
            receipts: recorder.receipt_cache.all_receipts(),
            withheld: self.withheld.in_memory(),
            session: recorder.session().map(|session| session.session().clone()),
            mac_keys: self.config.store.as_ref().and_then(|store| store.mac_keys().cloned()),
            approvers: self.config.store.as_ref().and_then(|store| store.approvers().cloned()),
        };
        RunResult::after_exit(exit, record, kept, model_error.map(|error| *error))
    }
}
