//! Validity of a conversation: every call has its output, and every output its call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::id::CallId;
use crate::item::Item;
use crate::journal::FilteredInput;

/// A conversation in which every call has its output and every output its call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairedItems {
    /// The items.
    pub items: Vec<Arc<Item>>,
    /// Calls and outputs that were left out, because the other half of their pair is missing.
    pub removed: Vec<UnpairedItem>,
}

/// A call without its output, or an output without its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnpairedItem {
    /// A call without its output.
    Call(CallId),
    /// An output without its call before it.
    Output(CallId),
}

impl PairedItems {
    /// Returns the removed items in words, for a message.
    pub fn describe_removed(&self) -> String {
        let described: Vec<String> = self
            .removed
            .iter()
            .map(|removed| match removed {
                UnpairedItem::Call(call) => format!("call `{call}` without its output"),
                UnpairedItem::Output(call) => format!("the output of `{call}` without its call"),
            })
            .collect();
        described.join(", ")
    }
}

/// Returns the items that can be sent to a provider: calls without an output and outputs without a call are left out, and
/// so is the reasoning directly before a call that is left out.
///
/// Filters, session limits and compactions are functions of the application, so what they return goes through here.
pub fn keep_pairs(items: Vec<Arc<Item>>) -> PairedItems {
    let mut answered: BTreeSet<CallId> = BTreeSet::new();
    let mut open: BTreeSet<&CallId> = BTreeSet::new();
    for item in &items {
        match (&**item, output_of(item)) {
            (Item::Call(call), _) => {
                open.insert(&call.id);
            }
            (_, Some(call)) if open.contains(call) => {
                answered.insert(call.clone());
            }
            _ => {}
        }
    }
    if items.iter().all(|item| match (&**item, output_of(item)) {
        (Item::Call(call), _) => answered.contains(&call.id),
        (_, Some(call)) => answered.contains(call),
        _ => true,
    }) && !has_repeats(&items)
    {
        return PairedItems { items, removed: Vec::new() };
    }
    let mut paired = PairedItems::default();
    let (mut called, mut given) = (BTreeSet::new(), BTreeSet::new());
    for item in items {
        match (&*item, output_of(&item)) {
            (Item::Call(call), _) if !answered.contains(&call.id) || !called.insert(call.id.clone()) => {
                while paired.items.last().is_some_and(|last| matches!(**last, Item::Reasoning(_))) {
                    paired.items.pop();
                }
                paired.removed.push(UnpairedItem::Call(call.id.clone()));
            }
            (_, Some(call)) if !called.contains(call) || !given.insert(call.clone()) => {
                paired.removed.push(UnpairedItem::Output(call.clone()));
            }
            _ => paired.items.push(item),
        }
    }
    paired
}

/// Returns true if a call or an output stands twice.
fn has_repeats(items: &[Arc<Item>]) -> bool {
    let (mut calls, mut outputs) = (BTreeSet::new(), BTreeSet::new());
    items.iter().any(|item| match (&**item, output_of(item)) {
        (Item::Call(call), _) => !calls.insert(&call.id),
        (_, Some(call)) => !outputs.insert(call),
        _ => false,
    })
}

/// Returns the call that an item is the output of.
fn output_of(item: &Item) -> Option<&CallId> {
    match item {
        Item::Output(output) => Some(&output.call),
        Item::Handoff(handoff) => Some(&handoff.call),
        _ => None,
    }
}

impl FilteredInput {
    /// Describes the items of a request by the history that they come from.
    pub fn from_items(history: &[Arc<Item>], items: &[Arc<Item>]) -> Vec<Self> {
        let mut places: BTreeMap<*const Item, usize> = BTreeMap::new();
        for (place, item) in history.iter().enumerate() {
            places.entry(Arc::as_ptr(item)).or_insert(place);
        }
        let mut parts: Vec<Self> = Vec::new();
        for item in items {
            let place = places.get(&Arc::as_ptr(item)).copied();
            match (place, parts.last_mut()) {
                (Some(place), Some(Self::History { to, .. })) if *to == place => *to += 1,
                (Some(place), _) => parts.push(Self::History { from: place, to: place + 1 }),
                (None, _) => parts.push(Self::Item(item.clone())),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{CallOutput, OutputStatus};

    fn output(call: &str) -> Arc<Item> {
        Arc::new(Item::Output(CallOutput {
            call: call.into(),
            content: "done".into(),
            status: OutputStatus::Ok,
        }))
    }

    fn call(id: &str) -> Arc<Item> {
        Arc::new(Item::call(id, "look", "{}"))
    }

    #[test]
    fn a_valid_history_is_unchanged() {
        let items = vec![Arc::new(Item::user("hi")), call("a"), call("b"), output("b"), output("a")];
        assert_eq!(keep_pairs(items.clone()), PairedItems { items, removed: Vec::new() });
    }

    #[test]
    fn halves_of_pairs_are_left_out() {
        let items = vec![output("gone"), call("a"), call("b"), output("a"), output("a")];
        let paired = keep_pairs(items);
        assert_eq!(paired.items, vec![call("a"), output("a")]);
        assert_eq!(
            paired.describe_removed(),
            "the output of `gone` without its call, call `b` without its output, the output of `a` without its call"
        );
    }

    #[test]
    fn an_output_before_its_call_is_left_out_with_it() {
        let paired = keep_pairs(vec![output("a"), call("a")]);
        assert!(paired.items.is_empty(), "{:?}", paired.items);
    }

    #[test]
    fn a_filtered_input_names_ranges_of_the_history() {
        let history = vec![Arc::new(Item::user("one")), call("a"), output("a"), Arc::new(Item::user("two"))];
        let made = Arc::new(Item::user("made"));
        let items = vec![made.clone(), history[1].clone(), history[2].clone(), history[3].clone()];
        let parts = FilteredInput::from_items(&history, &items);
        assert_eq!(parts, vec![FilteredInput::Item(made), FilteredInput::History { from: 1, to: 4 }]);
    }
}
