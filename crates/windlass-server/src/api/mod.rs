//! The API: runs, events, decisions, journals and sessions over HTTP and JSON.

mod costs;
mod decisions;
mod error;
mod events;
mod extract;
mod fleet;
#[cfg(test)]
mod fuzz_tests;
mod inbox;
mod journals;
mod openapi;
mod routes;
mod run_detail;
mod run_orders;
mod run_start;
mod runs;
mod sessions;

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::access::AccessRole::{Administer, Approve, Run, View};
use crate::server::ServerState;

pub(crate) use self::decisions::{DecisionBody, DecisionInput, ReviewBody, decide_calls, sheet_of};
pub(crate) use self::error::{ApiError, ErrorCode, SHOULD_RETRY};
pub(crate) use self::events::{PersonStreams, StreamPermit, stream_response};
pub(crate) use self::extract::{BodyTimeout, JsonBody, RequestPerson, TextBody, UrlPath, UrlQuery};
pub(crate) use self::fleet::{FleetSummary, queue_filter};
pub(crate) use self::inbox::{CallLooks, InboxItem, inbox_item};
use self::journals::ForkBody;
use self::routes::{ApiRoute, router_of};
pub(crate) use self::run_start::{RunStart, new_run_id, start_submission};
pub(crate) use self::runs::{
    RunListQuery, RunPage, RunSummary, find_viewable_run, list_runs_page, run_status,
};

