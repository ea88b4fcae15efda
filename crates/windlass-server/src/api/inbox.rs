//! The inbox: the calls that wait for a person, and who looks at them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use windlass::core::decision::{DecisionScope, HoldReason, PendingCall};
use windlass_text::SafeText;

use super::runs::page_size;
use super::{ApiError, JsonBody, RequestPerson, UrlQuery, find_viewable_run};
use crate::access::AccessRole;
use crate::agent_catalogue::effect_name;
use crate::call_sheet::CallSheet;
use crate::lock_unpoisoned;
use crate::server::ServerState;
use crate::store_watch::PendingEntry;

/// Time for which somebody counts as looking at a call.
const LOOK_DURATION: Duration = Duration::from_secs(15);
/// Largest number of calls to skip.
const MAX_SKIP: u32 = 1_000_000;
/// Number of looks that are kept.
const MAX_LOOKS: usize = 4096;

/// A call that waits for a person.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct InboxItem {
    /// Run of the call.
    pub(crate) run: String,
    /// Agent that the run started with.
    pub(crate) run_agent: String,
    /// Path of the call through nested agents.
    pub(crate) call: String,
    /// Number of the hold: a call can be held more than once.
    pub(crate) attempt: u32,
    /// Agent that made the call.
    pub(crate) agent: String,
    /// Tool of the call.
    pub(crate) tool: String,
    /// `approval`, `in_doubt` or `question`.
    #[schemars(extend("enum" = ["approval", "in_doubt", "question"]))]
    pub(crate) reason: String,
    /// Effect of the tool.
    pub(crate) effect: Option<String>,
    /// The arguments as JSON text.
    pub(crate) arguments: String,
    /// JSON Schema of the arguments, if the tool is known.
    pub(crate) arguments_schema: Option<Value>,
    /// JSON Schema that an answer must satisfy.
    pub(crate) answer_schema: Option<Value>,
    /// Time of the question in milliseconds since 1970.
    pub(crate) asked_at: u64,
    /// Time at which the call is rejected, in milliseconds since 1970.
    pub(crate) expires_at: Option<u64>,
    /// For a call in doubt, the time at which its driver was last seen.
    pub(crate) last_driver_seen: Option<u64>,
    /// The call as it is displayed. A decision names its digest.
    pub(crate) sheet: CallSheet,
    /// The decision that was posted and can be corrected until it is taken.
    pub(crate) posted: Option<PostedView>,
    /// Names of those who look at the call now.
    pub(crate) looking: Vec<String>,
}

/// A decision that was posted and is not taken yet.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct PostedView {
    /// Description of the decision.
    pub(crate) decision: String,
    /// Person who decided.
    pub(crate) decided_by: Option<String>,
    /// Time of the decision in milliseconds since 1970.
    pub(crate) posted_at: u64,
}

/// Makes the item of a call that waits.
pub(crate) fn inbox_item(state: &ServerState, entry: &PendingEntry) -> InboxItem {
    let pending = &entry.pending;
    let call = pending.path.to_string();
    let (reason, answer_schema) = match &pending.reason {
        HoldReason::Approval => ("approval", None),
        HoldReason::InDoubt => ("in_doubt", None),
        HoldReason::Question(question) => ("question", question.schema.clone()),
        _ => ("approval", None),
    };
    let preview = match &pending.reason {
        HoldReason::Question(_) => None,
        _ => state.preview.as_ref().and_then(|preview| preview(&entry.run, pending)),
    };
    let has_standing_approvals = state.catalogue.has_standing_approvals(&pending.agent, &pending.tool);
    let max_approval_scope =
        if has_standing_approvals { pending.max_approval_scope } else { DecisionScope::ThisCall };
    let pending = &PendingCall { max_approval_scope, ..pending.clone() };
    InboxItem {
        run: entry.run.as_str().to_owned(),
        run_agent: entry.root_agent.as_str().to_owned(),
        attempt: pending.attempt,
        agent: pending.agent.as_str().to_owned(),
        tool: pending.tool.to_string(),
        reason: reason.to_owned(),
        effect: entry.effect.map(|effect| effect_name(effect).to_owned()),
        arguments: pending.arguments.clone(),
        arguments_schema: state.catalogue.arguments_schema(&pending.agent, &pending.tool).cloned(),
        answer_schema,
        asked_at: entry.asked_at.0,
        expires_at: pending.expires_at.map(|time| time.0),
        last_driver_seen: pending.last_driver_seen.map(|time| time.0),
        sheet: CallSheet::new(&entry.run, pending, entry.effect, preview, entry.evidence.as_ref()),
        posted: pending.posted.as_ref().map(|posted| PostedView {
            decision: posted.decision.describe().to_owned(),
            decided_by: posted.decided_by.as_deref().map(|name| SafeText::from_line(name).to_string()),
            posted_at: posted.posted_at.0,
        }),
        looking: state.looks.people_at(&entry.run.as_str().into(), &call),
        call,
    }
}

