//! Calls that a server answers with a task: polled until they end, across lost connections and process restarts.
//!
//! **Invariant:** the task id is saved with the run before the first poll. A process that recovers the run
//! finds the id and polls the same task instead of calling the tool again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    CancelTaskParams, DetailedTask, ErrorCode, GetTaskParams, InputRequest, TaskPayload, UpdateTaskParams,
};
use rmcp::service::ServiceError;
use serde_json::{Value, json};
use windlass::core::decision::PersonQuestion;
use windlass::error::StoreError;
use windlass::run::RunExit;
use windlass::tool::{ToolContext, ToolError};

use super::call::{McpCallContext, error_data_suffix, json_rpc_failure};
use super::connection::McpConnection;
use super::content::ServerToolResult;
use super::elicitation::answer_input_request;
use super::list::McpToolInfo;

/// Poll interval of a server that suggests none.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Lower bound of a suggested poll interval.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Upper bound of a suggested poll interval, and of the wait after failed polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time for the server to acknowledge a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

fn artefact_key<C>(ctx: &ToolContext<C>) -> String {
    format!("mcp-task {}", ctx.call_path())
}

/// Returns the id of the task that an earlier attempt of this call created, if any.
///
/// # Errors
///
/// Returns the error of the store. Such a task may then exist, so that the tool must not be called.
pub(crate) async fn load_task_id<C>(ctx: &ToolContext<C>) -> Result<Option<String>, StoreError> {
    ctx.load_text_artefact(&artefact_key(ctx)).await
}

/// Saves the id of a new task with the run, and polls the task until it ends. A task that cannot be saved is cancelled,
/// because no other process would find it.
pub(super) async fn start_following<C>(
    connection: &Arc<McpConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    id: &str,
) -> Result<ServerToolResult, ToolError> {
    let ended = cancel_at_run_exit(connection, caller.ctx, id);
    if let Err(error) = caller.ctx.save_artefact(&artefact_key(caller.ctx), id).await {
        tracing::warn!(server = %tool.server, tool = %tool.name, task = %id, %error, "a task cannot be saved");
        ended.store(true, Ordering::Relaxed);
        cancel_task(connection, id).await;
        return Err(ToolError::effect_unknown(format!(
            "The MCP server `{}` accepted `{}` as a task, which could not be recorded here. The server was told to \
             stop it.",
            tool.server, tool.name
        )));
    }
    follow_until_timeout(connection, tool, caller, id, &ended).await
}

/// Resumes polling of a task whose id was saved with the run.
pub(super) async fn resume_following<C>(
    connection: &Arc<McpConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    id: &str,
) -> Result<ServerToolResult, ToolError> {
    let ended = cancel_at_run_exit(connection, caller.ctx, id);
    follow_until_timeout(connection, tool, caller, id, &ended).await
}

/// Registers a hook that cancels the task if the run is over before the task has ended. If another process
/// continues the run, the task is left running. Returns the flag to set once the task has ended.
fn cancel_at_run_exit<C>(connection: &Arc<McpConnection>, ctx: &ToolContext<C>, id: &str) -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let at_end = (connection.clone(), id.to_owned(), ended.clone());
    ctx.on_run_exit(move |leaving| async move {
        let (connection, id, ended) = at_end;
        if leaving == RunExit::Ended && !ended.load(Ordering::Relaxed) {
            cancel_task(&connection, &id).await;
        }
    });
    ended
}

/// Polls a task until it ends. Cancels it after the task timeout, and if it cannot continue.
async fn follow_until_timeout<C>(
    connection: &Arc<McpConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    id: &str,
    ended: &AtomicBool,
) -> Result<ServerToolResult, ToolError> {
    let lasting = connection.config.task_timeout;
    let name = &tool.name;
    let followed = tokio::time::timeout(lasting, poll_until_done(connection, tool, caller, id)).await;
    let abandoned = match followed {
        Ok(Err(TaskInterruption::NeedsAnswer(question))) => return Err(ToolError::ask_person(question)),
        Ok(Err(TaskInterruption::Abandoned(reason))) => format!("`{name}` was stopped. {reason}."),
        Err(_) => format!("`{name}` timed out after {} ms.", lasting.as_millis()),
        Ok(Ok(result)) => {
            ended.store(true, Ordering::Relaxed);
            return Ok(result);
        }
        Ok(Err(TaskInterruption::Ended(error))) => {
            ended.store(true, Ordering::Relaxed);
            return Err(error);
        }
    };
    ended.store(true, Ordering::Relaxed);
    cancel_task(connection, id).await;
    Err(ToolError::effect_unknown(format!("{abandoned} The server was told to stop it.")))
}

/// The reason why polling stopped without a result.
enum TaskInterruption {
    /// The task has ended at the server, with this error.
    Ended(ToolError),
    /// The task has not ended and cannot continue, for this reason.
    Abandoned(String),
    /// The task waits for a person's answer and has not ended.
    NeedsAnswer(PersonQuestion),
}

fn effect_unknown(words: String) -> TaskInterruption {
    TaskInterruption::Ended(ToolError::effect_unknown(words))
}