/// Returns the routes of the API.
#[rustfmt::skip]
fn api_routes() -> Vec<ApiRoute> {
    let get_route = |path, operation, summary, handler| ApiRoute::new(Method::GET, path, operation, summary, handler);
    let post_route = |path, operation, summary, handler| ApiRoute::new(Method::POST, path, operation, summary, handler);
    vec![
        get_route("/v1/me", "who_am_i", "Returns the person of the request and their rights.", get(fleet::who_am_i))
            .answers::<fleet::PersonSummary>(200, "The person."),
        get_route("/v1/agents", "list_agents", "Lists the agents of the server with their tools.", get(fleet::list_agents))
            .needs(View).answers::<fleet::AgentPage>(200, "The agents."),
        get_route("/v1/fleet", "show_fleet", "Shows the workers and the queue.", get(fleet::show_fleet))
            .needs(View).query::<fleet::QueueQuery>().answers::<FleetSummary>(200, "The workers and a page of the queue."),
        get_route("/v1/costs", "show_costs", "Shows tokens and money by run, agent, model and day.", get(costs::show_costs))
            .needs(View).query::<costs::CostQuery>().answers::<costs::CostReport>(200, "The costs."),
        get_route("/metrics", "show_metrics", "Returns metrics in the text format of Prometheus.", get(crate::metrics::show_metrics))
            .needs(View).answers_text("text/plain", "The metrics."),
        get_route("/v1/runs", "list_runs", "Lists runs, newest first, in pages.", get(runs::list_runs))
            .needs(View).query::<RunListQuery>().answers::<RunPage>(200, "A page of runs."),
        post_route("/v1/runs", "start_run", "Starts a run. Starting the same run again has no effect.", post(run_start::start_run))
            .needs(Run).body::<RunStart>().answers::<run_start::StartedRun>(201, "The run is in the queue.")
            .answers::<run_start::StartedRun>(200, "The same run was started before."),
        post_route("/v1/runs/import", "import_run", "Stores an exported run.", post(journals::import_run))
            .needs(Administer).text_body("text/plain").answers::<RunSummary>(201, "The run is stored."),
        get_route("/v1/runs/{run}", "open_run", "Opens a run.", get(run_detail::open_run))
            .needs(View).answers::<run_detail::RunDetail>(200, "The run."),
        get_route("/v1/runs/{run}/records", "list_records", "Lists records of a run's journal.", get(run_detail::list_records))
            .needs(View).query::<run_detail::RecordQuery>().answers::<run_detail::RecordPage>(200, "A page of records."),
        get_route("/v1/runs/{run}/state", "run_state", "Returns the state of a run after one of its records.", get(run_detail::run_state))
            .needs(View).query::<run_detail::StateQuery>().answers::<run_detail::RunStateView>(200, "The state."),
        get_route("/v1/runs/{run}/events", "stream_events", "Streams the records of a run as server-sent events.", get(events::run_events))
            .needs(View).query::<events::EventQuery>().answers_text("text/event-stream", "The records, with their sequence numbers as ids."),
        post_route("/v1/runs/{run}/decisions", "decide", "Decides about a call that waits, or corrects a decision that is not taken.", post(decisions::decide))
            .needs(Approve).body::<DecisionBody>().answers::<decisions::PostedSummary>(200, "The decision is posted."),
        post_route("/v1/runs/{run}/statement", "state_decision", "Returns the exact bytes that an approver signs for a decision. Nothing is decided.", post(decisions::state_decision))
            .needs(Approve).body::<decisions::StatementBody>().answers::<decisions::DecisionStatement>(200, "The statement."),
        post_route("/v1/runs/{run}/review", "review_call", "Returns a call as it is displayed for a decision, with edited arguments if given.", post(decisions::review))
            .needs(View).body::<ReviewBody>().answers::<InboxItem>(200, "The call."),
        post_route("/v1/runs/{run}/cancel", "cancel_run", "Cancels a run.", post(run_orders::cancel_run))
            .needs(Run).answers::<run_orders::OrderSummary>(202, "The order is posted."),
        post_route("/v1/runs/{run}/resume", "resume_run", "Puts a stored run into the queue.", post(run_orders::resume_run))
            .needs(Run).answers::<run_orders::OrderSummary>(202, "A worker takes the run."),
        post_route("/v1/runs/{run}/revive", "revive_run", "Makes a dead letter ready again.", post(run_orders::revive_run))
            .needs(Administer).answers::<run_orders::OrderSummary>(202, "A worker takes the run."),
        post_route("/v1/runs/{run}/input", "add_input", "Adds input for the next model request of a run.", post(run_orders::add_input))
            .needs(Run).body::<run_orders::InputBody>().answers::<run_orders::OrderSummary>(202, "The order is posted."),
        post_route("/v1/runs/{run}/fork", "fork_run", "Forks a run at one of its records.", post(journals::fork_run))
            .needs(Run).body::<ForkBody>().answers::<RunSummary>(201, "The fork is stored."),
        get_route("/v1/runs/{run}/diff", "diff_runs", "Compares a run with another.", get(journals::diff_runs))
            .needs(View).query::<journals::DiffQuery>().answers::<journals::DiffSummary>(200, "The differences."),
        get_route("/v1/runs/{run}/verify", "verify_run", "Verifies the journal of a run.", get(journals::verify_run))
            .needs(View).answers::<journals::VerifySummary>(200, "The journal is whole, or the reason why it is not."),
        get_route("/v1/runs/{run}/export", "export_run", "Returns the journal of a run as one text.", get(journals::export_run))
            .needs(View).answers_text("text/plain", "The journal, with its hash chain."),
        get_route("/v1/inbox", "list_inbox", "Lists the calls that wait for a person, oldest first.", get(inbox::list_inbox))
            .needs(View).query::<inbox::InboxQuery>().answers::<inbox::InboxPage>(200, "A page of calls."),
        get_route("/v1/inbox/events", "stream_inbox", "Streams the number of calls that wait, as it changes.", get(events::inbox_events))
            .needs(View).answers_text("text/event-stream", "An event for each change."),
        post_route("/v1/inbox/looking", "look_at_call", "Says that the person looks at a call, for a few seconds.", post(inbox::look_at_call))
            .needs(View).body::<inbox::LookBody>().answers::<inbox::LookSummary>(200, "The others who look at the call."),
        get_route("/v1/sessions", "list_sessions", "Lists the sessions of the store.", get(sessions::list_sessions))
            .needs(View).query::<sessions::SessionQuery>().answers::<sessions::SessionPage>(200, "A page of sessions."),
        get_route("/v1/sessions/{session}", "open_session", "Returns the items of a session.", get(sessions::open_session))
            .needs(View).query::<sessions::ItemQuery>().answers::<sessions::SessionItems>(200, "A page of items."),
    ]
}

/// Returns the OpenAPI description of the API.
pub fn openapi_description() -> Value {
    openapi::describe_routes(&api_routes())
}

/// Makes the router of the API.
pub(crate) fn api_router() -> Router<Arc<ServerState>> {
    let description = Arc::new(openapi_description());
    router_of(api_routes())
        .route("/v1/openapi.json", get(move || std::future::ready(Json(Value::clone(&description)))))
        .route("/healthz", get(|| std::future::ready("ok")))
}

/// Number of long journals that are worked on at once: each takes a core, and memory for its records.
static BLOCKING_TURNS: Semaphore = Semaphore::const_new(8);

/// Runs work on a long journal on a thread of its own, so that it holds up no other request.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let failed = |error: &dyn std::fmt::Display| {
        tracing::error!(%error, "a request has failed");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "the request has failed")
    };
    let _turn = BLOCKING_TURNS.acquire().await.map_err(|error| failed(&error))?;
    tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))?
}

/// Answers requests for paths that do not exist.
pub(crate) async fn not_found() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
}

/// Answers requests with a method that a path does not have.
pub(crate) async fn method_not_allowed() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the path does not have this method")
}
