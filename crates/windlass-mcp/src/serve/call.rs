//! One `tools/call` request, executed as a run until it has a result, becomes a task, or needs an answer.

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CreateTaskResult, InputRequiredResult,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;
use windlass::core::{
    id::RunId,
    item::{CallKind, ToolCall},
    tool::ToolKey,
};
use windlass::run::RunBuilder;
use windlass::{
    error::RunError,
    run::{PausedRun, RunResult},
};

use super::handler::McpServerHandler;
use super::model::{CALL_ID, SingleCallModel};
use super::notify::{ClientNotifier, is_modern};
use super::task::{AnswerSource, ServerTask, ServerTaskStatus, TaskPolicy, run_failure};
use super::{SharedMcpServer, content, elicitation};

/// Maximum number of elicitation rounds of one call on the legacy protocol.
const MAX_ELICITATION_ROUNDS: usize = 50;

impl<C: Send + Sync + 'static> McpServerHandler<C> {
    pub(super) async fn handle_call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let served = &self.server;
        let client = context.client_capabilities().unwrap_or_default();
        let can_wait = is_modern(context) && client.supports_tasks();
        let tasks = served.task_policy_of(&request.name);
        if tasks == TaskPolicy::Required && !can_wait {
            let needed = ClientCapabilities::builder().enable_tasks().build();
            return Err(ErrorData::missing_required_client_capability(needed));
        }
        let (id, run) = match &request.request_state {
            Some(word) => {
                let Some(mut paused) = served.take_held_call(word).await else {
                    return Err(ErrorData::invalid_params("no call waits under this `requestState`", None));
                };
                elicitation::apply_responses(&mut paused, &request.input_responses.unwrap_or_default());
                (paused.record().run_id().clone(), served.resume_run(paused))
            }
            None => served.prepare_run(request)?,
        };
        let teller = ClientNotifier::new(context, self.log_level(), &served.name);
        let can_ask = client.elicitation.is_some();
        if tasks != TaskPolicy::Never && can_wait {
            let asks = if can_ask { AnswerSource::Client } else { AnswerSource::Store };
            return served.run_as_task(&ServerTask::new(id, asks), run, teller, tasks, context).await;
        }
        self.run_to_response(run, teller, can_ask, context).await
    }

    /// Executes a call until it has a result, or until the client must return with an answer.
    async fn run_to_response(
        &self,
        mut run: RunBuilder<C>,
        mut teller: ClientNotifier,
        can_ask: bool,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let served = &self.server;
        for _ in 0..MAX_ELICITATION_ROUNDS {
            let mut paused = match stream_outcome(served.with_store(run), &mut teller, context).await {
                Some(Ok(RunResult::Paused(paused))) => paused,
                Some(Ok(outcome)) => {
                    return Ok(content::call_result(&outcome, served.store.as_deref()).await.into());
                }
                Some(Err(error)) => return Err(run_failure(&error)),
                None => return Err(ErrorData::internal_error("the call was cancelled", None)),
            };
            if is_modern(context) {
                return served.input_required(paused, can_ask);
            }
            if !can_ask {
                let why = "This call needs a person's decision, and this client cannot ask for one.";
                return Ok(content::error_result(why).into());
            }
            for pending in paused.pending_calls() {
                let answer = context.peer.create_elicitation(elicitation::elicitation_params(&pending)).await;
                let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                elicitation::log_decision_error(elicitation::apply_answer(&mut paused, &pending, &answer));
            }
            run = served.resume_run(paused);
        }
        Ok(content::error_result("This call asked for a person too often.").into())
    }
}