async fn poll_until_done<C>(
    connection: &Arc<McpConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    id: &str,
) -> Result<ServerToolResult, TaskInterruption> {
    let mut answered = BTreeSet::new();
    let mut words = None;
    let mut wait = DEFAULT_POLL_INTERVAL;
    loop {
        match get_task(connection, id).await {
            Ok(DetailedTask { task, payload, .. }) => {
                wait = task
                    .poll_interval_ms
                    .map_or(DEFAULT_POLL_INTERVAL, Duration::from_millis)
                    .clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
                if task.status_message != words {
                    words = task.status_message;
                    caller.ctx.report_progress(json!({ "message": words }));
                }
                match payload {
                    TaskPayload::Working => {}
                    TaskPayload::InputRequired { input_requests } => {
                        let responses =
                            collect_responses(connection, caller, id, input_requests, &answered).await?;
                        let names: Vec<String> = responses.keys().cloned().collect();
                        if !names.is_empty() && send_responses(connection, id, responses).await {
                            answered.extend(names);
                            wait = MIN_POLL_INTERVAL;
                        }
                    }
                    TaskPayload::Completed { result } => {
                        return ServerToolResult::from_value(Value::Object(result)).ok_or_else(|| {
                            tracing::warn!(server = %tool.server, tool = %tool.name, "a result cannot be read");
                            effect_unknown(format!("`{}` ended with something that is not a result.", tool.name))
                        });
                    }
                    TaskPayload::Failed { error } => {
                        let why =
                            error.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
                        let data = error_data_suffix(error.get("data"));
                        let code = error.get("code").and_then(Value::as_i64);
                        let code = code.and_then(|code| i32::try_from(code).ok());
                        let code = ErrorCode(code.unwrap_or(ErrorCode::INTERNAL_ERROR.0));
                        return Err(TaskInterruption::Ended(json_rpc_failure(
                            tool,
                            caller.effect,
                            code,
                            &format!("{why}{data}"),
                        )));
                    }
                    TaskPayload::Cancelled => {
                        return Err(effect_unknown(format!(
                            "`{}` was cancelled at its server. Whether it had its effect is not known.",
                            tool.name
                        )));
                    }
                    _ => {
                        let reason = "The server reports a state that is not known here";
                        return Err(TaskInterruption::Abandoned(reason.to_owned()));
                    }
                }
            }
            Err(TaskPollError::UnknownTask(why)) => {
                tracing::warn!(server = %tool.server, tool = %tool.name, task = %id, %why, "a task is gone");
                return Err(effect_unknown(format!(
                    "The MCP server `{}` does not know this call any more. Whether `{}` had its effect is not known: \
                     find out before it is called again.",
                    tool.server, tool.name
                )));
            }
            // Polling is idempotent, and the server may become reachable again.
            Err(TaskPollError::Transient(why)) => {
                tracing::debug!(server = %tool.server, task = %id, %why, "a task could not be asked about");
                wait = (wait * 2).min(MAX_POLL_INTERVAL);
            }
        }
        tokio::time::sleep(wait).await;
    }
}

/// An error of polling a task.
enum TaskPollError {
    /// The server does not know the task.
    UnknownTask(String),
    /// The server cannot be reached or cannot respond at the moment.
    Transient(String),
}

async fn get_task(connection: &Arc<McpConnection>, id: &str) -> Result<DetailedTask, TaskPollError> {
    let live =
        connection.live_connection().await.map_err(|error| TaskPollError::Transient(error.to_string()))?;
    let asking = live.peer.get_task(GetTaskParams::new(id));
    let late = |_| TaskPollError::Transient("it did not answer in time".to_owned());
    match tokio::time::timeout(connection.config.call_timeout, asking).await.map_err(late)? {
        Ok(answer) => Ok(answer.task),
        Err(ServiceError::McpError(error))
            if matches!(error.code, ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND) =>
        {
            Err(TaskPollError::UnknownTask(error.message.to_string()))
        }
        Err(error) => Err(TaskPollError::Transient(error.to_string())),
    }
}

/// Collects the answers to the task's input requests that were not sent yet.
///
/// # Errors
///
/// Returns the first question that has no answer yet, or an error if the server requests something that is not offered.
async fn collect_responses<C>(
    connection: &Arc<McpConnection>,
    caller: &McpCallContext<'_, C>,
    id: &str,
    requests: BTreeMap<String, InputRequest>,
    answered: &BTreeSet<String>,
) -> Result<BTreeMap<String, Value>, TaskInterruption> {
    let mut responses = BTreeMap::new();
    for (name, request) in requests {
        if answered.contains(&name) {
            continue;
        }
        let extension = json!({ "request": name, "task": id });
        let response = answer_input_request(connection, caller, &request, extension).await;
        let response = response.map_err(|error| match error.question() {
            Some(question) => TaskInterruption::NeedsAnswer(question.clone()),
            None => TaskInterruption::Abandoned(error.message().to_owned()),
        })?;
        responses.insert(name, response);
    }
    Ok(responses)
}

/// Sends the answers to a task. Returns true if the server acknowledged them; otherwise they are sent again.
async fn send_responses(
    connection: &Arc<McpConnection>,
    id: &str,
    responses: BTreeMap<String, Value>,
) -> bool {
    let Ok(live) = connection.live_connection().await else { return false };
    let sending = live.peer.update_task(UpdateTaskParams::new(id, responses));
    let sent = tokio::time::timeout(connection.config.call_timeout, sending).await;
    matches!(sent, Ok(Ok(())))
}

async fn cancel_task(connection: &Arc<McpConnection>, id: &str) {
    let Ok(live) = connection.live_connection().await else { return };
    let told = tokio::time::timeout(CANCEL_TIMEOUT, live.peer.cancel_task(CancelTaskParams::new(id))).await;
    tracing::debug!(task = %id, ?told, "a server was told to stop a task");
}
