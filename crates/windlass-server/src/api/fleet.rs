//! The person, the agents, the workers and the queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::core::id::RunId;
use windlass::fleet::{QueueFilter, RunQueue};

use super::run_detail::QueueState;
use super::runs::page_size;
use super::{ApiError, RequestPerson, UrlQuery};
use crate::access::AccessRole;
use crate::agent_catalogue::AgentSummary;
use crate::server::ServerState;

/// A person and their rights.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PersonSummary {
    /// Name of the person, as decisions record it.
    pub(crate) name: String,
    /// Rights by agent; `*` stands for every agent.
    pub(crate) roles: BTreeMap<String, Vec<String>>,
}

pub(super) async fn who_am_i(RequestPerson(person): RequestPerson) -> Json<PersonSummary> {
    let names = |roles: &Vec<AccessRole>| roles.iter().map(|role| role.name().to_owned()).collect();
    let roles = person.roles().iter().map(|(agent, roles)| (agent.clone(), names(roles))).collect();
    Json(PersonSummary { name: person.name, roles })
}

/// The agents of the server.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AgentPage {
    /// The agents, by name.
    pub(crate) agents: Vec<AgentSummary>,
}

pub(super) async fn list_agents(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
) -> Json<AgentPage> {
    let visible = state.catalogue.agents().filter(|(name, _)| person.may(AccessRole::View, name));
    Json(AgentPage { agents: visible.map(|(_, summary)| summary.clone()).collect() })
}

/// The page of the queue.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueQuery {
    /// Run after which the page begins.
    pub(crate) after: Option<String>,
    /// State of the runs: `dead_letter` for those that no worker takes; every state if absent.
    #[schemars(regex(pattern = r"^(dead_letter)?$"))]
    pub(crate) state: Option<String>,
    /// Maximum number of runs.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<u32>,
}

/// Reads the filter of the queue.
pub(crate) fn queue_filter(state: Option<&str>) -> Result<QueueFilter, ApiError> {
    match state {
        None | Some("") => Ok(QueueFilter::Open),
        Some("dead_letter") => Ok(QueueFilter::DeadLetters),
        Some(_) => Err(ApiError::invalid("`state` is dead_letter, or absent")),
    }
}

/// The workers and a page of the queue.
#[derive(Serialize, JsonSchema)]
pub(crate) struct FleetSummary {
    /// The workers.
    pub(crate) workers: Vec<WorkerSummary>,
    /// Runs in the queue that have not ended, by id.
    pub(crate) queue: Vec<QueuedSummary>,
    /// Run after which the next page begins; absent on the last one.
    pub(crate) next: Option<String>,
}

/// A worker.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WorkerSummary {
    /// Name of the worker.
    pub(crate) name: String,
    /// Number of renewals of its lease.
    pub(crate) beat: u64,
    /// Time of the last renewal in milliseconds since 1970, on the worker's clock.
    pub(crate) renewed_at: u64,
}

/// A run in the queue.
#[derive(Serialize, JsonSchema)]
pub(crate) struct QueuedSummary {
    /// Id of the run.
    pub(crate) run: String,
    /// Agent of the run.
    pub(crate) agent: String,
    /// Tenant of the run.
    pub(crate) tenant: String,
    /// State of the run in the queue.
    #[serde(flatten)]
    pub(crate) queue: QueueState,
}

pub(super) async fn show_fleet(
    State(state): State<Arc<ServerState>>,
    RequestPerson(person): RequestPerson,
    UrlQuery(asked): UrlQuery<QueueQuery>,
) -> Result<Json<FleetSummary>, ApiError> {
    let filter = queue_filter(asked.state.as_deref())?;
    state
        .fleet_page(&person, filter, asked.after.as_deref().map(RunId::from), page_size(asked.limit, 100)?)
        .await
        .map(Json)
}

impl ServerState {
    /// Returns the workers and a page of the queue that a person may see.
    pub(crate) async fn fleet_page(
        &self,
        person: &crate::access::PersonIdentity,
        filter: QueueFilter,
        after: Option<RunId>,
        limit: u32,
    ) -> Result<FleetSummary, ApiError> {
        let workers = self.queue.list_workers().await?;
        let page = self.queue.list_queued_runs(filter, after.as_ref(), limit).await?;
        let next =
            (page.len() == limit as usize).then(|| page.last().map(|last| last.submission.run.clone()));
        Ok(FleetSummary {
            workers: workers
                .iter()
                .map(|lease| WorkerSummary {
                    name: lease.owner.clone(),
                    beat: lease.beat,
                    renewed_at: lease.renewed_at.0,
                })
                .collect(),
            queue: page
                .iter()
                .filter(|queued| person.may(AccessRole::View, &queued.submission.agent))
                .map(|queued| QueuedSummary {
                    run: queued.submission.run.as_str().to_owned(),
                    agent: queued.submission.agent.as_str().to_owned(),
                    tenant: queued.submission.tenant.clone(),
                    queue: QueueState::from(queued),
                })
                .collect(),
            next: next.flatten().map(|run| run.as_str().to_owned()),
        })
    }
}
