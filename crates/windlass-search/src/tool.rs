//! The index as a tool: the model asks, and is shown what was found.

use std::fmt::{self, Write};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::{Effect, IntoTool, Tool, ToolContext, ToolError};

use crate::{Filter, Found, Index, Ranking};

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
    most: usize,
    filter: Option<Filter>,
    ranking: Ranking,
    shown_to: Option<Arc<dyn Fn(&Found) + Send + Sync>>,
}

/// What the model says.
#[derive(Debug, Deserialize, JsonSchema)]
struct Asked {
    /// What to look for, in one to five ways.
    queries: Vec<String>,
}

impl Index {
    /// The index as a tool. It changes nothing, so a run that is gone on with searches again.
    pub fn tool(&self) -> SearchTool {
        SearchTool {
            index: self.clone(),
            name: "file_search".to_owned(),
            description: DESCRIPTION.to_owned(),
            most: 10,
            filter: None,
            ranking: Ranking::default(),
            shown_to: None,
        }
    }
}

impl SearchTool {
    /// Another name than `file_search`, for an agent with several indexes.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// What the model is told that it is for.
    pub fn description(mut self, description: &str) -> Self {
        self.description = description.to_owned();
        self
    }

    /// How many results, 1 to 50.
    pub fn max_results(mut self, most: usize) -> Self {
        self.most = most.clamp(1, 50);
        self
    }

    /// Which files may answer. The model cannot change it.
    pub fn filters(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// How results are ranked.
    pub fn ranking(mut self, ranking: Ranking) -> Self {
        self.ranking = ranking;
        self
    }

    /// Results below this are left out.
    pub fn threshold(mut self, score: f32) -> Self {
        self.ranking.score_threshold = Some(score);
        self
    }

    /// Shows the program what was found, with files, places and scores, when the model searches. Without it results are
    /// only used: the model reads them, and they are in the history as text.
    pub fn show_results(mut self, show: impl Fn(&Found) + Send + Sync + 'static) -> Self {
        self.shown_to = Some(Arc::new(show));
        self
    }

    fn answer(&self, asked: Asked) -> Result<String, ToolError> {
        let mut queries = asked.queries.into_iter().filter(|query| !query.trim().is_empty()).take(5);
        let Some(first) = queries.next() else {
            return Err(ToolError::tell("`queries` must have at least one text that is not empty."));
        };
        let mut search = self.index.search(first).max_results(self.most).ranking(self.ranking.clone());
        for query in queries {
            search = search.also(query);
        }
        if let Some(filter) = &self.filter {
            search = search.filter(filter.clone());
        }
        let found = search.run().map_err(|error| ToolError::hidden(error.to_string()))?;
        if let Some(show) = &self.shown_to {
            show(&found);
        }
        Ok(shown(&found))
    }
}

/// Results as a model reads them.
fn shown(found: &Found) -> String {
    if found.hits.is_empty() {
        return "Nothing was found. Try other words.".to_owned();
    }
    let mut text = String::new();
    for (at, hit) in found.hits.iter().enumerate() {
        let place = match hit.place.to_string() {
            place if place.is_empty() => String::new(),
            place => format!(", {place}"),
        };
        let separator = if at > 0 { "\n\n" } else { "" };
        // Writing to a string cannot fail.
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
        Tool::blocking(&name, &description, move |_: ToolContext<C>, asked: Asked| self.answer(asked))
            .effect(Effect::Pure)
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
