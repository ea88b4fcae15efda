//! One run: its summary with the calls that wait, its records, and its state at any of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use windlass::core::{
    id::{AgentName, RunId, Timestamp},
    inspect::run_at,
    item::Item,
    run::RunEnd,
};
use windlass::error::StoreErrorKind;
use windlass::fleet::{QueuedRun, QueuedState, RunQueue};
use windlass::run::PausedRun;
use windlass::store::{Store, load_paused};

use super::inbox::{InboxItem, inbox_item};
use super::runs::{RunSummary, find_viewable_run, page_size, run_status};
use super::{ApiError, RequestPerson, UrlPath, UrlQuery, run_blocking};
use crate::access::AccessRole;
use crate::run_feed::record_json;
use crate::server::ServerState;
use crate::store_watch::PendingEntry;

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
    #[schemars(extend("enum" = ["ready", "waiting", "taken", "parked", "ended", "dead_letter"]))]
    pub(crate) state: String,
    /// Worker that has the run.
    pub(crate) worker: Option<String>,
    /// Number of attempts since the run last made progress.
    pub(crate) attempt: u32,
    /// Reason of the last failure.
    pub(crate) reason: Option<String>,
    /// The builds that have declined the run: none of their workers takes it.
    pub(crate) declined_by: Vec<BuildRefusal>,
}

/// A build of an agent that has declined a run.
#[derive(Serialize, JsonSchema)]
pub(crate) struct BuildRefusal {
    /// The build.
    pub(crate) build: String,
    /// The reason: a tool that is gone, for example.
    pub(crate) reason: String,
}

impl QueueState {
    /// Returns the reasons for which the run does not move: those of its last failure and of the builds that declined
    /// it.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        let declined = self.declined_by.iter().map(|refusal| {
            let build = refusal.build.get(..12).unwrap_or(&refusal.build);
            format!("declined by build {build}: {}", refusal.reason)
        });
        self.reason.clone().into_iter().chain(declined)
    }
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
        let declined = queued.declined_by.iter();
        Self {
            state: state.to_owned(),
            worker,
            attempt: queued.attempt,
            reason: queued.reason.clone(),
            declined_by: declined
                .map(|(build, reason)| BuildRefusal { build: build.clone(), reason: reason.clone() })
                .collect(),
        }
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
            let start_at = queued.and_then(|queued| queued.submission.start_at).map(|time| time.0);
            return Ok(Json(RunDetail::of_queued(&id, &agent, start_at, queue)));
        }
        Err(error) => return Err(error.into()),
    };
    let driver = state.queue.load_lease(&id).await?.map(|lease| lease.owner);
    RunDetail::of_run(&state, &paused, &agent, driver, queue).await.map(Json)
}

impl RunDetail {
    fn of_queued(id: &RunId, agent: &AgentName, start_at: Option<u64>, queue: Option<QueueState>) -> Self {
        let summary = RunSummary {
            run: id.as_str().to_owned(),
            agent: agent.as_str().to_owned(),
            status: "queued".to_owned(),
            records: 0,
            created_at: None,
            updated_at: None,
            start_at,
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
    ) -> Result<Self, ApiError> {
        let (record, run) = (paused.record(), paused.record().outline());
        let records = record.record_count();
        let created_at = state.record_time(record.run_id(), 0).await?;
        let updated_at = state.record_time(record.run_id(), records.saturating_sub(1)).await?;
        let (output, failure) = match run.outcome() {
            Some(RunEnd::Finished(output)) => (Some(output.clone()), None),
            Some(RunEnd::Failed(failure)) => (None, Some(failure.to_string())),
            Some(RunEnd::Cancelled) | None => (None, None),
        };
        let mut pending = Vec::new();
        for call in paused.pending_calls() {
            let asked_at = Timestamp(updated_at);
            let entry = PendingEntry::load(&*state.queue, paused, agent, call, asked_at).await?;
            pending.push(inbox_item(state, &entry));
        }
        Ok(Self {
            summary: RunSummary {
                run: record.run_id().as_str().to_owned(),
                agent: agent.as_str().to_owned(),
                status: run_status(run).to_owned(),
                records,
                created_at: Some(created_at),
                updated_at: Some(updated_at),
                start_at: None,
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
        })
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
    run_blocking(move || {
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
    })
    .await
}

fn item_value(item: &Item) -> Value {
    serde_json::to_value(item).unwrap_or_default()
}
