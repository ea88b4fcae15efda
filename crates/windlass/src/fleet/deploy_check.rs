//! The check before a deploy: could these agents finish a run that others have begun?

use windlass_core::id::RunId;
use windlass_core::journal::{AgentBuild, JournalEntry, RunStarted, decode_record};

use super::registry::AgentRegistry;
use crate::agent::check_open_run;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{OpenRunError, Store, load_paused};

/// The verdict of [`check_run`] about a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunVerdict {
    /// The run has ended.
    Ended,
    /// The same build has begun the run.
    SameBuild,
    /// Another build has begun the run, and this one can go on from where it is.
    OtherBuild {
        /// The build that has begun the run, if it is recorded.
        begun_by: Option<AgentBuild>,
    },
    /// This build cannot finish the run: a worker of another build must stay for it.
    CannotFinish {
        /// The build that has begun the run, if it is recorded.
        begun_by: Option<AgentBuild>,
        /// Reason.
        reason: String,
    },
}

/// Says if the agents of a registry could finish a stored run from where it is. Nothing is executed or changed.
///
/// The agent of the run must be deployed and reach the agent that the run is at; the tools of its open calls must be there,
/// also of calls that wait for a person, and accept their arguments. The tools of tool sources are only known at run time
/// and are not checked.
///
/// # Errors
///
/// Returns the error of the store.
pub async fn check_run<C: Send + Sync + 'static>(
    store: &dyn Store,
    run: &RunId,
    registry: &AgentRegistry<C>,
) -> Result<RunVerdict, StoreError> {
    let started = load_start(store, run).await?;
    let begun_by = started.as_ref().and_then(|started| started.build.clone());
    let cannot_finish = |reason: String| RunVerdict::CannotFinish { begun_by: begun_by.clone(), reason };
    let paused = match load_paused(store, run).await {
        Ok(paused) => paused,
        Err(OpenRunError::Store(error)) if error.kind() != StoreErrorKind::UnsupportedVersion => {
            return Err(error);
        }
        Err(error) => return Ok(cannot_finish(error.to_string())),
    };
    let state = paused.record().outline();
    if state.outcome().is_some() {
        return Ok(RunVerdict::Ended);
    }
    let agent = started.map_or_else(|| state.agent().clone(), |started| started.agent);
    let Some(deployed) = registry.find_agent(&agent) else {
        return Ok(cannot_finish(format!("agent `{agent}` is not deployed")));
    };
    let checked = deployed.check_release(run, begun_by.as_ref());
    if let Err(error) = checked.and_then(|()| check_open_run(state, &deployed.agent, &deployed.known_agents))
    {
        return Ok(cannot_finish(error.to_string()));
    }
    Ok(match begun_by {
        Some(begun_by) if begun_by.digest == deployed.build.digest => RunVerdict::SameBuild,
        begun_by => RunVerdict::OtherBuild { begun_by },
    })
}

/// Loads the start of a run; `None` if this version cannot read it, or there is none.
pub(super) async fn load_start(
    store: &dyn Store,
    run: &RunId,
) -> Result<Option<Box<RunStarted>>, StoreError> {
    let lines = store.load_journal_page(run, 0, 1).await?;
    let record = lines.first().and_then(|line| decode_record(0, &line.body).ok());
    Ok(record.and_then(|record| match record.entry {
        JournalEntry::RunStarted(started) => Some(started),
        _ => None,
    }))
}
