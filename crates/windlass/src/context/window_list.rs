//! Context windows of models: a dated list that an application can replace. A model that the list does not have shows its
//! window when its provider refuses a request as too long.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use crate::price::is_model_name;

/// The list that is shipped with this crate.
const SHIPPED_WINDOWS: &str = include_str!("../../context_windows.json");

/// A dated list of context windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ContextWindowList {
    /// Date of the figures.
    pub as_of: String,
    /// Source of the figures.
    pub source: String,
    /// The windows.
    pub models: Vec<ModelWindow>,
}

/// The context window of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ModelWindow {
    /// Name of the model, without its date and its provider.
    pub model: String,
    /// Size of the window in tokens, which the input and the output share.
    pub context_window: u64,
}

/// An error that prevents a list of context windows from being read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextWindowListError {
    /// The file cannot be read.
    #[error("the list of context windows cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The text is not a list of context windows.
    #[error("the text is not a list of context windows: {0}")]
    Parse(#[from] serde_json::Error),
}

impl ContextWindowList {
    /// Returns the list that is shipped with this crate: figures that were not verified. See its date and its source.
    pub fn shipped() -> Arc<Self> {
        static SHIPPED: OnceLock<Arc<ContextWindowList>> = OnceLock::new();
        SHIPPED.get_or_init(|| Arc::new(Self::parse(SHIPPED_WINDOWS).unwrap_or_default())).clone()
    }

    /// Returns a list without windows.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Parses a list from JSON, in the form of the shipped file `context_windows.json`.
    ///
    /// # Errors
    ///
    /// Returns an error if the text has another form.
    pub fn parse(text: &str) -> Result<Self, ContextWindowListError> {
        Ok(serde_json::from_str(text)?)
    }

    /// Loads a list from a JSON file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or has another form.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ContextWindowListError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// Returns the window of a model as its provider names it: with or without a date, and behind the name of a provider.
    pub fn find_window(&self, model: &str) -> Option<u64> {
        let name = without_bedrock_parts(model);
        let listed = self.models.iter().find(|listed| is_model_name(name, &listed.model));
        listed.map(|listed| listed.context_window)
    }
}

/// Removes the region, the vendor and the version that Bedrock adds to names, as in
/// `us.anthropic.claude-sonnet-4-5-20250929-v1:0`.
fn without_bedrock_parts(model: &str) -> &str {
    let vendors = ["anthropic.", "amazon."];
    let found = vendors.iter().find_map(|vendor| Some(model.split_once(vendor)?.1));
    let Some(name) = found else { return model };
    let is_version = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    match name.rsplit_once("-v") {
        Some((name, version)) if is_version(version) => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::ContextWindowList;
    use crate::price::PriceList;

    #[test]
    fn the_shipped_list_has_every_model_with_a_price() {
        let list = ContextWindowList::shipped();
        assert!(!list.as_of.is_empty() && !list.source.is_empty());
        for price in &PriceList::shipped().models {
            assert!(list.find_window(&price.model).is_some(), "{}", price.model);
        }
        assert_eq!(list.find_window("openai/gpt-4o-2024-08-06"), Some(128_000));
        assert_eq!(list.find_window("us.anthropic.claude-sonnet-4-5-20250929-v1:0"), Some(200_000));
        assert_eq!(list.find_window("amazon.nova-lite-v1:0"), Some(300_000));
        for name in ["gpt-4o-next", "llama3.2", ""] {
            assert_eq!(list.find_window(name), None, "{name}");
        }
    }
}
