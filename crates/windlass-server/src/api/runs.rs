//! Runs: start, list, open, cancel, add input.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use windlass::core::{
    id::{AgentName, RunId, SessionId, Timestamp},
    inspect::run_at,
    item::Item,
    run::{Run, RunEnd},
};
use windlass::error::StoreErrorKind;
use windlass::fleet::{QueueOrder, QueuedRun, QueuedState, RunQueue, RunSubmission, SubmitResult};
use windlass::run::PausedRun;
use windlass::store::{RunCursor, RunQuery, RunStatus, Store, StoredRun, load_paused};

use super::extract::optional_whole_number;
use super::inbox::{InboxItem, inbox_item};
use super::{ApiError, JsonBody, RequestPerson, UrlPath, UrlQuery};
use crate::access::{AccessRole, PersonIdentity};
use crate::run_feed::record_json;
use crate::server::{ServerState, wall_clock_now};
use crate::store_watch::{PendingEntry, effect_of_call};

/// Maximum length of an id that a client chooses.
const MAX_ID_BYTES: usize = 200;
/// Maximum number of runs, records or items in a page.
pub(crate) const MAX_PAGE: u32 = 500;
/// Latest time at which a run may start, in milliseconds since 1970.
const MAX_START_TIME: u64 = 4_102_444_800_000;
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
        start.run.map_or_else(|| Ok(new_run_id()), |id| parse_id(&id).map(RunId::from))?,
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

/// A run in detail.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunDetail {
    #[serde(flatten)]
    pub(crate) summary: RunSummary,
    /// The agent that is current.
    pub(crate) current_agent: String,
    /// Number of turns.
    pub(crate) turns: u32,
    /// Session of the run.
    pub(crate) session: Option<String>,
    /// Output of a finished run.
    pub(crate) output: Option<String>,
    /// Reason of a failed run.
    pub(crate) failure: Option<String>,
    /// Usage of models, with nested agents.
    pub(crate) usage: Value,
    /// Cost in currency units, of the requests whose cost is known; absent if it is known of none.
    pub(crate) cost: Option<f64>,
    /// Model requests whose cost is unknown.
    pub(crate) unpriced_requests: u64,
    /// The calls that wait for a person.
    pub(crate) pending: Vec<InboxItem>,
    /// State of the run in the queue, if it was submitted.
    pub(crate) queue: Option<QueueState>,
}

/// The state of a run in the queue.
#[derive(Serialize, JsonSchema)]
pub(crate) struct QueueState {
    /// `ready`, `waiting`, `taken`, `parked`, `ended` or `dead_letter`.
    pub(crate) state: String,
    /// Worker that has the run.
    pub(crate) worker: Option<String>,
    /// Number of attempts since the run last made progress.
    pub(crate) attempt: u32,
    /// Reason of the last failure.
    pub(crate) reason: Option<String>,
}

impl From<&QueuedRun> for QueueState {
    fn from(queued: &QueuedRun) -> Self {
        let (state, worker) = match &queued.state {
            QueuedState::Ready => ("ready", None),
            QueuedState::Waiting { .. } => ("waiting", None),
            QueuedState::Taken { worker } => ("taken", Some(worker.clone())),
            QueuedState::Parked { .. } => ("parked", None),
            QueuedState::Ended => ("ended", None),
            QueuedState::DeadLetter => ("dead_letter", None),
        };
        Self { state: state.to_owned(), worker, attempt: queued.attempt, reason: queued.reason.clone() }
    }
}

pub(super) async fn open_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
) -> Result<Json<RunDetail>, ApiError> {
    let (id, agent) = find_viewable_run(&state, &person, &run, AccessRole::View).await?;
    let queued = state.queue.load_queued_run(&id).await?;
    let queue = queued.as_ref().map(QueueState::from);
    let paused = match load_paused(&*state.queue, &id).await {
        Ok(paused) => paused,
        Err(windlass::store::OpenRunError::Store(error)) if error.kind() == StoreErrorKind::RunNotFound => {
            return Ok(Json(RunDetail::of_queued(&id, &agent, queue)));
        }
        Err(error) => return Err(error.into()),
    };
    let driver = state.queue.load_lease(&id).await?.map(|lease| lease.owner);
    Ok(Json(RunDetail::of_run(&state, &paused, &agent, driver, queue).await))
}

