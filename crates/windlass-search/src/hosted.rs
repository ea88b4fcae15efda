//! The hosted file search tool, which the provider runs on its own vector stores.

use serde_json::{Map, Value, json};
use windlass::tool::{IntoTool, Tool};

use crate::{AttributeFilter, RankingOptions};

/// The provider's hosted file search tool, with all its options.
///
/// ```
/// use windlass::tool::Tool;
/// use windlass_search::{AttributeFilter, HostedFileSearch};
///
/// let tool: Tool = HostedFileSearch::new(["vs_manuals"])
///     .max_results(5)
///     .filters(AttributeFilter::eq("language", "en"))
///     .into();
/// assert_eq!(tool.name(), "file_search");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct HostedFileSearch {
    vector_store_ids: Vec<String>,
    max_results: Option<u32>,
    filters: Option<AttributeFilter>,
    ranking: Option<RankingOptions>,
    includes_results: bool,
}

impl HostedFileSearch {
    /// Creates a tool that searches the given vector stores of the provider.
    pub fn new<S: Into<String>>(stores: impl IntoIterator<Item = S>) -> Self {
        Self {
            vector_store_ids: stores.into_iter().map(Into::into).collect(),
            max_results: None,
            filters: None,
            ranking: None,
            includes_results: false,
        }
    }

    /// Sets the maximum number of results, 1 to 50.
    pub fn max_results(mut self, most: u32) -> Self {
        self.max_results = Some(most.clamp(1, 50));
        self
    }

    /// Sets the filter that selects the files to search.
    pub fn filters(mut self, filters: AttributeFilter) -> Self {
        self.filters = Some(filters);
        self
    }

    /// Sets the ranking options.
    pub fn ranking(mut self, ranking: RankingOptions) -> Self {
        self.ranking = Some(ranking);
        self
    }

    /// Asks the provider to return the search results in its response, beside the model's text. The request then
    /// includes [`HostedFileSearch::INCLUDE_RESULTS`].
    pub fn include_results(mut self) -> Self {
        self.includes_results = true;
        self
    }

    /// The `include` value of a request whose response carries the search results.
    pub const INCLUDE_RESULTS: &'static str = "file_search_call.results";

    /// Returns the tool definition in the format of the OpenAI Responses API.
    pub fn definition(&self) -> Value {
        let mut definition = Map::new();
        definition.insert("type".to_owned(), json!("file_search"));
        definition.insert("vector_store_ids".to_owned(), json!(self.vector_store_ids));
        if let Some(most) = self.max_results {
            definition.insert("max_num_results".to_owned(), json!(most));
        }
        if let Some(filters) = &self.filters {
            definition.insert("filters".to_owned(), json!(filters));
        }
        if let Some(ranking) = &self.ranking {
            definition.insert("ranking_options".to_owned(), json!(ranking));
        }
        if self.includes_results {
            // `include` is not part of the tool on the wire: the provider adapter moves it to the request.
            definition.insert("include".to_owned(), json!([Self::INCLUDE_RESULTS]));
        }
        Value::Object(definition)
    }
}

impl<C: Send + Sync + 'static> IntoTool<C> for HostedFileSearch {
    fn into_tool(self) -> Tool<C> {
        Tool::hosted(self.definition())
    }
}

impl<C: Send + Sync + 'static> From<HostedFileSearch> for Tool<C> {
    fn from(search: HostedFileSearch) -> Self {
        search.into_tool()
    }
}
