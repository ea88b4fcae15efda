//! One call of a server's tool, from its request to its result.
//!
//! **Invariant:** a request that may have reached the server is not resent, unless the tool is read-only, because
//! only the server knows its outcome. Dropping the call, on a deadline or when the run stops, sends the server a
//! cancellation. A call that may have had its effect ends with an error that says so.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CancelledNotificationParam, ClientRequest, CustomRequest,
    ElicitResult, ElicitationAction, ErrorCode, MetaObject, ProgressNotificationParam, ProgressToken,
    RequestId, RequestMetaObject, ServerResult,
};
use rmcp::service::{PeerRequestOptions, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use windlass::core::decision::PersonQuestion;
use windlass::{
    core::tool::ToolEffect,
    tool::{ToolContext, ToolError},
};

use super::ProtocolEra;
use super::connection::{AuthChallenge, LiveConnection, McpConnection};
use super::content::ServerToolResult;
use super::elicitation::{
    ElicitationAnswer, InputRequestRound, SCHEMA_EXTENSION, question_from_elicitation,
    question_from_url_error, result_from_answer,
};
use super::framing::unreadable_reason;
use super::http::McpHttpError;
use super::in_flight::ServerMessage;
use super::list::McpToolInfo;
use super::oauth::CONSENT_TIMEOUT;
use super::task;

/// Maximum number of `input_required` rounds before a server must return a result.
const MAX_INPUT_ROUNDS: usize = 10;

/// Maximum number of authorisation challenges answered for one call.
const MAX_AUTH_CHALLENGES: u32 = 2;

/// Maximum time for the server to acknowledge a cancellation.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of times the task yields after the response to collect progress notifications that arrive late.
const LATE_PROGRESS_YIELDS: usize = 4;

/// The `_meta` key of the call's idempotency key.
pub(crate) const IDEMPOTENCY_META_KEY: &str = "dev.windlass/idempotencyKey";

/// The extension of a server on which a call with an idempotency key outlives its connection. The key cancels it.
pub(crate) const KEYED_CALLS_EXTENSION: &str = "dev.windlass/keyed-calls";

/// The request that cancels a call by its tool (`name`) and its idempotency key (`key`).
pub(crate) const CANCEL_CALL_METHOD: &str = "dev.windlass/cancelCall";

/// Returns the time that authorisations may add to a call on a server with this connect timeout.
pub(crate) fn authorisation_allowance(connect_timeout: Duration) -> Duration {
    // Each challenge, the first connection and a reconnection.
    CONSENT_TIMEOUT.saturating_add(connect_timeout).saturating_mul(MAX_AUTH_CHALLENGES + 2)
}

/// A callback that answers a server's elicitation at once, or returns `None` to leave it to a person.
pub(crate) type ElicitationHandler<C> = Arc<
    dyn Fn(ToolContext<C>, PersonQuestion) -> BoxFuture<'static, Option<ElicitationAnswer>> + Send + Sync,
>;

/// The context of one call: the tool context, and the handler of elicitations.
pub(crate) struct McpCallContext<'a, C> {
    pub(crate) ctx: &'a ToolContext<C>,
    pub(crate) elicitation_handler: Option<&'a ElicitationHandler<C>>,
    /// Maximum time until the server responds, for servers with task support or OAuth; otherwise the tool's timeout
    /// applies. Waits for a connection and for a person's consent do not count.
    pub(crate) response_timeout: Option<Duration>,
    /// The tool's effect.
    pub(crate) effect: ToolEffect,
}

impl<C> McpCallContext<'_, C> {
    /// Returns the answer to a question from the journal or the handler, if there is one.
    pub(super) async fn answer_question(&self, question: &PersonQuestion) -> Option<ElicitationAnswer> {
        if let Some(answer) = self.ctx.answer_to(question) {
            return Some(answer.clone().into());
        }
        (self.elicitation_handler?)(self.ctx.clone(), question.clone()).await
    }
}

