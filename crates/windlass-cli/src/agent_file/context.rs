//! The `[context]` of an agent file: the compaction of conversations.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use windlass::context::{ContextPolicy, ContextWindowList};
use windlass::core::item::Item;

use super::model::{ProviderSpecs, resolve_model};
use crate::cli_error::CliError;

/// The `[context]` of an agent file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ContextSpec {
    /// False if conversations are never compacted.
    compaction: Option<bool>,
    /// Size of the model's context window in tokens.
    window: Option<u64>,
    compact_above_percent: Option<u8>,
    compact_to_percent: Option<u8>,
    keep_newest: Option<usize>,
    /// The model that summarises what is removed.
    summary_model: Option<String>,
    /// Messages with one of these texts are never removed.
    pinned_texts: Vec<String>,
    /// Path of a list of context windows, in place of the shipped one.
    windows_file: Option<PathBuf>,
}

impl ContextSpec {
    /// Returns the policy. Paths are relative to the folder of the agent file.
    pub(super) fn to_policy(
        &self,
        folder: &Path,
        providers: &ProviderSpecs,
    ) -> Result<ContextPolicy, CliError> {
        if self.compaction == Some(false) {
            return Ok(ContextPolicy::disabled());
        }
        let mut policy = self.window.map_or_else(ContextPolicy::default, ContextPolicy::with_window);
        if let Some(percent) = self.compact_above_percent {
            policy = policy.compact_above_percent(percent);
        }
        if let Some(percent) = self.compact_to_percent {
            policy = policy.compact_to_percent(percent);
        }
        if let Some(items) = self.keep_newest {
            policy = policy.keep_newest(items);
        }
        if let Some(model) = &self.summary_model {
            policy = policy.summarise_with(resolve_model(model, folder, providers)?);
        }
        if !self.pinned_texts.is_empty() {
            let texts = self.pinned_texts.clone();
            policy = policy.pin_items(move |item| match item {
                Item::Message(message) => {
                    let said = message.text();
                    texts.iter().any(|text| said.contains(text.as_str()))
                }
                _ => false,
            });
        }
        if let Some(file) = &self.windows_file {
            let file = folder.join(file);
            let list = ContextWindowList::load(&file)
                .map_err(|error| CliError::new(format!("`{}`: {error}", file.display())))?;
            policy = policy.window_list(list);
        }
        Ok(policy)
    }
}
