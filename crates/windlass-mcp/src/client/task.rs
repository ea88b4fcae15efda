//! A call that its server answered with a task: followed until it ends, through lost connections and other processes.
//!
//! A task's id is kept with the run before it is first asked about. Whoever goes on with the run finds it there, and
//! asks the server about the same task in place of calling again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    CallToolResult, CancelTaskParams, DetailedTask, ErrorCode, GetTaskParams, InputRequest, TaskPayload,
    UpdateTaskParams,
};
use rmcp::service::ServiceError;
use serde_json::{Value, json};
use windlass::core::Question;
use windlass::run::Leaving;
use windlass::{ToolContext, ToolError};

use super::call::Caller;
use super::connection::Connection;
use super::list::ToolInfo;
use super::question::{PLACE, accepted, question};

/// How long to wait between two questions about a task, where the server does not say, and within which bounds it may.
const INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(30);
/// How long a server has to take note that a task is not wanted any more.
const CANCELLING: Duration = Duration::from_secs(5);

fn place<C>(ctx: &ToolContext<C>) -> String {
    format!("mcp-task {}", ctx.path())
}

/// The task that this call became, where it did so before.
pub(crate) async fn kept<C>(ctx: &ToolContext<C>) -> Result<Option<String>, ToolError> {
    let kept = ctx.artefact(&place(ctx)).await?;
    Ok(kept.map(|id| id.to_string()))
}

/// Keeps a new task with the run, and follows it.
pub(super) async fn begin<C>(
    connection: &Arc<Connection>,
    tool: &ToolInfo,
    caller: &Caller<'_, C>,
    id: &str,
) -> Result<CallToolResult, ToolError> {
    let ended = wanted(connection, caller.ctx, id);
    caller.ctx.keep_artefact(&place(caller.ctx), id).await?;
    follow(connection, tool, caller, id, &ended).await
}

/// Goes on with a task that was kept with the run.
pub(super) async fn go_on<C>(
    connection: &Arc<Connection>,
    tool: &ToolInfo,
    caller: &Caller<'_, C>,
    id: &str,
) -> Result<CallToolResult, ToolError> {
    let ended = wanted(connection, caller.ctx, id);
    follow(connection, tool, caller, id, &ended).await
}

/// Sees to it that a task is not wanted any more where the run is over before it has ended; where another process goes
/// on with the run, it is. What is given back says whether it has ended.
fn wanted<C>(connection: &Arc<Connection>, ctx: &ToolContext<C>, id: &str) -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let at_end = (connection.clone(), id.to_owned(), ended.clone());
    ctx.at_end(move |leaving| async move {
        let (connection, id, ended) = at_end;
        if leaving == Leaving::Over && !ended.load(Ordering::Relaxed) {
            cancel(&connection, &id).await;
        }
    });
    ended
}

/// Follows a task until it ends, or its time is over.
async fn follow<C>(
    connection: &Connection,
    tool: &ToolInfo,
    caller: &Caller<'_, C>,
    id: &str,
    ended: &AtomicBool,
) -> Result<CallToolResult, ToolError> {
    let lasting = connection.config.task_timeout;
    let followed = tokio::time::timeout(lasting, watch(connection, tool, caller, id)).await;
    if let Ok(Err(Stop::Asks(question))) = followed {
        return Err(ToolError::ask(question));
    }
    ended.store(true, Ordering::Relaxed);
    match followed {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(stop)) => Err(stop.into()),
        Err(_) => {
            cancel(connection, id).await;
            let (name, after) = (&tool.name, lasting.as_millis());
            Err(ToolError::tell(format!(
                "`{name}` timed out after {after} ms. The server was told to stop it."
            )))
        }
    }
}

/// Why a task is not followed any further though it has no result.
enum Stop {
    Failed(ToolError),
    /// It waits for a person, and has not ended.
    Asks(Question),
}

impl From<Stop> for ToolError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Failed(error) => error,
            Stop::Asks(question) => Self::ask(question),
        }
    }
}

fn told(words: String) -> Stop {
    Stop::Failed(ToolError::tell(words))
}

