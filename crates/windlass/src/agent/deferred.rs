//! Deferred tools: tools that the model is not offered until it has searched for them.
//!
//! Invariant: the tools that are loaded in a run are a function of its conversation. The model loads a tool by a call of
//! [`SEARCH_TOOL`], whose output names the tools, or of a tool that [loads](Tool::loads) others, or the provider searches
//! and its results are items. All of them are in the journal, so a resumed run has the same tools.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::{
    id::CallId,
    item::{Item, OpaqueItem, OutputStatus, ToolCall},
    run::Run,
    tool::ToolEffect,
};

use super::ResolvedToolset;
use crate::model::{ToolDefinition, ToolKind, ToolSearchPlace};
use crate::tool::{SourcedTools, Tool, ToolContext, ToolSource, ToolSourceRequest};

/// The name of the tool that searches the deferred tools.
pub const SEARCH_TOOL: &str = "search_tools";
/// Default number of tools that a search loads.
const DEFAULT_MATCHES: usize = 5;
/// Maximum number of tools that a search loads.
const MAX_MATCHES: usize = 20;
/// Longest description of a tool in the result of a search, in bytes.
const MAX_DESCRIPTION: usize = 300;

/// Arguments of a search.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchArguments {
    /// Words for the task, or the names of tools.
    query: String,
    /// Maximum number of tools to load, from 1 to 20. The default is 5.
    limit: Option<usize>,
}

/// The result of a search.
#[derive(Serialize, Deserialize)]
struct SearchResult {
    /// The tools that can be called from now on.
    loaded: Vec<FoundTool>,
}

#[derive(Serialize, Deserialize)]
struct FoundTool {
    name: String,
    description: String,
}

/// The deferred tools of a toolset, as words.
pub(super) struct DeferredIndex {
    entries: Vec<IndexedTool>,
    /// Number of tools that have a word.
    frequencies: BTreeMap<String, usize>,
}

struct IndexedTool {
    name: Arc<str>,
    description: String,
    name_words: BTreeSet<String>,
    other_words: BTreeSet<String>,
}

impl DeferredIndex {
    pub(super) fn new<'a>(tools: impl Iterator<Item = &'a ToolDefinition>) -> Self {
        let mut frequencies: BTreeMap<String, usize> = BTreeMap::new();
        let entries = tools.map(|tool| {
            let mut name_words: BTreeSet<String> = split_words(&tool.name).collect();
            name_words.extend(tool.namespace.as_deref().into_iter().flat_map(split_words));
            let mut other_words: BTreeSet<String> = split_words(&tool.description).collect();
            let parameters =
                tool.parameters["properties"].as_object().into_iter().flat_map(|fields| fields.keys());
            other_words.extend(parameters.flat_map(|name| split_words(name)));
            for word in name_words.union(&other_words) {
                *frequencies.entry(word.clone()).or_default() += 1;
            }
            let description = shorten(&tool.description);
            IndexedTool { name: tool.name.clone(), description, name_words, other_words }
        });
        Self { entries: entries.collect(), frequencies }
    }

    /// Returns the tools that match a query best, the best first. Rare words count more, and words of a name more than
    /// those of a description.
    fn search(&self, query: &str, limit: usize) -> Vec<&IndexedTool> {
        let words: BTreeSet<String> = split_words(query).collect();
        let count = self.entries.len() as f64;
        let score = |tool: &IndexedTool| {
            let is_named = query.split([',', ' ']).any(|name| *name == *tool.name);
            let by_words: f64 = words
                .iter()
                .map(|word| {
                    let rarity =
                        (1.0 + count / (1.0 + self.frequencies.get(word).copied().unwrap_or(0) as f64)).ln();
                    let has = |known: &BTreeSet<String>| {
                        known.contains(word)
                            || (word.len() >= 4
                                && known.iter().any(|other| {
                                    other.starts_with(word.as_str())
                                        || (other.len() >= 4 && word.starts_with(other.as_str()))
                                }))
                    };
                    let weight = if has(&tool.name_words) {
                        3.0
                    } else if has(&tool.other_words) {
                        1.0
                    } else {
                        0.0
                    };
                    weight * rarity
                })
                .sum();
            by_words + if is_named { 100.0 } else { 0.0 }
        };
        let mut scored: Vec<(f64, &IndexedTool)> =
            self.entries.iter().map(|tool| (score(tool), tool)).filter(|(score, _)| *score > 0.0).collect();
        // Equal scores keep the order of the tools, so that a search is deterministic.
        scored.sort_by(|one, other| other.0.total_cmp(&one.0));
        scored.into_iter().take(limit).map(|(_, tool)| tool).collect()
    }

    /// Returns the tool that searches the others.
    pub(super) fn into_search_tool<C: Send + Sync + 'static>(self) -> Tool<C> {
        let index = Arc::new(self);
        let description = format!(
            "Loads further tools by words for a task; {} are not loaded yet. A loaded tool can be called in the next turn.",
            index.entries.len()
        );
        Tool::function(SEARCH_TOOL, &description, move |_: ToolContext<C>, asked: SearchArguments| {
            let index = index.clone();
            async move {
                let limit = asked.limit.unwrap_or(DEFAULT_MATCHES).clamp(1, MAX_MATCHES);
                let found = index.search(&asked.query, limit).into_iter();
                let loaded = found
                    .map(|tool| FoundTool {
                        name: tool.name.to_string(),
                        description: tool.description.clone(),
                    })
                    .collect();
                serde_json::to_string(&SearchResult { loaded }).map_err(|error| error.to_string())
            }
        })
        .effect(ToolEffect::Pure)
    }
}

