//! The tools of one agent for one turn: enabled tools only, each under exactly one key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_core::{item::ToolCall, tool::ToolKey};

use super::deferred::{DeferredIndex, SEARCH_TOOL};
use super::{Agent, AgentGraph, Handoff, OutputType};
use crate::error::ConfigError;
use crate::model::{ToolDefinition, ToolKind};
use crate::tool::{RunContext, SourcedTools, Tool, hosted_server_key};

/// The tools and handoffs of one agent for one turn.
pub(crate) struct ResolvedToolset<C> {
    tools: BTreeMap<ToolKey, Arc<Tool<C>>>,
    /// Tools without a namespace, by name: the lookup for most calls.
    by_plain_name: BTreeMap<Arc<str>, Arc<Tool<C>>>,
    /// Keys of the tools whose name for the model is not part of their identity.
    aliases: BTreeMap<Arc<str>, ToolKey>,
    handoffs: BTreeMap<Arc<str>, Handoff<C>>,
    /// Names that the model can call without a namespace.
    taken_names: BTreeSet<Arc<str>>,
    /// Tool definitions for the model, in the agent's order.
    pub(crate) definitions: Vec<ToolDefinition>,
    pub(crate) handoff_definitions: Vec<ToolDefinition>,
    /// Warnings for the operator about tools that are not available.
    pub(crate) warnings: Vec<String>,
    /// Names of the tools that the model is not offered until the run has loaded them.
    pub(crate) deferred_names: BTreeSet<Arc<str>>,
    /// Names of the deferred tools that each tool loads.
    pub(crate) loaders: BTreeMap<Arc<str>, Arc<[Arc<str>]>>,
    /// True if the toolset has the tool that searches the deferred ones.
    has_search_tool: bool,
}

impl<C> Default for ResolvedToolset<C> {
    fn default() -> Self {
        Self {
            tools: BTreeMap::new(),
            by_plain_name: BTreeMap::new(),
            aliases: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            taken_names: BTreeSet::new(),
            definitions: Vec::new(),
            handoff_definitions: Vec::new(),
            warnings: Vec::new(),
            deferred_names: BTreeSet::new(),
            loaders: BTreeMap::new(),
            has_search_tool: false,
        }
    }
}

/// A toolset that combines an agent's own tools with those of its sources, and the lists that it was built
/// from.
pub(super) struct SourcedToolset<C> {
    pub(super) own_tools: Arc<ResolvedToolset<C>>,
    pub(super) source_lists: Vec<SourcedTools<C>>,
    pub(super) toolset: Arc<ResolvedToolset<C>>,
}

impl<C> SourcedToolset<C> {
    /// Maximum number of cached toolsets. Sources may return different lists for different runs.
    pub(super) const MAX_CACHED: usize = 8;

    pub(super) fn is_built_from(&self, own: &Arc<ResolvedToolset<C>>, given: &[SourcedTools<C>]) -> bool {
        Arc::ptr_eq(&self.own_tools, own)
            && self.source_lists.len() == given.len()
            && self.source_lists.iter().zip(given).all(|(one, other)| one.is_same_list(other))
    }
}

/// The result of a lookup by call.
pub(crate) enum ToolsetEntry<'a, C> {
    Tool(Arc<Tool<C>>),
    Handoff(&'a Handoff<C>),
    NotFound,
}

impl<C: Send + Sync + 'static> ToolsetEntry<'_, C> {
    /// Returns true if no rule of the application can switch the entry off.
    pub(crate) fn is_always_enabled(&self) -> bool {
        match self {
            Self::Tool(tool) => tool.enabled.static_value() == Some(true),
            Self::Handoff(handoff) => handoff.is_static(),
            Self::NotFound => true,
        }
    }
}