impl RunDetail {
    fn of_queued(id: &RunId, agent: &AgentName, queue: Option<QueueState>) -> Self {
        let summary = RunSummary {
            run: id.as_str().to_owned(),
            agent: agent.as_str().to_owned(),
            status: "queued".to_owned(),
            records: 0,
            created_at: 0,
            updated_at: 0,
            driver: None,
        };
        Self {
            summary,
            current_agent: agent.as_str().to_owned(),
            turns: 0,
            session: None,
            output: None,
            failure: None,
            usage: Value::Object(Default::default()),
            cost: None,
            unpriced_requests: 0,
            pending: Vec::new(),
            queue,
        }
    }

    async fn of_run(
        state: &ServerState,
        paused: &PausedRun,
        agent: &AgentName,
        driver: Option<String>,
        queue: Option<QueueState>,
    ) -> Self {
        let (record, run) = (paused.record(), paused.record().outline());
        let journal = record.journal();
        let time_of =
            |place: Option<&windlass::core::journal::JournalRecord>| place.map_or(0, |one| one.at.0);
        let updated_at = time_of(journal.last());
        let (output, failure) = match run.outcome() {
            Some(RunEnd::Finished(output)) => (Some(output.clone()), None),
            Some(RunEnd::Failed(failure)) => (None, Some(failure.to_string())),
            Some(RunEnd::Cancelled) | None => (None, None),
        };
        let mut pending = Vec::new();
        for call in paused.pending_calls() {
            let entry = PendingEntry {
                run: record.run_id().clone(),
                root_agent: agent.clone(),
                effect: effect_of_call(run, &call),
                pending: call,
                asked_at: Timestamp(updated_at),
            };
            pending.push(inbox_item(state, &entry));
        }
        Self {
            summary: RunSummary {
                run: record.run_id().as_str().to_owned(),
                agent: agent.as_str().to_owned(),
                status: run_status(run).to_owned(),
                records: journal.len() as u64,
                created_at: time_of(journal.first()),
                updated_at,
                driver,
            },
            current_agent: run.agent().as_str().to_owned(),
            turns: run.turn(),
            session: run.session().map(|session| session.as_str().to_owned()),
            output,
            failure,
            usage: serde_json::to_value(record.usage()).unwrap_or_default(),
            cost: (record.usage().priced_requests > 0).then(|| record.usage().cost()),
            unpriced_requests: record.usage().unpriced_requests(),
            pending,
            queue,
        }
    }
}

/// The page of a list of records.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordQuery {
    /// Sequence number of the first record.
    #[schemars(range(max = 4_294_967_295_u64))]
    pub(crate) from: Option<u64>,
    /// Maximum number of records.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<u32>,
}

/// A page of records.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RecordPage {
    /// The records as the journal has them, with their sequence numbers.
    #[schemars(with = "Vec<std::collections::BTreeMap<String, Value>>")]
    pub(crate) records: Vec<Box<RawValue>>,
    /// Sequence number of the next page; absent if there are no more records now.
    pub(crate) next: Option<u64>,
}

pub(super) async fn list_records(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    UrlQuery(asked): UrlQuery<RecordQuery>,
) -> Result<Json<RecordPage>, ApiError> {
    let (id, _) = find_viewable_run(&state, &person, &run, AccessRole::View).await?;
    let (from, limit) = (parse_seq(asked.from)?, page_size(asked.limit, 100)?);
    let lines = state.queue.load_journal_page(&id, from, limit).await?;
    let next = (lines.len() == limit as usize).then_some(from + u64::from(limit));
    let records = lines
        .iter()
        .zip(from..)
        .filter_map(|(line, seq)| RawValue::from_string(record_json(seq, &line.body)).ok())
        .collect();
    Ok(Json(RecordPage { records, next }))
}

/// Checks a sequence number, which a store keeps as a signed one.
pub(crate) fn parse_seq(asked: Option<u64>) -> Result<u64, ApiError> {
    let seq = asked.unwrap_or(0);
    if seq > u64::from(u32::MAX) {
        Err(ApiError::invalid("there is no record of this number"))
    } else {
        Ok(seq)
    }
}

