//! Decisions about calls that wait for a person, bound to the sheet that was displayed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windlass::core::{
    canonical::{Digest, canonical_json},
    decision::{Decision, DecisionScope, PendingCall},
    id::{AgentName, CallPath, RunId, Timestamp},
    item::OutputContent,
};
use windlass::run::PausedRun;
use windlass::store::{DecisionReview, load_paused, post_reviewed_decision};

use super::extract::whole_number;
use super::inbox::{InboxItem, inbox_item};
use super::{ApiError, JsonBody, RequestPerson, UrlPath, find_viewable_run};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::ServerState;
use crate::store_watch::{PendingEntry, effect_of_call};

/// A decision about a call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum DecisionInput {
    /// Approves the call with the model's arguments.
    Approve {},
    /// Approves the call with other arguments.
    ApproveEdited {
        /// The arguments. `displayed` is the digest of the sheet with these arguments.
        arguments: Map<String, Value>,
    },
    /// Rejects the call.
    Reject {
        /// Reason for the model.
        message: Option<String>,
    },
    /// Resolves a call in doubt: it was executed.
    ConfirmExecuted {
        /// Result of the execution.
        output: String,
    },
    /// Resolves a call in doubt: it was not executed, and is executed again.
    ConfirmNotExecuted {},
    /// Resolves a call in doubt: nobody knows, and the model is told so.
    OutcomeUnknown {},
    /// Answers the question of a call.
    Answer {
        /// The answer.
        value: Value,
    },
}

impl DecisionInput {
    /// Returns the decision.
    fn into_decision(self) -> Decision {
        match self {
            Self::Approve {} => Decision::Approve,
            Self::ApproveEdited { arguments } => {
                Decision::ApproveEdited { arguments: canonical_json(&Value::Object(arguments)) }
            }
            Self::Reject { message } => Decision::Reject { message },
            Self::ConfirmExecuted { output } => {
                Decision::ConfirmExecuted { output: OutputContent::Text(output) }
            }
            Self::ConfirmNotExecuted {} => Decision::ConfirmNotExecuted,
            Self::OutcomeUnknown {} => Decision::OutcomeUnknown,
            Self::Answer { value } => Decision::Answer { value },
        }
    }
}

/// A decision and the sheet that was displayed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionBody {
    /// Path of the call.
    pub(crate) call: String,
    /// Number of the hold that was displayed.
    #[serde(deserialize_with = "whole_number")]
    #[schemars(range(max = 4_294_967_295_u64))]
    pub(crate) attempt: u32,
    /// Digest of the sheet that was displayed.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub(crate) displayed: String,
    /// The decision.
    pub(crate) decision: DecisionInput,
    /// True if the approval or rejection covers all calls of this tool by this agent in this run.
    #[serde(default)]
    pub(crate) for_run: bool,
}

/// A decision that was posted.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PostedSummary {
    /// Run of the call.
    pub(crate) run: String,
    /// Path of the call.
    pub(crate) call: String,
    /// Person who decided.
    pub(crate) decided_by: String,
}

pub(super) async fn decide(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    JsonBody(body): JsonBody<DecisionBody>,
) -> Result<Json<PostedSummary>, ApiError> {
    decide_call(&state, &person, &run, body).await.map(Json)
}

/// Posts a decision of a person. It is refused if the sheet has changed since it was displayed.
pub(crate) async fn decide_call(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    body: DecisionBody,
) -> Result<PostedSummary, ApiError> {
    let (id, agent) = find_viewable_run(state, person, run, AccessRole::Approve).await?;
    let path = CallPath::from(body.call.as_str());
    let paused = load_paused(&*state.queue, &id).await?;
    let mut pending = find_call(&paused, &path)?;
    // The decider of a nested call has the right for its agent, too.
    if !person.may(AccessRole::Approve, &pending.agent) {
        return Err(ApiError::forbidden("missing_right", "you lack the right `approve` for this agent"));
    }
    if pending.attempt != body.attempt {
        return Err(changed_sheet());
    }
    let decision = body.decision.into_decision();
    if let Decision::ApproveEdited { arguments } = &decision {
        pending.arguments.clone_from(arguments);
    }
    let displayed: Digest =
        body.displayed.parse().map_err(|_| ApiError::invalid("`displayed` is not a digest"))?;
    let shown = item_of(state, &paused, &id, &agent, pending);
    if shown.sheet.digest != displayed.to_string() {
        return Err(changed_sheet());
    }
    let scope = if body.for_run { DecisionScope::ToolForRun } else { DecisionScope::ThisCall };
    let review = DecisionReview {
        decided_by: person.name.clone(),
        displayed: Some(displayed),
        attempt: Some(body.attempt),
    };
    post_reviewed_decision(&*state.queue, &id, path, decision, scope, review).await?;
    state.ensure_queued(&id, &agent, &person.name).await?;
    tracing::info!(run, call = body.call, person = person.name, "a decision is posted");
    Ok(PostedSummary { run: run.to_owned(), call: body.call, decided_by: person.name.clone() })
}

fn changed_sheet() -> ApiError {
    ApiError::conflict(
        "sheet_changed",
        "what the call would do has changed since it was displayed; look at it again",
    )
}

/// Returns a call that waits, or whose decision can be corrected.
fn find_call(paused: &PausedRun, path: &CallPath) -> Result<PendingCall, ApiError> {
    let pending = paused.pending_calls().into_iter().find(|pending| pending.path == *path);
    if let Some(pending) = pending.or_else(|| paused.correctable_call(path).map(|call| call.pending)) {
        return Ok(pending);
    }
    match paused.taken_decision(path) {
        Some(taken) => Err(ApiError::conflict("already_taken", taken.to_string())),
        None => {
            Err(ApiError::new(StatusCode::NOT_FOUND, "call_not_pending", "no such call waits for a person"))
        }
    }
}

/// Makes the item of a call of a loaded run.
fn item_of(
    state: &ServerState,
    paused: &PausedRun,
    run: &RunId,
    agent: &AgentName,
    pending: PendingCall,
) -> InboxItem {
    let effect = effect_of_call(paused.record().outline(), &pending);
    let entry = PendingEntry {
        run: run.clone(),
        root_agent: agent.clone(),
        effect,
        pending,
        asked_at: Timestamp::default(),
    };
    inbox_item(state, &entry)
}

/// A call to display.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReviewBody {
    /// Path of the call.
    pub(crate) call: String,
    /// Arguments in place of the model's.
    pub(crate) arguments: Option<Map<String, Value>>,
}

pub(super) async fn review(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    JsonBody(body): JsonBody<ReviewBody>,
) -> Result<Json<InboxItem>, ApiError> {
    sheet_of(&state, &person, &run, body).await.map(Json)
}

/// Returns a call as it is displayed. Who sees it with other arguments could also approve it so: the preview of a change
/// reads what the arguments name.
pub(crate) async fn sheet_of(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    body: ReviewBody,
) -> Result<InboxItem, ApiError> {
    let role = if body.arguments.is_some() { AccessRole::Approve } else { AccessRole::View };
    let (id, agent) = find_viewable_run(state, person, run, role).await?;
    let paused = load_paused(&*state.queue, &id).await?;
    let mut pending = find_call(&paused, &CallPath::from(body.call.as_str()))?;
    if let Some(arguments) = body.arguments {
        if !person.may(AccessRole::Approve, &pending.agent) {
            return Err(ApiError::forbidden("missing_right", "you lack the right `approve` for this agent"));
        }
        pending.arguments = canonical_json(&Value::Object(arguments));
    }
    Ok(item_of(state, &paused, &id, &agent, pending))
}
