//! Validity of a conversation: every call has its output, directly after the response that it belongs to, and every output
//! its call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::id::CallId;
use crate::item::{Item, Role};
use crate::journal::FilteredInput;

/// A conversation in which every call has its output and every output its call, in the order that providers accept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairedItems {
    /// The items.
    pub items: Vec<Arc<Item>>,
    /// Changes that were made to the pairs.
    pub repairs: Vec<PairRepair>,
}

/// A change to a conversation that would break a pair of a call and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairRepair {
    /// A call without its output was left out.
    CallRemoved(CallId),
    /// An output without its call before it was left out.
    OutputRemoved(CallId),
    /// An output was moved to the other outputs of its response, which stand directly after it in the order of its calls.
    OutputMoved(CallId),
}

impl PairedItems {
    /// Returns the broken pairs in words, for a message.
    pub fn describe_repairs(&self) -> String {
        let described: Vec<String> = self
            .repairs
            .iter()
            .map(|repair| match repair {
                PairRepair::CallRemoved(call) => format!("call `{call}` without its output"),
                PairRepair::OutputRemoved(call) => format!("the output of `{call}` without its call"),
                PairRepair::OutputMoved(call) => format!("the output of `{call}` out of order"),
            })
            .collect();
        described.join(", ")
    }
}

/// Returns the items that can be sent to a provider: calls without an output and outputs without a call are left out, and
/// so is the reasoning directly before a call that is left out. The outputs of a response stand directly after it, in the
/// order of its calls; an item that stood between them follows. An id that is used again after its output stands for another
/// call, because some providers number the calls of each response from the start.
///
/// Filters, session limits and compactions are functions of the application, so what they return goes through here.
pub fn keep_pairs(items: Vec<Arc<Item>>) -> PairedItems {
    let (places, repairs) = find_pairs(&items);
    let items = places.iter().map(|place| items[*place].clone()).collect();
    PairedItems { items, repairs }
}

/// Returns the places of the items that [`keep_pairs`] keeps, in its order.
pub fn paired_places(items: &[Arc<Item>]) -> Vec<usize> {
    find_pairs(items).0
}

/// Returns true if [`keep_pairs`] changes nothing.
pub fn has_valid_pairs(items: &[Arc<Item>]) -> bool {
    find_pairs(items).1.is_empty()
}

fn find_pairs(items: &[Arc<Item>]) -> (Vec<usize>, Vec<PairRepair>) {
    let partners = find_partners(items);
    let mut kept: Vec<usize> = Vec::with_capacity(items.len());
    let mut repairs = Vec::new();
    // Places of the outputs of the response that is not complete.
    let mut due: Vec<usize> = Vec::new();
    for (place, item) in items.iter().enumerate() {
        if !is_of_model(item) {
            kept.append(&mut due);
        }
        match (&**item, output_of(item), partners[place]) {
            (Item::Call(_), _, Some(output)) => {
                kept.push(place);
                due.push(output);
            }
            (Item::Call(call), _, None) => {
                while kept.last().is_some_and(|last| matches!(*items[*last], Item::Reasoning(_))) {
                    kept.pop();
                }
                repairs.push(PairRepair::CallRemoved(call.id.clone()));
            }
            // It stands after its response already.
            (_, Some(_), Some(_)) => {}
            (_, Some(call), None) => repairs.push(PairRepair::OutputRemoved(call.clone())),
            (_, None, _) => kept.push(place),
        }
    }
    kept.append(&mut due);
    // Only outputs were moved, and only towards the start.
    let mut first_after = usize::MAX;
    let mut moved = Vec::new();
    for place in kept.iter().rev().copied() {
        if place > first_after {
            moved.extend(output_of(&items[place]).cloned().map(PairRepair::OutputMoved));
        }
        first_after = first_after.min(place);
    }
    repairs.extend(moved.into_iter().rev());
    (kept, repairs)
}

/// Returns the place of the other half of each item's pair.
fn find_partners(items: &[Arc<Item>]) -> Vec<Option<usize>> {
    let mut partners = vec![None; items.len()];
    let mut open: BTreeMap<&CallId, usize> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Item::Call(call) = &**item {
            open.entry(&call.id).or_insert(place);
        } else if let Some(of) = output_of(item).and_then(|call| open.remove(call)) {
            (partners[of], partners[place]) = (Some(place), Some(of));
        }
    }
    partners
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
        Item::Call(_) | Item::Reasoning(_) | Item::HostedTool(_) | Item::Unknown(_) => true,
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
        let said = Arc::new(Item::assistant("I look."));
        let items = vec![
            Arc::new(Item::user("hi")),
            call("a"),
            said.clone(),
            call("b"),
            output("a"),
            output("b"),
            said,
            call("c"),
            output("c"),
        ];
        assert!(has_valid_pairs(&items));
        assert_eq!(keep_pairs(items.clone()), PairedItems { items, repairs: Vec::new() });
    }

    #[test]
    fn outputs_stand_directly_after_their_response_in_the_order_of_its_calls() {
        let hint = Arc::new(Item::user("hint"));
        let said = Arc::new(Item::assistant("I look."));
        let whole = vec![call("a"), call("b"), output("a"), output("b"), hint.clone()];
        let orders = [
            (vec![call("a"), call("b"), output("a"), hint.clone(), output("b")], vec!["b"]),
            (vec![call("a"), call("b"), hint.clone(), output("a"), output("b")], vec!["a", "b"]),
            (vec![call("a"), call("b"), output("b"), output("a"), hint.clone()], vec!["a"]),
            (vec![call("a"), call("b"), hint.clone(), output("b"), output("a")], vec!["a", "b"]),
        ];
        for (items, moved) in orders {
            assert!(!has_valid_pairs(&items));
            let paired = keep_pairs(items);
            assert_eq!(paired.items, whole);
            let moved: Vec<_> = moved.into_iter().map(|call| PairRepair::OutputMoved(call.into())).collect();
            assert_eq!(paired.repairs, moved);
        }
        let later = vec![call("a"), hint.clone(), call("b"), said.clone(), output("b"), output("a")];
        let paired = keep_pairs(later);
        assert_eq!(paired.items, vec![call("a"), output("a"), hint, call("b"), said, output("b")]);
        assert_eq!(paired.describe_repairs(), "the output of `a` out of order");
    }

    #[test]
    fn halves_of_pairs_are_left_out() {
        let items = vec![output("gone"), call("a"), call("b"), output("a"), output("a")];
        let paired = keep_pairs(items);
        assert_eq!(paired.items, vec![call("a"), output("a")]);
        assert_eq!(
            paired.describe_repairs(),
            "the output of `gone` without its call, call `b` without its output, the output of `a` without its call"
        );
    }

    #[test]
    fn an_id_that_is_used_again_stands_for_another_call() {
        let items = vec![call("a"), output("a"), call("a"), output("a")];
        assert_eq!(keep_pairs(items.clone()), PairedItems { items, repairs: Vec::new() });
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
