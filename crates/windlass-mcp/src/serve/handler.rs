//! The handler of client requests.

// MCP deprecates logging, but clients of both protocol eras still use it.
#![expect(deprecated, reason = "the legacy protocol has logging")]

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult,
    CompletionInfo, CustomRequest, CustomResult, ErrorCode, GetPromptRequestParams, GetPromptResponse,
    GetTaskParams, GetTaskResult, Implementation, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Reference, ServerCapabilities, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, ToolAnnotations,
    UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext};
use rmcp::{ErrorData, ServerHandler};
use serde_json::Value;
use windlass::core::tool::ToolEffect;

use super::caller::RequestCaller;
use super::{SharedMcpServer, exposed_name, resource};
use crate::client::{CANCEL_CALL_METHOD, KEYED_CALLS_EXTENSION};

/// The handler of one client connection or session.
pub(super) struct McpServerHandler<C> {
    pub(super) server: Arc<SharedMcpServer<C>>,
    /// The minimum log level that a legacy client has set.
    log_level: Mutex<Option<LoggingLevel>>,
    /// The owner id of the client's subscriptions.
    owner_id: u64,
}

impl<C> McpServerHandler<C> {
    pub(super) fn new(served: Arc<SharedMcpServer<C>>) -> Self {
        let number = served.update_notifier.next_owner_id();
        Self { server: served, log_level: Mutex::default(), owner_id: number }
    }

    pub(super) fn log_level(&self) -> Option<LoggingLevel> {
        *self.log_level.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Drop for McpServerHandler<C> {
    fn drop(&mut self) {
        self.server.update_notifier.remove_owner(self.owner_id);
    }
}

impl<C: Send + Sync + 'static> ServerHandler for McpServerHandler<C> {
    fn get_info(&self) -> ServerConfig {
        let served = &self.server;
        let mut offers = ServerCapabilities::builder().enable_tools().enable_logging().enable_tasks().build();
        let extensions = offers.extensions.get_or_insert_default();
        extensions.insert(KEYED_CALLS_EXTENSION.to_owned(), Default::default());
        if !served.resources.is_empty() || served.store.is_some() {
            let can_change = !served.resources.is_empty();
            let resources = offers.resources.insert(Default::default());
            resources.subscribe = can_change.then_some(true);
        }
        if !served.prompts.is_empty() {
            offers.prompts = Some(Default::default());
        }
        if served.has_suggestions() {
            offers.completions = Some(Default::default());
        }
        let info = ServerConfig::new(offers)
            .with_server_info(Implementation::new(served.name.clone(), served.version.clone()));
        match &served.instructions {
            Some(text) => info.with_instructions(text),
            None => info,
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.server.agent.tool_list().map(describe_tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        let key = self.server.tools.get(name)?;
        self.server.agent.tool_list().find(|tool| tool.key() == key).map(describe_tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.handle_call(request, &context).await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method != CANCEL_CALL_METHOD {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None));
        }
        let param = |name: &str| request.params.as_ref()?.get(name)?.as_str();
        let (Some(tool), Some(key)) = (param("name"), param("key")) else {
            return Err(ErrorData::invalid_params(
                "a call is named by the `name` of its tool and its `key`",
                None,
            ));
        };
        let run = RequestCaller::new(&self.server, &context).keyed_run_id(tool, key);
        self.server.keyed_calls.cancel(&run);
        Ok(CustomResult(serde_json::json!({})))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.server
            .task_details(&request.task_id, &RequestCaller::new(&self.server, &context))
            .await
            .map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.server
            .submit_responses(
                &request.task_id,
                request.input_responses,
                &RequestCaller::new(&self.server, &context),
            )
            .await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.server.cancel_task(&request.task_id, &RequestCaller::new(&self.server, &context)).await
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        *self.log_level.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.level);
        Ok(())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let fixed = self.server.resources.iter().filter(|resource| !resource.is_template());
        Ok(ListResourcesResult::with_all_items(fixed.map(resource::McpResource::to_protocol).collect()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let forms = self.server.resources.iter().filter(|resource| resource.is_template());
        Ok(ListResourceTemplatesResult::with_all_items(
            forms.map(resource::McpResource::to_protocol_template).collect(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = &*request.uri;
        for resource in &self.server.resources {
            if let Some(contents) = resource.read_at(uri).await? {
                return Ok(ReadResourceResult::new(vec![contents]).into());
            }
        }
        let caller = RequestCaller::new(&self.server, &context);
        if let Some(contents) = self.server.read_full_output(uri, &caller).await {
            return Ok(ReadResourceResult::new(vec![contents]).into());
        }
        let place = Some(serde_json::json!({ "uri": uri }));
        Err(ErrorData::resource_not_found(format!("there is nothing at `{uri}`"), place))
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !self.server.resources.iter().any(|resource| resource.matches_uri(&request.uri)) {
            return Err(ErrorData::resource_not_found(
                format!("there is nothing at `{}`", request.uri),
                None,
            ));
        }
        self.server.update_notifier.subscribe(self.owner_id, request.uri, context.peer)
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.server.update_notifier.unsubscribe(self.owner_id, &request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        let offers = self.get_info().capabilities;
        let subscribes = offers.resources.as_ref().is_some_and(|resources| resources.subscribe == Some(true));
        subscribes.then(|| requested.supported_by(&offers))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let _until_dropped = self.server.update_notifier.subscribe_stream(context.sink().clone())?;
        context.cancelled().await;
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(
            self.server.prompts.iter().map(super::prompt::McpPrompt::to_protocol).collect(),
        ))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let found = self.server.prompts.iter().find(|prompt| prompt.name == request.name);
        let Some(prompt) = found else {
            return Err(ErrorData::invalid_params(format!("there is no prompt `{}`", request.name), None));
        };
        prompt.render(request.arguments).await.map(Into::into)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let argument = request.argument;
        let all = match &request.r#ref {
            Reference::Prompt(asked) => {
                let found = self.server.prompts.iter().find(|prompt| prompt.name == asked.name);
                found.map(|prompt| prompt.suggestions(&argument.name))
            }
            Reference::Resource(asked) => {
                let found = self.server.resources.iter().find(|resource| resource.uri == asked.uri);
                found.and_then(|resource| resource.suggestions.get(&argument.name)).map(Vec::as_slice)
            }
            _ => None,
        };
        let fitting = all.unwrap_or_default().iter().filter(|value| value.starts_with(&argument.value));
        let values = fitting.take(CompletionInfo::MAX_VALUES).cloned().collect();
        let info = CompletionInfo::new(values).map_err(|why| ErrorData::internal_error(why, None))?;
        Ok(CompleteResult::new(info))
    }
}

fn describe_tool<C: Send + Sync + 'static>(tool: &windlass::tool::Tool<C>) -> rmcp::model::Tool {
    let schema = match tool.arguments_schema() {
        Value::Object(schema) => schema.clone(),
        _ => serde_json::Map::new(),
    };
    let hints = match tool.declared_effect() {
        ToolEffect::Pure => ToolAnnotations::new().read_only(true),
        ToolEffect::Idempotent => ToolAnnotations::new().read_only(false).idempotent(true),
        ToolEffect::Once => ToolAnnotations::new().read_only(false),
    };
    let description: Cow<'static, str> = tool.description().to_owned().into();
    let mut described =
        rmcp::model::Tool::new(exposed_name(tool.key()), description, schema).with_annotations(hints);
    if let Some(Value::Object(schema)) = tool.declared_output_schema() {
        described.output_schema = Some(Arc::new(schema.clone()));
    }
    described
}
