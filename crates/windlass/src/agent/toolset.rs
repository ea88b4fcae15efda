//! The tools of one agent for one turn: enabled ones only, each under exactly one key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_core::{Call, ToolKey};

use super::{Agent, Graph, Handoff};
use crate::error::ConfigError;
use crate::model::{OfferedKind, OfferedTool};
use crate::tool::{RunContext, SourcedTools, Tool, hosted_server};

pub(crate) struct Toolset<C> {
    tools: BTreeMap<ToolKey, Arc<Tool<C>>>,
    /// Those of them that are known by a name alone, which is what most calls say.
    bare: BTreeMap<Arc<str>, Arc<Tool<C>>>,
    /// Tools that the model calls by a name that is not their identity.
    aliases: BTreeMap<Arc<str>, ToolKey>,
    handoffs: BTreeMap<Arc<str>, Handoff<C>>,
    /// What the model can call without a namespace.
    taken: BTreeSet<Arc<str>>,
    /// As the model is offered them, in the order in which the agent has them.
    pub(crate) offered: Vec<OfferedTool>,
    pub(crate) offered_handoffs: Vec<OfferedTool>,
    /// What the operator should know of tools that are not there.
    pub(crate) warnings: Vec<String>,
}

/// Tools put together from an agent's own and those of its sources, and what they were put together from.
pub(super) struct Sourced<C> {
    pub(super) own: Arc<Toolset<C>>,
    pub(super) given: Vec<SourcedTools<C>>,
    pub(super) toolset: Arc<Toolset<C>>,
}

impl<C> Sourced<C> {
    /// How many are kept: sources may give different runs different lists.
    pub(super) const KEPT: usize = 8;

    pub(super) fn is(&self, own: &Arc<Toolset<C>>, given: &[SourcedTools<C>]) -> bool {
        Arc::ptr_eq(&self.own, own)
            && self.given.len() == given.len()
            && self.given.iter().zip(given).all(|(one, other)| one.is(other))
    }
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
        let mut set = Self {
            tools: BTreeMap::new(),
            bare: BTreeMap::new(),
            aliases: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            taken: BTreeSet::new(),
            offered: Vec::new(),
            offered_handoffs: Vec::new(),
            warnings: Vec::new(),
        };
        for tool in &agent.inner.tools {
            if tool.enabled.ask(ctx).await {
                set.add(agent, tool)?;
            }
        }
        for handoff in &agent.inner.handoffs {
            if handoff.enabled.ask(ctx).await {
                let offer = handoff.offer(graph.agent(handoff.agent())?);
                if !set.taken.insert(offer.name.clone()) {
                    return Err(collision(agent, &offer.name));
                }
                set.handoffs.insert(offer.name.clone(), handoff.clone());
                set.offered_handoffs.push(offer);
            }
        }
        Ok(set)
    }

    /// These tools and those of sources.
    pub(super) fn with(&self, agent: &Agent<C>, given: &[SourcedTools<C>]) -> Result<Self, ConfigError> {
        let mut set = Self {
            tools: self.tools.clone(),
            bare: self.bare.clone(),
            aliases: self.aliases.clone(),
            handoffs: self.handoffs.clone(),
            taken: self.taken.clone(),
            offered: self.offered.clone(),
            offered_handoffs: self.offered_handoffs.clone(),
            warnings: Vec::new(),
        };
        for source in given {
            for tool in source.tools.iter() {
                set.add(agent, tool)?;
            }
            set.warnings.extend_from_slice(&source.warnings);
        }
        Ok(set)
    }

    /// The names that a model can call without a namespace.
    pub(super) fn taken(&self) -> &BTreeSet<Arc<str>> {
        &self.taken
    }

    fn add(&mut self, agent: &Agent<C>, tool: &Arc<Tool<C>>) -> Result<(), ConfigError> {
        let offer = tool.offer()?;
        // What the provider runs itself is not called by a name.
        let is_called = offer.namespace.is_none() && !matches!(offer.kind, OfferedKind::Hosted(_));
        let is_new = !is_called || self.taken.insert(offer.name.clone());
        if !is_new || self.tools.insert(tool.key().clone(), tool.clone()).is_some() {
            return Err(collision(agent, tool.name()));
        }
        match tool.key() {
            ToolKey::Mcp { .. } if is_called => {
                self.aliases.insert(offer.name.clone(), tool.key().clone());
            }
            ToolKey::Bare(name) => {
                self.bare.insert(name.clone(), tool.clone());
            }
            ToolKey::Mcp { .. } | ToolKey::Namespaced { .. } | ToolKey::Deferred(_) => {}
        }
        self.offered.push(offer);
        Ok(())
    }

    pub(crate) fn find(&self, call: &Call) -> Found<'_, C> {
        if let (None, Some(tool)) = (&call.namespace, self.bare.get(call.name.as_str())) {
            return Found::Tool(tool.clone());
        }
        let key = ToolKey::of_call(call);
        let alias = match &key {
            ToolKey::Bare(name) => self.aliases.get(name),
            ToolKey::Namespaced { .. } | ToolKey::Deferred(_) | ToolKey::Mcp { .. } => None,
        };
        if let Some(tool) = self.tool(alias.unwrap_or(&key)) {
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

fn collision<C: Send + Sync + 'static>(agent: &Agent<C>, name: &str) -> ConfigError {
    ConfigError::Collision { agent: agent.name().clone(), name: name.to_owned() }
}
