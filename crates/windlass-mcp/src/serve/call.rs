//! One `tools/call` request, executed as a run until it has a result, becomes a task, or needs an answer.

use std::sync::Arc;
use std::time::Duration;

use hyper::http::request::Parts;
use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CreateTaskResult, ElicitationAction,
    InputRequiredResult,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use windlass::core::{
    canonical::canonical_json,
    id::RunId,
    item::{CallKind, Item, OutputStatus, ToolCall},
    tool::{ToolEffect, ToolKey},
};
use windlass::run::RunBuilder;
use windlass::store::load_paused;
use windlass::{
    error::{RunError, StoreErrorKind},
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

/// Interval at which a repeated call looks for the end of its run in another process.
const LEASE_POLL: Duration = Duration::from_millis(500);

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
        let (leader, held) = match served.join_call(&caller, &request, &identity, context).await? {
            JoinedCall::Answered(answer) => return answer,
            JoinedCall::Execute { leader, held } => (leader, held),
        };
        // With the modern protocol over HTTP, a client cancels a request by closing its connection, which also breaks
        // by itself. A call with a key outlives it, so that its repetition finds it; the key cancels it.
        let outliving = leader.as_ref().filter(|_| is_modern(context) && is_http(context));
        let outliving = outliving.map(CallLeader::cancel_token);
        let execution = CallExecution {
            server: served.clone(),
            caller,
            identity,
            request,
            notifier: ClientNotifier::new(context, self.log_level(), &served.name),
            context: context.clone(),
            task_policy: if can_wait { tasks } else { TaskPolicy::Never },
            can_ask: client.elicitation.is_some() && !served.has_approvers(),
            given_up: outliving.clone().unwrap_or_else(|| context.ct.clone()),
        };
        let answering = execution.answer(leader, held);
        let Some(cancel_token) = outliving else { return answering.await };
        let mut answering = tokio::spawn(answering);
        tokio::select! {
            biased;
            answer = &mut answering => answer.unwrap_or_else(|error| {
                tracing::error!(%error, "a call of an MCP client ended early");
                Err(ErrorData::internal_error("the call could not be carried out", None))
            }),
            () = context.ct.cancelled() => {
                match served.unattended_calls.clone().try_acquire_owned() {
                    Ok(permit) => drop(tokio::spawn(async move {
                        let _answered = answering.await;
                        drop(permit);
                    })),
                    Err(_) => cancel_token.cancel(),
                }
                Err(call_cancelled())
            }
        }
    }
}

/// A request for a call that is executed.
struct CallExecution<C: Send + Sync + 'static> {
    server: Arc<SharedMcpServer<C>>,
    caller: RequestCaller<C>,
    identity: CallIdentity,
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
    notifier: ClientNotifier,
    /// The policy for this client: never a task if it cannot poll one.
    task_policy: TaskPolicy,
    /// True if the client's answers to questions count.
    can_ask: bool,
    /// Cancelled when the call is given up.
    given_up: CancellationToken,
}

/// The answer to a request for a call, in relation to the call's run.
enum CallAnswer {
    /// The run has ended, or the client polls it as a task. The answer is that of every repetition.
    Final(Result<CallToolResponse, ErrorData>),
    /// The call was refused before it began. A repetition is a new call.
    Refused(ErrorData),
    /// The run waits, or it was given up or interrupted. A repetition continues it.
    Unfinished(Result<CallToolResponse, ErrorData>),
    /// Another driver has the lease of the run.
    DrivenElsewhere,
}

impl CallAnswer {
    /// Returns the answer for a run that ended without a result.
    fn from_run_error(error: &RunError) -> Self {
        match error {
            RunError::Failed(_) => Self::Final(Err(run_failure(error))),
            RunError::Config(_) => Self::Refused(run_failure(error)),
            RunError::Store(reason) if reason.kind() == StoreErrorKind::LeaseHeld => Self::DrivenElsewhere,
            _ => Self::Unfinished(Err(run_failure(error))),
        }
    }

