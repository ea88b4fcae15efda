//! One `tools/call` request, executed as a run until it has a result, becomes a task, or needs an answer.

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CreateTaskResult, ElicitationAction,
    InputRequiredResult,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;
use windlass::core::{
    canonical::canonical_json,
    id::RunId,
    item::{CallKind, Item, OutputStatus, ToolCall},
    tool::{ToolEffect, ToolKey},
};
use windlass::run::RunBuilder;
use windlass::store::load_paused;
use windlass::{
    error::RunError,
    run::{PausedRun, RunResult},
};

use super::caller::RequestCaller;
use super::handler::McpServerHandler;
use super::keyed_calls::{CallLeader, KeyedCallRole, key_reused};
use super::model::{CALL_ID, SingleCallModel};
use super::notify::{ClientNotifier, is_modern};
use super::task::{AnswerSource, ServerTask, ServerTaskStatus, TaskPolicy, run_failure};
use super::{SharedMcpServer, content, elicitation};
use crate::client::IDEMPOTENCY_META_KEY;

/// Maximum number of failed runs of one idempotency key that are kept apart; beyond it the last failure is the result.
const MAX_FAILED_RUNS: usize = 16;

/// The result of a call that only an approver can decide.
const AWAITS_APPROVER: &str =
    "This call waits for an approver of the server. It continues when it is repeated after the decision.";

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
        let caller = RequestCaller::new(served, context);
        let identity = CallIdentity::new(&caller, &request, context);
        let tool = request.name.to_string();
        let (leader, held) = match served.join_call(&caller, &request, &identity, context).await? {
            JoinedCall::Answered(answer) => return answer,
            JoinedCall::Execute { leader, held } => (leader, held),
        };
        let answer = async {
            let (id, run) = match held {
                Some(paused) => {
                    (paused.record().run_id().clone(), served.resume_run(*paused, caller.context.clone()))
                }
                None => served.prepare_run(&caller, &identity, request).await?,
            };
            let teller = ClientNotifier::new(context, self.log_level(), &served.name);
            let can_ask = client.elicitation.is_some() && !served.has_approvers();
            if tasks != TaskPolicy::Never && can_wait {
                let asks = if can_ask { AnswerSource::Client } else { AnswerSource::Store };
                return served.run_as_task(&ServerTask::new(id, asks), run, teller, tasks, context).await;
            }
            self.run_to_response(run, teller, can_ask, &caller, &identity, context).await
        };
        let answer = answer.await;
        // A call that was given up, or that waits for its repetition, has no answer that a repetition may have.
        let is_over = !context.ct.is_cancelled() && !served.has_parked_call(&identity.parking_name);
        if let (Some(leader), true) = (leader, is_over) {
            leader.publish(&answer);
            // A failure of a call that may be executed twice is no result to keep.
            if let (Some(run), true) = (&identity.run, is_failure(&answer) && served.is_repeatable(&tool)) {
                served.keyed_calls.forget(run);
            }
        }
        answer
    }

    /// Executes a call until it has a result, or until the client must return with an answer.
    async fn run_to_response(
        &self,
        mut run: RunBuilder<C>,
        mut teller: ClientNotifier,
        can_ask: bool,
        caller: &RequestCaller<C>,
        identity: &CallIdentity,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let served = &self.server;
        for _ in 0..MAX_ELICITATION_ROUNDS {
            let mut paused = match stream_outcome(served.with_store(run), &mut teller, context).await {
                Some(Ok(RunResult::Paused(paused))) => paused,
                Some(Ok(outcome)) => {
                    return Ok(served.call_result(&outcome).await.into());
                }
                Some(Err(error)) => return Err(run_failure(&error)),
                None => return Err(ErrorData::internal_error("the call was cancelled", None)),
            };
            if served.has_approvers() {
                // A client has no approver's key, so nothing that its user answers would count.
                served.park_call(&identity.parking_name, paused);
                return Ok(content::error_result(AWAITS_APPROVER).into());
            }
            if is_modern(context) {
                return served.input_required(paused, can_ask);
            }
            if !can_ask {
                let why = "This call needs a person's decision, and this client cannot ask for one.";
                return Ok(content::error_result(why).into());
            }
            for pending in paused.pending_calls() {
                let asking = context.peer.create_elicitation(elicitation::elicitation_params(&pending));
                let answer = tokio::select! {
                    biased;
                    answer = asking => answer.map_err(|error| error.to_string()),
                    () = context.ct.cancelled() => Err("the request was given up".to_owned()),
                };
                let answer = match answer {
                    // A question that is closed without an answer is not decided.
                    Ok(answer) if answer.action == ElicitationAction::Cancel => {
                        served.park_call(&identity.parking_name, paused);
                        let why = "Nobody has decided about this call. It continues when it is repeated.";
                        return Ok(content::error_result(why).into());
                    }
                    Ok(answer) => answer,
                    Err(why) => {
                        // The client is gone, or does not wait any more. The run waits for the repeated call.
                        served.park_call(&identity.parking_name, paused);
                        let why =
                            format!("Nobody could be asked ({why}). The call continues when it is repeated.");
                        return Ok(content::error_result(&why).into());
                    }
                };
                elicitation::log_decision_error(elicitation::apply_answer(&mut paused, &pending, &answer));
            }
            run = served.resume_run(paused, caller.context.clone());
        }
        Ok(content::error_result("This call asked for a person too often.").into())
    }
}

