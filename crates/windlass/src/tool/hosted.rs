//! Hosted tools: tools that the provider executes. They are defined in the request, and their results appear as
//! items.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use windlass_core::run::ApprovalRequirement;
use windlass_core::tool::{ToolEffect, ToolKey};

use super::{ApprovalRule, IntoTool, Tool, ToolBody, ToolContext, prepared_call};
use crate::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use crate::model::ToolKind;

impl<C: Send + Sync + 'static> Tool<C> {
    /// Creates a tool that the provider executes: web search, code interpreter, image generation and others. It
    /// takes the definition of the OpenAI Responses API, with its `type`. A run does not start if its model
    /// does not support the tool.
    ///
    /// ```
    /// use windlass::prelude::*;
    ///
    /// let search: Tool = Tool::hosted(json!({"type": "web_search", "search_context_size": "low"}));
    /// assert_eq!(search.name(), "web_search");
    /// ```
    pub fn hosted(definition: Value) -> Self {
        let name = definition.get("type").and_then(Value::as_str).unwrap_or("hosted").to_owned();
        Self::new_hosted(ToolKey::bare(name), definition)
    }

    fn new_hosted(key: ToolKey, definition: Value) -> Self {
        let schema = Arc::new(json!({ "type": "object" }));
        let refuse = |_: ToolContext<C>, _: Value| async {
            Err::<String, _>("The provider runs this tool itself; it cannot be called here.")
        };
        let body = ToolBody::Function(prepared_call::dynamic_async(schema.clone(), refuse));
        let mut tool = Self::new(key.name(), "", schema, body).non_strict().effect(ToolEffect::Pure);
        tool.key = key;
        tool.provider_kind(ToolKind::Hosted(Arc::new(definition)))
    }
}

/// Returns the key of a hosted MCP server.
pub(crate) fn hosted_server_key(label: &str) -> ToolKey {
    ToolKey::Mcp { server: label.into(), name: "*".into(), definition: None }
}

/// The verdict about a call that the provider asks approval for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostedCallVerdict {
    /// The call is approved.
    Approve,
    /// The call is rejected, for this reason.
    Reject(String),
    /// A person decides.
    AskPerson,
}

type ApprovalRequestFunction<C> =
    Arc<dyn Fn(ToolContext<C>, &str, &Value) -> BoxFuture<'static, HostedCallVerdict> + Send + Sync>;

/// An MCP server that the provider calls. Its approval requests are treated like tool calls: they are planned,
/// guarded, decided by a rule or a person, and journalled, and decisions apply to the one tool of the server
/// that was requested.
///
/// ```
/// use windlass::prelude::*;
/// use windlass::tool::{HostedCallVerdict, HostedMcpServer};
///
/// let files: HostedMcpServer = HostedMcpServer::from_url("files", "https://files.example/mcp")
///     .allowed_tools(["read", "write"])
///     .require_approval_except(["read"])
///     .on_approval_request(|_, tool, arguments| match arguments["path"].as_str() {
///         Some(path) if tool == "write" && path.starts_with("/scratch/") => HostedCallVerdict::Approve,
///         Some(path) if path.contains("..") => HostedCallVerdict::Reject("no way up".into()),
///         _ => HostedCallVerdict::AskPerson,
///     });
/// let agent = Agent::new("clerk").tool(files);
/// # let _ = agent;
/// ```
pub struct HostedMcpServer<C = ()> {
    label: String,
    definition: Map<String, Value>,
    allowed_tools: Option<BTreeSet<String>>,
    on_approval_request: Option<ApprovalRequestFunction<C>>,
}

