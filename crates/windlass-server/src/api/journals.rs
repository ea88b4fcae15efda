//! Operations on journals: fork, diff, verify, export and import, all based on replay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::artefact::append_run_media;
use windlass::core::{
    decision::{Decision, DecisionScope},
    id::{AgentName, CallPath},
    inspect::{self, ForkChange, StepLine},
    item::{Item, OutputContent},
    journal::{
        CallStatus, HashChain, JournalEntry, JournalRecord, ModelResponded, ToolUsePolicyKind,
        append_text_mac, authenticate_records, read_text_media, stored_media_urls,
    },
    provenance::ContentSources,
    run::BUDGET_CALL,
    usage::Usage,
};
use windlass::fleet::RunQueue;
use windlass::run::{PausedRun, TextAuthenticity};
use windlass::store::{
    self, LeaseClaim, LeaseOwner, OpenRunError, RunStatus, Store, load_paused, verify_stored_run,
};
use windlass_text::SafeText;

use super::extract::whole_number;
use super::run_start::parse_run_id;
use super::{
    ApiError, JsonBody, RequestPerson, RunSummary, TextBody, UrlPath, UrlQuery, find_viewable_run,
    new_run_id, run_blocking, run_status,
};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::{ServerState, wall_clock_now};

/// Duration of the lease under which a run is imported.
const IMPORT_LEASE: Duration = Duration::from_secs(30);

/// A fork of a run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkBody {
    /// Id of the fork; a new one if absent.
    #[schemars(regex(pattern = r"^[!-.0-~]{1,200}$"))]
    pub(crate) run: Option<String>,
    /// Sequence number of the record at which the run is forked.
    #[serde(deserialize_with = "whole_number")]
    pub(crate) at: u64,
    /// The change that the fork makes.
    #[serde(default)]
    pub(crate) change: ForkInput,
    /// True if a worker continues the fork.
    #[serde(default)]
    pub(crate) start: bool,
}

/// The change that a fork makes. An approval is not among them: it is decided in the fork, where the call is displayed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ForkInput {
    /// No change.
    Unchanged {},
    /// Another answer of the model: a text without calls.
    ModelText {
        /// The text.
        text: String,
    },
    /// Another output of a call.
    CallOutput {
        /// Path of the call.
        call: String,
        /// The output.
        output: String,
        /// True if the call failed with this output.
        #[serde(default)]
        is_failure: bool,
    },
    /// A rejection of a call.
    Reject {
        /// Path of the call.
        call: String,
        /// Reason for the model.
        message: Option<String>,
    },
}

impl Default for ForkInput {
    fn default() -> Self {
        Self::Unchanged {}
    }
}

pub(super) async fn fork_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    JsonBody(body): JsonBody<ForkBody>,
) -> Result<(StatusCode, Json<RunSummary>), ApiError> {
    fork_stored_run(&state, &person, &run, body).await.map(|summary| (StatusCode::CREATED, Json(summary)))
}

/// Forks a run, and lets a worker continue the fork if asked.
pub(crate) async fn fork_stored_run(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    body: ForkBody,
) -> Result<RunSummary, ApiError> {
    let (id, agent) = find_viewable_run(state, person, run, AccessRole::Run).await?;
    let new_run = match &body.run {
        Some(text) => parse_run_id(text)?,
        None => new_run_id(),
    };
    let origin = load_paused(&*state.queue, &id).await?;
    let (at, forker) = (body.at, person.clone());
    let change = run_blocking(move || {
        check_kept_decisions(origin.record().read_journal()?, &body.change, at, &forker)?;
        change_of(body.change, &origin, at, forker.name)
    })
    .await?;
    state.check_not_queued(&new_run).await?;
    let fork = store::fork_run(&*state.queue, &id, body.at, new_run.clone(), change).await?;
    if body.start {
        let queued = state.queue.load_queued_run(&id).await?;
        let tenant = queued.map_or_else(|| person.name.clone(), |queued| queued.submission.tenant);
        state.ensure_queued(&new_run, &agent, &tenant).await?;
    }
    Ok(summary_of(&fork, &agent))
}