impl<C: Send + Sync + 'static> SharedMcpServer<C> {
    /// Attaches a request to the call that it repeats or continues, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the request continues a call that is not known, if its key was used with other arguments, or
    /// if an earlier attempt of the call was given up and may have taken effect.
    async fn join_call(
        &self,
        caller: &RequestCaller<C>,
        request: &CallToolRequestParams,
        identity: &CallIdentity,
        context: &RequestContext<RoleServer>,
    ) -> Result<JoinedCall, ErrorData> {
        let execute = |leader, held| Ok(JoinedCall::Execute { leader, held });
        if let Some(word) = &request.request_state {
            if let Some(mut paused) = self.take_held_call(word, caller).await {
                let responses = request.input_responses.clone().unwrap_or_default();
                elicitation::apply_responses(&mut paused, &responses);
                let leader = identity.run.as_ref().and_then(|run| self.keyed_calls.reopen(run));
                return execute(leader, Some(Box::new(paused)));
            }
            // The answer may have arrived before: then the call has a key, and its result is kept.
            if identity.run.is_none() {
                return Err(ErrorData::invalid_params("no call waits under this `requestState`", None));
            }
        }
        let parked = || self.take_parked_call(&identity.parking_name).map(Box::new);
        let Some(run) = &identity.run else { return execute(None, parked()) };
        loop {
            let follower = match self.keyed_calls.join(run, &identity.arguments)? {
                KeyedCallRole::Leader(leader) => return execute(Some(leader), parked()),
                KeyedCallRole::Successor(leader) => {
                    let held = parked();
                    let is_safe = held.is_some() || self.store.is_some() || self.is_repeatable(&request.name);
                    if !is_safe {
                        let why = "an earlier attempt of this call was given up, and it is not known whether it took effect";
                        return Err(ErrorData::internal_error(why, None));
                    }
                    return execute(Some(leader), held);
                }
                KeyedCallRole::Follower(follower) => follower,
            };
            let answer = tokio::select! {
                biased;
                () = context.ct.cancelled() => {
                    return Err(ErrorData::internal_error("the call was cancelled", None));
                }
                answer = follower.answer() => answer,
            };
            // If the other request was given up, this one takes its place.
            if let Some(answer) = answer {
                return Ok(JoinedCall::Answered(answer));
            }
        }
    }

    /// Returns true if only signed decisions count, so that clients cannot decide.
    pub(super) fn has_approvers(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.approvers().is_some())
    }

    /// Returns true if a call of the tool may be executed twice.
    fn is_repeatable(&self, name: &str) -> bool {
        let tool = self.tools.get(name).and_then(|key| self.agent.tool_list().find(|tool| tool.key() == key));
        tool.is_some_and(|tool| tool.declared_effect() != ToolEffect::Once)
    }

    async fn prepare_run(
        &self,
        caller: &RequestCaller<C>,
        identity: &CallIdentity,
        request: CallToolRequestParams,
    ) -> Result<(RunId, RunBuilder<C>), ErrorData> {
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
            provider_data: None,
        };
        let agent = self.agent.clone().model(SingleCallModel { call });
        let mut id = identity.run.clone().unwrap_or_else(|| caller.new_run_id());
        if let (Some(run), Some(store)) = (&identity.run, &self.store) {
            for generation in 1..=MAX_FAILED_RUNS {
                let Ok(stored) = load_paused(&**store, &id).await else { break };
                let items = stored.record().run_items();
                let known = items.iter().find_map(|produced| match &*produced.item {
                    Item::Call(call) if call.id.as_str() == CALL_ID => {
                        Some(canonical_arguments(&call.arguments))
                    }
                    _ => None,
                });
                if known.is_some_and(|known| known != identity.arguments) {
                    return Err(key_reused());
                }
                let has_failed = items.iter().any(|produced| match &*produced.item {
                    Item::Output(output) if output.call.as_str() == CALL_ID => {
                        output.status == OutputStatus::Failed
                    }
                    _ => false,
                });
                if !has_failed || !self.is_repeatable(&request.name) {
                    let recovered =
                        agent.recover_with_context(id.clone(), store.clone(), caller.context.clone());
                    return Ok((id, recovered));
                }
                // A failure of a call that may be executed twice is no result to keep.
                id = RunId::new(format!("{run}.{generation}"));
            }
        }
        let run = agent.run_with_context(format!("call {}", request.name), caller.context.clone());
        Ok((id.clone(), run.run_id(id)))
    }

    pub(super) fn resume_run(&self, paused: PausedRun, context: Arc<C>) -> RunBuilder<C> {
        self.agent.resume_with_context(paused, context)
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

/// The identity of a call, by which a repetition is recognised.
struct CallIdentity {
    /// The id of the run, if the client gave an idempotency key.
    run: Option<RunId>,
    /// The canonical arguments.
    arguments: String,
    /// The name under which the call is parked while nobody can be asked.
    parking_name: String,
}

impl CallIdentity {
    fn new<C: Send + Sync + 'static>(
        caller: &RequestCaller<C>,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Self {
        let arguments = canonical_json(&Value::Object(request.arguments.clone().unwrap_or_default()));
        let key =
            context.meta.get(IDEMPOTENCY_META_KEY).and_then(Value::as_str).filter(|key| !key.is_empty());
        let run = key.map(|key| caller.keyed_run_id(&request.name, key));
        let parking_name = match &run {
            Some(run) => run.to_string(),
            None => caller.parking_name(&request.name, &arguments),
        };
        Self { run, arguments, parking_name }
    }
}

/// Returns true if a call has failed, so that a repetition may execute it again.
fn is_failure(answer: &Result<CallToolResponse, ErrorData>) -> bool {
    match answer {
        Ok(CallToolResponse::Complete(result)) => result.is_error == Some(true),
        Ok(_) => false,
        Err(_) => true,
    }
}

fn canonical_arguments(text: &str) -> String {
    canonical_json(&serde_json::from_str(text).unwrap_or_default())
}

/// A request in relation to the calls that are known.
enum JoinedCall {
    /// Another request of the same call has the answer.
    Answered(Result<CallToolResponse, ErrorData>),
    /// This request executes the call, from the held run if there is one.
    Execute { leader: Option<CallLeader>, held: Option<Box<PausedRun>> },
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
