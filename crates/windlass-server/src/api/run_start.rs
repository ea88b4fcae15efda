//! The start of a run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::core::id::{RunId, SessionId, Timestamp};
use windlass::fleet::{RunQueue, RunSubmission, SubmitResult};
use windlass::store::{RunCursor, RunQuery, Store};

use super::extract::optional_whole_number;
use super::runs::MAX_PAGE;
use super::{ApiError, JsonBody, RequestPerson};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::{ServerState, wall_clock_now};

/// Maximum length of an id that a client chooses.
const MAX_ID_BYTES: usize = 200;
/// Latest time at which a run may start, in milliseconds since 1970.
const MAX_START_TIME: u64 = 4_102_444_800_000;

/// A run to start.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunStart {
    /// Id of the run; a new one if absent. Starting the same run again has no effect.
    #[schemars(regex(pattern = r"^[!-.0-~]{1,200}$"))]
    pub(crate) run: Option<String>,
    /// Agent that starts the run.
    pub(crate) agent: String,
    /// Input of the run: the text of a message.
    pub(crate) input: String,
    /// Session of the run, whose history the run continues.
    #[schemars(regex(pattern = r"^[!-.0-~]{1,200}$"))]
    pub(crate) session: Option<String>,
    /// Priority among the runs of the same person; higher ones are taken first.
    #[serde(default, deserialize_with = "optional_whole_number")]
    pub(crate) priority: Option<i32>,
    /// Time before which the run does not start, in milliseconds since 1970.
    #[serde(default, deserialize_with = "optional_whole_number")]
    #[schemars(range(max = 4_102_444_800_000_u64))]
    pub(crate) start_at: Option<u64>,
}

/// A run that was started.
#[derive(Serialize, JsonSchema)]
pub(crate) struct StartedRun {
    /// Id of the run.
    pub(crate) run: String,
    /// True if the same run was started before.
    pub(crate) is_repeated: bool,
}

pub(super) async fn start_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    JsonBody(start): JsonBody<RunStart>,
) -> Result<(StatusCode, Json<StartedRun>), ApiError> {
    let mut submission = RunSubmission::new(
        start.run.map_or_else(|| Ok(new_run_id()), |id| parse_run_id(&id))?,
        start.agent,
        start.input,
    )
    .tenant(person.name.clone())
    .priority(start.priority.unwrap_or(0));
    submission.session = start.session.as_deref().map(parse_id).transpose()?.map(SessionId::from);
    if start.start_at.is_some_and(|time| time > MAX_START_TIME) {
        return Err(ApiError::invalid("`start_at` is after the year 2099"));
    }
    submission.start_at = start.start_at.map(Timestamp);
    let run = submission.run.as_str().to_owned();
    let is_repeated = start_submission(&state, &person, &submission).await?;
    let status = if is_repeated { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(StartedRun { run, is_repeated })))
}

/// Creates an id for a run.
pub(crate) fn new_run_id() -> RunId {
    RunId::new(uuid::Uuid::now_v7().to_string())
}

/// Checks an id that a client has chosen.
pub(crate) fn parse_id(text: &str) -> Result<&str, ApiError> {
    let is_fit = !text.is_empty()
        && text.len() <= MAX_ID_BYTES
        && text.chars().all(|letter| letter.is_ascii_graphic() && letter != '/');
    if is_fit {
        return Ok(text);
    }
    Err(ApiError::invalid("an id has 1 to 200 visible ASCII characters without a slash"))
}

/// Checks an id of a run that a client has chosen.
///
/// # Errors
///
/// Ids of scheduled runs are refused: a schedule takes a run of such an id for its own, and submits none.
pub(crate) fn parse_run_id(text: &str) -> Result<RunId, ApiError> {
    let id = parse_id(text)?;
    let is_digit = |letter: char| letter.is_ascii_digit();
    match id.rsplit_once('@') {
        Some((_, time)) if !time.is_empty() && time.chars().all(is_digit) => Err(ApiError::conflict(
            "reserved_id",
            "ids that end with `@` and digits are those of scheduled runs",
        )),
        _ => Ok(RunId::from(id)),
    }
}

impl ServerState {
    /// Refuses the id of a run that is queued: a worker would take a journal under this id for that of the queued run.
    pub(crate) async fn check_not_queued(&self, run: &RunId) -> Result<(), ApiError> {
        match self.queue.load_queued_run(run).await? {
            Some(_) => Err(ApiError::conflict("already_exists", "another run has this id")),
            None => Ok(()),
        }
    }
}

/// Submits a run; returns true if the same was submitted before.
pub(crate) async fn start_submission(
    state: &ServerState,
    person: &PersonIdentity,
    submission: &RunSubmission,
) -> Result<bool, ApiError> {
    if !person.may(AccessRole::Run, &submission.agent) || !state.catalogue.has_agent(&submission.agent) {
        return Err(ApiError::new(
            StatusCode::NOT_FOUND,
            "agent_not_found",
            "there is no agent of this name that you may run",
        ));
    }
    if let Some(session) = &submission.session {
        check_session(state, person, session).await?;
    }
    // A run that was not submitted would be continued by the submission.
    if state.queue.load_queued_run(&submission.run).await?.is_none()
        && state.load_first_agent(&submission.run).await?.is_some()
    {
        return Err(ApiError::conflict("already_exists", "another run has this id"));
    }
    Ok(state.queue.submit_run(submission, wall_clock_now()).await? == SubmitResult::AlreadySubmitted)
}

/// Refuses a session that has items of runs that the person may not start: the new run would show them, and add to them.
///
/// # Errors
///
/// Such a session does not exist for the person.
async fn check_session(
    state: &ServerState,
    person: &PersonIdentity,
    session: &SessionId,
) -> Result<(), ApiError> {
    if person.may_everywhere(AccessRole::Run) {
        return Ok(());
    }
    let refused = || {
        ApiError::new(StatusCode::NOT_FOUND, "session_not_found", "there is no session that you may continue")
    };
    let mut query = RunQuery { session: Some(session.clone()), limit: MAX_PAGE, ..RunQuery::default() };
    let mut has_runs = false;
    loop {
        let page = state.queue.list_runs(&query).await?;
        if page.iter().any(|stored| !person.may(AccessRole::Run, &stored.agent)) {
            return Err(refused());
        }
        has_runs |= !page.is_empty();
        if page.len() < MAX_PAGE as usize {
            break;
        }
        query.after = page.last().map(RunCursor::from);
    }
    let Some(sessions) = state.queue.sessions() else { return Ok(()) };
    // Items of no known run are an import, or those of runs that are forgotten.
    if !has_runs && !sessions.load_session(session).await?.items.is_empty() {
        return Err(refused());
    }
    Ok(())
}