/// Refuses a copy of a run that would execute a call, or spend an amount, on a decision in its records, unless the
/// person who makes it may decide so: the approver has approved one execution and granted one amount, and not others in
/// a copy.
fn check_kept_decisions(
    records: &[JournalRecord],
    change: &ForkInput,
    at: u64,
    person: &PersonIdentity,
) -> Result<(), ApiError> {
    let then = inspect::run_at(records, at)?;
    for record in records.iter().take_while(|record| record.seq <= at) {
        let JournalEntry::DecisionRecorded(decided) = &record.entry else { continue };
        let is_grant = match &decided.decision {
            Decision::Approve
            | Decision::ApproveEdited { .. }
            | Decision::ConfirmNotExecuted
            | Decision::Answer { .. } => true,
            Decision::Reject { .. } | Decision::ConfirmExecuted { .. } | Decision::OutcomeUnknown => false,
        };
        let path = CallPath::new(&record.path, decided.call.clone());
        let is_replaced = record.seq == at
            && matches!(change, ForkInput::Reject { call, .. } if CallPath::from(call.as_str()) == path);
        let within = then.at_path(&record.path);
        // What was granted to a budget is spent by every later request.
        let is_standing = decided.scope != DecisionScope::ThisCall || decided.call.as_str() == BUDGET_CALL;
        let is_open = within.is_some_and(|run| !run.is_call_settled(&decided.call));
        let agent = within.map_or_else(|| then.agent(), |run| run.agent());
        let may_approve =
            || person.may(AccessRole::Approve, then.agent()) && person.may(AccessRole::Approve, agent);
        if is_grant && !is_replaced && (is_standing || is_open) && !may_approve() {
            let message = "a call would be executed, or an amount be spent, on a decision that was made for another run, \
                which needs the right `approve` for its agent: take the records before the decision";
            return Err(ApiError::forbidden("missing_right", message));
        }
    }
    Ok(())
}

fn change_of(
    change: ForkInput,
    origin: &PausedRun,
    at: u64,
    decider: String,
) -> Result<ForkChange, ApiError> {
    Ok(match change {
        ForkInput::Unchanged {} => ForkChange::Unchanged,
        ForkInput::ModelText { text } => {
            let then = inspect::run_at(origin.record().read_journal()?, at)?;
            ForkChange::ModelResponse(Box::new(ModelResponded {
                agent: then.agent().clone(),
                items: vec![Arc::new(Item::assistant(text))],
                calls: Vec::new(),
                duplicate_calls: 0,
                context_sources: ContentSources::default(),
                tool_use_policy: ToolUsePolicyKind::default(),
                usage: Usage::default(),
                response_id: None,
                request_id: None,
                model: None,
                attempts: 1,
                requested_at: None,
                requested: Default::default(),
                finish_reason: None,
                active_ms: 0,
            }))
        }
        ForkInput::CallOutput { call, output, is_failure } => ForkChange::CallOutput {
            call: CallPath::from(call.as_str()),
            status: if is_failure { CallStatus::Failed } else { CallStatus::Succeeded },
            output: OutputContent::Text(output),
        },
        ForkInput::Reject { call, message } => ForkChange::CallDecision {
            call: CallPath::from(call.as_str()),
            decision: Decision::Reject { message },
            scope: DecisionScope::ThisCall,
            decided_by: Some(decider),
        },
    })
}

fn summary_of(paused: &PausedRun, agent: &AgentName) -> RunSummary {
    let record = paused.record();
    let journal = record.journal();
    RunSummary {
        run: record.run_id().as_str().to_owned(),
        agent: agent.as_str().to_owned(),
        status: run_status(record.state()).to_owned(),
        records: journal.len() as u64,
        created_at: journal.first().map(|one| one.at.0),
        updated_at: journal.last().map(|one| one.at.0),
        start_at: None,
        driver: None,
    }
}

/// The other run of a comparison.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiffQuery {
    /// Id of the other run.
    pub(crate) with: String,
}

