//! Lists of runs: filters, search and pages, and the rights of a person to one run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::core::{
    id::{AgentName, RunId, SessionId, Timestamp},
    run::{Run, RunEnd},
};
use windlass::fleet::{QueueFilter, QueuedRun, RunQueue};
use windlass::store::{RunCursor, RunQuery, RunStatus, Store, StoredRun};

use super::{ApiError, RequestPerson, UrlQuery};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::ServerState;

/// Maximum number of runs, records or items in a page.
pub(crate) const MAX_PAGE: u32 = 500;
/// Largest time in a query: the largest whole number that every JSON reader keeps.
const MAX_TIME: u64 = (1 << 53) - 1;
/// Number of runs in a page of a listing that is searched.
const PAGE_RUNS: u32 = 1_000;
/// Status of a run that no worker has started.
const QUEUED: &str = "queued";
/// Number of runs that a search looks at in one request.
const MAX_SEARCHED: usize = 20_000;

/// A run in a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RunSummary {
    /// Id of the run.
    pub(crate) run: String,
    /// Agent that the run started with.
    pub(crate) agent: String,
    /// `queued`, `running`, `paused`, `finished`, `failed` or `cancelled`.
    #[schemars(extend("enum" = ["queued", "running", "paused", "finished", "failed", "cancelled"]))]
    pub(crate) status: String,
    /// Number of records in the journal.
    pub(crate) records: u64,
    /// Time of creation in milliseconds since 1970; absent for a run that is queued.
    pub(crate) created_at: Option<u64>,
    /// Time of the last change of the status in milliseconds since 1970; absent for a run that is queued.
    pub(crate) updated_at: Option<u64>,
    /// Time before which a queued run does not start, in milliseconds since 1970.
    pub(crate) start_at: Option<u64>,
    /// Owner of the lease, if somebody drives the run.
    pub(crate) driver: Option<String>,
}

impl From<&StoredRun> for RunSummary {
    fn from(stored: &StoredRun) -> Self {
        Self {
            run: stored.run.as_str().to_owned(),
            agent: stored.agent.as_str().to_owned(),
            status: status_name(stored.status).to_owned(),
            records: stored.record_count,
            created_at: Some(stored.created_at.0),
            updated_at: Some(stored.updated_at.0),
            start_at: None,
            driver: stored.lease.as_ref().map(|lease| lease.owner.clone()),
        }
    }
}

impl From<&QueuedRun> for RunSummary {
    fn from(queued: &QueuedRun) -> Self {
        let submission = &queued.submission;
        Self {
            run: submission.run.as_str().to_owned(),
            agent: submission.agent.as_str().to_owned(),
            status: QUEUED.to_owned(),
            records: 0,
            created_at: None,
            updated_at: None,
            start_at: submission.start_at.map(|time| time.0),
            driver: None,
        }
    }
}

fn status_name(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Running => "running",
        RunStatus::Paused => "paused",
        RunStatus::Finished => "finished",
        RunStatus::Failed => "failed",
        RunStatus::Cancelled => "cancelled",
    }
}

/// Returns the status that a run has by its journal.
pub(crate) fn run_status(run: &Run) -> &'static str {
    match run.outcome() {
        Some(RunEnd::Finished(_)) => "finished",
        Some(RunEnd::Failed(_)) => "failed",
        Some(RunEnd::Cancelled) => "cancelled",
        None if run.is_paused() => "paused",
        None => "running",
    }
}

/// A page of runs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunPage {
    /// The runs: first those that are queued, by their ids, and then the others, newest first.
    pub(crate) runs: Vec<RunSummary>,
    /// Cursor of the next page; absent on the last one.
    pub(crate) next: Option<String>,
}

/// The filters and the page of a list of runs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunListQuery {
    /// Statuses, separated by commas.
    #[schemars(regex(pattern = r"^((queued|running|paused|finished|failed|cancelled)(,|$))*$"))]
    pub(crate) status: Option<String>,
    /// Agent that the runs started with.
    pub(crate) agent: Option<String>,
    /// Session of the runs.
    pub(crate) session: Option<String>,
    /// Text that the id of the run, or the name of the agent that it started with, contains.
    pub(crate) search: Option<String>,
    /// Time in milliseconds since 1970 at or after which the status last changed.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    pub(crate) updated_from: Option<u64>,
    /// Time in milliseconds since 1970 before which the status last changed.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    pub(crate) updated_before: Option<u64>,
    /// Cursor: `next` of the page before.
    #[schemars(regex(pattern = r"^(([0-9]{1,15}|queued)\..+)?$"))]
    pub(crate) after: Option<String>,
    /// Maximum number of runs.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<u32>,
}