/// The page of the inbox.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InboxQuery {
    /// Number of calls to skip.
    #[schemars(range(max = 1_000_000))]
    pub(crate) skip: Option<u32>,
    /// Maximum number of calls.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<u32>,
}

/// A page of the inbox.
#[derive(Serialize, JsonSchema)]
pub(crate) struct InboxPage {
    /// Number of calls that wait and that the person may see.
    pub(crate) total: u64,
    /// The calls, oldest first.
    pub(crate) calls: Vec<InboxItem>,
}

pub(super) async fn list_inbox(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<InboxQuery>,
) -> Result<Json<InboxPage>, ApiError> {
    let limit = page_size(asked.limit, 50)? as usize;
    if asked.skip.is_some_and(|skip| skip > MAX_SKIP) {
        return Err(ApiError::invalid("`skip` is larger than any inbox"));
    }
    let (total, calls) = state.inbox_page(&person, asked.skip.unwrap_or(0) as usize, limit).await?;
    Ok(Json(InboxPage { total: total as u64, calls }))
}

/// A look at a call.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LookBody {
    /// Run of the call.
    pub(crate) run: String,
    /// Path of the call.
    pub(crate) call: String,
}

/// The others who look at a call.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LookSummary {
    /// Names.
    pub(crate) others: Vec<String>,
}

pub(super) async fn look_at_call(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    JsonBody(body): JsonBody<LookBody>,
) -> Result<Json<LookSummary>, ApiError> {
    find_viewable_run(&state, &person, &body.run, AccessRole::View).await?;
    // Other texts are not kept: a viewer could fill the memory with them.
    let snapshot = state.watch.snapshot().await?;
    let is_waiting = snapshot
        .entries
        .iter()
        .any(|entry| entry.run.as_str() == body.run && entry.pending.path.to_string() == body.call);
    if is_waiting {
        state.looks.note(&person.name, &body.run, &body.call);
    }
    let mut others = state.looks.people_at(&body.run, &body.call);
    others.retain(|name| *name != person.name);
    Ok(Json(LookSummary { others }))
}

/// The people who look at calls, each for a few seconds.
#[derive(Default)]
pub(crate) struct CallLooks {
    looks: Mutex<HashMap<(String, String, String), Instant>>,
}

impl CallLooks {
    fn note(&self, person: &str, run: &str, call: &str) {
        let mut looks = lock_unpoisoned(&self.looks);
        if looks.len() >= MAX_LOOKS {
            looks.retain(|_, at| at.elapsed() < LOOK_DURATION);
        }
        if looks.len() < MAX_LOOKS {
            looks.insert((run.to_owned(), call.to_owned(), person.to_owned()), Instant::now());
        }
    }

    fn people_at(&self, run: &String, call: &str) -> Vec<String> {
        let looks = lock_unpoisoned(&self.looks);
        let mut people: Vec<String> = looks
            .iter()
            .filter(|((at_run, at_call, _), at)| {
                at_run == run && at_call == call && at.elapsed() < LOOK_DURATION
            })
            .map(|((_, _, person), _)| person.clone())
            .collect();
        people.sort();
        people
    }
}