impl<C: Send + Sync + 'static> ResolvedToolset<C> {
    pub(crate) async fn resolve(
        agent: &Agent<C>,
        ctx: &RunContext<C>,
        graph: &AgentGraph<C>,
    ) -> Result<Self, ConfigError> {
        let mut set = Self {
            tools: BTreeMap::new(),
            by_plain_name: BTreeMap::new(),
            aliases: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            taken_names: BTreeSet::new(),
            definitions: Vec::new(),
            handoff_definitions: Vec::new(),
            warnings: Vec::new(),
            deferred_names: BTreeSet::new(),
            loaders: BTreeMap::new(),
            has_search_tool: false,
        };
        for tool in &agent.inner.tools {
            if tool.enabled.evaluate(ctx).await {
                set.add_tool(agent, tool)?;
            }
        }
        for handoff in &agent.inner.handoffs {
            if handoff.enabled.evaluate(ctx).await {
                let offer = handoff.to_definition(graph.find_agent(handoff.target_name())?)?;
                set.warnings.extend(handoff.definition_warning());
                if !set.taken_names.insert(offer.name.clone()) {
                    return Err(duplicate_name_error(agent, &offer.name));
                }
                set.handoffs.insert(offer.name.clone(), handoff.clone());
                set.handoff_definitions.push(offer);
            }
        }
        set.warnings.extend(agent.inner.output_type.as_ref().and_then(OutputType::definition_warning));
        set.add_search_tool(agent)?;
        Ok(set)
    }

    /// Returns a toolset with the tools of sources added.
    pub(super) async fn with_sourced_tools(
        &self,
        agent: &Agent<C>,
        ctx: &RunContext<C>,
        given: &[SourcedTools<C>],
    ) -> Result<Self, ConfigError> {
        let mut set = Self {
            tools: self.tools.clone(),
            by_plain_name: self.by_plain_name.clone(),
            aliases: self.aliases.clone(),
            handoffs: self.handoffs.clone(),
            taken_names: self.taken_names.clone(),
            definitions: self.definitions.clone(),
            handoff_definitions: self.handoff_definitions.clone(),
            warnings: self.warnings.clone(),
            deferred_names: self.deferred_names.clone(),
            loaders: self.loaders.clone(),
            has_search_tool: self.has_search_tool,
        };
        for source in given {
            for tool in source.tools.iter() {
                if tool.enabled.evaluate(ctx).await {
                    set.add_tool(agent, tool)?;
                }
            }
            set.warnings.extend_from_slice(&source.warnings);
        }
        set.add_search_tool(agent)?;
        Ok(set)
    }

    /// True if one of the tools has a conflict key.
    pub(super) fn has_ordered_tools(&self) -> bool {
        self.tools.values().any(|tool| tool.conflict_rule.is_some())
    }

    /// Returns the names that the model can call without a namespace.
    pub(super) fn taken_names(&self) -> &BTreeSet<Arc<str>> {
        &self.taken_names
    }

    /// Adds the tool that searches the deferred tools, if there are any, in place of an earlier one.
    fn add_search_tool(&mut self, agent: &Agent<C>) -> Result<(), ConfigError> {
        if self.has_search_tool {
            self.definitions.retain(|tool| *tool.name != *SEARCH_TOOL);
            self.taken_names.remove(SEARCH_TOOL);
            self.tools.remove(&ToolKey::bare(SEARCH_TOOL));
            self.by_plain_name.remove(SEARCH_TOOL);
            self.has_search_tool = false;
        }
        let searched: Vec<&ToolDefinition> = self
            .definitions
            .iter()
            .filter(|tool| self.deferred_names.contains(&tool.name) && !self.has_loader(&tool.name))
            .collect();
        if searched.is_empty() {
            return Ok(());
        }
        let search = DeferredIndex::new(searched.into_iter()).into_search_tool();
        self.has_search_tool = true;
        self.add_tool(agent, &Arc::new(search))
    }

    /// True if a tool of the set loads this deferred tool.
    pub(crate) fn has_loader(&self, name: &str) -> bool {
        self.loaders.values().any(|loaded| loaded.iter().any(|tool| **tool == *name))
    }

    fn add_tool(&mut self, agent: &Agent<C>, tool: &Arc<Tool<C>>) -> Result<(), ConfigError> {
        let offer = tool.to_definition()?;
        self.warnings.extend(tool.definition_warning().map(str::to_owned));
        // The model does not call hosted tools by name: the provider runs them.
        let is_called = offer.namespace.is_none() && !matches!(offer.kind, ToolKind::Hosted(_));
        let is_new = !is_called || self.taken_names.insert(offer.name.clone());
        if !is_new || self.tools.insert(tool.key().clone(), tool.clone()).is_some() {
            return Err(duplicate_name_error(agent, tool.name()));
        }
        match tool.key() {
            ToolKey::Mcp { .. } if is_called => {
                self.aliases.insert(offer.name.clone(), tool.key().clone());
            }
            ToolKey::Bare(name) => {
                self.by_plain_name.insert(name.clone(), tool.clone());
            }
            ToolKey::Mcp { .. } | ToolKey::Namespaced { .. } | ToolKey::Deferred(_) => {}
        }
        if tool.is_deferred {
            self.deferred_names.insert(offer.name.clone());
        }
        if !tool.loaded_tools.is_empty() {
            self.loaders.insert(offer.name.clone(), tool.loaded_tools.clone());
        }
        self.definitions.push(offer);
        Ok(())
    }

    pub(crate) fn find_entry(&self, call: &ToolCall) -> ToolsetEntry<'_, C> {
        if let (None, Some(tool)) = (&call.namespace, self.by_plain_name.get(call.name.as_str())) {
            return ToolsetEntry::Tool(tool.clone());
        }
        let key = ToolKey::for_call(call);
        let alias = match &key {
            ToolKey::Bare(name) => self.aliases.get(name),
            ToolKey::Namespaced { .. } | ToolKey::Deferred(_) | ToolKey::Mcp { .. } => None,
        };
        if let Some(tool) = self.find_tool(alias.unwrap_or(&key)) {
            return ToolsetEntry::Tool(tool);
        }
        match &key {
            ToolKey::Bare(name) => {
                self.handoffs.get(name).map_or(ToolsetEntry::NotFound, ToolsetEntry::Handoff)
            }
            ToolKey::Namespaced { .. } | ToolKey::Deferred(_) | ToolKey::Mcp { .. } => ToolsetEntry::NotFound,
        }
    }

    /// Finds the tool or the handoff of a call, unless it is switched off now.
    pub(crate) async fn find_enabled_entry(
        &self,
        call: &ToolCall,
        ctx: &RunContext<C>,
    ) -> ToolsetEntry<'_, C> {
        let found = self.find_entry(call);
        let is_enabled = match &found {
            ToolsetEntry::Tool(tool) => tool.enabled.evaluate(ctx).await,
            ToolsetEntry::Handoff(handoff) => handoff.enabled.evaluate(ctx).await,
            ToolsetEntry::NotFound => false,
        };
        if is_enabled { found } else { ToolsetEntry::NotFound }
    }

    pub(crate) fn find_tool(&self, key: &ToolKey) -> Option<Arc<Tool<C>>> {
        match (self.tools.get(key), key) {
            (Some(tool), _) => Some(tool.clone()),
            // A hosted MCP server is one entry here; each of its tools gets its own key. A call that was planned with
            // an earlier definition keeps its key, so that a decision about it does not cover the new definition.
            (None, ToolKey::Mcp { server, name, .. }) => {
                let redefined = || {
                    let is_same = |other: &ToolKey| matches!(other, ToolKey::Mcp { server: s, name: n, .. } if s == server && n == name);
                    self.tools.iter().find(|(other, _)| is_same(other)).map(|(_, tool)| tool)
                };
                let tool = self.tools.get(&hosted_server_key(server)).or_else(redefined);
                tool.map(|tool| Arc::new(tool.with_call_key(key)))
            }
            (None, ToolKey::Bare(_) | ToolKey::Namespaced { .. } | ToolKey::Deferred(_)) => None,
        }
    }

    pub(crate) fn find_handoff(&self, name: &str) -> Option<&Handoff<C>> {
        self.handoffs.get(name)
    }

    /// Returns the tools, in the order of their keys.
    pub(crate) fn tools(&self) -> impl Iterator<Item = &Arc<Tool<C>>> {
        self.tools.values()
    }

    /// Returns the names that the model may call now.
    pub(crate) async fn enabled_names(&self, ctx: &RunContext<C>) -> Vec<String> {
        let mut names = Vec::new();
        for definition in &self.definitions {
            let tool = self.tools.values().find(|tool| *tool.name() == *definition.name);
            let is_enabled = match tool {
                Some(tool) => tool.enabled.evaluate(ctx).await,
                None => true,
            };
            if is_enabled {
                names.push(definition.name.to_string());
            }
        }
        for definition in &self.handoff_definitions {
            let is_enabled = match self.handoffs.get(&definition.name) {
                Some(handoff) => handoff.enabled.evaluate(ctx).await,
                None => true,
            };
            if is_enabled {
                names.push(definition.name.to_string());
            }
        }
        names
    }

    /// Returns the names that the model was offered.
    pub(crate) fn callable_names(&self) -> Vec<String> {
        self.definitions.iter().chain(&self.handoff_definitions).map(|offer| offer.name.to_string()).collect()
    }
}

fn duplicate_name_error<C: Send + Sync + 'static>(agent: &Agent<C>, name: &str) -> ConfigError {
    ConfigError::DuplicateToolName { agent: agent.name().clone(), name: name.to_owned() }
}
