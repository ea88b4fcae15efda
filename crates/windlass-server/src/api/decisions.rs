//! Decisions about calls that wait for a person, bound to the sheet that was displayed.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windlass::core::{
    authenticity::{ApproverKey, DecisionSignature, SignatureError},
    canonical::{Digest, canonical_json},
    decision::{Decision, DecisionScope, PendingCall},
    id::{AgentName, CallPath, RunId, Timestamp},
    item::OutputContent,
    journal::{DecisionRecorded, JournalEntry},
};
use windlass::run::PausedRun;
use windlass::store::{
    DecisionReview, PostDecisionError, Store, load_paused, post_decision_with_signature,
    post_reviewed_decision, prepare_decision,
};

use super::extract::whole_number;
use super::inbox::{InboxItem, inbox_item};
use super::{ApiError, JsonBody, RequestPerson, UrlPath, find_viewable_run, run_blocking};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::ServerState;
use crate::store_watch::PendingEntry;

/// Code of the refusal of a decision about a call that another decision was taken for.
const ALREADY_TAKEN: &str = "already_taken";

/// A decision about a call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
        #[serde(skip_serializing_if = "Option::is_none")]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
    /// Signature of an approver, if the store has approvers. A rejection needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<SignatureInput>,
}

/// The signature of an approver under the message of a statement.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignatureInput {
    /// Public key of the approver: `ed25519:` and 64 hex digits.
    #[schemars(regex(pattern = r"^ed25519:[0-9a-f]{64}$"))]
    pub(crate) key: String,
    /// The Ed25519 signature in 128 hex digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{128}$"))]
    pub(crate) value: String,
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

/// A decision that a person may make about a call as it was displayed.
struct CheckedDecision {
    run: RunId,
    /// Agent that the run started with.
    agent: AgentName,
    path: CallPath,
    decision: Decision,
    scope: DecisionScope,
    review: DecisionReview,
}

/// Posts a decision of a person. It is refused if the sheet has changed since it was displayed.
async fn decide_call(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    body: DecisionBody,
) -> Result<PostedSummary, ApiError> {
    let signature = body.signature.clone();
    let checked = check_decision(state, person, run, body).await?;
    if let Some(SignatureInput { key, value }) = &signature {
        let is_hex = |text: &str| text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if !ApproverKey::new(key.as_str()).is_well_formed() || value.len() != 128 || !is_hex(value) {
            return Err(ApiError::invalid("`signature` has no Ed25519 key and signature"));
        }
        if state.queue.approvers().is_none() {
            return Err(no_approvers());
        }
    }
    post_checked(state, person, checked, signature).await
}

/// Posts decisions of a person about calls of one run. All of them are checked before the first is posted, so that one
/// that is refused leaves no part of them behind. Decisions that the person has made and that were taken are not posted
/// again.
///
/// Returns the sequence number of the first record of a decision that was taken.
pub(crate) async fn decide_calls(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    bodies: Vec<DecisionBody>,
) -> Result<Option<u64>, ApiError> {
    let (mut checked, mut first_taken) = (Vec::new(), None::<u64>);
    for body in bodies {
        let (path, decision) = (CallPath::from(body.call.as_str()), body.decision.clone().into_decision());
        match check_decision(state, person, run, body).await {
            Ok(decision) => checked.push(decision),
            Err(error) if error.code == ALREADY_TAKEN => {
                let taken = find_taken(state, person, run, &path, &decision).await?.ok_or(error)?;
                first_taken = Some(first_taken.map_or(taken, |first| first.min(taken)));
            }
            Err(error) => return Err(error),
        }
    }
    for decision in checked {
        post_checked(state, person, decision, None).await?;
    }
    Ok(first_taken)
}

