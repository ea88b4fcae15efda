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
use windlass::fleet::RunQueue;
use windlass::store::{RunCursor, RunQuery, RunStatus, Store, StoredRun};

use super::{ApiError, RequestPerson, UrlQuery};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::ServerState;

/// Maximum number of runs, records or items in a page.
pub(crate) const MAX_PAGE: u32 = 500;
/// Largest time in a query: the largest whole number that every JSON reader keeps.
const MAX_TIME: u64 = (1 << 53) - 1;
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
    /// Time of creation in milliseconds since 1970.
    pub(crate) created_at: u64,
    /// Time of the last change of the status in milliseconds since 1970.
    pub(crate) updated_at: u64,
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
            created_at: stored.created_at.0,
            updated_at: stored.updated_at.0,
            driver: stored.lease.as_ref().map(|lease| lease.owner.clone()),
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
    /// The runs, newest first.
    pub(crate) runs: Vec<RunSummary>,
    /// Cursor of the next page; absent on the last one.
    pub(crate) next: Option<String>,
}

/// The filters and the page of a list of runs.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunListQuery {
    /// Statuses, separated by commas.
    #[schemars(regex(pattern = r"^((running|paused|finished|failed|cancelled)(,|$))*$"))]
    pub(crate) status: Option<String>,
    /// Agent that the runs started with.
    pub(crate) agent: Option<String>,
    /// Session of the runs.
    pub(crate) session: Option<String>,
    /// Text that the id of the run contains.
    pub(crate) search: Option<String>,
    /// Time in milliseconds since 1970 at or after which the status last changed.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    pub(crate) updated_from: Option<u64>,
    /// Time in milliseconds since 1970 before which the status last changed.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    pub(crate) updated_before: Option<u64>,
    /// Cursor: `next` of the page before.
    #[schemars(regex(pattern = r"^([0-9]{1,15}\..+)?$"))]
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

/// Lists the runs that a person may see.
pub(crate) async fn list_runs_page(
    state: &ServerState,
    person: &PersonIdentity,
    asked: &RunListQuery,
) -> Result<RunPage, ApiError> {
    let limit = page_size(asked.limit, 50)? as usize;
    let statuses = asked.status.iter().flat_map(|text| text.split(',')).filter(|name| !name.is_empty());
    let statuses = statuses
        .map(|name| match name {
            "running" => Ok(RunStatus::Running),
            "paused" => Ok(RunStatus::Paused),
            "finished" => Ok(RunStatus::Finished),
            "failed" => Ok(RunStatus::Failed),
            "cancelled" => Ok(RunStatus::Cancelled),
            _ => Err(ApiError::invalid("`status` is running, paused, finished, failed or cancelled")),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if asked.updated_from.max(asked.updated_before).is_some_and(|time| time > MAX_TIME) {
        return Err(ApiError::invalid("a time is at most 2^53 - 1"));
    }
    let is_searched = asked.search.is_some() || !person.may_everywhere(AccessRole::View);
    let mut query = RunQuery {
        statuses,
        agent: asked.agent.as_deref().filter(|name| !name.is_empty()).map(AgentName::from),
        session: asked.session.as_deref().filter(|name| !name.is_empty()).map(SessionId::from),
        updated_from: asked.updated_from.map(Timestamp),
        updated_before: asked.updated_before.map(Timestamp),
        after: asked.after.as_deref().filter(|text| !text.is_empty()).map(parse_cursor).transpose()?,
        limit: if is_searched { 1_000 } else { u32::try_from(limit).unwrap_or(MAX_PAGE) },
    };
    let is_wanted = |stored: &StoredRun| {
        person.may(AccessRole::View, &stored.agent)
            && asked.search.as_deref().is_none_or(|text| stored.run.as_str().contains(text))
    };
    let mut runs = Vec::new();
    let mut searched = 0;
    loop {
        let page = state.queue.list_runs(&query).await?;
        let is_last = page.len() < query.limit as usize;
        for stored in &page {
            searched += 1;
            query.after = Some(RunCursor::from(stored));
            if is_wanted(stored) {
                runs.push(RunSummary::from(stored));
                if runs.len() == limit {
                    return Ok(RunPage { runs, next: query.after.as_ref().map(write_cursor) });
                }
            }
        }
        if is_last {
            return Ok(RunPage { runs, next: None });
        }
        if searched >= MAX_SEARCHED {
            return Ok(RunPage { runs, next: query.after.as_ref().map(write_cursor) });
        }
    }
}

fn write_cursor(cursor: &RunCursor) -> String {
    format!("{}.{}", cursor.created_at.0, cursor.run)
}

fn parse_cursor(text: &str) -> Result<RunCursor, ApiError> {
    let parsed = text.split_once('.').and_then(|(time, run)| Some((time.parse().ok()?, run)));
    let (time, run) = parsed.ok_or_else(|| ApiError::invalid("`after` is not a cursor"))?;
    Ok(RunCursor { created_at: Timestamp(time), run: RunId::from(run) })
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
