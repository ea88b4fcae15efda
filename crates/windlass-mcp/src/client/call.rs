//! One call of a server's tool, from its request to its result.
//!
//! A call that was sent is never sent again by itself, unless the tool is known only to read: what became of it the
//! server alone knows. Whoever drops it, for a deadline or because the run stops, has the server told to stop it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotificationParam, ClientRequest,
    ElicitResult, ElicitationAction, MetaObject, ProgressNotificationParam, ProgressToken, RequestId,
    RequestMetaObject, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RoleClient, ServiceError};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use windlass::core::Question;
use windlass::{Effect, ToolContext, ToolError};

use super::connection::{Connection, Live};
use super::flight::{Flights, Word};
use super::list::ToolInfo;
use super::oauth;
use super::question::{Round, accepted, question};
use super::task;

/// How often a server may ask for more before it has to answer.
const MOST_ROUNDS: usize = 10;

/// How often a server may want to see more before it takes one call.
const MOST_CHALLENGES: usize = 2;

/// How often what came last is looked for once the answer is there.
const LAST_WORDS: usize = 4;

/// Under which key a server is told what makes this call the same call again.
const IDEMPOTENCY_KEY: &str = "dev.windlass/idempotencyKey";

/// Answers questions of servers at once, or leaves them to a person.
pub(crate) type Answers<C> =
    Arc<dyn Fn(ToolContext<C>, Question) -> BoxFuture<'static, Option<Value>> + Send + Sync>;

/// Who makes a call, and who answers for them.
pub(crate) struct Caller<'a, C> {
    pub(crate) ctx: &'a ToolContext<C>,
    pub(crate) answers: Option<&'a Answers<C>>,
    /// Within what time the server must answer, where the call's own time is a task's.
    pub(crate) within: Option<Duration>,
}

impl<C> Caller<'_, C> {
    /// The answer to a question, where there is one now.
    pub(super) async fn answer(&self, question: &Question) -> Option<Value> {
        if let Some(answer) = self.ctx.reply(question) {
            return Some(answer.clone());
        }
        (self.answers?)(self.ctx.clone(), question.clone()).await
    }
}

/// Calls a tool, or goes on with the task that the call became before.
pub(crate) async fn call<C>(
    connection: &Arc<Connection>,
    tool: &ToolInfo,
    effect: Effect,
    caller: &Caller<'_, C>,
    arguments: Value,
) -> Result<CallToolResult, ToolError> {
    if let Some(id) = task::kept(caller.ctx).await? {
        return task::go_on(connection, tool, caller, &id).await;
    }
    let asking = asked(connection, tool, effect, caller, arguments);
    let answer = match caller.within {
        None => asking.await?,
        // Dropping the question has the server told to stop.
        Some(within) => tokio::time::timeout(within, asking).await.map_err(|_| {
            ToolError::tell(format!("`{}` timed out after {} ms.", tool.name, within.as_millis()))
        })??,
    };
    match answer {
        Answer::Result(result) => Ok(result),
        Answer::Task(id) => task::begin(connection, tool, caller, &id).await,
    }
}

/// What a server answers.
enum Answer {
    Result(CallToolResult),
    /// It works on it, and is asked about it by this name.
    Task(String),
}

