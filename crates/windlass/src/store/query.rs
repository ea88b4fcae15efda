//! Queries for the runs of a store, answered in pages.

use serde::Deserialize;
use windlass_core::{
    id::{AgentName, RunId, SessionId, Timestamp},
    journal::{HistoryReference, JournalLine},
};

use super::{RunStatus, Store, StoredRun};
use crate::error::StoreError;

/// Default number of runs in a page.
const DEFAULT_PAGE_RUNS: u32 = 1_000;

/// A query for runs: the filters, and the page. Every filter that is set must match.
///
/// Runs are listed newest first. The next page begins after the last run of this one:
///
/// ```
/// use windlass::store::{MemoryStore, RunCursor, RunQuery, RunStatus, Store};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = MemoryStore::default();
/// let mut query = RunQuery { statuses: vec![RunStatus::Paused], limit: 50, ..RunQuery::default() };
/// loop {
///     let page = store.list_runs(&query).await?;
///     let Some(last) = page.last() else { break };
///     query.after = Some(RunCursor::from(last));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunQuery {
    /// Statuses of the runs; any status if empty.
    pub statuses: Vec<RunStatus>,
    /// Agent that the runs started with.
    pub agent: Option<AgentName>,
    /// Session of the runs.
    pub session: Option<SessionId>,
    /// Time at or after which the status of the runs last changed.
    pub updated_from: Option<Timestamp>,
    /// Time before which the status of the runs last changed.
    pub updated_before: Option<Timestamp>,
    /// Position after which the page begins; the newest run if absent.
    pub after: Option<RunCursor>,
    /// Maximum number of runs in the page.
    pub limit: u32,
}

impl Default for RunQuery {
    fn default() -> Self {
        Self {
            statuses: Vec::new(),
            agent: None,
            session: None,
            updated_from: None,
            updated_before: None,
            after: None,
            limit: DEFAULT_PAGE_RUNS,
        }
    }
}

impl RunQuery {
    /// Returns true if the run matches all filters but the session, and is after the cursor.
    pub(super) fn matches(&self, run: &StoredRun) -> bool {
        (self.statuses.is_empty() || self.statuses.contains(&run.status))
            && self.agent.as_ref().is_none_or(|agent| run.agent == *agent)
            && self.updated_from.is_none_or(|from| run.updated_at >= from)
            && self.updated_before.is_none_or(|before| run.updated_at < before)
            && self
                .after
                .as_ref()
                .is_none_or(|after| (run.created_at, &run.run) < (after.created_at, &after.run))
    }
}

/// The position of a run in the list of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCursor {
    /// Time of the run's creation.
    pub created_at: Timestamp,
    /// Id of the run.
    pub run: RunId,
}

impl From<&StoredRun> for RunCursor {
    fn from(run: &StoredRun) -> Self {
        Self { created_at: run.created_at, run: run.run.clone() }
    }
}

/// Lists all runs that match the filters of a query, page by page.
///
/// # Errors
///
/// Returns the error of the store.
pub async fn list_all_runs(store: &dyn Store, mut query: RunQuery) -> Result<Vec<StoredRun>, StoreError> {
    let mut runs = Vec::new();
    loop {
        let page = store.list_runs(&query).await?;
        let is_last = page.len() < query.limit.max(1) as usize;
        query.after = page.last().map(RunCursor::from).or(query.after);
        runs.extend(page);
        if is_last {
            return Ok(runs);
        }
    }
}

/// The session of a run, as the first line of its journal names it.
#[derive(Clone, Debug, PartialEq)]
pub struct StartSession {
    /// Id of the session.
    pub session: SessionId,
    /// The items of the session that the run refers to.
    pub history: Option<Box<HistoryReference>>,
}

/// Returns the session that the first line of a journal names. Stores hold it for the run: see [`Store::create_run`].
pub fn session_of_first_line(line: &JournalLine) -> Option<StartSession> {
    /// The part of the first record that names the session.
    #[derive(Deserialize)]
    struct FirstRecord {
        run_started: FirstEntry,
    }
    #[derive(Deserialize)]
    struct FirstEntry {
        session: Option<SessionId>,
        #[serde(default)]
        history: FirstHistory,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum FirstHistory {
        Reference(Box<HistoryReference>),
        Inline(serde::de::IgnoredAny),
    }
    impl Default for FirstHistory {
        fn default() -> Self {
            Self::Inline(serde::de::IgnoredAny)
        }
    }
    let entry = serde_json::from_str::<FirstRecord>(&line.body).ok()?.run_started;
    let history = match entry.history {
        FirstHistory::Reference(reference) => Some(reference),
        FirstHistory::Inline(_) => None,
    };
    Some(StartSession { session: entry.session?, history })
}

/// Returns the status and the time of a run that ends with one of these lines. Lines of nested runs have a path before
/// the event. Stores set the status in the append: see [`DerivedWrites::end_status`](super::DerivedWrites::end_status).
pub fn end_of_run(lines: &[JournalLine]) -> Option<(RunStatus, Timestamp)> {
    lines.iter().rev().find_map(|line| {
        let (at, event) = line.body.strip_prefix("{\"at\":")?.split_once(',')?;
        let status = match event.strip_prefix('"')?.split_once('"')?.0 {
            "run_finished" => RunStatus::Finished,
            "run_failed" => RunStatus::Failed,
            "run_cancelled" => RunStatus::Cancelled,
            _ => return None,
        };
        Some((status, Timestamp(at.parse().ok()?)))
    })
}