/// The differences between two runs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DiffSummary {
    /// True if the runs are equal.
    pub(crate) is_same: bool,
    /// Number of leading records that are equal.
    pub(crate) common_records: u64,
    /// Fields that differ in the first differing record.
    pub(crate) fields: Vec<FieldChange>,
    /// Steps of the first run after the common ones.
    pub(crate) first_steps: Vec<String>,
    /// Steps of the second run after the common ones.
    pub(crate) second_steps: Vec<String>,
}

/// A field that differs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct FieldChange {
    /// Path of the field.
    pub(crate) field: String,
    /// Value in the first run.
    pub(crate) first: Option<Value>,
    /// Value in the second run.
    pub(crate) second: Option<Value>,
}

pub(super) async fn diff_runs(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    UrlQuery(asked): UrlQuery<DiffQuery>,
) -> Result<Json<DiffSummary>, ApiError> {
    let first = load_viewable(&state, &person, &run).await?;
    let second = load_viewable(&state, &person, &asked.with).await?;
    let diff = run_blocking(move || {
        Ok(inspect::diff_runs(first.record().read_journal()?, second.record().read_journal()?))
    })
    .await?;
    let steps = |steps: &[StepLine]| -> Vec<String> {
        steps.iter().map(|step| SafeText::from_words(&step.to_string()).to_string()).collect()
    };
    let fields = diff.first_difference.iter().flat_map(|difference| &difference.fields);
    Ok(Json(DiffSummary {
        is_same: diff.is_empty(),
        common_records: diff.common_records,
        fields: fields
            .map(|field| FieldChange {
                field: field.field.clone(),
                first: field.first.clone(),
                second: field.second.clone(),
            })
            .collect(),
        first_steps: steps(&diff.first_steps),
        second_steps: steps(&diff.second_steps),
    }))
}

async fn load_viewable(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
) -> Result<PausedRun, ApiError> {
    let (id, _) = find_viewable_run(state, person, run, AccessRole::View).await?;
    Ok(load_paused(&*state.queue, &id).await?)
}

/// The result of a verification.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VerifySummary {
    /// True if every hash matches, the records replay, and nothing is forged.
    pub(crate) is_whole: bool,
    /// Number of records.
    pub(crate) records: u64,
    /// Reason why the journal is not whole.
    pub(crate) problem: Option<String>,
}

pub(super) async fn verify_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
) -> Result<Json<VerifySummary>, ApiError> {
    let (id, _) = find_viewable_run(&state, &person, &run, AccessRole::View).await?;
    match verify_stored_run(&*state.queue, &id).await {
        Ok(verified) => Ok(Json(VerifySummary {
            is_whole: !verified.has_forgery(),
            records: verified.journal.records.len() as u64,
            problem: verified.has_forgery().then(|| "something in the store is forged".to_owned()),
        })),
        Err(OpenRunError::Store(error)) => Err(error.into()),
        Err(error) => Ok(Json(VerifySummary {
            is_whole: false,
            records: 0,
            problem: Some(SafeText::from_words(&error.to_string()).to_string()),
        })),
    }
}

pub(super) async fn export_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
) -> Result<Response, ApiError> {
    let paused = load_viewable(&state, &person, &run).await?;
    let name: String = run.chars().filter(|one| one.is_ascii_alphanumeric() || *one == '-').collect();
    let disposition = format!("attachment; filename=\"{name}.windlass\"");
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, disposition),
    ];
    let keys = state.queue.mac_keys().cloned();
    let mut text = run_blocking(move || {
        let count = paused.record().read_journal()?.len() as u64;
        let mut text = paused.record().to_text();
        if let Some(keys) = keys {
            append_text_mac(&mut text, paused.record().run_id(), count, &keys);
        }
        Ok(text)
    })
    .await?;
    // The text can be dropped on the page again: it fits in a body.
    let room = (state.limits.body_bytes / 2).saturating_sub(text.len());
    let mut urls = stored_media_urls(&text);
    // A fork refers to pictures of its origin, which the person may be unable to view.
    let mut viewable = BTreeMap::new();
    for url in &urls {
        let owner = media_owner(url);
        if !viewable.contains_key(owner) {
            let found = find_viewable_run(&state, &person, owner, AccessRole::View).await;
            viewable.insert(owner.to_owned(), found.is_ok());
        }
    }
    urls.retain(|url| viewable.get(media_owner(url)) == Some(&true));
    append_run_media(&*state.queue, &mut text, &urls, room).await?;
    Ok((headers, text).into_response())
}

