//! What makes a history one that a provider takes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use windlass::core::{CallId, Item};

use crate::audit::Broken;

/// Checks a history as a provider would, between turns: every call of an answer has exactly one output, the
/// outputs come right after the answer and in its order, there is no output without a call, and no two calls
/// share an id.
pub fn check_history(history: &[Arc<Item>]) -> Result<(), Broken> {
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
                    return Err(Broken::new(format!(
                        "item {place} of the history is the output of call `{call}`, where that of `{expected}` is due"
                    )));
                }
                None => {
                    return Err(Broken::new(format!(
                        "item {place} of the history is an output of call `{call}`, which is not open"
                    )));
                }
            }
            continue;
        }
        let is_users =
            matches!(&**item, Item::Message(message) if message.role != windlass::core::Role::Assistant);
        if let Some(call) = open.front().filter(|_| is_answering || is_users) {
            return Err(Broken::new(format!(
                "item {place} of the history comes before the output of call `{call}`"
            )));
        }
        is_answering = false;
        if let Item::Call(call) = &**item {
            if !seen.insert(&call.id) {
                return Err(Broken::new(format!(
                    "call id `{}` stands for two calls in the history",
                    call.id
                )));
            }
            open.push_back(&call.id);
        }
    }
    match open.front() {
        Some(call) => Err(Broken::new(format!("call `{call}` has no output in the history"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass::core::{Item, Output, OutputStatus};

    use super::check_history;

    fn output(call: &str) -> Item {
        Item::Output(Output { call: call.into(), content: "done".into(), status: OutputStatus::Ok })
    }

    fn verdict(items: Vec<Item>) -> Result<(), String> {
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
            output("a"),
            output("b"),
            Item::assistant("done"),
        ];
        assert_eq!(verdict(items), Ok(()));
    }

    #[test]
    fn every_kind_of_hole_is_found() {
        let call = |id: &str| Item::call(id, "look", "{}");
        let holes = [
            vec![call("a")],
            vec![output("a")],
            vec![call("a"), output("a"), output("a")],
            vec![call("a"), call("b"), output("b"), output("a")],
            vec![call("a"), call("b"), output("a"), Item::assistant("hm"), output("b")],
            vec![call("a"), Item::user("hm"), output("a")],
            vec![call("a"), output("a"), call("a"), output("a")],
        ];
        for hole in holes {
            assert!(verdict(hole.clone()).is_err(), "{hole:?}");
        }
    }
}
