//! One call of a client, carried out as a run: until it has a result, becomes a task, or needs an answer.

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CreateTaskResult, InputRequiredResult,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;
use windlass::core::{Call, CallKind, RunId, ToolKey};
use windlass::run::RunBuilder;
use windlass::{Outcome, Paused, RunError};

use super::handler::Handler;
use super::model::{CALL, OneCall};
use super::task::{Asks, Job, Stand, Tasks, failed};
use super::tell::{Teller, is_modern};
use super::{Served, ask, content};

/// How often one call may ask a person before it is given up.
const MOST_ROUNDS: usize = 50;

impl<C: Send + Sync + 'static> Handler<C> {
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let served = &self.served;
        let client = context.client_capabilities().unwrap_or_default();
        let can_wait = is_modern(context) && client.supports_tasks();
        let tasks = served.tasks_of(&request.name);
        if tasks == Tasks::Only && !can_wait {
            let needed = ClientCapabilities::builder().enable_tasks().build();
            return Err(ErrorData::missing_required_client_capability(needed));
        }
        let (id, run) = match &request.request_state {
            Some(word) => {
                let Some(mut paused) = served.take(word).await else {
                    return Err(ErrorData::invalid_params("no call waits under this `requestState`", None));
                };
                ask::answered(&mut paused, &request.input_responses.unwrap_or_default());
                (paused.record().run_id().clone(), served.resumed(paused))
            }
            None => served.begin(request)?,
        };
        let teller = Teller::new(context, self.level(), &served.name);
        let can_ask = client.elicitation.is_some();
        if tasks != Tasks::Never && can_wait {
            let asks = if can_ask { Asks::Client } else { Asks::Elsewhere };
            return served.as_task(&Job::new(id, asks), run, teller, tasks, context).await;
        }
        self.carry_out(run, teller, can_ask, context).await
    }

    /// Carries out a call until it has a result, or until the client has to come back with an answer.
    async fn carry_out(
        &self,
        mut run: RunBuilder<C>,
        mut teller: Teller,
        can_ask: bool,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let served = &self.served;
        for _ in 0..MOST_ROUNDS {
            let mut paused = match watched(served.stored(run), &mut teller, context).await {
                Some(Ok(Outcome::Paused(paused))) => paused,
                Some(Ok(outcome)) => {
                    return Ok(content::result(&outcome, served.store.as_deref()).await.into());
                }
                Some(Err(error)) => return Err(failed(&error)),
                None => return Err(ErrorData::internal_error("the call was cancelled", None)),
            };
            if is_modern(context) {
                return served.asks(paused, can_ask);
            }
            if !can_ask {
                let why = "This call needs a person's decision, and this client cannot ask for one.";
                return Ok(content::told(why).into());
            }
            for pending in paused.pending() {
                let answer = context.peer.create_elicitation(ask::question(&pending)).await;
                let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                ask::note(ask::decide(&mut paused, &pending, &answer));
            }
            run = served.resumed(paused);
        }
        Ok(content::told("This call asked for a person too often.").into())
    }
}

impl<C: Send + Sync + 'static> Served<C> {
    fn begin(&self, request: CallToolRequestParams) -> Result<(RunId, RunBuilder<C>), ErrorData> {
        let Some(key) = self.tools.get(&*request.name) else {
            return Err(ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None));
        };
        let namespace = match key {
            ToolKey::Namespaced { namespace, .. } => Some(namespace.to_string()),
            ToolKey::Deferred(name) => Some(name.to_string()),
            ToolKey::Bare(_) | ToolKey::Mcp { .. } => None,
        };
        let arguments = Value::Object(request.arguments.unwrap_or_default()).to_string();
        let call = Call {
            id: CALL.into(),
            name: key.name().to_owned(),
            namespace,
            arguments,
            item_id: None,
            kind: CallKind::Function,
        };
        // Whoever knows a run's id may ask about it, so it is not to be guessed.
        let id = RunId::new(uuid::Uuid::new_v4().to_string());
        let agent = self.agent.clone().model(OneCall { call });
        let run = agent.run_with(format!("call {}", request.name), self.context.clone());
        Ok((id.clone(), run.run_id(id)))
    }

    pub(super) fn resumed(&self, paused: Paused) -> RunBuilder<C> {
        self.agent.resume_with(paused, self.context.clone())
    }

    /// A run whose journal is kept, where there is a store.
    pub(super) fn stored(&self, run: RunBuilder<C>) -> RunBuilder<C> {
        match &self.store {
            Some(store) => run.store(store.clone()),
            None => run,
        }
    }

    /// Answers with what the call gave, with a question, or with a task, whichever it comes to first.
    async fn as_task(
        self: &Arc<Self>,
        job: &Arc<Job>,
        run: RunBuilder<C>,
        teller: Teller,
        tasks: Tasks,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let patience = match tasks {
            Tasks::WhenSlow(patience) => Some(patience),
            // It is a task before it begins, or it is none.
            Tasks::Always | Tasks::Only if self.jobs.keep(job) => None,
            Tasks::Always | Tasks::Only | Tasks::Never => Some(std::time::Duration::MAX),
        };
        self.start(job, run, Some(teller));
        let Some(patience) = patience else { return Ok(CreateTaskResult::new(job.seed()).into()) };
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
                    // Where there is no room for another task, the client waits after all.
                    may_leave = false;
                    if self.jobs.keep(job) {
                        break;
                    }
                }
            }
        }
        let can_ask = job.asks == Asks::Client;
        match job.take_stand() {
            None => Ok(CreateTaskResult::new(job.seed()).into()),
            // Somebody may decide through the store.
            Some(Stand::Waiting(paused)) if !can_ask && self.store.is_some() && self.jobs.keep(job) => {
                job.put(Stand::Waiting(paused));
                Ok(CreateTaskResult::new(job.seed()).into())
            }
            Some(stand) => {
                self.jobs.forget(job);
                match stand {
                    Stand::Waiting(paused) => self.asks(*paused, can_ask),
                    Stand::Done(result) => Ok(result.into()),
                    Stand::Failed(error) => Err(error),
                    Stand::Cancelled | Stand::Working => {
                        Err(ErrorData::internal_error("the call was cancelled", None))
                    }
                }
            }
        }
    }

    /// Answers that the client must come back with what a person says.
    fn asks(&self, paused: Paused, can_ask: bool) -> Result<CallToolResponse, ErrorData> {
        if !can_ask {
            let needed = ClientCapabilities::builder().enable_elicitation().build();
            return Err(ErrorData::missing_required_client_capability(needed));
        }
        let questions = ask::questions(&paused);
        Ok(InputRequiredResult::new(Some(questions), Some(self.hold(paused))).into())
    }
}

/// A run's outcome, its progress told to the client; none where the client has given up, and with it the run.
async fn watched<C: Send + Sync + 'static>(
    run: RunBuilder<C>,
    teller: &mut Teller,
    context: &RequestContext<RoleServer>,
) -> Option<Result<Outcome, RunError>> {
    let mut stream = run.stream();
    loop {
        let event = tokio::select! {
            biased;
            () = context.ct.cancelled() => return None,
            event = stream.next() => event,
        };
        let Some(event) = event else { break };
        teller.tell(event.kind).await;
    }
    Some(stream.outcome().await)
}
