//! Healing: a transcript from elsewhere may have calls without outputs, outputs without calls, and calls that
//! stand twice. Providers refuse such histories, so they are mended when they come in, and it is said how.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_core::{CallId, Item, Output, OutputStatus};

/// A transcript after healing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Healed {
    /// The transcript, valid for a provider.
    pub items: Vec<Arc<Item>>,
    /// Calls that had no output, and were given one that says so.
    pub answered: Vec<CallId>,
    /// Outputs that belonged to no call, and were left out.
    pub orphaned: Vec<CallId>,
    /// Calls and outputs that stood twice, of which the first was kept.
    pub repeated: Vec<CallId>,
    /// Outputs that stood after the conversation had gone on, and were moved to their calls.
    pub moved: Vec<CallId>,
}

impl Healed {
    /// Whether there was nothing to heal.
    pub fn was_whole(&self) -> bool {
        self.answered.is_empty()
            && self.orphaned.is_empty()
            && self.repeated.is_empty()
            && self.moved.is_empty()
    }
}

/// What stands in place of an output that was lost before the transcript came here.
const LOST: &str = "The output of this call was not kept.";

/// Makes a transcript valid: every call has exactly one output, before the conversation goes on.
pub fn heal(items: Vec<Arc<Item>>) -> Healed {
    let mut healed = Healed::default();
    let mut outputs: BTreeMap<CallId, (usize, Arc<Item>)> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Some(call) = answered_call(item) {
            if outputs.contains_key(call) {
                healed.repeated.push(call.clone());
            } else {
                outputs.insert(call.clone(), (place, item.clone()));
            }
        }
    }
    let mut seen: BTreeMap<CallId, ()> = BTreeMap::new();
    let mut open: Vec<CallId> = Vec::new();
    for (place, item) in items.iter().enumerate() {
        match &**item {
            Item::Call(call) if seen.contains_key(&call.id) => healed.repeated.push(call.id.clone()),
            Item::Call(call) => {
                seen.insert(call.id.clone(), ());
                open.push(call.id.clone());
                healed.items.push(item.clone());
            }
            Item::Output(_) | Item::Handoff(_) => {}
            Item::Reasoning(_) if !open.is_empty() => healed.items.push(item.clone()),
            _ => {
                close(&mut open, &mut outputs, place, &mut healed);
                healed.items.push(item.clone());
            }
        }
        let is_last_of_answer =
            !items.get(place + 1).is_some_and(|next| matches!(**next, Item::Call(_) | Item::Reasoning(_)));
        if matches!(**item, Item::Call(_)) && is_last_of_answer {
            // The outputs follow their calls, wherever they stood: what lies between is after them.
            let next_stop = items[place + 1..].iter().position(|later| answered_call(later).is_none());
            let until = next_stop.map_or(items.len(), |distance| place + 1 + distance);
            close(&mut open, &mut outputs, until, &mut healed);
        }
    }
    close(&mut open, &mut outputs, items.len(), &mut healed);
    healed.orphaned.extend(outputs.into_keys());
    healed
}

/// Gives every open call its output. Those that stood at `until` or later had to be moved.
fn close(
    open: &mut Vec<CallId>,
    outputs: &mut BTreeMap<CallId, (usize, Arc<Item>)>,
    until: usize,
    healed: &mut Healed,
) {
    for call in open.drain(..) {
        match outputs.remove(&call) {
            Some((place, output)) => {
                if place >= until {
                    healed.moved.push(call);
                }
                healed.items.push(output);
            }
            None => {
                let output =
                    Output { call: call.clone(), content: LOST.into(), status: OutputStatus::Failed };
                healed.items.push(Arc::new(Item::Output(output)));
                healed.answered.push(call);
            }
        }
    }
}

fn answered_call(item: &Item) -> Option<&CallId> {
    match item {
        Item::Output(output) => Some(&output.call),
        Item::Handoff(handoff) => Some(&handoff.call),
        _ => None,
    }
}