pub(super) async fn list_runs(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<RunListQuery>,
) -> Result<Json<RunPage>, ApiError> {
    list_runs_page(&state, &person, &asked).await.map(Json)
}

/// Checks the size of a page.
pub(crate) fn page_size(asked: Option<u32>, default: u32) -> Result<u32, ApiError> {
    match asked {
        None => Ok(default),
        Some(limit @ 1..=MAX_PAGE) => Ok(limit),
        Some(_) => Err(ApiError::invalid(format!("`limit` is from 1 to {MAX_PAGE}"))),
    }
}

/// The position after which a page begins.
enum PagePosition {
    /// Behind a queued run.
    Queued(RunId),
    /// Behind a stored run.
    Stored(RunCursor),
}

impl PagePosition {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let wrong = || ApiError::invalid("`after` is not a cursor");
        let (time, run) = text.split_once('.').ok_or_else(wrong)?;
        if time == QUEUED {
            return Ok(Self::Queued(RunId::from(run)));
        }
        let created_at = Timestamp(time.parse().map_err(|_| wrong())?);
        Ok(Self::Stored(RunCursor { created_at, run: RunId::from(run) }))
    }

    fn write(&self) -> String {
        match self {
            Self::Queued(run) => format!("{QUEUED}.{run}"),
            Self::Stored(cursor) => format!("{}.{}", cursor.created_at.0, cursor.run),
        }
    }
}

/// Reads the statuses of a filter: whether queued runs are among them, and those of stored runs; all statuses if there are
/// none.
fn parse_statuses(text: Option<&str>) -> Result<(bool, Option<Vec<RunStatus>>), ApiError> {
    let names: Vec<&str> =
        text.iter().flat_map(|text| text.split(',')).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        return Ok((true, Some(Vec::new())));
    }
    let stored = names.iter().filter(|name| **name != QUEUED).map(|name| match *name {
        "running" => Ok(RunStatus::Running),
        "paused" => Ok(RunStatus::Paused),
        "finished" => Ok(RunStatus::Finished),
        "failed" => Ok(RunStatus::Failed),
        "cancelled" => Ok(RunStatus::Cancelled),
        _ => Err(ApiError::invalid("`status` is queued, running, paused, finished, failed or cancelled")),
    });
    let stored = stored.collect::<Result<Vec<_>, _>>()?;
    Ok((names.contains(&QUEUED), (!stored.is_empty()).then_some(stored)))
}

/// Lists the runs that a person may see.
pub(crate) async fn list_runs_page(
    state: &ServerState,
    person: &PersonIdentity,
    asked: &RunListQuery,
) -> Result<RunPage, ApiError> {
    let mut listing = RunListing::new(state, person, asked)?;
    let (has_queued, stored_statuses) = parse_statuses(asked.status.as_deref())?;
    let after =
        asked.after.as_deref().filter(|text| !text.is_empty()).map(PagePosition::parse).transpose()?;
    let (after_queued, after_stored) = match after {
        None => (Some(None), None),
        Some(PagePosition::Queued(run)) => (Some(Some(run)), None),
        Some(PagePosition::Stored(cursor)) => (None, Some(cursor)),
    };
    // A queued run has no time of a status.
    let has_times = asked.updated_from.is_some() || asked.updated_before.is_some();
    if let Some(after) = after_queued.filter(|_| has_queued && !has_times) {
        listing.add_queued(after).await?;
    }
    if let Some(statuses) = stored_statuses.filter(|_| listing.next.is_none()) {
        listing.add_stored(statuses, after_stored).await?;
    }
    let RunListing { runs, next, .. } = listing;
    Ok(RunPage { runs, next: next.map(|next| next.write()) })
}

/// A page that is being filled.
struct RunListing<'a> {
    state: &'a ServerState,
    person: &'a PersonIdentity,
    asked: &'a RunListQuery,
    limit: usize,
    /// Number of runs that were looked at.
    searched: usize,
    runs: Vec<RunSummary>,
    /// The position after which the next page begins. The page is full if there is one.
    next: Option<PagePosition>,
}

