//! Validity of a conversation: every call has its output, and every output its call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::id::CallId;
use crate::item::{Item, Role};
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
/// so is the reasoning directly before a call that is left out. An id that is used again after its output stands for
/// another call, because some providers number the calls of each response from the start.
///
/// Filters, session limits and compactions are functions of the application, so what they return goes through here.
pub fn keep_pairs(items: Vec<Arc<Item>>) -> PairedItems {
    let (places, removed) = find_pairs(&items);
    let items = places.iter().map(|place| items[*place].clone()).collect();
    PairedItems { items, removed }
}

/// Returns the places of the items that [`keep_pairs`] keeps.
pub fn paired_places(items: &[Arc<Item>]) -> Vec<usize> {
    find_pairs(items).0
}

fn find_pairs(items: &[Arc<Item>]) -> (Vec<usize>, Vec<UnpairedItem>) {
    let mut is_paired = vec![false; items.len()];
    let mut open: BTreeMap<&CallId, usize> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        match (&**item, output_of(item)) {
            (Item::Call(call), _) => {
                open.entry(&call.id).or_insert(place);
            }
            (_, Some(call)) => {
                if let Some(of) = open.remove(call) {
                    (is_paired[of], is_paired[place]) = (true, true);
                }
            }
            _ => is_paired[place] = true,
        }
    }
    let mut kept: Vec<usize> = Vec::new();
    let mut removed = Vec::new();
    for (place, item) in items.iter().enumerate() {
        match (&**item, output_of(item)) {
            _ if is_paired[place] => kept.push(place),
            (Item::Call(call), _) => {
                while kept.last().is_some_and(|last| matches!(*items[*last], Item::Reasoning(_))) {
                    kept.pop();
                }
                removed.push(UnpairedItem::Call(call.id.clone()));
            }
            (_, Some(call)) => removed.push(UnpairedItem::Output(call.clone())),
            _ => {}
        }
    }
    (kept, removed)
}

/// Returns the places between which a conversation can be cut: before them no call is open.
pub fn cut_places(items: &[Arc<Item>]) -> Vec<usize> {
    let mut open: BTreeSet<&CallId> = BTreeSet::new();
    let mut places = Vec::new();
    for (place, item) in items.iter().enumerate() {
        // Reasoning and text belong to the calls of the same response.
        let follows_model = place > 0 && is_of_model(&items[place - 1]) && is_of_model(item);
        if open.is_empty() && !follows_model && output_of(item).is_none() {
            places.push(place);
        }
        match (&**item, output_of(item)) {
            (Item::Call(call), _) => {
                open.insert(&call.id);
            }
            (_, Some(call)) => {
                open.remove(call);
            }
            _ => {}
        }
    }
    places
}

/// Returns true if the item is part of a model response.
fn is_of_model(item: &Item) -> bool {
    match item {
        Item::Call(_) | Item::Reasoning(_) | Item::HostedTool(_) => true,
        Item::Message(message) => message.role == Role::Assistant,
        _ => false,
    }
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
            sources: Default::default(),
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
    fn an_id_that_is_used_again_stands_for_another_call() {
        let items = vec![call("a"), output("a"), call("a"), output("a")];
        assert_eq!(keep_pairs(items.clone()), PairedItems { items, removed: Vec::new() });
    }

    #[test]
    fn a_conversation_is_cut_where_no_call_is_open() {
        let said = Arc::new(Item::assistant("I look."));
        let items = vec![
            Arc::new(Item::user("hi")),
            call("a"),
            said.clone(),
            output("a"),
            said,
            call("b"),
            output("b"),
            Arc::new(Item::user("again")),
        ];
        assert_eq!(cut_places(&items), [0, 1, 4, 7]);
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
