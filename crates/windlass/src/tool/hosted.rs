//! Tools that the provider runs itself: they are offered, and what came of them is seen as items.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use windlass_core::{Effect, ToolKey};

use super::{IntoTool, Tool, ToolBody, ToolContext, body};
use crate::guardrail::{ToolInputGuardrail, ToolVerdict};
use crate::model::OfferedKind;

impl<C: Send + Sync + 'static> Tool<C> {
    /// A tool that the provider runs: web search, code interpreter, image generation, and whatever comes. It takes
    /// the definition that the OpenAI Responses API has for it, with its `type`. A run whose model cannot be offered
    /// it does not start.
    ///
    /// ```
    /// use windlass::prelude::*;
    ///
    /// let search: Tool = Tool::hosted(json!({"type": "web_search", "search_context_size": "low"}));
    /// assert_eq!(search.name(), "web_search");
    /// ```
    pub fn hosted(definition: Value) -> Self {
        let name = definition.get("type").and_then(Value::as_str).unwrap_or("hosted").to_owned();
        Self::run_by_provider(ToolKey::bare(name), definition)
    }

    fn run_by_provider(key: ToolKey, definition: Value) -> Self {
        let schema = Arc::new(json!({ "type": "object" }));
        let refuse = |_: ToolContext<C>, _: Value| async {
            Err::<String, _>("The provider runs this tool itself; it cannot be called here.")
        };
        let body = ToolBody::Function(body::dynamic(schema.clone(), refuse));
        let mut tool = Self::new(key.name(), "", schema, body).non_strict().effect(Effect::Pure);
        tool.key = key;
        tool.offered_as(OfferedKind::Hosted(Arc::new(definition)))
    }
}

/// The key of a server that the provider calls.
pub(crate) fn hosted_server(label: &str) -> ToolKey {
    ToolKey::Mcp { server: label.into(), name: "*".into() }
}

/// What a function says about a call that the provider wants to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostedVerdict {
    /// It may.
    Approve,
    /// It may not, for this reason.
    Reject(String),
    /// A person decides.
    Ask,
}

type Decide<C> = Arc<dyn Fn(&ToolContext<C>, &str, &Value) -> HostedVerdict + Send + Sync>;

/// An MCP server that the provider calls itself. Where it asks before a call, that is a call like any other here: it
/// is planned, guarded, decided by rule or by a person, and journalled, and decisions belong to the one tool of the
/// server that was asked about.
///
/// ```
/// use windlass::prelude::*;
/// use windlass::tool::{HostedMcp, HostedVerdict};
///
/// let files: HostedMcp = HostedMcp::at("files", "https://files.example/mcp")
///     .allowed_tools(["read", "write"])
///     .ask_about_all_but(["read"])
///     .decide(|_, tool, arguments| match arguments["path"].as_str() {
///         Some(path) if tool == "write" && path.starts_with("/scratch/") => HostedVerdict::Approve,
///         Some(path) if path.contains("..") => HostedVerdict::Reject("no way up".into()),
///         _ => HostedVerdict::Ask,
///     });
/// let agent = Agent::new("clerk").tool(files);
/// # let _ = agent;
/// ```
pub struct HostedMcp<C = ()> {
    label: String,
    definition: Map<String, Value>,
    allowed: Option<BTreeSet<String>>,
    decide: Option<Decide<C>>,
}

impl<C: Send + Sync + 'static> HostedMcp<C> {
    /// A server at an address.
    pub fn at(label: &str, url: &str) -> Self {
        Self::new(label).set("server_url", url)
    }

    /// One of the provider's own connectors.
    pub fn connector(label: &str, id: &str) -> Self {
        Self::new(label).set("connector_id", id)
    }

    fn new(label: &str) -> Self {
        let empty = Self { label: label.to_owned(), definition: Map::new(), allowed: None, decide: None };
        empty.set("type", "mcp").set("server_label", label).set("require_approval", "always")
    }

    /// Any other field of the definition.
    #[must_use]
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.definition.insert(field.to_owned(), value.into());
        self
    }

    /// What the provider shows to the server. It is sent with every request, and written down nowhere.
    #[must_use]
    pub fn authorization(self, token: &str) -> Self {
        self.set("authorization", token)
    }

    /// The only tools of the server that the model is offered. Where the provider asks about another one all the same,
    /// it is refused, and nobody is asked.
    #[must_use]
    pub fn allowed_tools<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        self.allowed = Some(names.iter().map(|&name| name.to_owned()).collect());
        self.set("allowed_tools", names)
    }

    /// The provider asks about every call, which it also does where nothing else is said.
    #[must_use]
    pub fn ask_always(self) -> Self {
        self.set("require_approval", "always")
    }

    /// The provider never asks. It is the application's word alone that lifts approvals.
    #[must_use]
    pub fn ask_never(self) -> Self {
        self.set("require_approval", "never")
    }

    /// The provider asks about every call but those of these tools.
    #[must_use]
    pub fn ask_about_all_but<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        self.set("require_approval", json!({ "never": { "tool_names": names } }))
    }

    /// Decides in a person's place, by the name of the tool and its arguments. Without it, a person decides.
    #[must_use]
    pub fn decide(
        mut self,
        decide: impl Fn(&ToolContext<C>, &str, &Value) -> HostedVerdict + Send + Sync + 'static,
    ) -> Self {
        self.decide = Some(Arc::new(decide));
        self
    }
}

impl<C: Send + Sync + 'static> IntoTool<C> for HostedMcp<C> {
    fn into_tool(self) -> Tool<C> {
        let schema = Arc::new(json!({ "type": "object" }));
        // What it does is the provider's doing. Here it is only allowed, and may be allowed again after a crash.
        let allow = |_: ToolContext<C>, _: Value| async { Ok::<_, String>("approved") };
        let mut tool = Tool::run_by_provider(hosted_server(&self.label), Value::Object(self.definition));
        tool.body = ToolBody::Function(body::dynamic(schema, allow));
        if self.allowed.is_none() && self.decide.is_none() {
            return tool.approve_always();
        }
        let (allowed, decide) = (self.allowed, self.decide);
        let verdict = Arc::new(move |ctx: &ToolContext<C>, arguments: &Value| {
            let name = ctx.tool().name();
            if allowed.as_ref().is_some_and(|allowed| !allowed.contains(name)) {
                return HostedVerdict::Reject(NOT_ALLOWED.to_owned());
            }
            decide.as_ref().map_or(HostedVerdict::Ask, |decide| decide(ctx, name, arguments))
        });
        let asks = verdict.clone();
        let tool = tool.approve_when(move |ctx: ToolContext<C>, arguments: &Value| {
            std::future::ready(asks(&ctx, arguments) == HostedVerdict::Ask)
        });
        let refuses = move |ctx: ToolContext<C>| {
            let verdict =
                serde_json::from_str(ctx.arguments()).map(|arguments| match verdict(&ctx, &arguments) {
                    HostedVerdict::Reject(why) => ToolVerdict::Reject(why),
                    HostedVerdict::Approve | HostedVerdict::Ask => ToolVerdict::Allow,
                });
            async move { Ok(verdict?) }
        };
        tool.input_guardrail(ToolInputGuardrail::new("decide", refuses))
    }
}

/// What the provider is told about a tool that is not allowed.
const NOT_ALLOWED: &str = "This tool of the server may not be used.";

impl<C> fmt::Debug for HostedMcp<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostedMcp").field("label", &self.label).finish_non_exhaustive()
    }
}
