//! The tool that the provider runs on its own vector stores.

use serde_json::{Map, Value, json};
use windlass::{IntoTool, Tool};

use crate::{Filter, Ranking};

/// The provider's own file search, with all its options.
///
/// ```
/// use windlass::Tool;
/// use windlass_search::{FileSearch, Filter};
///
/// let tool: Tool = FileSearch::hosted(["vs_manuals"])
///     .max_results(5)
///     .filters(Filter::eq("language", "en"))
///     .into();
/// assert_eq!(tool.name(), "file_search");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct FileSearch {
    stores: Vec<String>,
    most: Option<u32>,
    filters: Option<Filter>,
    ranking: Option<Ranking>,
    includes_results: bool,
}

impl FileSearch {
    /// Searches these vector stores of the provider.
    pub fn hosted<S: Into<String>>(stores: impl IntoIterator<Item = S>) -> Self {
        Self {
            stores: stores.into_iter().map(Into::into).collect(),
            most: None,
            filters: None,
            ranking: None,
            includes_results: false,
        }
    }

    /// How many results, 1 to 50.
    pub fn max_results(mut self, most: u32) -> Self {
        self.most = Some(most.clamp(1, 50));
        self
    }

    /// Which files may answer.
    pub fn filters(mut self, filters: Filter) -> Self {
        self.filters = Some(filters);
        self
    }

    /// How results are ranked.
    pub fn ranking(mut self, ranking: Ranking) -> Self {
        self.ranking = Some(ranking);
        self
    }

    /// Has the results in the answer, and not only what the model made of them. It asks for what
    /// [`FileSearch::INCLUDE`] names.
    pub fn include_results(mut self) -> Self {
        self.includes_results = true;
        self
    }

    /// What a request asks for beside the tool, so that results are in the answer.
    pub const INCLUDE: &'static str = "file_search_call.results";

    /// The tool as the OpenAI Responses API defines it.
    pub fn definition(&self) -> Value {
        let mut definition = Map::new();
        definition.insert("type".to_owned(), json!("file_search"));
        definition.insert("vector_store_ids".to_owned(), json!(self.stores));
        if let Some(most) = self.most {
            definition.insert("max_num_results".to_owned(), json!(most));
        }
        if let Some(filters) = &self.filters {
            definition.insert("filters".to_owned(), json!(filters));
        }
        if let Some(ranking) = &self.ranking {
            definition.insert("ranking_options".to_owned(), json!(ranking));
        }
        if self.includes_results {
            // Not a part of the tool on the wire: an adapter moves it to the request.
            definition.insert("include".to_owned(), json!([Self::INCLUDE]));
        }
        Value::Object(definition)
    }
}

impl<C: Send + Sync + 'static> IntoTool<C> for FileSearch {
    fn into_tool(self) -> Tool<C> {
        Tool::hosted(self.definition())
    }
}

impl<C: Send + Sync + 'static> From<FileSearch> for Tool<C> {
    fn from(search: FileSearch) -> Self {
        search.into_tool()
    }
}