async fn asked<C>(
    connection: &Connection,
    tool: &ToolInfo,
    effect: Effect,
    caller: &Caller<'_, C>,
    arguments: Value,
) -> Result<Answer, ToolError> {
    let arguments = match arguments {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    let mut attempted = attempt(connection, tool, caller, arguments.clone()).await;
    for _ in 0..MOST_CHALLENGES {
        let Err(Lost::Challenged(challenge)) = &attempted else { break };
        if let Err(error) = connection.answer_challenge(challenge).await {
            return Err(Lost::Unsent(error.to_string()).told(tool));
        }
        attempted = attempt(connection, tool, caller, arguments.clone()).await;
    }
    match attempted {
        Err(Lost::Unsent(_)) => {}
        Err(Lost::Sent(_)) if effect == Effect::Pure => {}
        other => return other.map_err(|lost| lost.told(tool))?,
    }
    // Nothing has come of it, so once more, on a connection of its own.
    attempt(connection, tool, caller, arguments).await.map_err(|lost| lost.told(tool))?
}

/// A call to which there will be no answer.
enum Lost {
    /// It never reached the server.
    Unsent(String),
    /// It may have.
    Sent(String),
    /// The server wants to see more before it takes it.
    Challenged(String),
}

impl Lost {
    fn told(self, tool: &ToolInfo) -> ToolError {
        let ToolInfo { server, name, .. } = tool;
        match self {
            Self::Unsent(why) | Self::Challenged(why) => {
                tracing::warn!(%server, %name, %why, "an MCP server cannot be reached");
                ToolError::tell(format!(
                    "The MCP server `{server}` cannot be reached. The call was not made."
                ))
            }
            Self::Sent(why) => {
                tracing::warn!(%server, %name, %why, "an MCP server was lost in the middle of a call");
                ToolError::tell(format!(
                    "The MCP server `{server}` was lost while it worked on this call. Whether `{name}` had its \
                     effect is not known: find out before it is called again."
                ))
            }
        }
    }
}

async fn attempt<C>(
    connection: &Connection,
    tool: &ToolInfo,
    caller: &Caller<'_, C>,
    arguments: Map<String, Value>,
) -> Result<Result<Answer, ToolError>, Lost> {
    let live = connection.live().await.map_err(|error| Lost::Unsent(error.to_string()))?;
    let mut params = CallToolRequestParams::new(tool.name.to_string()).with_arguments(arguments);
    // Where a person was asked before, the server goes on where it was, and does not begin again.
    if let Some(round) = Round::before(caller.ctx)
        && let Err(error) = round.answer(caller, &mut params).await
    {
        return Ok(Err(error));
    }
    for _ in 0..MOST_ROUNDS {
        let required = match once(connection, &live, tool, caller, params.clone()).await? {
            Ok(ServerResult::CallToolResult(result)) => return Ok(Ok(Answer::Result(result))),
            Ok(ServerResult::CreateTaskResult(created)) => return Ok(Ok(Answer::Task(created.task.task_id))),
            Ok(ServerResult::InputRequiredResult(required)) => required,
            Ok(_) => return Ok(Err(unreadable(tool))),
            Err(error) => return Ok(Err(error)),
        };
        if let Err(error) = Round::of(required).answer(caller, &mut params).await {
            return Ok(Err(error));
        }
    }
    Ok(Err(ToolError::tell(format!(
        "`{}` asked for more input {MOST_ROUNDS} times and gave no result.",
        tool.name
    ))))
}

fn unreadable(tool: &ToolInfo) -> ToolError {
    ToolError::tell(format!(
        "The MCP server `{}` answered something that is not a result. Whether `{}` had its effect is not known.",
        tool.server, tool.name
    ))
}

/// One request and its answer.
async fn once<C>(
    connection: &Connection,
    live: &Live,
    tool: &ToolInfo,
    caller: &Caller<'_, C>,
    mut params: CallToolRequestParams,
) -> Result<Result<ServerResult, ToolError>, Lost> {
    let mut meta = MetaObject::new();
    meta.insert(IDEMPOTENCY_KEY.to_owned(), caller.ctx.idempotency_key().into());
    params.meta = Some(RequestMetaObject::from(meta));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = live.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
    let handle = sent.map_err(|error| Lost::Unsent(connection.explain(live, &error)))?;
    let words = live.flights.begin(handle.progress_token.clone());
    let mut flight = Flight {
        peer: live.peer.clone(),
        flights: live.flights.clone(),
        token: handle.progress_token.clone(),
        request: Some(handle.id.clone()),
    };
    let answer = listen(caller, handle.await_response(), words).await;
    flight.request = None;
    match answer {
        Err(question) => Ok(Err(ToolError::ask(question))),
        Ok(Ok(result)) => Ok(Ok(result)),
        Ok(Err(ServiceError::McpError(error))) => {
            // The server has answered, with a no. Its words are meant for whoever called.
            Ok(Err(ToolError::tell(format!("`{}` was refused: {}", tool.name, error.message))))
        }
        Ok(Err(error @ ServiceError::UnexpectedResponse)) => {
            tracing::warn!(server = %tool.server, tool = %tool.name, %error, "an answer cannot be read");
            Ok(Err(unreadable(tool)))
        }
        Ok(Err(error)) => Err(match oauth::challenge(&error) {
            Some(challenge) => Lost::Challenged(challenge),
            None => Lost::Sent(connection.explain(live, &error)),
        }),
    }
}

/// Waits for the answer, and passes on what comes before it. Where the server had a question that nobody has answered
/// yet, it was told so, and the question is what came of it.
async fn listen<C>(
    caller: &Caller<'_, C>,
    answer: impl Future<Output = Result<ServerResult, ServiceError>>,
    mut words: mpsc::Receiver<Word>,
) -> Result<Result<ServerResult, ServiceError>, Question> {
    let mut answer = std::pin::pin!(answer);
    let mut asked = None;
    loop {
        let word = tokio::select! {
            biased;
            Some(word) = words.recv() => word,
            answer = &mut answer => {
                // What was sent before the answer may be handed over a moment after it.
                for _ in 0..LAST_WORDS {
                    tokio::task::yield_now().await;
                    while let Ok(Word::Progress(progress)) = words.try_recv() {
                        tell(caller, progress);
                    }
                }
                return match asked {
                    Some(question) => Err(question),
                    None => Ok(answer),
                };
            }
        };
        match word {
            Word::Progress(progress) => tell(caller, progress),
            Word::Question(params, reply) => {
                let question = question(&params);
                // An earlier kind of server waits for the answer while the call is open. A person may take days, so
                // it is told that there is none for now; with the answer the call is made anew, and answered at once.
                let result = match caller.answer(&question).await {
                    Some(answer) => accepted(&answer),
                    None => {
                        asked.get_or_insert(question);
                        ElicitResult::new(ElicitationAction::Cancel)
                    }
                };
                let _gone = reply.send(result);
            }
        }
    }
}

fn tell<C>(caller: &Caller<'_, C>, progress: ProgressNotificationParam) {
    let ProgressNotificationParam { progress, total, message, .. } = progress;
    caller.ctx.progress(json!({ "progress": progress, "total": total, "message": message }));
}

/// A call under way. Where it is dropped before its answer, the server is told to stop.
struct Flight {
    peer: Peer<RoleClient>,
    flights: Arc<Flights>,
    token: ProgressToken,
    request: Option<RequestId>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.flights.end(&self.token);
        let (Some(request), Ok(runtime)) = (self.request.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let peer = self.peer.clone();
        runtime.spawn(async move {
            let reason = Some("the call was given up".to_owned());
            let cancelled = CancelledNotificationParam::new(Some(request), reason);
            let told = peer.notify_cancelled(cancelled).await;
            tracing::debug!(?told, "a server was told to stop a call");
        });
    }
}