impl<C: Send + Sync + 'static> SharedMcpServer<C> {
    fn prepare_run(&self, request: CallToolRequestParams) -> Result<(RunId, RunBuilder<C>), ErrorData> {
        let Some(key) = self.tools.get(&*request.name) else {
            return Err(ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None));
        };
        let namespace = match key {
            ToolKey::Namespaced { namespace, .. } => Some(namespace.to_string()),
            ToolKey::Deferred(name) => Some(name.to_string()),
            ToolKey::Bare(_) | ToolKey::Mcp { .. } => None,
        };
        let arguments = Value::Object(request.arguments.unwrap_or_default()).to_string();
        let call = ToolCall {
            id: CALL_ID.into(),
            name: key.name().to_owned(),
            namespace,
            arguments,
            item_id: None,
            kind: CallKind::Function,
        };
        // The run id authorises access to the task, so it must be unguessable.
        let id = RunId::new(uuid::Uuid::new_v4().to_string());
        let agent = self.agent.clone().model(SingleCallModel { call });
        let run = agent.run_with_context(format!("call {}", request.name), self.context.clone());
        Ok((id.clone(), run.run_id(id)))
    }

    pub(super) fn resume_run(&self, paused: PausedRun) -> RunBuilder<C> {
        self.agent.resume_with_context(paused, self.context.clone())
    }

    /// Attaches the server's store to a run, if there is one.
    pub(super) fn with_store(&self, run: RunBuilder<C>) -> RunBuilder<C> {
        match &self.store {
            Some(store) => run.store(store.clone()),
            None => run,
        }
    }

    /// Responds with the result, an input request or a task, whichever comes first.
    async fn run_as_task(
        self: &Arc<Self>,
        job: &Arc<ServerTask>,
        run: RunBuilder<C>,
        teller: ClientNotifier,
        tasks: TaskPolicy,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let patience = match tasks {
            TaskPolicy::WhenSlow(patience) => Some(patience),
            // The task must be registered before the run starts; if the table is full, the call is not a task.
            TaskPolicy::Always | TaskPolicy::Required if self.task_table.insert(job) => None,
            TaskPolicy::Always | TaskPolicy::Required | TaskPolicy::Never => Some(std::time::Duration::MAX),
        };
        self.spawn_run(job, run, Some(teller));
        let Some(patience) = patience else { return Ok(CreateTaskResult::new(job.summary()).into()) };
        let mut slow = std::pin::pin!(tokio::time::sleep(patience));
        let mut may_leave = true;
        loop {
            tokio::select! {
                biased;
                () = context.ct.cancelled() => {
                    job.cancel();
                    return Err(ErrorData::internal_error("the call was cancelled", None));
                }
                () = job.stopped.notified() => break,
                () = &mut slow, if may_leave => {
                    // If the task table is full, the client keeps waiting for the result.
                    may_leave = false;
                    if self.task_table.insert(job) {
                        break;
                    }
                }
            }
        }
        let can_ask = job.answer_source == AnswerSource::Client;
        match job.take_status() {
            None => Ok(CreateTaskResult::new(job.summary()).into()),
            // The client cannot elicit, but an approver can decide through the store.
            Some(ServerTaskStatus::Paused(paused))
                if !can_ask && self.store.is_some() && self.task_table.insert(job) =>
            {
                job.set_status(ServerTaskStatus::Paused(paused));
                Ok(CreateTaskResult::new(job.summary()).into())
            }
            Some(stand) => {
                self.task_table.remove(job);
                match stand {
                    ServerTaskStatus::Paused(paused) => self.input_required(*paused, can_ask),
                    ServerTaskStatus::Completed(result) => Ok(result.into()),
                    ServerTaskStatus::Failed(error) => Err(error),
                    ServerTaskStatus::Cancelled | ServerTaskStatus::Working => {
                        Err(ErrorData::internal_error("the call was cancelled", None))
                    }
                }
            }
        }
    }

    /// Responds with the questions that the client must answer.
    ///
    /// # Errors
    ///
    /// Returns a missing-capability error if the client does not support elicitation.
    fn input_required(&self, paused: PausedRun, can_ask: bool) -> Result<CallToolResponse, ErrorData> {
        if !can_ask {
            let needed = ClientCapabilities::builder().enable_elicitation().build();
            return Err(ErrorData::missing_required_client_capability(needed));
        }
        let questions = elicitation::input_requests(&paused);
        Ok(InputRequiredResult::new(Some(questions), Some(self.hold_call(paused))).into())
    }
}

/// Drives a run, forwarding its progress to the client, and returns its outcome; `None` if the client
/// cancelled the request, which drops the run.
async fn stream_outcome<C: Send + Sync + 'static>(
    run: RunBuilder<C>,
    teller: &mut ClientNotifier,
    context: &RequestContext<RoleServer>,
) -> Option<Result<RunResult, RunError>> {
    let mut stream = run.stream();
    loop {
        let event = tokio::select! {
            biased;
            () = context.ct.cancelled() => return None,
            event = stream.next() => event,
        };
        let Some(event) = event else { break };
        teller.forward_event(event.kind).await;
    }
    Some(stream.result().await)
}