/// Calls a tool, or resumes the task that an earlier attempt of this call created.
pub(crate) async fn call_tool<C>(
    connection: &Arc<McpConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    arguments: Value,
) -> Result<ServerToolResult, ToolError> {
    let saved = task::load_task_id(caller.ctx).await.map_err(|error| {
        tracing::warn!(server = %tool.server, tool = %tool.name, %error, "the task of a call cannot be looked up");
        let why = format!(
            "It could not be looked up whether `{}` runs as a task at its server already. It was not called now.",
            tool.name
        );
        interrupted_error(caller.effect, why)
    })?;
    if let Some(id) = saved {
        return task::resume_following(connection, tool, caller, &id).await;
    }
    match send_with_retry(connection, tool, caller, arguments).await? {
        McpCallResponse::Result(result) => Ok(result),
        McpCallResponse::Task(id) => task::start_following(connection, tool, caller, &id).await,
    }
}

/// A server's response to `tools/call`.
enum McpCallResponse {
    Result(ServerToolResult),
    /// The id of a task that the server created for the call.
    Task(String),
}

/// The time that the attempts of a call have in all.
struct CallTime {
    limit: Option<Duration>,
    left: Duration,
}

impl CallTime {
    fn new(limit: Option<Duration>) -> Self {
        Self { limit, left: limit.unwrap_or_default() }
    }

    /// Completes an attempt in the time that is left. On timeout the attempt is dropped, which cancels the request at
    /// the server.
    async fn limit<T>(
        &mut self,
        tool: &McpToolInfo,
        effect: ToolEffect,
        attempt: impl Future<Output = Result<T, McpCallFailure>>,
    ) -> Result<T, McpCallFailure> {
        let Some(limit) = self.limit else { return attempt.await };
        let begun = Instant::now();
        let ended = tokio::time::timeout(self.left, attempt).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        ended.unwrap_or_else(|_| {
            let why = format!("`{}` timed out after {} ms.", tool.name, limit.as_millis());
            Err(interrupted_error(effect, why).into())
        })
    }
}

