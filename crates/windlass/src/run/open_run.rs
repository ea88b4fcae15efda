//! Opening of a run: from its source to its journal, its state and its session.

use futures_util::FutureExt;
use windlass_core::{
    budget::{BudgetSpending, SessionBudget, SpendingBudget},
    history::keep_pairs,
    id::{RunId, SessionId},
    journal::RunStarted,
    run::Run,
};

use super::{CancelSignal, KeptResults, RunConfig, RunSource};
use crate::agent::{Agent, AgentGraph};
use crate::error::{ConfigError, RunError, StoreError};
use crate::journal::{LeaseTerms, ResumedRun, RunJournal};
use crate::observe::trace_span::record_agent;
use crate::receipts::KeyScopes;
use crate::session::{ForeignSessionHold, RunSession, Session, SessionHold, SessionWait};
use crate::store::{OpenRunError, RunCursor, RunQuery, Store, load_paused};

/// A run that a driver may continue: it holds the lease and the session.
pub(crate) struct OpenRun {
    pub(crate) journal: RunJournal,
    pub(crate) run: Run,
    pub(crate) kept: KeptResults,
    pub(crate) session: Option<RunSession>,
    /// Warnings about pairs of calls and outputs that were broken in the input or in the session.
    pub(crate) warnings: Vec<String>,
    /// The spending of the session's other runs, if the session has a budget.
    pub(crate) spent_by_others: Option<BudgetSpending>,
    pub(crate) is_fresh: bool,
}