/// Returns the id of the run that a stored picture belongs to.
fn media_owner(url: &str) -> &str {
    let place = url.strip_prefix("artefact:").unwrap_or(url);
    place.rsplit_once('/').map_or(place, |(run, _)| run)
}

pub(super) async fn import_run(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    TextBody(text): TextBody,
) -> Result<(StatusCode, Json<RunSummary>), ApiError> {
    import_text(&state, &person, text).await.map(|summary| (StatusCode::CREATED, Json(summary)))
}

/// Stores an exported run under its own id.
pub(crate) async fn import_text(
    state: &ServerState,
    person: &PersonIdentity,
    text: String,
) -> Result<RunSummary, ApiError> {
    let refused = |error: &dyn std::fmt::Display| {
        let message = SafeText::from_words(&error.to_string()).to_string();
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable_run", message)
    };
    let keys = state.queue.mac_keys().cloned();
    let known_keys = keys.clone();
    let (paused, media) = run_blocking(move || {
        let paused = match known_keys {
            Some(keys) => PausedRun::from_text_with_keys(&text, keys),
            None => PausedRun::from_text(&text),
        };
        paused.map(|paused| (paused, read_text_media(&text))).map_err(|error| refused(&error))
    })
    .await?;
    let run = paused.record().run_id().clone();
    let agent = first_agent(paused.record().journal())
        .ok_or_else(|| refused(&"the journal does not begin with the start of a run"))?;
    if !person.may(AccessRole::Administer, &agent) {
        return Err(ApiError::forbidden("missing_right", "you lack the right `administer` for this agent"));
    }
    let is_verified = matches!(paused.text_authenticity(), Some(TextAuthenticity::Verified { .. }));
    if keys.is_some() && !is_verified {
        // The store would vouch for decisions that nobody has verified.
        return Err(refused(&"the text has no MAC of a key of this store"));
    }
    let mut records: Vec<JournalRecord> = paused.record().read_journal()?.to_vec();
    // A run that has ended executes nothing.
    if let Some(last) = records.last().filter(|_| paused.record().outline().outcome().is_none()) {
        check_kept_decisions(&records, &ForkInput::Unchanged {}, last.seq, person)?;
    }
    if let Some(JournalEntry::RunStarted(started)) = records.first_mut().map(|record| &mut record.entry) {
        started.history = started.history.to_inline().map_err(|error| refused(&error))?;
        started.session = None;
    }
    records.iter_mut().for_each(|record| record.entry.set_decision_mac(None));
    let lines = authenticate_records(HashChain::default(), &run, &mut records, keys.as_deref());
    let owner = LeaseOwner::for_new_driver().to_string();
    let claim = LeaseClaim { owner: &owner, now: wall_clock_now(), duration: IMPORT_LEASE };
    state.check_not_queued(&run).await?;
    let lease = state.queue.create_run(&run, &agent, claim, lines).await?;
    let own_prefix = format!("artefact:{run}/");
    for (url, data) in &media {
        // Pictures of other runs, such as the origin of a fork, belong to those.
        if let Some(name) = url.strip_prefix(&own_prefix) {
            state.queue.save_artefact(&lease, name, data.as_bytes()).await?;
        }
    }
    let status = match run_status(paused.record().outline()) {
        "finished" => RunStatus::Finished,
        "failed" => RunStatus::Failed,
        "cancelled" => RunStatus::Cancelled,
        "paused" => RunStatus::Paused,
        _ => RunStatus::Running,
    };
    state.queue.set_status(&lease, status, wall_clock_now()).await?;
    state.queue.release_lease(&lease).await?;
    Ok(summary_of(&paused, &agent))
}

/// Returns the agent that the first record names.
pub(crate) fn first_agent(records: &[JournalRecord]) -> Option<AgentName> {
    match &records.first()?.entry {
        JournalEntry::RunStarted(started) => Some(started.agent.clone()),
        _ => None,
    }
}
