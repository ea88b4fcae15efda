//! Marks in the outputs of tools: the mark of an output that a guardrail blocked must be nowhere.

use std::collections::{BTreeMap, BTreeSet};

use windlass::core::id::CallPath;

const OPENING: &str = "sealed<";

/// Returns the mark that the outputs of a call have.
pub(crate) fn output_mark(call: &CallPath) -> String {
    format!("{OPENING}{call}>")
}

/// The marks that were seen, and the calls whose outputs were withheld.
#[derive(Default)]
pub(crate) struct WithheldMarks {
    /// The place where the mark of each call was seen first.
    seen: BTreeMap<String, &'static str>,
    withheld: BTreeSet<String>,
}

impl WithheldMarks {
    /// Notes the marks in a text.
    pub(crate) fn note_text(&mut self, place: &'static str, text: &str) {
        let marks = text.split(OPENING).skip(1).filter_map(|rest| rest.split_once('>'));
        for (call, _) in marks {
            self.seen.entry(call.to_owned()).or_insert(place);
        }
    }

    /// Notes that a call settled without its output, because its guardrails blocked it or did not finish.
    pub(crate) fn note_withheld(&mut self, call: String) {
        self.withheld.insert(call);
    }

    /// Returns each call whose withheld output was seen, with the place.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let leaks = self.withheld.iter().filter_map(|call| Some((call, self.seen.get(call)?)));
        leaks.map(|(call, place)| format!("the withheld output of call {call} is in {place}")).collect()
    }
}