async fn watch<C>(
    connection: &Connection,
    tool: &ToolInfo,
    caller: &Caller<'_, C>,
    id: &str,
) -> Result<CallToolResult, Stop> {
    let mut answered = BTreeSet::new();
    let mut words = None;
    let mut wait = INTERVAL;
    loop {
        match ask(connection, id).await {
            Ok(DetailedTask { task, payload, .. }) => {
                wait = task.poll_interval_ms.map_or(INTERVAL, Duration::from_millis).clamp(SHORTEST, LONGEST);
                if task.status_message != words {
                    words = task.status_message;
                    caller.ctx.progress(json!({ "message": words }));
                }
                match payload {
                    TaskPayload::Working => {}
                    TaskPayload::InputRequired { input_requests } => {
                        let responses = responses(caller, id, input_requests, &answered).await?;
                        let names: Vec<String> = responses.keys().cloned().collect();
                        if !names.is_empty() && update(connection, id, responses).await {
                            answered.extend(names);
                            wait = SHORTEST;
                        }
                    }
                    TaskPayload::Completed { result } => {
                        return serde_json::from_value(Value::Object(result)).map_err(|error| {
                            tracing::warn!(server = %tool.server, tool = %tool.name, %error, "a result cannot be read");
                            told(format!("`{}` ended with something that is not a result.", tool.name))
                        });
                    }
                    TaskPayload::Failed { error } => {
                        let why =
                            error.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
                        return Err(told(format!("`{}` failed: {why}", tool.name)));
                    }
                    TaskPayload::Cancelled => {
                        return Err(told(format!(
                            "`{}` was cancelled at its server. Whether it had its effect is not known.",
                            tool.name
                        )));
                    }
                    _ => return Err(told(format!("`{}` is in a state that is not known here.", tool.name))),
                }
            }
            Err(Trouble::Unknown(why)) => {
                tracing::warn!(server = %tool.server, tool = %tool.name, task = %id, %why, "a task is gone");
                return Err(told(format!(
                    "The MCP server `{}` does not know this call any more. Whether `{}` had its effect is not known: \
                     find out before it is called again.",
                    tool.server, tool.name
                )));
            }
            // Asking again does no harm, and the server may come back.
            Err(Trouble::Passing(why)) => {
                tracing::debug!(server = %tool.server, task = %id, %why, "a task could not be asked about");
                wait = (wait * 2).min(LONGEST);
            }
        }
        tokio::time::sleep(wait).await;
    }
}

/// Why a task could not be asked about.
enum Trouble {
    /// The server says that it has none such.
    Unknown(String),
    /// The server cannot be reached, or cannot answer now.
    Passing(String),
}

async fn ask(connection: &Connection, id: &str) -> Result<DetailedTask, Trouble> {
    let live = connection.live().await.map_err(|error| Trouble::Passing(error.to_string()))?;
    let asking = live.peer.get_task(GetTaskParams::new(id));
    let late = |_| Trouble::Passing("it did not answer in time".to_owned());
    match tokio::time::timeout(connection.config.call_timeout, asking).await.map_err(late)? {
        Ok(answer) => Ok(answer.task),
        Err(ServiceError::McpError(error))
            if matches!(error.code, ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND) =>
        {
            Err(Trouble::Unknown(error.message.to_string()))
        }
        Err(error) => Err(Trouble::Passing(error.to_string())),
    }
}

/// Answers to all that a task waits for and was not told yet; or the first question that has none.
async fn responses<C>(
    caller: &Caller<'_, C>,
    id: &str,
    requests: BTreeMap<String, InputRequest>,
    answered: &BTreeSet<String>,
) -> Result<BTreeMap<String, Value>, Stop> {
    let mut responses = BTreeMap::new();
    for (name, request) in requests {
        if answered.contains(&name) {
            continue;
        }
        let InputRequest::Elicitation(request) = request else {
            return Err(told("The server asks for something that is not offered here.".to_owned()));
        };
        let mut question = question(&request.params);
        let schema = question.schema.get_or_insert_with(|| json!({}));
        schema[PLACE] = json!({ "request": name, "task": id });
        let Some(answer) = caller.answer(&question).await else { return Err(Stop::Asks(question)) };
        responses.insert(name, serde_json::to_value(accepted(&answer)).unwrap_or_default());
    }
    Ok(responses)
}

/// Tells a task what it waits for. Whether the server has taken note: where not, it is told again.
async fn update(connection: &Connection, id: &str, responses: BTreeMap<String, Value>) -> bool {
    let Ok(live) = connection.live().await else { return false };
    let sending = live.peer.update_task(UpdateTaskParams::new(id, responses));
    let sent = tokio::time::timeout(connection.config.call_timeout, sending).await;
    matches!(sent, Ok(Ok(())))
}

async fn cancel(connection: &Connection, id: &str) {
    let Ok(live) = connection.live().await else { return };
    let told = tokio::time::timeout(CANCELLING, live.peer.cancel_task(CancelTaskParams::new(id))).await;
    tracing::debug!(task = %id, ?told, "a server was told to stop a task");
}
