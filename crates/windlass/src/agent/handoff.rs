//! Handoffs: how an agent passes control to another.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use windlass_core::{AgentName, Item};

use super::Agent;
use super::as_tool::tool_name_of;
use crate::model::{OfferedKind, OfferedTool};
use crate::tool::{Enabled, RunContext};

/// A way to pass control to another agent. The model sees it as a tool.
pub struct Handoff<C = ()> {
    pub(crate) target: Target<C>,
    tool_name: Option<Arc<str>>,
    description: Option<Arc<str>>,
    parameters: Arc<Value>,
    pub(crate) enabled: Enabled<C>,
    pub(crate) on_handoff: Option<OnHandoff<C>>,
    pub(crate) filter: Option<HistoryFilter>,
}

type OnHandoff<C> = Arc<dyn Fn(HandoffInput<C>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;
type HistoryFilter = Arc<dyn Fn(Vec<Arc<Item>>) -> Vec<Arc<Item>> + Send + Sync>;

/// Whom control passes to.
pub(crate) enum Target<C> {
    Agent(Agent<C>),
    Named(AgentName),
}

/// What is known when control passes.
pub struct HandoffInput<C = ()> {
    /// The run, under the agent that asked.
    pub ctx: RunContext<C>,
    /// The agent that is to go on.
    pub to: AgentName,
    /// What the model wrote as arguments.
    pub arguments: Value,
}

impl<C: Send + Sync + 'static> Handoff<C> {
    /// To this agent.
    pub fn to(agent: &Agent<C>) -> Self {
        Self::new(Target::Agent(agent.clone()))
    }

    /// To an agent that the run knows by name: for agents that hand over to each other in a circle.
    pub fn to_named(agent: impl Into<AgentName>) -> Self {
        Self::new(Target::Named(agent.into()))
    }

    fn new(target: Target<C>) -> Self {
        Self {
            target,
            tool_name: None,
            description: None,
            parameters: Arc::new(
                json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
            ),
            enabled: Enabled::Always,
            on_handoff: None,
            filter: None,
        }
    }

    /// The name of the tool that the model sees, in place of `transfer_to_…`.
    #[must_use]
    pub fn tool_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.tool_name = Some(name.into());
        self
    }

    /// What the model is told of it.
    #[must_use]
    pub fn description(mut self, text: impl Into<Arc<str>>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// What the model must say when it hands over, as a JSON Schema of an object.
    #[must_use]
    pub fn parameters(mut self, schema: Value) -> Self {
        self.parameters = Arc::new(schema);
        self
    }

    /// Whether it is offered, asked anew for every turn.
    #[must_use]
    pub fn enabled_if(mut self, rule: impl Fn(&RunContext<C>) -> bool + Send + Sync + 'static) -> Self {
        self.enabled = Enabled::If(Arc::new(move |ctx| std::future::ready(rule(&ctx)).boxed()));
        self
    }

    /// Called before control passes; an error keeps it from passing and ends the run.
    #[must_use]
    pub fn on_handoff<Fut>(mut self, act: impl Fn(HandoffInput<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.on_handoff = Some(Arc::new(move |input| act(input).boxed()));
        self
    }

    /// What the new agent is shown of the history so far.
    #[must_use]
    pub fn filter_history(
        mut self,
        filter: impl Fn(Vec<Arc<Item>>) -> Vec<Arc<Item>> + Send + Sync + 'static,
    ) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// The agent's name.
    pub fn agent(&self) -> &AgentName {
        self.target.name()
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.enabled.fixed().is_some()
    }

    pub(crate) fn offer(&self, to: &Agent<C>) -> OfferedTool {
        let name = match &self.tool_name {
            Some(name) => name.clone(),
            None => format!("transfer_to_{}", tool_name_of(to.name())).into(),
        };
        let description = match &self.description {
            Some(description) => description.clone(),
            None => {
                let text = format!(
                    "Handoff to the {} agent to handle the request. {}",
                    to.name(),
                    to.inner.description
                );
                text.trim_end().into()
            }
        };
        let parameters = self.parameters.clone();
        OfferedTool {
            name,
            namespace: None,
            description,
            parameters,
            strict: true,
            kind: OfferedKind::Function,
        }
    }
}

impl<C: Send + Sync + 'static> From<&Agent<C>> for Handoff<C> {
    fn from(agent: &Agent<C>) -> Self {
        Self::to(agent)
    }
}

impl<C: Send + Sync + 'static> From<Agent<C>> for Handoff<C> {
    fn from(agent: Agent<C>) -> Self {
        Self::new(Target::Agent(agent))
    }
}

impl<C: Send + Sync + 'static> Target<C> {
    pub(crate) fn name(&self) -> &AgentName {
        match self {
            Self::Agent(agent) => agent.name(),
            Self::Named(name) => name,
        }
    }
}

impl<C> Clone for Target<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Agent(agent) => Self::Agent(agent.clone()),
            Self::Named(name) => Self::Named(name.clone()),
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
            filter: self.filter.clone(),
        }
    }
}

impl<C: Send + Sync + 'static> fmt::Debug for Handoff<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handoff(to {})", self.agent())
    }
}
