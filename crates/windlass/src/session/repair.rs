//! Repair of imported transcripts: calls without outputs, outputs without calls, and duplicates. Providers
//! reject such histories, so they are repaired on import, and the repairs are reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_core::{
    id::CallId,
    item::{CallOutput, Item, OutputStatus},
};

/// A repaired transcript and the list of repairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RepairedTranscript {
    /// The transcript, valid for a provider.
    pub items: Vec<Arc<Item>>,
    /// Calls without an output, which were given one that says so.
    pub answered_calls: Vec<CallId>,
    /// Outputs without a call, which were removed.
    pub orphaned_outputs: Vec<CallId>,
    /// Duplicate calls and outputs, of which the first was kept.
    pub duplicates: Vec<CallId>,
    /// Outputs that were moved from later in the conversation to their calls.
    pub moved_outputs: Vec<CallId>,
}

impl RepairedTranscript {
    /// True if there was nothing to repair.
    pub fn was_valid(&self) -> bool {
        self.answered_calls.is_empty()
            && self.orphaned_outputs.is_empty()
            && self.duplicates.is_empty()
            && self.moved_outputs.is_empty()
    }
}

/// Text that replaces an output that is missing in an imported transcript.
const LOST_OUTPUT_TEXT: &str = "The output of this call was not kept.";

/// Makes a transcript valid: every call has exactly one output, before the conversation continues.
pub fn repair_transcript(items: Vec<Arc<Item>>) -> RepairedTranscript {
    let mut healed = RepairedTranscript::default();
    let mut outputs: BTreeMap<CallId, (usize, Arc<Item>)> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Some(call) = answered_call(item) {
            if outputs.contains_key(call) {
                healed.duplicates.push(call.clone());
            } else {
                outputs.insert(call.clone(), (place, item.clone()));
            }
        }
    }
    let mut seen: BTreeMap<CallId, ()> = BTreeMap::new();
    let mut open: Vec<CallId> = Vec::new();
    for (place, item) in items.iter().enumerate() {
        match &**item {
            Item::Call(call) if seen.contains_key(&call.id) => healed.duplicates.push(call.id.clone()),
            Item::Call(call) => {
                seen.insert(call.id.clone(), ());
                open.push(call.id.clone());
                healed.items.push(item.clone());
            }
            Item::Output(_) | Item::Handoff(_) => {}
            Item::Reasoning(_) if !open.is_empty() => healed.items.push(item.clone()),
            _ => {
                close_open_calls(&mut open, &mut outputs, place, &mut healed);
                healed.items.push(item.clone());
            }
        }
        let is_last_of_answer =
            !items.get(place + 1).is_some_and(|next| matches!(**next, Item::Call(_) | Item::Reasoning(_)));
        if matches!(**item, Item::Call(_)) && is_last_of_answer {
            // Outputs are placed directly after their calls; the items in between follow.
            let next_stop = items[place + 1..].iter().position(|later| answered_call(later).is_none());
            let until = next_stop.map_or(items.len(), |distance| place + 1 + distance);
            close_open_calls(&mut open, &mut outputs, until, &mut healed);
        }
    }
    close_open_calls(&mut open, &mut outputs, items.len(), &mut healed);
    healed.orphaned_outputs.extend(outputs.into_keys());
    healed
}

/// Appends the output of every open call. Outputs at position `until` or later are counted as moved.
fn close_open_calls(
    open: &mut Vec<CallId>,
    outputs: &mut BTreeMap<CallId, (usize, Arc<Item>)>,
    until: usize,
    healed: &mut RepairedTranscript,
) {
    for call in open.drain(..) {
        match outputs.remove(&call) {
            Some((place, output)) => {
                if place >= until {
                    healed.moved_outputs.push(call);
                }
                healed.items.push(output);
            }
            None => {
                let output = CallOutput {
                    call: call.clone(),
                    content: LOST_OUTPUT_TEXT.into(),
                    status: OutputStatus::Failed,
                    sources: Default::default(),
                };
                healed.items.push(Arc::new(Item::Output(output)));
                healed.answered_calls.push(call);
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