async fn send_with_retry<C>(
    connection: &Arc<McpConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    arguments: Value,
) -> Result<McpCallResponse, ToolError> {
    let arguments = match arguments {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    let mut time = CallTime::new(caller.response_timeout);
    let mut attempted = attempt_call(connection, tool, caller, &mut time, arguments.clone()).await;
    for _ in 0..MAX_AUTH_CHALLENGES {
        let Err(McpCallFailure::AuthChallenge(challenge)) = &attempted else { break };
        if let Err(error) = connection.answer_challenge(challenge.clone()).await {
            return Err(McpCallFailure::NotSent(error.to_string()).into_tool_error(tool));
        }
        attempted = attempt_call(connection, tool, caller, &mut time, arguments.clone()).await;
    }
    match attempted {
        Err(McpCallFailure::NotSent(_)) => {}
        Err(McpCallFailure::OutcomeUnknown(_)) if caller.effect == ToolEffect::Pure => {}
        other => return other.map_err(|failure| failure.into_tool_error(tool)),
    }
    // The call had no effect, so it is retried once, on a new connection.
    let retried = attempt_call(connection, tool, caller, &mut time, arguments).await;
    retried.map_err(|failure| failure.into_tool_error(tool))
}

/// The reason why an attempt of a call gave no result.
enum McpCallFailure {
    /// The request did not reach the server, for this reason.
    NotSent(String),
    /// The server did not process the request, for this reason; no new connection changes that.
    NotProcessed(String),
    /// The request may have reached the server, and its effect is unknown, for this reason.
    OutcomeUnknown(String),
    /// The server requires authorisation, and did not process the request.
    AuthChallenge(AuthChallenge),
    /// The error of the call itself, which no retry changes: a refusal by the server, an unreadable response, or a
    /// question to a person.
    Final(ToolError),
}

impl From<ToolError> for McpCallFailure {
    fn from(error: ToolError) -> Self {
        Self::Final(error)
    }
}

impl McpCallFailure {
    fn into_tool_error(self, tool: &McpToolInfo) -> ToolError {
        let McpToolInfo { server, name, .. } = tool;
        match self {
            Self::NotSent(why) | Self::AuthChallenge(AuthChallenge { header: why, .. }) => {
                tracing::warn!(%server, %name, %why, "an MCP server cannot be reached");
                ToolError::visible(format!(
                    "The MCP server `{server}` cannot be reached. The call was not made."
                ))
            }
            Self::NotProcessed(why) => {
                tracing::warn!(%server, %name, %why, "an MCP server refused a call");
                ToolError::visible(format!(
                    "The MCP server `{server}` did not accept the call: {why}. The call was not made."
                ))
            }
            Self::OutcomeUnknown(why) => {
                tracing::warn!(%server, %name, %why, "an MCP server was lost in the middle of a call");
                ToolError::effect_unknown(format!(
                    "The MCP server `{server}` was lost while it worked on this call. Whether `{name}` had its \
                     effect is not known: find out before it is called again."
                ))
            }
            Self::Final(error) => error,
        }
    }
}

async fn attempt_call<C>(
    connection: &Arc<McpConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    time: &mut CallTime,
    arguments: Map<String, Value>,
) -> Result<McpCallResponse, McpCallFailure> {
    let live =
        connection.live_connection().await.map_err(|error| McpCallFailure::NotSent(error.to_string()))?;
    time.limit(tool, caller.effect, call_on(connection, &live, tool, caller, arguments)).await
}

/// Makes the call on a connection.
async fn call_on<C>(
    connection: &McpConnection,
    live: &Arc<LiveConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    arguments: Map<String, Value>,
) -> Result<McpCallResponse, McpCallFailure> {
    // A legacy server repeats its question when a call is made again, without naming the call. Such a call runs alone,
    // so that its answer cannot go to another one.
    let (_alone, _shared);
    if live.era == ProtocolEra::Legacy && !caller.ctx.answered_questions().is_empty() {
        _alone = live.call_gate.write().await;
    } else {
        _shared = live.call_gate.read().await;
    }
    if let Some(question) = declined_url_question(caller.ctx) {
        let why = format!("`{}` was not called: the person declined. {}", tool.name, question.text);
        return Err(ToolError::visible(why).into());
    }
    let mut params = CallToolRequestParams::new(tool.name.to_string()).with_arguments(arguments);
    // If a person was asked before, the server resumes from its request state instead of starting again.
    if let Some(round) = InputRequestRound::last_answered(caller.ctx) {
        round.fill_responses(connection, caller, &mut params).await?;
    }
    for _ in 0..MAX_INPUT_ROUNDS {
        let required = match send_request(connection, live, tool, caller, params.clone()).await? {
            ServerResult::CallToolResult(result) => return Ok(McpCallResponse::Result(result.into())),
            // rmcp returns a custom result if any part of the result does not match the protocol's schema.
            ServerResult::CustomResult(result) => {
                return match ServerToolResult::from_value(result.0) {
                    Some(result) => Ok(McpCallResponse::Result(result)),
                    None => Err(unreadable_response_error(tool, "it is not a tool result").into()),
                };
            }
            ServerResult::CreateTaskResult(created) => {
                return Ok(McpCallResponse::Task(created.task.task_id));
            }
            ServerResult::InputRequiredResult(required) => required,
            _ => return Err(unreadable_response_error(tool, "it answers another request").into()),
        };
        InputRequestRound::from_result(required).fill_responses(connection, caller, &mut params).await?;
    }
    let endless =
        format!("`{}` asked for more input {MAX_INPUT_ROUNDS} times and gave no result.", tool.name);
    Err(ToolError::visible(endless).into())
}

fn unreadable_response_error(tool: &McpToolInfo, reason: &str) -> ToolError {
    tracing::warn!(server = %tool.server, tool = %tool.name, %reason, "an answer cannot be read");
    ToolError::effect_unknown(format!(
        "The MCP server `{}` answered something that cannot be read: {reason}. Whether `{}` had its effect is not known.",
        tool.server, tool.name
    ))
}

/// Returns the question with a URL that the person declined to visit, if there is one.
fn declined_url_question<C>(ctx: &ToolContext<C>) -> Option<PersonQuestion> {
    let answered = ctx.answered_questions().last()?;
    let schema = answered.question.schema.as_ref()?;
    let is_declined = answered.answer.is_null() && schema.get(SCHEMA_EXTENSION)?.get("urls").is_some();
    is_declined.then(|| answered.question.clone())
}

/// The codes of errors that say that the server did not execute the call.
pub(super) const UNPROCESSED_CODES: [ErrorCode; 8] = [
    ErrorCode::PARSE_ERROR,
    ErrorCode::INVALID_REQUEST,
    ErrorCode::METHOD_NOT_FOUND,
    ErrorCode::INVALID_PARAMS,
    ErrorCode::RESOURCE_NOT_FOUND,
    ErrorCode::HEADER_MISMATCH,
    ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY,
    ErrorCode::UNSUPPORTED_PROTOCOL_VERSION,
];

/// Returns the error of a call that the server answered with a JSON-RPC error, whose message is meant for the caller.
/// Only some codes say that the call was not executed; after any other, such as an internal error, its effect is
/// unknown.
pub(super) fn json_rpc_failure(
    tool: &McpToolInfo,
    effect: ToolEffect,
    code: ErrorCode,
    why: &str,
) -> ToolError {
    if UNPROCESSED_CODES.contains(&code) {
        ToolError::visible(format!("`{}` was refused: {why}", tool.name))
    } else {
        interrupted_error(effect, format!("`{}` failed: {why}", tool.name))
    }
}

/// Returns the error of a call that may have had its effect, if its tool has one.
fn interrupted_error(effect: ToolEffect, why: String) -> ToolError {
    match effect {
        ToolEffect::Pure => ToolError::visible(why),
        ToolEffect::Idempotent | ToolEffect::Once => ToolError::effect_unknown(why),
    }
}

/// Returns the data of a server's error as the end of a message, or nothing.
pub(super) fn error_data_suffix(data: Option<&Value>) -> String {
    const MAX_SHOWN_DATA: usize = 2048;
    match data {
        None | Some(Value::Null) => String::new(),
        Some(data) => {
            let text = data.to_string();
            let end = text.floor_char_boundary(MAX_SHOWN_DATA);
            match text.len() - end {
                0 => format!(" (data: {text})"),
                rest => format!(" (data: {} [{rest} more bytes])", &text[..end]),
            }
        }
    }
}

/// Sends one request and waits for its response.
async fn send_request<C>(
    connection: &McpConnection,
    live: &Arc<LiveConnection>,
    tool: &McpToolInfo,
    caller: &McpCallContext<'_, C>,
    mut params: CallToolRequestParams,
) -> Result<ServerResult, McpCallFailure> {
    let mut meta = MetaObject::new();
    let key = caller.ctx.idempotency_key();
    let cancel_by_key = live
        .cancels_by_key
        .then(|| CustomRequest::new(CANCEL_CALL_METHOD, Some(json!({ "name": tool.name, "key": key }))));
    meta.insert(IDEMPOTENCY_META_KEY.to_owned(), key.into());
    params.meta = Some(RequestMetaObject::from(meta));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = live.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
    let handle = sent.map_err(|error| McpCallFailure::NotSent(connection.describe_error(live, &error)))?;
    let words = live.in_flight.register(handle.progress_token.clone());
    let mut flight = CancelCallOnDrop {
        live: live.clone(),
        progress_token: handle.progress_token.clone(),
        request_id: Some(handle.id.clone()),
        cancel_by_key,
    };
    let answer = await_response(caller, live, &flight.progress_token, handle.await_response(), words).await;
    flight.request_id = None;
    let error = match answer {
        Ok(result) => return Ok(result),
        Err(ResponseFailure::Question(question)) => return Err(ToolError::ask_person(question).into()),
        Err(ResponseFailure::Service(error)) => error,
    };
    Err(match error {
        ServiceError::McpError(error) => match unreadable_reason(&error) {
            Some(reason) => unreadable_response_error(tool, reason).into(),
            None => match question_from_url_error(&error) {
                // The server refused the call before it did anything, so it is made again after the answer.
                Some(question) => ToolError::ask_person(question).into(),
                None => {
                    let why = format!("{}{}", error.message, error_data_suffix(error.data.as_ref()));
                    json_rpc_failure(tool, caller.effect, error.code, &why).into()
                }
            },
        },
        ServiceError::UnexpectedResponse => {
            unreadable_response_error(tool, "it answers another request").into()
        }
        _ => match (live.auth_challenge(&error), unprocessed_reason(&error)) {
            (Some(challenge), _) => McpCallFailure::AuthChallenge(challenge),
            (None, Some(reason)) => McpCallFailure::NotProcessed(reason),
            (None, None) => McpCallFailure::OutcomeUnknown(connection.describe_error(live, &error)),
        },
    })
}

/// Returns the reason if the error of the HTTP client says that the server did not process the request.
fn unprocessed_reason(error: &ServiceError) -> Option<String> {
    let ServiceError::TransportSend(error) = error else { return None };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.error.as_ref());
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<McpHttpError>() {
            return http.is_unprocessed().then(|| http.to_string());
        }
        if let Some(StreamableHttpError::Client(http)) =
            error.downcast_ref::<StreamableHttpError<McpHttpError>>()
        {
            return http.is_unprocessed().then(|| http.to_string());
        }
        cause = error.source();
    }
    None
}

