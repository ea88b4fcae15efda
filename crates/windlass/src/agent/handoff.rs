//! Handoffs: transfers of control from one agent to another.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass_core::{id::AgentName, item::Item};

use super::Agent;
use super::as_tool::to_tool_name;
use crate::error::ConfigError;
use crate::model::{ToolDefinition, ToolKind};
use crate::tool::{EnabledRule, OfferedSchema, RunContext, offer_schema};

/// A transfer of control to another agent. The model sees it as a tool.
pub struct Handoff<C = ()> {
    pub(crate) target: HandoffTarget<C>,
    tool_name: Option<Arc<str>>,
    description: Option<Arc<str>>,
    parameters: Arc<Value>,
    pub(crate) enabled: EnabledRule<C>,
    pub(crate) on_handoff: Option<HandoffCallback<C>>,
    pub(crate) history_filter: Option<HistoryFilter>,
}

type HandoffCallback<C> =
    Arc<dyn Fn(HandoffInput<C>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;
type HistoryFilter = Arc<dyn Fn(Vec<Arc<Item>>) -> Vec<Arc<Item>> + Send + Sync>;

/// The agent that a handoff or an agent tool refers to.
pub(crate) enum HandoffTarget<C> {
    Agent(Agent<C>),
    ByName(AgentName),
}

/// The argument of a handoff callback ([`Handoff::on_handoff`]).
pub struct HandoffInput<C = ()> {
    /// The context of the run, under the agent that requested the handoff.
    pub ctx: RunContext<C>,
    /// The agent that receives control.
    pub to: AgentName,
    /// The arguments of the handoff call, as the model wrote them.
    pub arguments: Value,
}

impl<C: Send + Sync + 'static> Handoff<C> {
    /// Creates a handoff to this agent, which is given by value or by reference, as in [`Agent::handoff`].
    pub fn to(agent: impl Into<Self>) -> Self {
        agent.into()
    }

    /// Creates a handoff to an agent that the run knows by name, for agents that hand off to each other.
    pub fn to_named(agent: impl Into<AgentName>) -> Self {
        Self::new(HandoffTarget::ByName(agent.into()))
    }

    fn new(target: HandoffTarget<C>) -> Self {
        Self {
            target,
            tool_name: None,
            description: None,
            parameters: Arc::new(
                json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
            ),
            enabled: EnabledRule::Always,
            on_handoff: None,
            history_filter: None,
        }
    }

    /// Sets the name of the tool that the model sees, in place of `transfer_to_…`.
    #[must_use]
    pub fn tool_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.tool_name = Some(name.into());
        self
    }

    /// Sets the description that the model sees.
    #[must_use]
    pub fn description(mut self, text: impl Into<Arc<str>>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Sets the JSON Schema, of an object, of the arguments that the model must give with the handoff. It is offered in
    /// its strict form; a schema with maps is offered as it is, with a warning.
    #[must_use]
    pub fn parameters(mut self, schema: Value) -> Self {
        self.parameters = Arc::new(schema);
        self
    }

    /// Offers the handoff only if the rule returns true. The rule runs before every turn, and again when the model has
    /// asked for the handoff and right before control passes.
    #[must_use]
    pub fn enabled_if(mut self, rule: impl Fn(&RunContext<C>) -> bool + Send + Sync + 'static) -> Self {
        self.enabled = EnabledRule::ByFunction(Arc::new(move |ctx| std::future::ready(rule(&ctx)).boxed()));
        self
    }

    /// Offers the handoff as [`Handoff::enabled_if`] does, with an async rule.
    #[must_use]
    pub fn enabled_if_async<Fut>(
        mut self,
        rule: impl Fn(RunContext<C>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.enabled = EnabledRule::ByFunction(Arc::new(move |ctx| rule(ctx).boxed()));
        self
    }

    /// Sets a callback that runs before control passes. An error prevents the handoff and fails the run.
    #[must_use]
    pub fn on_handoff<Fut>(mut self, act: impl Fn(HandoffInput<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.on_handoff = Some(Arc::new(move |input| act(input).boxed()));
        self
    }

    /// Sets a filter for the history that the receiving agent's model sees.
    #[must_use]
    pub fn filter_history(
        mut self,
        filter: impl Fn(Vec<Arc<Item>>) -> Vec<Arc<Item>> + Send + Sync + 'static,
    ) -> Self {
        self.history_filter = Some(Arc::new(filter));
        self
    }

    /// Returns the name of the receiving agent.
    pub fn target_name(&self) -> &AgentName {
        self.target.name()
    }

    /// True if the handoff is offered, or not, independently of the run.
    pub(crate) fn is_static(&self) -> bool {
        self.enabled.static_value().is_some()
    }

    /// Returns the name of the tool that the model sees.
    fn model_name(&self) -> Arc<str> {
        match &self.tool_name {
            Some(name) => name.clone(),
            None => format!("transfer_to_{}", to_tool_name(self.target_name())).into(),
        }
    }

    /// Returns the parameters as they are offered to the model.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters have no strict form.
    pub(crate) fn offered_parameters(&self) -> Result<OfferedSchema, ConfigError> {
        offer_schema(&self.parameters).map_err(|why| ConfigError::HandoffNotStrict {
            handoff: self.model_name().to_string(),
            reason: why,
        })
    }

    /// Returns a warning about the definition, for the operator.
    pub(crate) fn definition_warning(&self) -> Option<String> {
        match self.offered_parameters() {
            Ok(OfferedSchema::WithMaps { places, .. }) => Some(format!(
                "handoff `{}` is offered without a strict schema, because it has a map at {places}",
                self.model_name()
            )),
            Ok(OfferedSchema::Strict(_)) | Err(_) => None,
        }
    }

    /// Returns the tool definition that the model sees.
    pub(crate) fn to_definition(&self, to: &Agent<C>) -> Result<ToolDefinition, ConfigError> {
        let name = self.model_name();
        let description = match &self.description {
            Some(description) => description.clone(),
            None => {
                let text = format!(
                    "Handoff to the {} agent to handle the request. {}",
                    to.name(),
                    to.inner.handoff_description
                );
                text.trim_end().into()
            }
        };
        let (parameters, is_strict) = self.offered_parameters()?.into_parts();
        Ok(ToolDefinition {
            name,
            namespace: None,
            description,
            parameters,
            is_strict,
            kind: ToolKind::Function,
        })
    }
}

impl<C: Send + Sync + 'static> From<&Agent<C>> for Handoff<C> {
    fn from(agent: &Agent<C>) -> Self {
        Self::from(agent.clone())
    }
}

impl<C: Send + Sync + 'static> From<Agent<C>> for Handoff<C> {
    fn from(agent: Agent<C>) -> Self {
        Self::new(HandoffTarget::Agent(agent))
    }
}

impl<C: Send + Sync + 'static> HandoffTarget<C> {
    pub(crate) fn name(&self) -> &AgentName {
        match self {
            Self::Agent(agent) => agent.name(),
            Self::ByName(name) => name,
        }
    }
}

impl<C> Clone for HandoffTarget<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Agent(agent) => Self::Agent(agent.clone()),
            Self::ByName(name) => Self::ByName(name.clone()),
        }
    }
}

impl<C> Clone for Handoff<C> {
    fn clone(&self) -> Self {
        Self {
            target: self.target.clone(),
            tool_name: self.tool_name.clone(),
            description: self.description.clone(),
            parameters: self.parameters.clone(),
            enabled: self.enabled.clone(),
            on_handoff: self.on_handoff.clone(),
            history_filter: self.history_filter.clone(),
        }
    }
}

impl<C: Send + Sync + 'static> fmt::Debug for Handoff<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handoff(to {})", self.target_name())
    }
}
