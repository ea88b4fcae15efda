//! Orders for a run: cancel it, resume it, revive it, and add input.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::core::item::Item;
use windlass::fleet::{QueueOrder, QueuedRun, QueuedState, RunQueue};
use windlass::store::load_paused;

use super::runs::find_viewable_run;
use super::{ApiError, JsonBody, RequestPerson, UrlPath};
use crate::access::{AccessRole, PersonIdentity};
use crate::server::ServerState;

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