/// The reason why a request has no result.
enum ResponseFailure {
    /// The server elicited input for which there is no answer yet. The elicitation was cancelled.
    Question(PersonQuestion),
    /// The server responded with an error, or the connection failed.
    Service(ServiceError),
}

/// Waits for the response, and handles progress and elicitations that arrive before it.
///
/// # Errors
///
/// Returns the question of an elicitation in preference to the response, which refers to the cancellation.
async fn await_response<C>(
    caller: &McpCallContext<'_, C>,
    live: &LiveConnection,
    progress_token: &ProgressToken,
    answer: impl Future<Output = Result<ServerResult, ServiceError>>,
    mut words: mpsc::Receiver<ServerMessage>,
) -> Result<ServerResult, ResponseFailure> {
    let mut answer = std::pin::pin!(answer);
    let mut asked = None;
    loop {
        let word = tokio::select! {
            biased;
            Some(word) = words.recv() => word,
            answer = &mut answer => {
                // Progress sent before the response may be delivered shortly after it.
                for _ in 0..LATE_PROGRESS_YIELDS {
                    tokio::task::yield_now().await;
                    while let Ok(ServerMessage::Progress(progress)) = words.try_recv() {
                        report_progress(caller, progress);
                    }
                }
                return match asked {
                    Some(question) => Err(ResponseFailure::Question(question)),
                    None => answer.map_err(ResponseFailure::Service),
                };
            }
        };
        match word {
            ServerMessage::Progress(progress) => report_progress(caller, progress),
            ServerMessage::Elicitation(params, reply) => {
                let question = question_from_elicitation(&params);
                // A legacy server waits for the answer while the call is open. A person may take days, so the
                // elicitation is cancelled; once there is an answer, the call is made again and answered at once.
                let result = match caller.answer_question(&question).await {
                    Some(answer) => result_from_answer(answer),
                    None => {
                        asked.get_or_insert(question);
                        ElicitResult::new(ElicitationAction::Cancel)
                    }
                };
                live.in_flight.end_elicitation(progress_token);
                let _gone = reply.send(result);
            }
        }
    }
}

