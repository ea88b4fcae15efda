//! The tools of one agent for one turn: enabled ones only, each under exactly one key.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_core::{Call, ToolKey};

use super::{Agent, Graph, Handoff};
use crate::error::ConfigError;
use crate::model::OfferedTool;
use crate::tool::{RunContext, Tool, hosted_server};

pub(crate) struct Toolset<C> {
    tools: BTreeMap<ToolKey, Arc<Tool<C>>>,
    handoffs: BTreeMap<Arc<str>, Handoff<C>>,
    /// As the model is offered them, in the order in which the agent has them.
    pub(crate) offered: Vec<OfferedTool>,
    pub(crate) offered_handoffs: Vec<OfferedTool>,
}

/// What a call found.
pub(crate) enum Found<'a, C> {
    Tool(Arc<Tool<C>>),
    Handoff(&'a Handoff<C>),
    Nothing,
}

impl<C: Send + Sync + 'static> Toolset<C> {
    pub(crate) async fn resolve(
        agent: &Agent<C>,
        ctx: &RunContext<C>,
        graph: &Graph<C>,
    ) -> Result<Self, ConfigError> {
        let collision =
            |name: &str| ConfigError::Collision { agent: agent.name().clone(), name: name.to_owned() };
        let mut set = Self {
            tools: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            offered: Vec::new(),
            offered_handoffs: Vec::new(),
        };
        for tool in &agent.inner.tools {
            if tool.enabled.ask(ctx).await {
                set.offered.push(tool.offer()?);
                if set.tools.insert(tool.key().clone(), tool.clone()).is_some() {
                    return Err(collision(tool.name()));
                }
            }
        }
        for handoff in &agent.inner.handoffs {
            if handoff.enabled.ask(ctx).await {
                let offer = handoff.offer(graph.agent(handoff.agent())?);
                let taken = set.tools.contains_key(&ToolKey::Bare(offer.name.clone()));
                if taken || set.handoffs.insert(offer.name.clone(), handoff.clone()).is_some() {
                    return Err(collision(&offer.name));
                }
                set.offered_handoffs.push(offer);
            }
        }
        Ok(set)
    }

    pub(crate) fn find(&self, call: &Call) -> Found<'_, C> {
        let key = ToolKey::of_call(call);
        if let Some(tool) = self.tool(&key) {
            return Found::Tool(tool);
        }
        match &key {
            ToolKey::Bare(name) => self.handoffs.get(name).map_or(Found::Nothing, Found::Handoff),
            ToolKey::Namespaced { .. } | ToolKey::Deferred(_) | ToolKey::Mcp { .. } => Found::Nothing,
        }
    }

    pub(crate) fn tool(&self, key: &ToolKey) -> Option<Arc<Tool<C>>> {
        match (self.tools.get(key), key) {
            (Some(tool), _) => Some(tool.clone()),
            // A server that the provider calls is one tool here, and each of its own is known by its name.
            (None, ToolKey::Mcp { server, .. }) => {
                self.tools.get(&hosted_server(server)).map(|tool| Arc::new(tool.as_called(key)))
            }
            (None, ToolKey::Bare(_) | ToolKey::Namespaced { .. } | ToolKey::Deferred(_)) => None,
        }
    }

    pub(crate) fn handoff(&self, name: &str) -> Option<&Handoff<C>> {
        self.handoffs.get(name)
    }

    /// The names that a model may call.
    pub(crate) fn names(&self) -> Vec<String> {
        self.offered.iter().chain(&self.offered_handoffs).map(|offer| offer.name.to_string()).collect()
    }
}
