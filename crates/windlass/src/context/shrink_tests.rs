use std::sync::Arc;

use windlass_core::{
    history::paired_places,
    item::{CallOutput, Item, OutputContent, OutputStatus},
};

use super::{REMOVED_OUTPUT, ShrinkLimits, ShrunkHistory, shrink_history};
use crate::model::describe_item;

/// A conversation of a system message, a question and `turns` turns with one call of 900 letters each.
fn conversation(turns: usize) -> Vec<Arc<Item>> {
    let system = Item::Message(windlass_core::item::Message::new(windlass_core::item::Role::System, "rules"));
    let mut items = vec![system, Item::user("Read them.")];
    for turn in 0..turns {
        items.push(Item::call(format!("c{turn}"), "read", "{}"));
        items.push(Item::Output(CallOutput {
            call: format!("c{turn}").into(),
            content: "x".repeat(900).into(),
            status: OutputStatus::Ok,
            sources: Default::default(),
        }));
    }
    items.into_iter().map(Arc::new).collect()
}

fn shrink(items: &[Arc<Item>], keep_newest: usize, budget: u64, pinned: &[usize]) -> ShrunkHistory {
    let is_pinned = |item: &Arc<Item>| pinned.iter().any(|place| Arc::ptr_eq(&items[*place], item));
    let fits = |estimate: u64| estimate <= budget;
    let shrunk = shrink_history(
        items,
        &ShrinkLimits { keep_newest, note_estimate: 20, fits: &fits, is_pinned: &is_pinned },
    );
    assert_eq!(paired_places(&shrunk.items).len(), shrunk.items.len(), "pairs are kept");
    shrunk
}

fn outputs(shrunk: &ShrunkHistory) -> Vec<usize> {
    let lengths = shrunk.items.iter().filter_map(|item| match &**item {
        Item::Output(CallOutput { content: OutputContent::Text(text), .. }) if text == REMOVED_OUTPUT => {
            Some(0)
        }
        Item::Output(CallOutput { content: OutputContent::Text(text), .. }) => Some(text.len()),
        _ => None,
    });
    lengths.collect()
}

#[test]
fn what_fits_is_unchanged() {
    let items = conversation(3);
    let shrunk = shrink(&items, 4, 10_000, &[0, 1]);
    assert_eq!((shrunk.items, shrunk.removed.len()), (items, 0));
}

#[test]
fn old_outputs_go_first_and_no_more_of_them_than_needed() {
    let items = conversation(6);
    let shrunk = shrink(&items, 4, 1_400, &[0, 1]);
    assert_eq!(outputs(&shrunk), [0, 0, 900, 900, 900, 900]);
    assert_eq!((shrunk.items.len(), shrunk.removed.len()), (items.len(), 0));
    assert!(Arc::ptr_eq(&shrunk.items[6], &items[6]), "what stays is the same item");
}

#[test]
fn old_turns_go_next_and_leave_a_place_for_their_summary() {
    let items = conversation(6);
    let shrunk = shrink(&items, 4, 720, &[0, 1]);
    assert_eq!(outputs(&shrunk), [0, 900, 900]);
    assert_eq!((shrunk.removed.len(), shrunk.removed_at), (6, 2));
    assert_eq!(shrunk.removed, items[2..8], "the removed items are as they were, for the summary");
    assert!(shrunk.estimate <= 700, "with space for the summary: {}", shrunk.estimate);
}

#[test]
fn pinned_items_stay_with_the_other_half_of_their_pair() {
    let items = conversation(6);
    // The output of the second call is pinned.
    let shrunk = shrink(&items, 2, 700, &[0, 1, 5]);
    let kept: Vec<String> = shrunk.items.iter().take(4).map(|item| describe_item(item)).collect();
    assert_eq!(kept[..2], [describe_item(&items[0]), describe_item(&items[1])]);
    assert!(Arc::ptr_eq(&shrunk.items[2], &items[4]) && Arc::ptr_eq(&shrunk.items[3], &items[5]), "{kept:?}");
}

#[test]
fn the_newest_outputs_are_shortened_if_nothing_else_is_left() {
    let items = conversation(1);
    let shrunk = shrink(&items, 4, 250, &[0, 1]);
    let lengths = outputs(&shrunk);
    assert!(lengths[0] > 0 && lengths[0] < 700, "its beginning and its end are left: {lengths:?}");
    assert!(shrunk.estimate <= 250, "{}", shrunk.estimate);
}

#[test]
fn what_is_pinned_is_kept_even_if_it_does_not_fit() {
    let items = conversation(2);
    let all: Vec<usize> = (0..items.len()).collect();
    let shrunk = shrink(&items, 0, 10, &all);
    assert_eq!(shrunk.items, items);
}