/// A source whose tools are all deferred, such as those of an MCP server with hundreds of tools.
pub struct DeferredSource<C, S> {
    source: S,
    /// The last list of the source, and the same tools deferred.
    last: Mutex<Option<(SourcedTools<C>, SourcedTools<C>)>>,
}

impl<C, S> DeferredSource<C, S> {
    /// Defers the tools of a source.
    pub fn new(source: S) -> Self {
        Self { source, last: Mutex::new(None) }
    }
}

impl<C: Send + Sync + 'static, S: ToolSource<C>> ToolSource<C> for DeferredSource<C, S> {
    fn list_tools<'a>(
        &'a self,
        asked: ToolSourceRequest<'a, C>,
    ) -> BoxFuture<'a, Result<SourcedTools<C>, String>> {
        Box::pin(async move {
            let listed = self.source.list_tools(asked).await?;
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            // The same list gives the same list, so that the toolset is built once.
            if let Some((known, deferred)) = &*last
                && known.is_same_list(&listed)
            {
                return Ok(deferred.clone());
            }
            let tools = listed.tools.iter().map(|tool| Arc::new((**tool).clone().deferred())).collect();
            let deferred = SourcedTools { tools, warnings: listed.warnings.clone() };
            *last = Some((listed, deferred.clone()));
            Ok(deferred)
        })
    }

    fn may_have_secrets(&self) -> bool {
        self.source.may_have_secrets()
    }
}

impl<C: Send + Sync + 'static> ResolvedToolset<C> {
    /// Returns the name of the tool that a call loads other tools with, if it does.
    fn find_loader(&self, call: &ToolCall) -> Option<Arc<str>> {
        if call.namespace.is_some() {
            return None;
        }
        let loader = self.loaders.get_key_value(call.name.as_str()).map(|(name, _)| name.clone());
        loader.or_else(|| (call.name == SEARCH_TOOL).then(|| SEARCH_TOOL.into()))
    }

    /// Returns the calls of the conversation before a run that load tools. They are known from the conversation alone.
    pub(crate) fn earlier_loader_calls(&self, run: &Run) -> Vec<Arc<Item>> {
        if self.deferred_names.is_empty() {
            return Vec::new();
        }
        let as_loader = |item: &Item| match item {
            Item::Call(call) => self.find_loader(call).map(|_| call.id.clone()),
            _ => None,
        };
        let own: BTreeSet<CallId> =
            run.items().iter().filter_map(|produced| as_loader(&produced.item)).collect();
        let is_earlier = |item: &&Arc<Item>| as_loader(item).is_some_and(|call| !own.contains(&call));
        run.history().iter().filter(is_earlier).cloned().collect()
    }
}

/// The deferred tools that a run has loaded, in their order.
#[derive(Debug, Default)]
pub(crate) struct LoadedTools {
    /// Number of run items that were read; `None` before the first time.
    read_items: Option<usize>,
    /// Calls that load tools if they succeed.
    open_calls: BTreeMap<CallId, Arc<str>>,
    /// Names of the tools that calls have loaded.
    by_calls: Vec<String>,
    /// Names of the tools that a provider has found, as it names them.
    by_provider: Vec<String>,
}

/// The tools of one request.
#[derive(Debug)]
pub(crate) struct OfferedTools<'a> {
    /// The definitions that the model is offered.
    pub(crate) offered: Cow<'a, [ToolDefinition]>,
    /// The definitions that the provider searches.
    pub(crate) searched_by_provider: Vec<ToolDefinition>,
}

