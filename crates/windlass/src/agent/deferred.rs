//! Deferred tools: tools that the model is not offered until it has searched for them.
//!
//! Invariant: the tools that are loaded in a run are a function of its items. The model loads a tool by a call of
//! [`SEARCH_TOOL`], whose output names the tools; call and output are in the journal, so a resumed run has the same tools.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    id::CallId,
    item::{Item, OutputStatus},
    run::RunItem,
    tool::ToolEffect,
};

use crate::model::ToolDefinition;
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

/// The deferred tools that a run has loaded, in their order.
#[derive(Debug, Default)]
pub(crate) struct LoadedTools {
    /// Number of run items that were read.
    read_items: usize,
    open_searches: BTreeSet<CallId>,
    names: Vec<String>,
}

impl LoadedTools {
    /// Reads the items that are new since the last time.
    pub(crate) fn observe(&mut self, items: &[RunItem]) {
        // The items of a response without effect may be removed again.
        self.read_items = self.read_items.min(items.len());
        for produced in &items[self.read_items..] {
            match &*produced.item {
                Item::Call(call) if call.name == SEARCH_TOOL && call.namespace.is_none() => {
                    self.open_searches.insert(call.id.clone());
                }
                Item::Output(output) if self.open_searches.remove(&output.call) => {
                    if output.status == OutputStatus::Ok
                        && let Ok(result) = serde_json::from_str::<SearchResult>(&output.content.text())
                    {
                        for tool in result.loaded {
                            if !self.names.contains(&tool.name) {
                                self.names.push(tool.name);
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        self.read_items = items.len();
    }

    /// Returns the definitions that the model is offered: those that are not deferred, then the loaded ones in the order
    /// in which they were loaded, so that the beginning of the prompt stays the same.
    pub(crate) fn offered<'a>(
        &self,
        definitions: &'a [ToolDefinition],
        deferred: &BTreeSet<Arc<str>>,
    ) -> Cow<'a, [ToolDefinition]> {
        if deferred.is_empty() {
            return Cow::Borrowed(definitions);
        }
        let is_deferred = |tool: &&ToolDefinition| deferred.contains(&tool.name);
        let mut offered: Vec<ToolDefinition> =
            definitions.iter().filter(|tool| !is_deferred(tool)).cloned().collect();
        for name in &self.names {
            let loaded = definitions.iter().filter(is_deferred).find(|tool| *tool.name == **name);
            offered.extend(loaded.cloned());
        }
        offered.into()
    }
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
