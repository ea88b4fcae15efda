//! Answers what clients ask.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequest, ElicitResult,
    Implementation, InputRequest, InputRequiredResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, ServerCapabilities, ServerConfig, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler};
use serde_json::Value;
use windlass::core::{Call, CallKind, Content, OutputStatus, ToolKey};
use windlass::run::RunBuilder;
use windlass::{Effect, EventKind, Item, Outcome, OutputContent, Paused, RunError};

use super::model::{CALL, OneCall};
use super::{Served, ask, served_name};

/// How often one call may ask a person before it is given up.
const MOST_ROUNDS: usize = 50;

pub(super) struct Handler<C>(pub(super) Arc<Served<C>>);

impl<C: Send + Sync + 'static> ServerHandler for Handler<C> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let info = ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(self.0.name.clone(), self.0.version.clone()));
        match &self.0.instructions {
            Some(text) => info.with_instructions(text),
            None => info,
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.agent.tool_list().map(described).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        let key = self.0.tools.get(name)?;
        self.0.agent.tool_list().find(|tool| tool.key() == key).map(described)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let run = match &request.request_state {
            Some(word) => {
                let Some(mut paused) = self.0.take(word) else {
                    return Err(ErrorData::invalid_params("no call waits under this `requestState`", None));
                };
                answered(&mut paused, request.input_responses.unwrap_or_default());
                self.0.agent.resume_with(paused, self.0.context.clone())
            }
            None => self.begin(request)?,
        };
        self.carry_out(run, &context).await
    }
}

impl<C: Send + Sync + 'static> Handler<C> {
    fn begin(&self, request: CallToolRequestParams) -> Result<RunBuilder<C>, ErrorData> {
        let Some(key) = self.0.tools.get(&*request.name) else {
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
        let agent = self.0.agent.clone().model(OneCall { call });
        Ok(agent.run_with(format!("call {}", request.name), self.0.context.clone()))
    }

    /// Carries out a call until it has a result, or until the client has to come back with an answer.
    async fn carry_out(
        &self,
        mut run: RunBuilder<C>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        for _ in 0..MOST_ROUNDS {
            if let Some(store) = &self.0.store {
                run = run.store(store.clone());
            }
            let mut paused = match watched(run, context).await {
                Some(Ok(Outcome::Paused(paused))) => paused,
                Some(Ok(outcome)) => return Ok(result(&outcome).into()),
                Some(Err(error)) => return Ok(failed(&error).into()),
                None => return Err(ErrorData::internal_error("the call was cancelled", None)),
            };
            let can_ask = context.client_capabilities().is_some_and(|client| client.elicitation.is_some());
            if !can_ask {
                return Ok(
                    told("This call needs a person's decision, and this client cannot ask for one.").into()
                );
            }
            let modern =
                context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
            if modern {
                let waiting = paused.pending();
                let questions = waiting.iter().map(|pending| {
                    let request = ElicitRequest::new(ask::question(pending));
                    (pending.path.to_string(), InputRequest::Elicitation(request))
                });
                let questions = questions.collect();
                return Ok(InputRequiredResult::new(Some(questions), Some(self.0.hold(paused))).into());
            }
            for pending in paused.pending() {
                let answer = context.peer.create_elicitation(ask::question(&pending)).await;
                let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                note(ask::decide(&mut paused, &pending, &answer));
            }
            run = self.0.agent.resume_with(paused, self.0.context.clone());
        }
        Ok(told("This call asked for a person too often.").into())
    }
}

/// Decides about all that a client came back with an answer for. What it has none for goes on waiting.
fn answered(paused: &mut Paused, responses: BTreeMap<String, Value>) {
    for pending in paused.pending() {
        let response = responses.get(&pending.path.to_string()).cloned();
        let answer = response.and_then(|response| serde_json::from_value::<ElicitResult>(response).ok());
        if let Some(answer) = answer {
            note(ask::decide(paused, &pending, &answer));
        }
    }
}

/// An answer that does not fit leaves the call waiting, and it is asked again.
fn note(decided: Result<(), windlass::DecideError>) {
    if let Err(error) = decided {
        tracing::debug!(%error, "an answer was not taken");
    }
}

/// A run's outcome, its progress told to the client; none where the client has given up, and with it the run.
async fn watched<C: Send + Sync + 'static>(
    run: RunBuilder<C>,
    context: &RequestContext<RoleServer>,
) -> Option<Result<Outcome, RunError>> {
    let mut stream = run.stream();
    let token = context.meta.get_progress_token();
    let mut told: f64 = 0.0;
    loop {
        let event = tokio::select! {
            biased;
            () = context.ct.cancelled() => return None,
            event = stream.next() => event,
        };
        let Some(event) = event else { break };
        if let (EventKind::Progress { progress, .. }, Some(token)) = (event.kind, &token) {
            // What a tool says of its progress may be anything, and what is sent must grow.
            let number = |key: &str| progress.get(key).and_then(Value::as_f64);
            told = number("progress").or_else(|| progress.as_f64()).unwrap_or(told + 1.0).max(told);
            let mut params = ProgressNotificationParam::new(token.clone(), told);
            params.total = number("total");
            let words = progress.get("message").and_then(Value::as_str).or_else(|| progress.as_str());
            params.message = words.map(str::to_owned);
            let _gone = context.peer.notify_progress(params).await;
        }
    }
    Some(stream.outcome().await)
}

fn result(outcome: &Outcome) -> CallToolResult {
    let items = outcome.record().items();
    let output = items.iter().rev().find_map(|produced| match &*produced.item {
        Item::Output(output) if output.call.as_str() == CALL => Some(output),
        _ => None,
    });
    let Some(output) = output else { return told("The call has no result.") };
    let content = match &output.content {
        OutputContent::Text(text) => vec![ContentBlock::text(text)],
        OutputContent::Parts(parts) => parts.iter().map(block).collect(),
    };
    match output.status {
        OutputStatus::Ok => CallToolResult::success(content),
        OutputStatus::Failed => CallToolResult::error(content),
    }
}

fn block(part: &Content) -> ContentBlock {
    match part {
        Content::Text { text } | Content::Refusal { text } => ContentBlock::text(text),
        Content::Image(media) => {
            let inline = media.url.as_deref().and_then(|url| {
                let (kind, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
                Some((kind.to_owned(), data.to_owned()))
            });
            let inline = inline.or_else(|| Some((media.media_type.clone()?, media.data.clone()?)));
            match inline {
                Some((kind, data)) => ContentBlock::image(data, kind),
                None => json(part),
            }
        }
        other => json(other),
    }
}

fn json(part: &Content) -> ContentBlock {
    ContentBlock::text(serde_json::to_string(part).unwrap_or_default())
}

/// Why a run failed is for the operator; the client is told that it did, and what was written for it.
fn failed(error: &RunError) -> CallToolResult {
    tracing::warn!(%error, "a call of an MCP client failed");
    told("The call could not be carried out.")
}

fn told(text: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

fn described<C: Send + Sync + 'static>(tool: &windlass::Tool<C>) -> rmcp::model::Tool {
    let schema = match tool.schema() {
        Value::Object(schema) => schema.clone(),
        _ => serde_json::Map::new(),
    };
    let hints = match tool.declared_effect() {
        Effect::Pure => ToolAnnotations::new().read_only(true),
        Effect::Idempotent => ToolAnnotations::new().read_only(false).idempotent(true),
        Effect::Once => ToolAnnotations::new().read_only(false),
    };
    let description: Cow<'static, str> = tool.description().to_owned().into();
    rmcp::model::Tool::new(served_name(tool.key()), description, schema).with_annotations(hints)
}
