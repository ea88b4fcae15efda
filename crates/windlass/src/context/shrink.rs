//! The rules by which a conversation is made shorter. They are a pure function.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use windlass_core::{
    history::cut_places,
    id::CallId,
    item::{CallOutput, Item, OutputContent},
};

use super::summary::shorten_middle;
use super::token_estimate::estimate_item;

/// Text in place of an output that was removed.
const REMOVED_OUTPUT: &str = "[This output was removed to save space. Call the tool again if you need it.]";
/// Minimum length of an output that is shortened, in bytes.
const MIN_OUTPUT_BYTES: usize = 400;

/// The limits of a compaction.
pub(crate) struct ShrinkLimits<'a> {
    /// Number of newest items that are kept as they are, if they fit.
    pub(crate) keep_newest: usize,
    /// Estimate of the message that stands for removed items.
    pub(crate) note_estimate: u64,
    /// True if items with this estimate, and the fixed parts of the request, fit.
    pub(crate) fits: &'a dyn Fn(u64) -> bool,
    /// True if the item must stay as it is.
    pub(crate) is_pinned: &'a dyn Fn(&Arc<Item>) -> bool,
}

/// A conversation that was made shorter.
#[derive(Debug, Default)]
pub(crate) struct ShrunkHistory {
    /// The items that stay, some of them with shorter outputs.
    pub(crate) items: Vec<Arc<Item>>,
    /// The items that were removed, as they were.
    pub(crate) removed: Vec<Arc<Item>>,
    /// The place for a message that stands for the removed items.
    pub(crate) removed_at: usize,
    /// Estimate of the items that stay.
    pub(crate) estimate: u64,
}

/// One item on its way.
struct ShrinkingItem {
    original: Arc<Item>,
    item: Arc<Item>,
    estimate: u64,
    is_pinned: bool,
    is_removed: bool,
}

/// Makes a conversation shorter until it fits: outputs of tools first, from the oldest on, then whole turns and messages,
/// then outputs of the newest turns. What is left may still not fit.
pub(crate) fn shrink_history(history: &[Arc<Item>], limits: &ShrinkLimits<'_>) -> ShrunkHistory {
    let pinned_calls: BTreeSet<&CallId> =
        history.iter().filter(|item| (limits.is_pinned)(item)).filter_map(|item| call_of(item)).collect();
    let items = history.iter().map(|item| ShrinkingItem {
        original: item.clone(),
        item: item.clone(),
        estimate: estimate_item(item),
        is_pinned: (limits.is_pinned)(item) || call_of(item).is_some_and(|call| pinned_calls.contains(call)),
        is_removed: false,
    });
    let mut shrinking =
        Shrinking { items: items.collect(), total: 0, cuts: cut_places(history), has_removed: false };
    shrinking.total = shrinking.items.iter().map(|one| one.estimate).sum();
    let newest_from = shrinking.cut_before(history.len().saturating_sub(limits.keep_newest));
    let last_from = shrinking.cuts.last().copied().unwrap_or(0);
    shrinking.replace_outputs(0..newest_from, limits);
    shrinking.remove_units(newest_from, limits);
    shrinking.replace_outputs(newest_from..last_from, limits);
    shrinking.remove_units(last_from, limits);
    shrinking.shorten_outputs(last_from, limits);
    shrinking.finish()
}

struct Shrinking {
    items: Vec<ShrinkingItem>,
    total: u64,
    /// Places between which the conversation can be cut.
    cuts: Vec<usize>,
    has_removed: bool,
}

impl Shrinking {
    /// Returns the last place at or before `place` at which the conversation can be cut.
    fn cut_before(&self, place: usize) -> usize {
        self.cuts.iter().copied().rfind(|cut| *cut <= place).unwrap_or(0)
    }

    /// True if the items fit, with a note if some were removed.
    fn is_done(&self, limits: &ShrinkLimits<'_>) -> bool {
        (limits.fits)(self.total + if self.has_removed { limits.note_estimate } else { 0 })
    }

    /// Replaces outputs by a note, from the oldest on.
    fn replace_outputs(&mut self, places: Range<usize>, limits: &ShrinkLimits<'_>) {
        for place in places {
            if self.is_done(limits) {
                return;
            }
            self.replace_output(place, |_| REMOVED_OUTPUT.into());
        }
    }

    fn replace_output(&mut self, place: usize, content: impl FnOnce(&OutputContent) -> OutputContent) {
        let one = &mut self.items[place];
        let Item::Output(output) = &*one.item else { return };
        if one.is_pinned || one.is_removed {
            return;
        }
        let shorter = Item::Output(CallOutput { content: content(&output.content), ..output.clone() });
        let estimate = estimate_item(&shorter);
        if estimate < one.estimate {
            self.total = self.total - one.estimate + estimate;
            (one.item, one.estimate) = (Arc::new(shorter), estimate);
        }
    }

    /// Removes the parts of the conversation before `until`, from the oldest on. Parts with pinned calls stay whole; of
    /// others, pinned messages stay.
    fn remove_units(&mut self, until: usize, limits: &ShrinkLimits<'_>) {
        let ends = self.cuts.iter().copied().skip(1).chain([self.items.len()]);
        let units: Vec<(usize, usize)> =
            self.cuts.iter().copied().zip(ends).filter(|unit| unit.1 <= until).collect();
        for (from, to) in units {
            if self.is_done(limits) {
                return;
            }
            let unit = &mut self.items[from..to];
            if unit.iter().any(|one| one.is_pinned && !matches!(*one.item, Item::Message(_))) {
                continue;
            }
            for one in unit.iter_mut().filter(|one| !one.is_pinned && !one.is_removed) {
                one.is_removed = true;
                self.has_removed = true;
                self.total -= one.estimate;
            }
        }
    }

    /// Shortens the outputs from `from` on to equal shares of the space that is left.
    fn shorten_outputs(&mut self, from: usize, limits: &ShrinkLimits<'_>) {
        // Each round halves the space for outputs, so that it ends.
        let mut max_bytes = 64 * 1024;
        while !self.is_done(limits) && max_bytes >= MIN_OUTPUT_BYTES {
            for place in from..self.items.len() {
                self.replace_output(place, |content| match content {
                    OutputContent::Text(text) => shorten_middle(text, max_bytes).into(),
                    OutputContent::Parts(_) if max_bytes <= 8 * 1024 => REMOVED_OUTPUT.into(),
                    parts @ OutputContent::Parts(_) => parts.clone(),
                });
            }
            max_bytes /= 2;
        }
    }

    fn finish(self) -> ShrunkHistory {
        let removed_at = self.items.iter().position(|one| one.is_removed);
        let before = &self.items[..removed_at.unwrap_or(0)];
        let mut shrunk =
            ShrunkHistory { removed_at: before.len(), estimate: self.total, ..ShrunkHistory::default() };
        for one in self.items {
            if one.is_removed {
                shrunk.removed.push(one.original);
            } else {
                shrunk.items.push(one.item);
            }
        }
        shrunk
    }
}

/// Returns the call that an item belongs to.
fn call_of(item: &Item) -> Option<&CallId> {
    match item {
        Item::Call(call) => Some(&call.id),
        Item::Output(output) => Some(&output.call),
        Item::Handoff(handoff) => Some(&handoff.call),
        _ => None,
    }
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