impl<C: Send + Sync + 'static> HostedMcpServer<C> {
    /// Creates a server with this URL.
    pub fn from_url(label: &str, url: &str) -> Self {
        Self::new(label).set_field("server_url", url)
    }

    /// Creates a server for one of the provider's own connectors.
    pub fn from_connector(label: &str, id: &str) -> Self {
        Self::new(label).set_field("connector_id", id)
    }

    fn new(label: &str) -> Self {
        let empty = Self {
            label: label.to_owned(),
            definition: Map::new(),
            allowed_tools: None,
            on_approval_request: None,
        };
        empty
            .set_field("type", "mcp")
            .set_field("server_label", label)
            .set_field("require_approval", "always")
    }

    /// Sets any other field of the definition.
    #[must_use]
    pub fn set_field(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.definition.insert(field.to_owned(), value.into());
        self
    }

    /// Sets the token that the provider sends to the server. It is part of every request, and is never stored.
    #[must_use]
    pub fn authorization(self, token: &str) -> Self {
        self.set_field("authorization", token)
    }

    /// Sets the tools of the server that the model may call. Approval requests for other tools are rejected
    /// without asking a person.
    #[must_use]
    pub fn allowed_tools<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        self.allowed_tools = Some(names.iter().map(|&name| name.to_owned()).collect());
        self.set_field("allowed_tools", names)
    }

    /// Requires approval for every call; this is the default.
    #[must_use]
    pub fn require_approval(self) -> Self {
        self.set_field("require_approval", "always")
    }

    /// Requires approval for no call. Only the application can disable approvals.
    #[must_use]
    pub fn never_require_approval(self) -> Self {
        self.set_field("require_approval", "never")
    }

    /// Requires approval for every call except those of these tools.
    #[must_use]
    pub fn require_approval_except<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        self.set_field("require_approval", json!({ "never": { "tool_names": names } }))
    }

    /// Sets a function that decides approval requests by the name of the tool and its arguments. It is asked once
    /// per request. If it panics or does not decide, a person decides, and so does a person without it.
    #[must_use]
    pub fn on_approval_request(
        mut self,
        decide: impl Fn(&ToolContext<C>, &str, &Value) -> HostedCallVerdict + Send + Sync + 'static,
    ) -> Self {
        self.on_approval_request =
            Some(Arc::new(move |ctx, tool, arguments| ready(decide(&ctx, tool, arguments)).boxed()));
        self
    }

    /// Sets an async function as [`HostedMcpServer::on_approval_request`] does, for decisions that a service makes.
    #[must_use]
    pub fn on_approval_request_async<Fut>(
        mut self,
        decide: impl Fn(ToolContext<C>, &str, &Value) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = HostedCallVerdict> + Send + 'static,
    {
        self.on_approval_request =
            Some(Arc::new(move |ctx, tool, arguments| decide(ctx, tool, arguments).boxed()));
        self
    }
}

impl<C: Send + Sync + 'static> IntoTool<C> for HostedMcpServer<C> {
    fn into_tool(self) -> Tool<C> {
        let schema = Arc::new(json!({ "type": "object" }));
        // The provider executes the call. The body only approves it, which may be repeated after a crash.
        let allow = |_: ToolContext<C>, _: Value| async { Ok::<_, String>("approved") };
        let mut tool = Tool::new_hosted(hosted_server_key(&self.label), Value::Object(self.definition));
        tool.body = ToolBody::Function(prepared_call::dynamic_async(schema, allow));
        if self.allowed_tools.is_none() && self.on_approval_request.is_none() {
            return tool.needs_approval();
        }
        let (allowed, decide) = (self.allowed_tools.map(Arc::new), self.on_approval_request);
        let listed = allowed.clone();
        let mut tool = tool;
        tool.approval = ApprovalRule::from_verdict(move |ctx: ToolContext<C>, arguments: &Value| {
            let name = ctx.tool_key().name().to_owned();
            if listed.as_ref().is_some_and(|listed| !listed.contains(&name)) {
                let reason = NOT_ALLOWED_REASON.to_owned();
                return ready(ApprovalRequirement::Rejected(reason)).boxed();
            }
            let Some(decide) = &decide else { return ready(ApprovalRequirement::Required).boxed() };
            decide(ctx, &name, arguments)
                .map(|verdict| match verdict {
                    HostedCallVerdict::Approve => ApprovalRequirement::NotRequired,
                    HostedCallVerdict::Reject(reason) => ApprovalRequirement::Rejected(reason),
                    HostedCallVerdict::AskPerson => ApprovalRequirement::Required,
                })
                .boxed()
        });
        let Some(allowed) = allowed else { return tool };
        // A standing approval does not cover a tool that has left the list.
        tool.input_guardrail(ToolInputGuardrail::new("allowed_tools", move |ctx: ToolContext<C>| {
            let verdict = match allowed.contains(ctx.tool_key().name()) {
                true => ToolGuardrailVerdict::Allow,
                false => ToolGuardrailVerdict::RejectCall(NOT_ALLOWED_REASON.to_owned()),
            };
            ready(Ok(verdict))
        }))
    }
}

/// Reason that the provider receives for a tool that is not allowed.
const NOT_ALLOWED_REASON: &str = "This tool of the server may not be used.";

impl<C> fmt::Debug for HostedMcpServer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostedMcpServer").field("label", &self.label).finish_non_exhaustive()
    }
}