impl<'a> RunListing<'a> {
    fn new(
        state: &'a ServerState,
        person: &'a PersonIdentity,
        asked: &'a RunListQuery,
    ) -> Result<Self, ApiError> {
        let limit = page_size(asked.limit, 50)? as usize;
        if asked.updated_from.max(asked.updated_before).is_some_and(|time| time > MAX_TIME) {
            return Err(ApiError::invalid("a time is at most 2^53 - 1"));
        }
        Ok(Self { state, person, asked, limit, searched: 0, runs: Vec::new(), next: None })
    }

    fn agent(&self) -> Option<AgentName> {
        self.asked.agent.as_deref().filter(|name| !name.is_empty()).map(AgentName::from)
    }

    fn session(&self) -> Option<SessionId> {
        self.asked.session.as_deref().filter(|name| !name.is_empty()).map(SessionId::from)
    }

    /// Returns true if the person may see a run that the search has found.
    fn is_wanted(&self, run: &RunId, agent: &AgentName) -> bool {
        self.person.may(AccessRole::View, agent)
            && self
                .asked
                .search
                .as_deref()
                .is_none_or(|text| run.as_str().contains(text) || agent.as_str().contains(text))
    }

    /// Adds a run that was looked at, if it is wanted; returns true if the page is full or enough runs were looked at.
    fn add(&mut self, wanted: Option<RunSummary>, position: impl FnOnce() -> PagePosition) -> bool {
        self.searched += 1;
        self.runs.extend(wanted);
        let is_full = self.runs.len() == self.limit || self.searched >= MAX_SEARCHED;
        if is_full {
            self.next = Some(position());
        }
        is_full
    }

    /// Adds the runs that no worker has started.
    async fn add_queued(&mut self, mut after: Option<RunId>) -> Result<(), ApiError> {
        let (agent, session) = (self.agent(), self.session());
        loop {
            let page =
                self.state.queue.list_queued_runs(QueueFilter::NotStarted, after.as_ref(), PAGE_RUNS).await?;
            for queued in &page {
                let submission = &queued.submission;
                let matches = agent.as_ref().is_none_or(|agent| submission.agent == *agent)
                    && (session.is_none() || submission.session == session)
                    && self.is_wanted(&submission.run, &submission.agent);
                let wanted = matches.then(|| RunSummary::from(queued));
                if self.add(wanted, || PagePosition::Queued(submission.run.clone())) {
                    return Ok(());
                }
            }
            if page.len() < PAGE_RUNS as usize {
                return Ok(());
            }
            after = page.last().map(|last| last.submission.run.clone());
        }
    }

    /// Adds the runs that have a journal.
    async fn add_stored(
        &mut self,
        statuses: Vec<RunStatus>,
        after: Option<RunCursor>,
    ) -> Result<(), ApiError> {
        let is_searched = self.asked.search.is_some() || !self.person.may_everywhere(AccessRole::View);
        let room = u32::try_from(self.limit - self.runs.len()).unwrap_or(MAX_PAGE);
        let mut query = RunQuery {
            statuses,
            agent: self.agent(),
            session: self.session(),
            updated_from: self.asked.updated_from.map(Timestamp),
            updated_before: self.asked.updated_before.map(Timestamp),
            after,
            limit: if is_searched { PAGE_RUNS } else { room },
        };
        loop {
            let page = self.state.queue.list_runs(&query).await?;
            for stored in &page {
                let wanted = self.is_wanted(&stored.run, &stored.agent).then(|| RunSummary::from(stored));
                if self.add(wanted, || PagePosition::Stored(RunCursor::from(stored))) {
                    return Ok(());
                }
            }
            if page.len() < query.limit as usize {
                return Ok(());
            }
            query.after = page.last().map(RunCursor::from);
        }
    }
}

/// Returns the agent of a run that a person may see.
///
/// # Errors
///
/// A run that the person may not see does not exist for them. For other rights than viewing, the error says that the right
/// is missing.
pub(crate) async fn find_viewable_run(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    role: AccessRole,
) -> Result<(RunId, AgentName), ApiError> {
    let id = RunId::from(run);
    let agent = match state.load_first_agent(&id).await? {
        Some(agent) => Some(agent),
        None => state.queue.load_queued_run(&id).await?.map(|queued| queued.submission.agent),
    };
    let agent = agent.filter(|agent| person.may(AccessRole::View, agent));
    let agent = agent.ok_or_else(|| ApiError::run_not_found(run))?;
    if !person.may(role, &agent) {
        return Err(ApiError::forbidden(
            "missing_right",
            format!("you lack the right `{}` for this agent", role.name()),
        ));
    }
    Ok((id, agent))
}