/// Returns the sequence number of the last decision about a call, if a person has made this one.
async fn find_taken(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    path: &CallPath,
    decision: &Decision,
) -> Result<Option<u64>, ApiError> {
    let (id, _) = find_viewable_run(state, person, run, AccessRole::Approve).await?;
    let paused = load_paused(&*state.queue, &id).await?;
    let (path, decision, name) = (path.clone(), decision.clone(), person.name.clone());
    run_blocking(move || {
        let last = paused.record().read_journal()?.iter().rev().find_map(|record| match &record.entry {
            JournalEntry::DecisionRecorded(made)
                if made.call == *path.call() && record.path == path.parent_calls() =>
            {
                Some((record.seq, made))
            }
            _ => None,
        });
        let same =
            last.filter(|(_, made)| made.decision == decision && made.decided_by.as_ref() == Some(&name));
        Ok(same.map(|(seq, _)| seq))
    })
    .await
}

async fn post_checked(
    state: &ServerState,
    person: &PersonIdentity,
    checked: CheckedDecision,
    signature: Option<SignatureInput>,
) -> Result<PostedSummary, ApiError> {
    let CheckedDecision { run: id, agent, path, decision, scope, review } = checked;
    let (run, call) = (id.as_str(), path.to_string());
    let posted = match signature {
        None => post_reviewed_decision(&*state.queue, &id, path, decision, scope, review).await,
        Some(SignatureInput { key, value }) => {
            let signature = DecisionSignature { key: ApproverKey::new(key), value };
            let store = &*state.queue;
            post_decision_with_signature(store, &id, path, decision, scope, review, signature).await
        }
    };
    if let Err(PostDecisionError::Signature(reason)) = &posted {
        tracing::warn!(run, call, person = person.name, %reason, "a decision would not count and is refused");
    }
    posted?;
    state.ensure_queued(&id, &agent, &person.name).await?;
    tracing::info!(run, call, person = person.name, "a decision is posted");
    Ok(PostedSummary { run: run.to_owned(), call, decided_by: person.name.clone() })
}

/// Checks that a person may make a decision, and that the sheet has not changed since it was displayed.
async fn check_decision(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    body: DecisionBody,
) -> Result<CheckedDecision, ApiError> {
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
    let shown = item_of(state, &paused, &agent, pending).await?;
    if shown.sheet.digest != displayed.to_string() {
        return Err(changed_sheet());
    }
    if body.for_run && decision == Decision::Approve && shown.sheet.covers_always.is_none() {
        return Err(ApiError::invalid("an approval of this call covers no later one: leave out `for_run`"));
    }
    let scope = if body.for_run { DecisionScope::ToolForRun } else { DecisionScope::ThisCall };
    let review = DecisionReview {
        decided_by: person.name.clone(),
        displayed: Some(displayed),
        attempt: Some(body.attempt),
    };
    Ok(CheckedDecision { run: id, agent, path, decision, scope, review })
}

/// A decision that an approver is about to sign.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatementBody {
    /// The decision, without a signature.
    pub(crate) decision: DecisionBody,
    /// Public key of the approver: `ed25519:` and 64 hex digits.
    #[schemars(regex(pattern = r"^ed25519:[0-9a-f]{64}$"))]
    pub(crate) key: String,
}

/// The exact bytes that an approver signs, and every part of them. A client makes the bytes anew from the parts that its
/// user has seen, and signs those.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DecisionStatement {
    /// The bytes that are signed, in hex digits.
    pub(crate) message: String,
    /// Domain of the store's approvers.
    pub(crate) domain: String,
    /// Public key of the approver.
    pub(crate) key: String,
    /// Name of the approver with this key.
    pub(crate) approver: String,
    /// Run of the call.
    pub(crate) run: String,
    /// Path of the call: the ids of the enclosing calls, and its own.
    pub(crate) path: Vec<String>,
    /// Number of the hold.
    pub(crate) attempt: u32,
    /// Agent that made the call.
    pub(crate) agent: String,
    /// Tool of the call.
    pub(crate) tool: String,
    /// The arguments of the call as canonical JSON text.
    pub(crate) arguments: String,
    /// Digest of the tool and the arguments.
    pub(crate) digest: String,
    /// The decision as the journal has it.
    pub(crate) recorded_decision: Value,
    /// The scope as the journal has it.
    pub(crate) recorded_scope: Value,
    /// Person who decides.
    pub(crate) decided_by: String,
    /// Digest of the sheet that was displayed.
    pub(crate) displayed: String,
    /// The decision to post, with a `signature` added.
    pub(crate) decision: DecisionBody,
}