/// The record of a state.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateQuery {
    /// Sequence number of the record; the last one if absent.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    pub(crate) at: Option<u64>,
}

/// The state of a run after one of its records.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunStateView {
    /// Sequence number of the record.
    pub(crate) at: u64,
    /// The status at that record.
    pub(crate) status: String,
    /// The agent that was current.
    pub(crate) agent: String,
    /// Number of turns.
    pub(crate) turns: u32,
    /// The items that the next model request would contain. The instructions of the agent are not in the journal.
    pub(crate) model_input: Vec<Value>,
    /// Calls that waited for a person.
    pub(crate) pending: Vec<String>,
}

pub(super) async fn run_state(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    UrlQuery(asked): UrlQuery<StateQuery>,
) -> Result<Json<RunStateView>, ApiError> {
    let (id, _) = find_viewable_run(&state, &person, &run, AccessRole::View).await?;
    let paused = load_paused(&*state.queue, &id).await?;
    let records = paused.record().read_journal()?;
    let at = asked.at.unwrap_or_else(|| (records.len() as u64).saturating_sub(1));
    let then = run_at(records, at)?;
    Ok(Json(RunStateView {
        at,
        status: run_status(&then).to_owned(),
        agent: then.agent().as_str().to_owned(),
        turns: then.turn(),
        model_input: then.next_model_input().iter().map(|item| item_value(item)).collect(),
        pending: then.pending_calls().iter().map(|call| call.path.to_string()).collect(),
    }))
}

fn item_value(item: &Item) -> Value {
    serde_json::to_value(item).unwrap_or_default()
}

/// The result of an order for a run.
#[derive(Serialize, JsonSchema)]
pub(crate) struct OrderSummary {
    /// Id of the run.
    pub(crate) run: String,
}

pub(super) async fn cancel_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
) -> Result<(StatusCode, Json<OrderSummary>), ApiError> {
    post_order(&state, &person, run, &QueueOrder::Cancel).await
}

pub(super) async fn resume_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
) -> Result<(StatusCode, Json<OrderSummary>), ApiError> {
    let (id, agent) = find_viewable_run(&state, &person, &run, AccessRole::Run).await?;
    refuse_dead_letter(state.ensure_queued(&id, &agent, &person.name).await?)?;
    Ok((StatusCode::ACCEPTED, Json(OrderSummary { run })))
}

pub(super) async fn revive_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
) -> Result<(StatusCode, Json<OrderSummary>), ApiError> {
    let (id, _) = find_viewable_run(&state, &person, &run, AccessRole::Administer).await?;
    state.queue.revive_run(&id).await?;
    Ok((StatusCode::ACCEPTED, Json(OrderSummary { run })))
}

/// Input for a run.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputBody {
    /// Text of a message.
    pub(crate) input: String,
}

pub(super) async fn add_input(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    JsonBody(body): JsonBody<InputBody>,
) -> Result<(StatusCode, Json<OrderSummary>), ApiError> {
    let order = QueueOrder::AddInput { items: vec![Arc::new(Item::user(body.input))] };
    post_order(&state, &person, run, &order).await
}

async fn post_order(
    state: &ServerState,
    person: &PersonIdentity,
    run: String,
    order: &QueueOrder,
) -> Result<(StatusCode, Json<OrderSummary>), ApiError> {
    let (id, agent) = find_viewable_run(state, person, &run, AccessRole::Run).await?;
    if let Ok(paused) = load_paused(&*state.queue, &id).await
        && paused.record().outline().outcome().is_some()
    {
        return Err(ApiError::conflict("run_ended", "the run has ended"));
    }
    let queued = state.ensure_queued(&id, &agent, &person.name).await?;
    if *order != QueueOrder::Cancel {
        refuse_dead_letter(queued)?;
    }
    state.queue.post_order(&id, order).await?;
    Ok((StatusCode::ACCEPTED, Json(OrderSummary { run })))
}

/// Refuses an order that would wait until somebody revives the run.
fn refuse_dead_letter(queued: Option<QueuedRun>) -> Result<(), ApiError> {
    match queued {
        Some(queued) if queued.state == QueuedState::DeadLetter => {
            Err(ApiError::conflict("dead_letter", "the run is a dead letter: revive it first, or cancel it"))
        }
        _ => Ok(()),
    }
}