fn report_progress<C>(caller: &McpCallContext<'_, C>, progress: ProgressNotificationParam) {
    let ProgressNotificationParam { progress, total, message, .. } = progress;
    caller.ctx.report_progress(json!({ "progress": progress, "total": total, "message": message }));
}

/// A guard of a call in flight that sends the server a cancellation if it is dropped before the response.
struct CancelCallOnDrop {
    /// The connection, which stays open for the cancellation.
    live: Arc<LiveConnection>,
    progress_token: ProgressToken,
    request_id: Option<RequestId>,
    /// The request that cancels the call, if a lost connection does not.
    cancel_by_key: Option<CustomRequest>,
}

impl Drop for CancelCallOnDrop {
    fn drop(&mut self) {
        self.live.in_flight.unregister(&self.progress_token);
        let (Some(request), Ok(runtime)) = (self.request_id.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (live, cancel_by_key) = (self.live.clone(), self.cancel_by_key.take());
        runtime.spawn(async move {
            let reason = Some("the call was given up".to_owned());
            let cancelled = CancelledNotificationParam::new(Some(request), reason);
            let told = live.peer.notify_cancelled(cancelled).await;
            tracing::debug!(?told, "a server was told to stop a call");
            if let Some(cancel) = cancel_by_key {
                let cancelling = live.peer.send_request(ClientRequest::CustomRequest(cancel));
                let told = tokio::time::timeout(CANCEL_TIMEOUT, cancelling).await;
                tracing::debug!(?told, "a server was told to stop a call by its key");
            }
        });
    }
}