pub(super) async fn state_decision(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(run): UrlPath<String>,
    JsonBody(body): JsonBody<StatementBody>,
) -> Result<Json<DecisionStatement>, ApiError> {
    statement_of(&state, &person, &run, body).await.map(Json)
}

/// Returns the bytes that an approver signs. Nothing is decided.
async fn statement_of(
    state: &ServerState,
    person: &PersonIdentity,
    run: &str,
    body: StatementBody,
) -> Result<DecisionStatement, ApiError> {
    let StatementBody { decision: body, key } = body;
    let key = ApproverKey::new(key);
    if !key.is_well_formed() {
        return Err(ApiError::invalid("`key` is not `ed25519:` and 64 hex digits"));
    }
    let decision_body = DecisionBody { signature: None, ..body.clone() };
    let CheckedDecision { run: id, path, decision, scope, review, .. } =
        check_decision(state, person, run, body).await?;
    let Some(approvers) = state.queue.approvers() else {
        return Err(no_approvers());
    };
    let refused = |reason: SignatureError| ApiError::from(PostDecisionError::Signature(reason));
    let approver =
        approvers.name_of(&key).ok_or_else(|| refused(SignatureError::UnknownKey(key.clone())))?.to_owned();
    if approver != person.name {
        return Err(refused(SignatureError::OtherName(approver)));
    }
    let unsigned = prepare_decision(&*state.queue, &id, path, decision, scope, review).await?;
    let PendingCall { path, attempt, agent, tool, arguments, .. } = &unsigned.call;
    let DecisionRecorded { digest, decision, scope, displayed, .. } = &unsigned.decision;
    let calls = path.parent_calls().iter().chain(std::iter::once(path.call()));
    Ok(DecisionStatement {
        message: unsigned.message(&key).iter().map(|byte| format!("{byte:02x}")).collect(),
        domain: unsigned.domain.clone(),
        key: key.as_str().to_owned(),
        approver,
        run: id.as_str().to_owned(),
        path: calls.map(|call| call.as_str().to_owned()).collect(),
        attempt: *attempt,
        agent: agent.as_str().to_owned(),
        tool: tool.to_string(),
        arguments: arguments.clone(),
        digest: digest.to_string(),
        recorded_decision: serde_json::to_value(decision).unwrap_or_default(),
        recorded_scope: serde_json::to_value(scope).unwrap_or_default(),
        decided_by: person.name.clone(),
        displayed: displayed.map(|displayed| displayed.to_string()).unwrap_or_default(),
        decision: decision_body,
    })
}

fn no_approvers() -> ApiError {
    ApiError::conflict("no_approvers", "decisions need no signature here")
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
        Some(taken) => Err(ApiError::conflict(ALREADY_TAKEN, taken.to_string())),
        None => {
            Err(ApiError::new(StatusCode::NOT_FOUND, "call_not_pending", "no such call waits for a person"))
        }
    }
}

/// Makes the item of a call of a loaded run.
async fn item_of(
    state: &ServerState,
    paused: &PausedRun,
    agent: &AgentName,
    pending: PendingCall,
) -> Result<InboxItem, ApiError> {
    let entry = PendingEntry::load(&*state.queue, paused, agent, pending, Timestamp::default()).await?;
    Ok(inbox_item(state, &entry))
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
    item_of(state, &paused, &agent, pending).await
}