impl LoadedTools {
    /// Reads the items that are new since the last time, and the first time the conversation before the run.
    pub(crate) fn observe<C: Send + Sync + 'static>(&mut self, run: &Run, tools: &ResolvedToolset<C>) {
        let items = run.items();
        let read = match self.read_items {
            // The items of a response without effect may be removed again.
            Some(read) => read.min(items.len()),
            None => {
                run.history().iter().for_each(|item| self.observe_item(item, tools));
                0
            }
        };
        items[read..].iter().for_each(|produced| self.observe_item(&produced.item, tools));
        self.read_items = Some(items.len());
    }

    fn observe_item<C: Send + Sync + 'static>(&mut self, item: &Item, tools: &ResolvedToolset<C>) {
        match item {
            Item::Call(call) => {
                if let Some(loader) = tools.find_loader(call) {
                    self.open_calls.insert(call.id.clone(), loader);
                }
            }
            Item::Output(output) => {
                let Some(loader) = self.open_calls.remove(&output.call) else { return };
                if output.status != OutputStatus::Ok {
                    return;
                }
                if let Some(loaded) = tools.loaders.get(&loader) {
                    loaded.iter().for_each(|name| push_new(&mut self.by_calls, name));
                } else if let Ok(result) = serde_json::from_str::<SearchResult>(&output.content.text()) {
                    result.loaded.iter().for_each(|tool| push_new(&mut self.by_calls, &tool.name));
                }
            }
            Item::HostedTool(item) => {
                names_found_by_provider(item).for_each(|name| push_new(&mut self.by_provider, name));
            }
            _ => {}
        }
    }

    /// Returns the definitions that the model is offered: those that are not deferred, then the loaded ones in the order
    /// in which they were loaded, so that the beginning of the prompt stays the same. If the provider searches, it gets
    /// the definitions of the others, and of those that it has loaded itself.
    pub(crate) fn select<'a, C: Send + Sync + 'static>(
        &self,
        tools: &'a ResolvedToolset<C>,
        place: ToolSearchPlace,
    ) -> OfferedTools<'a> {
        let (definitions, deferred) = (&tools.definitions, &tools.deferred_names);
        if deferred.is_empty() {
            return OfferedTools {
                offered: Cow::Borrowed(definitions.as_slice()),
                searched_by_provider: Vec::new(),
            };
        }
        let is_searched_there = place == ToolSearchPlace::Provider;
        let is_deferred = |tool: &&ToolDefinition| {
            // A provider searches functions only.
            let is_possible = !is_searched_there || tool.kind == ToolKind::Function;
            deferred.contains(&tool.name) && (is_possible || tools.has_loader(&tool.name))
        };
        let is_local_search = |tool: &ToolDefinition| is_searched_there && *tool.name == *SEARCH_TOOL;
        let mut offered: Vec<ToolDefinition> =
            definitions.iter().filter(|tool| !is_deferred(tool) && !is_local_search(tool)).cloned().collect();
        let found = if is_searched_there { [].iter() } else { self.by_provider.iter() };
        for name in self.by_calls.iter().chain(found) {
            let loaded = definitions.iter().filter(is_deferred).find(|tool| is_named(tool, name));
            if let Some(loaded) = loaded
                && !offered.iter().any(|tool| tool.name == loaded.name)
            {
                offered.push(loaded.clone());
            }
        }
        let is_offered = |tool: &&ToolDefinition| offered.iter().any(|known| known.name == tool.name);
        let searched = definitions.iter().filter(|tool| {
            is_searched_there && is_deferred(tool) && !tools.has_loader(&tool.name) && !is_offered(tool)
        });
        let searched_by_provider = searched.cloned().collect();
        OfferedTools { offered: offered.into(), searched_by_provider }
    }
}

fn push_new(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

/// True if a provider or a search calls the tool by this name.
fn is_named(tool: &ToolDefinition, name: &str) -> bool {
    let qualified = || tool.namespace.as_ref().map(|namespace| format!("{namespace}__{}", tool.name));
    *tool.name == *name || qualified().is_some_and(|qualified| qualified == name)
}

/// Returns the names of the tools that a provider's own search has found, if the item is the result of one: Anthropic's
/// `tool_search_tool_result` or OpenAI's `tool_search_output`.
fn names_found_by_provider(item: &OpaqueItem) -> impl Iterator<Item = &str> {
    let (list, field) = match item.kind.rsplit('.').next() {
        Some("tool_search_tool_result") => (&item.raw["content"]["tool_references"], "tool_name"),
        Some("tool_search_output") => (&item.raw["tools"], "name"),
        _ => (&Value::Null, ""),
    };
    let entries = list.as_array().into_iter().flatten();
    entries.flat_map(move |entry| {
        // A namespace has a list of its tools.
        match entry["tools"].as_array() {
            Some(tools) => tools.iter().filter_map(|tool| tool["name"].as_str()).collect::<Vec<_>>(),
            None => entry[field].as_str().into_iter().collect(),
        }
    })
}

/// Splits a text into lower-case words: at everything but letters and digits, and at capitals.
fn split_words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|letter: char| !letter.is_alphanumeric()).flat_map(|word| {
        let mut parts = Vec::new();
        let mut part = String::new();
        let mut was_lower = false;
        for letter in word.chars() {
            if letter.is_uppercase() && was_lower {
                parts.push(std::mem::take(&mut part));
            }
            was_lower = letter.is_lowercase();
            part.extend(letter.to_lowercase());
        }
        parts.push(part);
        parts.into_iter().filter(|part| !part.is_empty())
    })
}

/// Returns the beginning of a description.
fn shorten(text: &str) -> String {
    if text.len() <= MAX_DESCRIPTION {
        return text.to_owned();
    }
    let end = (0..=MAX_DESCRIPTION).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}
