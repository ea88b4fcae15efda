//! Compaction: the old part of a session is atomically replaced by a summary.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{history::keep_pairs, item::Item};

use super::{Session, SessionState, cut_place};
use crate::context::{estimate_item, summarise, summary_item};
use crate::error::{StoreError, StoreErrorKind};
use crate::model::{SharedModel, describe_item};

/// A function that summarises the items that compaction removes.
pub type SummaryFunction =
    Arc<dyn Fn(Vec<Arc<Item>>) -> BoxFuture<'static, Result<String, StoreError>> + Send + Sync>;

/// A compaction policy: the threshold, the number of items to keep, and the summary function.
#[derive(Clone)]
pub struct CompactionPolicy {
    threshold: CompactionThreshold,
    keep_newest: usize,
    summarise: SummaryFunction,
}

#[derive(Clone)]
enum CompactionThreshold {
    Items(usize),
    Tokens(usize),
}

/// The result of a compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompactionResult {
    /// The session is below the threshold.
    NotNeeded,
    /// The oldest items were replaced by a summary.
    Summarised {
        /// Number of items that were replaced.
        items: usize,
    },
    /// Another writer changed the session concurrently; nothing was compacted.
    SessionChanged,
}

impl CompactionPolicy {
    /// Creates a policy that compacts sessions with more than `items` items and keeps the newest `keep` items.
    pub fn above_items(items: usize, keep: usize) -> Self {
        Self { threshold: CompactionThreshold::Items(items), keep_newest: keep, summarise: text_summary() }
    }

    /// Creates a policy that compacts sessions with more than about `tokens` tokens and keeps the newest `keep`
    /// items.
    pub fn above_tokens(tokens: usize, keep: usize) -> Self {
        Self { threshold: CompactionThreshold::Tokens(tokens), keep_newest: keep, summarise: text_summary() }
    }

    /// Sets the function that summarises the removed items.
    #[must_use]
    pub fn with_summariser<Fut>(
        mut self,
        summarise: impl Fn(Vec<Arc<Item>>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<String, StoreError>> + Send + 'static,
    {
        self.summarise = Arc::new(move |items| summarise(items).boxed());
        self
    }

    /// Summarises the removed items with a model.
    #[must_use]
    pub fn with_model(self, model: impl Into<SharedModel>) -> Self {
        let model = model.into();
        self.with_summariser(move |items| {
            let model = model.clone();
            async move {
                let summary = summarise(&model, &items, usize::MAX).await;
                let summary = summary.map_err(|error| {
                    StoreError::new(format!("the summary could not be made: {error}")).with_source(error)
                })?;
                Ok(summary.text)
            }
        })
    }

    fn is_due(&self, items: &[Arc<Item>]) -> bool {
        match self.threshold {
            CompactionThreshold::Items(limit) => items.len() > limit,
            CompactionThreshold::Tokens(limit) => {
                items.iter().map(|item| estimate_item(item)).sum::<u64>() > limit as u64
            }
        }
    }
}

impl Session {
    /// Compacts the session if it is above the policy's threshold. The replacement is atomic: concurrent writes
    /// of runs are never overwritten.
    pub async fn compact(&self, compaction: &CompactionPolicy) -> Result<CompactionResult, StoreError> {
        let SessionState { version, items, .. } = self.store.load_session(&self.id).await?;
        if !compaction.is_due(&items) {
            return Ok(CompactionResult::NotNeeded);
        }
        let mut items = keep_pairs(items).items;
        let from = cut_place(&items, compaction.keep_newest);
        if from <= 1 {
            return Ok(CompactionResult::NotNeeded);
        }
        let kept = items.split_off(from);
        let summary = (compaction.summarise)(items.clone()).await?;
        let mut compacted = vec![summary_item(&summary, &items)];
        compacted.extend(kept);
        match self.store.replace_items(&self.id, version, compacted).await {
            Ok(()) => Ok(CompactionResult::Summarised { items: from }),
            Err(error) if error.kind() == StoreErrorKind::Stale => Ok(CompactionResult::SessionChanged),
            Err(error) => Err(error),
        }
    }
}

/// Returns a summary function without a model: it joins the messages and drops the calls.
fn text_summary() -> SummaryFunction {
    Arc::new(|items| {
        let said =
            items.iter().filter(|item| matches!(***item, Item::Message(_))).map(|item| describe_item(item));
        let said: Vec<String> = said.collect();
        std::future::ready(Ok(said.join("\n"))).boxed()
    })
}
