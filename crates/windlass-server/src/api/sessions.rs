//! Sessions: stored history that runs share.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::core::id::SessionId;
use windlass::session::SessionStore;
use windlass::store::Store;

use super::runs::page_size;
use super::{ApiError, RequestPerson, UrlPath, UrlQuery};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::ServerState;

/// Largest index of an item.
const MAX_ITEM_INDEX: u64 = 1_000_000_000;

/// The page of a list of sessions.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionQuery {
    /// Session after which the page begins.
    pub(crate) after: Option<String>,
    /// Maximum number of sessions.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<u32>,
}

/// A page of sessions.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SessionPage {
    /// Ids of the sessions, in order.
    pub(crate) sessions: Vec<String>,
    /// Session after which the next page begins; absent on the last one.
    pub(crate) next: Option<String>,
}

/// Returns the sessions of the store, for a person who may view all agents: a session belongs to none.
fn sessions_for<'a>(
    state: &'a ServerState,
    person: &PersonIdentity,
) -> Result<&'a dyn SessionStore, ApiError> {
    if !person.may_everywhere(AccessRole::View) {
        return Err(ApiError::forbidden("missing_right", "you lack the right `view` for all agents"));
    }
    state.queue.sessions().ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "no_sessions", "the store of this server keeps no sessions")
    })
}

pub(super) async fn list_sessions(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<SessionQuery>,
) -> Result<Json<SessionPage>, ApiError> {
    let limit = page_size(asked.limit, 100)?;
    let after = asked.after.map(SessionId::from);
    let mut sessions = sessions_for(&state, &person)?.list_sessions(after.as_ref(), limit + 1).await?;
    let is_last = sessions.len() <= limit as usize;
    sessions.truncate(limit as usize);
    let sessions: Vec<String> = sessions.iter().map(|session| session.as_str().to_owned()).collect();
    let next = if is_last { None } else { sessions.last().cloned() };
    Ok(Json(SessionPage { sessions, next }))
}

/// The page of the items of a session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemQuery {
    /// Index of the first item.
    #[schemars(range(max = 1_000_000_000))]
    pub(crate) from: Option<u64>,
    /// Maximum number of items.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<u32>,
}

/// A page of the items of a session.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SessionItems {
    /// Id of the session.
    pub(crate) session: String,
    /// Number of items in the session.
    pub(crate) total: u64,
    /// The items, oldest first.
    pub(crate) items: Vec<Value>,
}

pub(super) async fn open_session(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlPath(session): UrlPath<String>,
    UrlQuery(asked): UrlQuery<ItemQuery>,
) -> Result<Json<SessionItems>, ApiError> {
    let limit = page_size(asked.limit, 100)?;
    if asked.from.is_some_and(|from| from > MAX_ITEM_INDEX) {
        return Err(ApiError::invalid("`from` is larger than any session"));
    }
    let id = SessionId::from(session.as_str());
    let sessions = sessions_for(&state, &person)?;
    let page = sessions.load_session_items(&id, asked.from.unwrap_or(0), limit).await?;
    Ok(Json(SessionItems {
        session,
        total: page.total,
        items: page.items.iter().map(|item| serde_json::to_value(&**item).unwrap_or_default()).collect(),
    }))
}
