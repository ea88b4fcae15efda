//! The index as a tool: the model sends queries and receives the best chunks as text.

use std::fmt::{self, Write};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::provenance::ContentSource;
use windlass::{
    core::tool::ToolEffect,
    tool::{IntoTool, Tool, ToolContext, ToolError},
};

use crate::{AttributeFilter, Index, RankingOptions, SearchResults};

const DESCRIPTION: &str = "Searches the files of this project and gives the passages that fit best, each with its \
                           file, its place in it and a score. Ask in words that the text may have; several ways of \
                           asking are tried at once. Name the files that an answer stands on.";

/// A tool that searches an index. See [`Index::tool`].
#[derive(Clone)]
#[must_use]
pub struct SearchTool {
    index: Index,
    name: String,
    description: String,
    max_results: usize,
    filter: Option<AttributeFilter>,
    ranking: RankingOptions,
    results_callback: Option<Arc<dyn Fn(&SearchResults) + Send + Sync>>,
}

/// What the model says.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Asked")]
struct SearchArguments {
    /// What to look for, in one to five ways.
    queries: Vec<String>,
}

impl Index {
    /// Creates a tool that searches the index. The tool has no side effects, so a resumed run may repeat a search.
    pub fn tool(&self) -> SearchTool {
        SearchTool {
            index: self.clone(),
            name: "file_search".to_owned(),
            description: DESCRIPTION.to_owned(),
            max_results: 10,
            filter: None,
            ranking: RankingOptions::default(),
            results_callback: None,
        }
    }
}

impl SearchTool {
    /// Sets the tool's name, `file_search` by default; an agent with several indexes needs distinct names.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Sets the description that the model sees.
    pub fn description(mut self, description: &str) -> Self {
        self.description = description.to_owned();
        self
    }

    /// Sets the maximum number of results, 1 to 50.
    pub fn max_results(mut self, most: usize) -> Self {
        self.max_results = most.clamp(1, 50);
        self
    }

    /// Sets the filter that selects the files to search. The model cannot change it.
    pub fn filters(mut self, filter: AttributeFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Sets the ranking options.
    pub fn ranking(mut self, ranking: RankingOptions) -> Self {
        self.ranking = ranking;
        self
    }

    /// Sets the minimum score, 0 to 1; results below it are omitted.
    pub fn score_threshold(mut self, score: f32) -> Self {
        self.ranking.score_threshold = Some(score);
        self
    }

    /// Sets a callback that receives the results, with files, locations and scores, after each search of the
    /// model. Without it the results are available only as the text of the tool output.
    pub fn on_results(mut self, show: impl Fn(&SearchResults) + Send + Sync + 'static) -> Self {
        self.results_callback = Some(Arc::new(show));
        self
    }

    fn run_search(&self, asked: SearchArguments) -> Result<String, ToolError> {
        let mut queries = asked.queries.into_iter().filter(|query| !query.trim().is_empty()).take(5);
        let Some(first) = queries.next() else {
            return Err(ToolError::visible("`queries` must have at least one text that is not empty."));
        };
        let mut search = self.index.search(first).max_results(self.max_results).ranking(self.ranking.clone());
        for query in queries {
            search = search.add_query(query);
        }
        if let Some(filter) = &self.filter {
            search = search.filter(filter.clone());
        }
        let found = search.run().map_err(|error| ToolError::hidden(error.to_string()))?;
        if let Some(show) = &self.results_callback {
            show(&found);
        }
        Ok(format_results(&found))
    }
}

/// Formats the results as the tool output that the model reads.
fn format_results(found: &SearchResults) -> String {
    if found.hits.is_empty() {
        return "Nothing was found. Try other words.".to_owned();
    }
    let mut text = String::new();
    for (at, hit) in found.hits.iter().enumerate() {
        let place = match hit.location.to_string() {
            place if place.is_empty() => String::new(),
            place => format!(", {place}"),
        };
        let separator = if at > 0 { "\n\n" } else { "" };
        // Writing to a `String` cannot fail.
        let _ = write!(
            text,
            "{separator}[{}] {}{place} (score {:.2})\n{}",
            at + 1,
            hit.path,
            hit.score,
            hit.text
        );
    }
    text
}

impl<C: Send + Sync + 'static> IntoTool<C> for SearchTool {
    fn into_tool(self) -> Tool<C> {
        let (name, description) = (self.name.clone(), self.description.clone());
        Tool::blocking(&name, &description, move |_: ToolContext<C>, asked: SearchArguments| {
            self.run_search(asked)
        })
        .effect(ToolEffect::Pure)
        .content_source(ContentSource::File)
    }
}

impl<C: Send + Sync + 'static> From<SearchTool> for Tool<C> {
    fn from(tool: SearchTool) -> Self {
        tool.into_tool()
    }
}

impl fmt::Debug for SearchTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchTool")
            .field("name", &self.name)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
