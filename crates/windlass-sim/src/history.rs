//! Checks that a provider would accept a history.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use windlass::core::{id::CallId, item::Item};

use crate::audit::InvariantViolation;

/// Checks a history between turns, as a provider would: every call of a response has exactly one output, the
/// outputs directly follow the response in its order, every output has a call, and call ids are unique.
///
/// # Errors
/// Returns the first violation.
pub fn check_history(history: &[Arc<Item>]) -> Result<(), InvariantViolation> {
    let mut seen: BTreeSet<&CallId> = BTreeSet::new();
    let mut open: VecDeque<&CallId> = VecDeque::new();
    let mut is_answering = false;
    for (place, item) in history.iter().enumerate() {
        let output = match &**item {
            Item::Output(output) => Some(&output.call),
            Item::Handoff(handoff) => Some(&handoff.call),
            _ => None,
        };
        if let Some(call) = output {
            is_answering = true;
            match open.pop_front() {
                Some(expected) if expected == call => {}
                Some(expected) => {
                    return Err(InvariantViolation::new(format!(
                        "item {place} of the history is the output of call `{call}`, where that of `{expected}` is due"
                    )));
                }
                None => {
                    return Err(InvariantViolation::new(format!(
                        "item {place} of the history is an output of call `{call}`, which is not open"
                    )));
                }
            }
            continue;
        }
        let is_users = matches!(&**item, Item::Message(message) if message.role != windlass::core::item::Role::Assistant);
        if let Some(call) = open.front().filter(|_| is_answering || is_users) {
            return Err(InvariantViolation::new(format!(
                "item {place} of the history comes before the output of call `{call}`"
            )));
        }
        is_answering = false;
        if let Item::Call(call) = &**item {
            if !seen.insert(&call.id) {
                return Err(InvariantViolation::new(format!(
                    "call id `{}` stands for two calls in the history",
                    call.id
                )));
            }
            open.push_back(&call.id);
        }
    }
    match open.front() {
        Some(call) => Err(InvariantViolation::new(format!("call `{call}` has no output in the history"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass::core::item::{CallOutput, Item, OutputStatus};

    use super::check_history;

    fn call_output(call: &str) -> Item {
        Item::Output(CallOutput {
            call: call.into(),
            content: "done".into(),
            status: OutputStatus::Ok,
            sources: Default::default(),
        })
    }

    fn check_items(items: Vec<Item>) -> Result<(), String> {
        let items: Vec<Arc<Item>> = items.into_iter().map(Arc::new).collect();
        check_history(&items).map_err(|broken| broken.to_string())
    }

    #[test]
    fn a_whole_history_passes() {
        let items = vec![
            Item::user("hello"),
            Item::call("a", "look", "{}"),
            Item::assistant("one moment"),
            Item::call("b", "look", "{}"),
            call_output("a"),
            call_output("b"),
            Item::assistant("done"),
        ];
        assert_eq!(check_items(items), Ok(()));
    }

    #[test]
    fn every_kind_of_hole_is_found() {
        let call = |id: &str| Item::call(id, "look", "{}");
        let holes = [
            vec![call("a")],
            vec![call_output("a")],
            vec![call("a"), call_output("a"), call_output("a")],
            vec![call("a"), call("b"), call_output("b"), call_output("a")],
            vec![call("a"), call("b"), call_output("a"), Item::assistant("hm"), call_output("b")],
            vec![call("a"), Item::user("hm"), call_output("a")],
            vec![call("a"), call_output("a"), call("a"), call_output("a")],
        ];
        for hole in holes {
            assert!(check_items(hole.clone()).is_err(), "{hole:?}");
        }
    }
}