    fn cancelled() -> Self {
        Self::Unfinished(Err(call_cancelled()))
    }

    fn waiting(why: &str) -> Self {
        Self::Unfinished(Ok(content::error_result(why).into()))
    }
}

fn call_cancelled() -> ErrorData {
    ErrorData::internal_error("the call was cancelled", None)
}

/// Returns true if a request came over HTTP.
fn is_http(context: &RequestContext<RoleServer>) -> bool {
    context.extensions.get::<Parts>().is_some()
}

impl<C: Send + Sync + 'static> CallExecution<C> {
    /// Executes the call and returns its answer, which repetitions receive too if the run has ended.
    async fn answer(
        self,
        leader: Option<CallLeader>,
        held: Option<Box<PausedRun>>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (answer, is_kept) = match self.execute(held).await {
            // A failure of a call that may be executed twice is no result to keep.
            CallAnswer::Final(answer) => {
                let is_kept = !is_failure(&answer) || !self.server.is_repeatable(&self.request.name);
                (answer, is_kept)
            }
            CallAnswer::Refused(error) => (Err(error), false),
            // The next request of the key takes the place of this one.
            CallAnswer::Unfinished(answer) => return answer,
            CallAnswer::DrivenElsewhere => {
                return Err(ErrorData::internal_error("another process works on this call", None));
            }
        };
        if let Some(leader) = leader {
            leader.publish(&answer);
        }
        if let (Some(run), false) = (&self.identity.run, is_kept) {
            self.server.keyed_calls.forget(run);
        }
        answer
    }

    /// Executes the call from its held run, from the store, or anew. It waits while another process executes the call.
    async fn execute(&self, mut held: Option<Box<PausedRun>>) -> CallAnswer {
        loop {
            let prepared = match held.take() {
                Some(paused) => Ok((paused.record().run_id().clone(), self.resume(*paused))),
                None => self.server.prepare_run(&self.caller, &self.identity, &self.request).await,
            };
            let (id, run) = match prepared {
                Ok(prepared) => prepared,
                Err(error) => return CallAnswer::Refused(error),
            };
            let answer = match self.task_policy {
                TaskPolicy::Never => self.run_to_response(run).await,
                TaskPolicy::WhenSlow(_) | TaskPolicy::Always | TaskPolicy::Required => {
                    self.run_as_task(id, run).await
                }
            };
            if !matches!(answer, CallAnswer::DrivenElsewhere) || self.identity.run.is_none() {
                return answer;
            }
            tokio::select! {
                biased;
                () = self.given_up.cancelled() => return CallAnswer::cancelled(),
                () = tokio::time::sleep(LEASE_POLL) => {}
            }
        }
    }

    fn resume(&self, paused: PausedRun) -> RunBuilder<C> {
        self.server.resume_run(paused, self.caller.context.clone())
    }

    /// Parks the run until the call is repeated.
    fn park(&self, paused: PausedRun) {
        self.server.park_call(&self.identity.parking_name, paused);
    }

    /// Executes a call until it has a result, or until the client must return with an answer.
    async fn run_to_response(&self, mut run: RunBuilder<C>) -> CallAnswer {
        let served = &self.server;
        let mut notifier = self.notifier.clone();
        for _ in 0..MAX_ELICITATION_ROUNDS {
            let mut paused = match stream_outcome(served.with_store(run), &mut notifier, &self.given_up).await
            {
                Some(Ok(RunResult::Paused(paused))) => paused,
                Some(Ok(outcome)) => {
                    let result = Ok(served.call_result(&outcome).await.into());
                    return match outcome {
                        RunResult::Detached(_) => CallAnswer::Unfinished(result),
                        _ => CallAnswer::Final(result),
                    };
                }
                Some(Err(error)) => return CallAnswer::from_run_error(&error),
                None => return CallAnswer::cancelled(),
            };
            if served.has_approvers() {
                // A client has no approver's key, so nothing that its user answers would count.
                self.park(paused);
                return CallAnswer::waiting(AWAITS_APPROVER);
            }
            if is_modern(&self.context) {
                return self.input_required(paused);
            }
            if !self.can_ask {
                self.park(paused);
                let why = "This call needs a person's decision, and this client cannot ask for one.";
                return CallAnswer::waiting(why);
            }
            for pending in paused.pending_calls() {
                let asking = self.context.peer.create_elicitation(elicitation::elicitation_params(&pending));
                let answer = tokio::select! {
                    biased;
                    answer = asking => answer.map_err(|error| error.to_string()),
                    () = self.given_up.cancelled() => Err("the request was given up".to_owned()),
                };
                let answer = match answer {
                    // A question that is closed without an answer is not decided.
                    Ok(answer) if answer.action == ElicitationAction::Cancel => {
                        self.park(paused);
                        let why = "Nobody has decided about this call. It continues when it is repeated.";
                        return CallAnswer::waiting(why);
                    }
                    Ok(answer) => answer,
                    Err(why) => {
                        // The client is gone, or does not wait any more. The run waits for the repeated call.
                        self.park(paused);
                        let why =
                            format!("Nobody could be asked ({why}). The call continues when it is repeated.");
                        return CallAnswer::waiting(&why);
                    }
                };
                elicitation::log_decision_error(elicitation::apply_answer(&mut paused, &pending, &answer));
            }
            run = self.resume(paused);
        }
        CallAnswer::waiting("This call asked for a person too often.")
    }

    /// Responds with the result, an input request or a task, whichever comes first.
    async fn run_as_task(&self, id: RunId, run: RunBuilder<C>) -> CallAnswer {
        let served = &self.server;
        let answer_source = if self.can_ask { AnswerSource::Client } else { AnswerSource::Store };
        let job = &ServerTask::new(id, answer_source);
        let created = || CallAnswer::Final(Ok(CreateTaskResult::new(job.summary()).into()));
        let patience = match self.task_policy {
            TaskPolicy::WhenSlow(patience) => Some(patience),
            // The task must be registered before the run starts; if the table is full, the call is not a task.
            TaskPolicy::Always | TaskPolicy::Required if served.task_table.insert(job) => None,
            TaskPolicy::Always | TaskPolicy::Required | TaskPolicy::Never => Some(Duration::MAX),
        };
        served.spawn_run(job, run, Some(self.notifier.clone()));
        let Some(patience) = patience else { return created() };
        let mut slow = std::pin::pin!(tokio::time::sleep(patience));
        let mut may_leave = true;
        loop {
            tokio::select! {
                biased;
                () = self.given_up.cancelled() => {
                    job.cancel();
                    return CallAnswer::cancelled();
                }
                () = job.stopped.notified() => break,
                () = &mut slow, if may_leave => {
                    // If the task table is full, the client keeps waiting for the result.
                    may_leave = false;
                    if served.task_table.insert(job) {
                        break;
                    }
                }
            }
        }
        match job.take_status() {
            None => created(),
            // The client cannot elicit, but an approver can decide through the store.
            Some(ServerTaskStatus::Paused(paused))
                if !self.can_ask && served.store.is_some() && served.task_table.insert(job) =>
            {
                job.set_status(ServerTaskStatus::Paused(paused));
                created()
            }
            Some(status) => {
                served.task_table.remove(job);
                match status {
                    ServerTaskStatus::Paused(paused) => self.input_required(*paused),
                    ServerTaskStatus::Completed(result) => CallAnswer::Final(Ok(result.into())),
                    ServerTaskStatus::Failed(error) => CallAnswer::Final(Err(error)),
                    ServerTaskStatus::Interrupted(error) => CallAnswer::Unfinished(Err(error)),
                    ServerTaskStatus::Cancelled | ServerTaskStatus::Working => CallAnswer::cancelled(),
                }
            }
        }
    }

    /// Responds with the questions that the client must answer, or with a missing-capability error if it cannot: then
    /// the run waits for a repetition.
    fn input_required(&self, paused: PausedRun) -> CallAnswer {
        if !self.can_ask {
            self.park(paused);
            let needed = ClientCapabilities::builder().enable_elicitation().build();
            return CallAnswer::Unfinished(Err(ErrorData::missing_required_client_capability(needed)));
        }
        let questions = elicitation::input_requests(&paused);
        let state = self.server.hold_call(paused);
        CallAnswer::Unfinished(Ok(InputRequiredResult::new(Some(questions), Some(state)).into()))
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
        let responses = request.input_responses.clone().unwrap_or_default();
        if let Some(word) = &request.request_state {
            if let Some(mut paused) = self.take_held_call(word, caller).await {
                elicitation::apply_responses(&mut paused, &responses);
                let leader =
                    identity.run.as_ref().map(|run| self.keyed_calls.reopen(run, &identity.arguments));
                return execute(leader, Some(Box::new(paused)));
            }
            // The answer may have arrived before, or the call was repeated without it: then the call has a key.
            if identity.run.is_none() {
                return Err(ErrorData::invalid_params("no call waits under this `requestState`", None));
            }
        }
        let waiting = || {
            let parked = self.take_parked_call(&identity.parking_name);
            let mut paused = parked.or_else(|| self.take_held_call_of(identity.run.as_ref()?))?;
            elicitation::apply_responses(&mut paused, &responses);
            Some(Box::new(paused))
        };
        let Some(run) = &identity.run else { return execute(None, waiting()) };
        loop {
            let follower = match self.keyed_calls.join(run, &identity.arguments)? {
                KeyedCallRole::Leader(leader) => return execute(Some(leader), waiting()),
                KeyedCallRole::Successor(leader) => {
                    let held = waiting();
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
                () = context.ct.cancelled() => return Err(call_cancelled()),
                answer = follower.answer() => answer,
            };
            // If the other request did not finish the call, this one takes its place.
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
        request: &CallToolRequestParams,
    ) -> Result<(RunId, RunBuilder<C>), ErrorData> {
        let Some(key) = self.tools.get(&*request.name) else {
            return Err(ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None));
        };
        let namespace = match key {
            ToolKey::Namespaced { namespace, .. } => Some(namespace.to_string()),
            ToolKey::Deferred(name) => Some(name.to_string()),
            ToolKey::Bare(_) | ToolKey::Mcp { .. } => None,
        };
        let arguments = Value::Object(request.arguments.clone().unwrap_or_default()).to_string();
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
            let mut runs = 1;
            while let Ok(stored) = load_paused(&**store, &id).await {
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
                if !has_failed || !self.is_repeatable(&request.name) || runs == MAX_FAILED_RUNS {
                    let recovered =
                        agent.recover_with_context(id.clone(), store.clone(), caller.context.clone());
                    return Ok((id, recovered));
                }
                // A failure of a call that may be executed twice is no result to keep.
                id = RunId::new(format!("{run}.{runs}"));
                runs += 1;
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

/// Drives a run, forwarding its progress to the client, and returns its outcome; `None` if the call was given up, which
/// drops the run.
async fn stream_outcome<C: Send + Sync + 'static>(
    run: RunBuilder<C>,
    notifier: &mut ClientNotifier,
    given_up: &CancellationToken,
) -> Option<Result<RunResult, RunError>> {
    let mut stream = run.stream();
    loop {
        let event = tokio::select! {
            biased;
            () = given_up.cancelled() => return None,
            event = stream.next() => event,
        };
        let Some(event) = event else { break };
        notifier.forward_event(event.kind).await;
    }
    Some(stream.result().await)
}