/// Opens a run. A run that cannot be opened is released.
pub(crate) async fn open_run<C: Send + Sync + 'static>(
    agent: &Agent<C>,
    graph: &AgentGraph<C>,
    origin: RunSource,
    config: &RunConfig<C>,
    cancel: &CancelSignal,
) -> Result<OpenRun, RunError> {
    let session = config.session.clone();
    let terms = LeaseTerms {
        lease_duration: config.lease_duration,
        observer: config.lease_observer.clone(),
        cancel_on_loss: cancel.clone(),
    };
    let mut warnings = Vec::new();
    let mut broken_pairs = String::new();
    let mut foreign_hold = None;
    let (journal, run, kept, is_fresh) = match origin {
        RunSource::Input(input) => {
            let id = config.run_id.clone().unwrap_or_else(|| RunId::new(uuid::Uuid::now_v7().to_string()));
            graph.check_receipt_scopes(&key_scopes(&id, None, false, config))?;
            check_stored_conversation(agent, config)?;
            let mut started = RunStarted::new(id, agent.name().clone());
            // With an earlier response, the provider may have the other halves of pairs.
            started.input = match &config.previous_response_id {
                Some(_) => input,
                None => {
                    let paired = keep_pairs(input);
                    if !paired.repairs.is_empty() {
                        warnings.push(format!("the input has {}", paired.describe_repairs()));
                    }
                    paired.items
                }
            };
            started.max_turns = graph.turn_limit(config.max_turns);
            started.session = session.as_ref().map(|session| session.id().clone());
            started.previous_response_id = config.previous_response_id.clone();
            started.budget = config.budget.clone().filter(|budget| !budget.is_unlimited()).map(Box::new);
            started.build = Some(agent.compute_build().with_release(config.release.clone()));
            let is_in_store = match (&session, &config.store) {
                (Some(session), Some(store)) => session.is_in_store(&**store),
                _ => false,
            };
            if let Some(session) = session.as_ref().filter(|_| !is_in_store) {
                let (policy, duration) = (config.on_session_busy, config.lease_duration);
                foreign_hold = Some(ForeignSessionHold::acquire(session, policy, duration, cancel).await?);
                check_unused_id(session, &started.run, config).await?;
            }
            let in_store = session.as_ref().map(|session| session.id()).zip(config.store.as_ref());
            let mut wait = SessionWait::new(config.on_session_busy, cancel, in_store);
            let journal = loop {
                if let Some(session) = &session {
                    let history = session.load_history().await.map_err(RunError::Session)?;
                    broken_pairs.clone_from(&history.broken_pairs);
                    started.history = history.into_start(session.id(), is_in_store);
                }
                if let Some(budget) = &config.session_budget {
                    started.session_budget = Some(session_budget(budget, &started, config).await?.into());
                }
                match RunJournal::create(started.clone(), config.store.clone(), terms.clone()).await {
                    Ok(journal) => break journal,
                    Err(error) => wait.wait_after(error).await?,
                }
            };
            (journal, Run::start(started), KeptResults::default(), true)
        }
        RunSource::Paused(paused) => {
            let (run, records, usage, kept) = paused.into_parts()?;
            let given = session.as_ref().or(kept.session.as_ref());
            let source = ResumedRun { run: &run, records, usage, session: given };
            let journal = RunJournal::resume(source, config.store.clone(), terms).await?;
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
        lease_duration: config.lease_duration,
        cancel,
        acquired: foreign_hold,
    };
    let found = async {
        let session = RunSession::find(&run, session, config.store.as_ref(), hold).await?;
        // The run holds its session now: no other run of it spends anything.
        let has_budget = run.budget_ledger().is_some_and(|ledger| ledger.session_budget().is_some());
        let in_store = run.session().zip(config.store.as_ref()).filter(|_| has_budget);
        let spent_by_others = match in_store {
            Some((session, store)) => Some(session_spending(&**store, session, Some(run.id())).await?),
            None => None,
        };
        Ok((session, spent_by_others))
    };
    let (session, spent_by_others) = match found.await {
        Ok(found) => found,
        Err(error) => {
            journal.release_after_failure().boxed().await;
            return Err(error);
        }
    };
    record_agent(run.id(), run.agent());
    if !broken_pairs.is_empty() {
        warnings.push(format!("the session has {broken_pairs}"));
    }
    Ok(OpenRun { journal, run, kept, session, warnings, spent_by_others, is_fresh })
}

/// Checks that a session in another store has no items of an earlier run of the same id: it would not get those of the new
/// run. A session in the store of the run forgets the earlier one when the new one is created.
async fn check_unused_id<C>(session: &Session, run: &RunId, config: &RunConfig<C>) -> Result<(), RunError> {
    if session.run_position(run).await.map_err(RunError::Session)? == 0 {
        return Ok(());
    }
    let is_stored = match &config.store {
        Some(store) => !store.load_journal_page(run, 0, 1).await?.is_empty(),
        None => false,
    };
    // The store refuses to create a run that exists.
    if is_stored { Ok(()) } else { Err(RunError::Session(StoreError::run_id_in_session(session.id(), run))) }
}

/// Returns the budget of the session with what its runs have spent.
async fn session_budget<C>(
    budget: &SpendingBudget,
    started: &RunStarted,
    config: &RunConfig<C>,
) -> Result<SessionBudget, RunError> {
    let is_in_store = match (&config.session, &config.store) {
        (Some(session), Some(store)) => session.is_in_store(&**store),
        _ => false,
    };
    let (Some(store), true) = (&config.store, is_in_store) else {
        return Err(ConfigError::SessionBudgetWithoutStore.into());
    };
    let spent_before = match &started.session {
        Some(session) => session_spending(&**store, session, None).await?,
        None => BudgetSpending::default(),
    };
    Ok(SessionBudget { budget: budget.clone(), spent_before })
}

/// Returns what the runs of a session have spent and reserved, one of them excepted. A parked run may have gone on since
/// later ones began, so that the sum is taken over all journals.
async fn session_spending(
    store: &dyn Store,
    session: &SessionId,
    except: Option<&RunId>,
) -> Result<BudgetSpending, RunError> {
    let mut query = RunQuery { session: Some(session.clone()), ..RunQuery::default() };
    let mut sum = BudgetSpending::default();
    loop {
        let page = store.list_runs(&query).await?;
        let Some(last) = page.last() else { return Ok(sum) };
        query.after = Some(RunCursor::from(last));
        for stored in page.iter().filter(|stored| Some(&stored.run) != except) {
            let paused = load_paused(store, &stored.run).await.map_err(|source| match source {
                OpenRunError::Store(error) => error,
                // It is no fault of the run that is opened.
                source => StoreError::new(format!("the spending of run `{}` is not known", stored.run))
                    .with_source(source),
            })?;
            sum.add(&match paused.record().state().budget_ledger() {
                Some(ledger) => ledger.committed(),
                None => BudgetSpending::of_usage(paused.record().usage(), None),
            });
        }
    }
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
pub(crate) fn key_scopes<C>(
    run: &RunId,
    recorded: Option<&SessionId>,
    is_session_in_store: bool,
    config: &RunConfig<C>,
) -> KeyScopes {
    let conversation = config.given_response.as_ref().and_then(|given| given.conversation.clone());
    let session = recorded.or_else(|| config.session.as_ref().map(|session| session.id())).cloned();
    KeyScopes::new(run.clone(), conversation, session, is_session_in_store, config.store.clone())
}
