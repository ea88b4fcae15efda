//! The history that a run starts with: by reference to a position in its session, or inline.
//!
//! Invariant: a reference and the digest of its items are part of the hash chain; the items are not. Whoever opens the
//! run loads them, and [`StartHistory::resolve`] accepts only the items that the model saw.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::canonical::Digest;
use crate::id::SessionId;
use crate::item::Item;

/// The history that a run starts with.
///
/// A run that belongs to a session refers to the session's items; every other run has its history inline. The items of
/// a decoded reference are missing until they are loaded and resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartHistory {
    reference: Option<Box<HistoryReference>>,
    /// The items; `None` if the reference has not been resolved.
    items: Option<Vec<Arc<Item>>>,
}

/// A position in a session: the items that a run saw at its start, by their positions in the session's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryReference {
    /// The session.
    pub session: SessionId,
    /// Version of the session when the run started.
    pub version: u64,
    /// Positions of the items in the session's log, in the order of the conversation. Items that the run did not see,
    /// such as calls without outputs and items beyond the history limit, are left out.
    pub ranges: Vec<ItemRange>,
    /// Digest of the items.
    pub digest: Digest,
}

/// Consecutive positions in the log of a session. It is written as `[from, to]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct ItemRange {
    /// First position.
    pub from: u64,
    /// Position after the last one.
    pub to: u64,
}

/// The reason why the history of a run is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The run refers to items of a session that were not loaded.
    #[error("the history of session `{session}` is missing: the run refers to {items} of its items")]
    Missing {
        /// The session.
        session: SessionId,
        /// Number of items that the run refers to.
        items: u64,
    },
    /// The items are not those that the run started with.
    #[error("the history of session `{session}` is not what the run started with: its digest does not match")]
    Mismatch {
        /// The session.
        session: SessionId,
    },
}

impl StartHistory {
    /// Creates the history of a run that saw these items of its session.
    pub fn referenced(
        session: SessionId,
        version: u64,
        ranges: Vec<ItemRange>,
        items: Vec<Arc<Item>>,
    ) -> Self {
        let reference = HistoryReference { session, version, ranges, digest: history_digest(&items) };
        Self { reference: Some(reference.into()), items: Some(items) }
    }

    /// Returns the reference, if the history is not inline.
    pub fn reference(&self) -> Option<&HistoryReference> {
        self.reference.as_deref()
    }

    /// Returns the items.
    ///
    /// # Errors
    ///
    /// Returns [`HistoryError::Missing`] if the reference has not been resolved.
    pub fn items(&self) -> Result<&[Arc<Item>], HistoryError> {
        match (&self.items, &self.reference) {
            (Some(items), _) => Ok(items),
            (None, Some(reference)) => Err(reference.missing()),
            (None, None) => Ok(&[]),
        }
    }

    /// Returns true if the reference has not been resolved.
    pub fn is_missing(&self) -> bool {
        self.reference.is_some() && self.items.is_none()
    }

    /// Sets the items that the reference stands for. An inline history is left as it is.
    ///
    /// # Errors
    ///
    /// Returns [`HistoryError::Missing`] if there are none, and [`HistoryError::Mismatch`] if they are not the items
    /// that the run started with.
    pub fn resolve(&mut self, items: Vec<Arc<Item>>) -> Result<(), HistoryError> {
        if let Some(reference) = &self.reference {
            reference.check_items(&items)?;
            self.items = Some(items);
        }
        Ok(())
    }

    /// Returns the same history, inline.
    ///
    /// # Errors
    ///
    /// Returns [`HistoryError::Missing`] if the reference has not been resolved.
    pub fn to_inline(&self) -> Result<Self, HistoryError> {
        Ok(self.items()?.to_vec().into())
    }

    /// Returns true if the field is left out of the entry: the history is inline and has no items.
    pub(super) fn is_omitted(&self) -> bool {
        self.reference.is_none() && self.items.is_none()
    }
}

impl From<Vec<Arc<Item>>> for StartHistory {
    fn from(items: Vec<Arc<Item>>) -> Self {
        Self { reference: None, items: (!items.is_empty()).then_some(items) }
    }
}

impl HistoryReference {
    /// Returns the number of items.
    pub fn item_count(&self) -> u64 {
        self.ranges.iter().map(ItemRange::len).fold(0, u64::saturating_add)
    }

    /// Checks that these are the items that the run started with.
    ///
    /// # Errors
    ///
    /// Returns [`HistoryError::Mismatch`] if they are not, or [`HistoryError::Missing`] if there are none.
    pub fn check_items(&self, items: &[Arc<Item>]) -> Result<(), HistoryError> {
        if history_digest(items) == self.digest {
            Ok(())
        } else if items.is_empty() {
            Err(self.missing())
        } else {
            Err(HistoryError::Mismatch { session: self.session.clone() })
        }
    }

    /// Returns the error for items that could not be loaded.
    pub fn missing(&self) -> HistoryError {
        HistoryError::Missing { session: self.session.clone(), items: self.item_count() }
    }
}

impl ItemRange {
    /// Returns the number of positions.
    pub fn len(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// Returns true if there are no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the ranges of a list of positions.
    pub fn from_positions(positions: impl IntoIterator<Item = u64>) -> Vec<Self> {
        let mut ranges: Vec<Self> = Vec::new();
        for position in positions {
            match ranges.last_mut() {
                Some(last) if last.to == position => last.to += 1,
                _ => ranges.push(Self { from: position, to: position + 1 }),
            }
        }
        ranges
    }

    /// Returns the number of positions of a list of ranges, and the ranges of at most `limit` of them after the first
    /// `skip`.
    pub fn page(ranges: &[Self], skip: u64, limit: u32) -> (u64, Vec<Self>) {
        let (mut total, mut page) = (0_u64, Vec::new());
        let end = skip.saturating_add(limit.into());
        for range in ranges {
            // The part of this range in the page, as offsets in the list.
            let first = skip.max(total);
            let last = end.min(total + range.len());
            if first < last {
                let from = range.from + (first - total);
                page.push(Self { from, to: from + (last - first) });
            }
            total += range.len();
        }
        (total, page)
    }
}

impl From<(u64, u64)> for ItemRange {
    fn from((from, to): (u64, u64)) -> Self {
        Self { from, to }
    }
}

impl From<ItemRange> for (u64, u64) {
    fn from(range: ItemRange) -> Self {
        (range.from, range.to)
    }
}

/// Returns the digest of the items of a history: a hash chain over their JSON texts, which begins with the digest of
/// the word `history`.
pub fn history_digest(items: &[Arc<Item>]) -> Digest {
    items.iter().fold(Digest::of_text("history"), |digest, item| {
        // Items contain only text keys and finite numbers, so serialisation cannot fail.
        digest.chain(&serde_json::to_vec(item).unwrap_or_default())
    })
}

/// The serialised form: an array of items, or a reference.
#[derive(Deserialize)]
#[serde(untagged)]
enum SerializedHistory {
    Items(Vec<Arc<Item>>),
    Reference(Box<HistoryReference>),
}

impl Serialize for StartHistory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (&self.reference, &self.items) {
            (Some(reference), _) => reference.serialize(serializer),
            (None, items) => items.as_deref().unwrap_or_default().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for StartHistory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match SerializedHistory::deserialize(deserializer)? {
            SerializedHistory::Items(items) => items.into(),
            SerializedHistory::Reference(reference) => Self { reference: Some(reference), items: None },
        })
    }
}

#[cfg(test)]
#[path = "start_history_tests.rs"]
mod tests;
