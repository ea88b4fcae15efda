//! Sessions: each has every message, call and output of its runs, once, in order, and one run at a time appends.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass::core::id::SessionId;
use windlass::core::item::Item;
use windlass_sim::check_history;

use super::journal::{JournalCall, RunJournal};
use super::{RoundEvidence, TortureVerdict, report_violation};
use crate::decision_log::{LoggedDecision, StandingDecisions};
use crate::order::{RunOrder, TURN_COUNT};
use crate::outside::FenceRule;
use crate::plant::ProcessStore;
use crate::session_edits::SessionEdits;

/// The items of a session, counted.
#[derive(Default)]
struct CountedItems {
    messages: BTreeMap<String, u64>,
    calls: BTreeMap<String, u64>,
    outputs: BTreeMap<String, Vec<String>>,
}

impl CountedItems {
    fn count(items: &[Arc<Item>]) -> Self {
        let mut counted = Self::default();
        for item in items {
            match &**item {
                Item::Message(message) => *counted.messages.entry(message.text()).or_default() += 1,
                Item::Call(call) => *counted.calls.entry(call.id.to_string()).or_default() += 1,
                Item::Output(output) => counted
                    .outputs
                    .entry(output.call.to_string())
                    .or_default()
                    .push(output.content.text().into_owned()),
                _ => {}
            }
        }
        counted
    }
}

/// The places of the items in a session. What is there twice is counted elsewhere.
#[derive(Default)]
struct ItemPlaces {
    messages: BTreeMap<String, usize>,
    calls: BTreeMap<String, usize>,
    outputs: BTreeMap<String, usize>,
}

impl ItemPlaces {
    fn find(items: &[Arc<Item>]) -> Self {
        let mut places = Self::default();
        for (place, item) in items.iter().enumerate() {
            match &**item {
                Item::Message(message) => places.messages.insert(message.text(), place),
                Item::Call(call) => places.calls.insert(call.id.to_string(), place),
                Item::Output(output) => places.outputs.insert(output.call.to_string(), place),
                _ => None,
            };
        }
        places
    }

    /// Returns the places of the parts of a run that are appended at once: its message, its turns, and its last words.
    /// Returns `None` if an item is missing.
    fn parts_of(&self, order: &RunOrder) -> Option<Vec<Vec<usize>>> {
        let message = |text: String| self.messages.get(&text).map(|place| vec![*place]);
        let mut parts = vec![message(order.user_message())?];
        for turn in 1..=TURN_COUNT {
            let calls = order.calls_of_turn(order.agent_name(), turn);
            let calls_of = |places: &BTreeMap<String, usize>| {
                calls.iter().map(|call| places.get(&call.id).copied()).collect::<Option<Vec<_>>>()
            };
            parts.push([calls_of(&self.calls)?, calls_of(&self.outputs)?].concat());
        }
        parts.push(message(order.final_message())?);
        Some(parts)
    }

    /// Describes the items of a run that are out of order, and, if sessions are held by whoever appends, the items of other
    /// runs among those that one driver appended.
    fn misplaced_items(&self, order: &RunOrder, journal: &RunJournal, is_held: bool) -> Vec<String> {
        let mut misplaced = Vec::new();
        let added: Vec<usize> =
            journal.added_inputs.keys().filter_map(|text| self.messages.get(text).copied()).collect();
        let Some(parts) = self.parts_of(order) else { return misplaced };
        if !parts.concat().is_sorted() {
            misplaced.push(format!("the items of {} are out of order: {parts:?}", order.run));
        }
        // The epoch in which all bodies of a turn started, if it is one.
        let epoch = |turn: usize| {
            let calls = u32::try_from(turn)
                .map(|turn| order.calls_of_turn(order.agent_name(), turn))
                .unwrap_or_default();
            let calls = calls.iter().filter_map(|call| journal.calls.get(&call.id));
            let mut epochs =
                calls.flat_map(|call| [call.first_epoch, call.last_epoch]).filter(|epoch| *epoch > 0);
            let first = epochs.next()?;
            epochs.all(|epoch| epoch == first).then_some(first)
        };
        for part in 1..parts.len() - 1 {
            // A part is appended with the response after it. If one driver started bodies before and after, it held the session
            // all the time. The first driver appends the message.
            let before = if part == 1 { Some(1) } else { epoch(part - 1) };
            let is_one_driver = before.is_some() && before == epoch(part) && before == epoch(part + 1);
            let (last, first) = (parts[part - 1].last(), parts[part].first());
            // Input that was added to the run comes between its turns.
            let is_foreign = |place: usize| !added.contains(&place);
            let is_apart = last.zip(first).is_some_and(|(last, first)| (last + 1..*first).any(is_foreign));
            if is_held && is_one_driver && is_apart {
                misplaced.push(format!("another run appended while {} held it: {parts:?}", order.run));
            }
        }
        misplaced
    }
}

/// Compares each session with the orders of its runs and with their journals.
pub(super) async fn check_sessions(
    evidence: &RoundEvidence,
    (stores, edits): (&ProcessStore, &SessionEdits),
    (fence_rule, standing): (FenceRule, &BTreeMap<(String, String), StandingDecisions>),
    verdict: &mut TortureVerdict,
) -> Result<(), String> {
    let mut sessions: BTreeMap<&str, Vec<&RunOrder>> = BTreeMap::new();
    for order in evidence.orders.values() {
        if let Some(session) = &order.session {
            sessions.entry(session).or_default().push(order);
        }
    }
    for (session, orders) in sessions {
        let state = stores.sessions_of(session).load_session(&SessionId::new(session)).await;
        let state = state.map_err(|error| error.to_string())?;
        if let Err(violation) = check_history(&state.items) {
            report_violation(&mut verdict.forgotten, "forgotten", format!("{session}: {violation}"));
        }
        let whole = match edits.restore(session, &state.items) {
            Ok(whole) => whole,
            Err(reason) => {
                report_violation(&mut verdict.forgotten, "forgotten", format!("{session}: {reason}"));
                continue;
            }
        };
        let places = ItemPlaces::find(&whole);
        let items = CountedItems::count(&whole);
        for order in orders {
            // A run that did not finish is counted as such.
            let Some(journal) = evidence.journals.get(&order.run) else { continue };
            let own = [order.user_message(), order.final_message()];
            for message in own.iter().chain(journal.added_inputs.keys()) {
                let count = items.messages.get(message).copied().unwrap_or_default();
                if count != 1 {
                    let what = format!("{session} has {count} times {message:?}");
                    report_violation(&mut verdict.forgotten, "forgotten", what);
                }
            }
            // A process that was frozen for longer than its lease goes on after the runs that did not wait for it.
            let is_held = fence_rule == FenceRule::Ignore;
            for what in places.misplaced_items(order, journal, is_held) {
                report_violation(&mut verdict.forgotten, "forgotten", format!("{session}: {what}"));
            }
            for call in order.own_calls() {
                let journal_call = journal.calls.get(&call.id);
                let decisions = standing.get(&(order.run.clone(), call.id.clone()));
                check_call(session, &call.id, &items, journal_call, decisions, verdict);
            }
        }
    }
    Ok(())
}

fn check_call(
    session: &str,
    call: &str,
    items: &CountedItems,
    journal: Option<&JournalCall>,
    decisions: Option<&StandingDecisions>,
    verdict: &mut TortureVerdict,
) {
    let count = items.calls.get(call).copied().unwrap_or_default();
    let outputs = items.outputs.get(call).map(Vec::as_slice).unwrap_or_default();
    let Some(journal) = journal else {
        return report_violation(&mut verdict.forgotten, "forgotten", format!("{call} is in no journal"));
    };
    if count != 1 || outputs.len() != 1 {
        let what = format!("{session} has {call} {count} times with the outputs {outputs:?}: {journal:?}");
        return report_violation(&mut verdict.forgotten, "forgotten", what);
    }
    if outputs[0] != journal.output {
        let what = format!("{session} has {:?} for {call}, and the journal {:?}", outputs[0], journal.output);
        return report_violation(&mut verdict.forgotten, "forgotten", what);
    }
    let answers =
        decisions.into_iter().flat_map(StandingDecisions::possible).filter_map(|decision| match decision {
            LoggedDecision::Answer { value } => Some(value.to_string()),
            _ => None,
        });
    let answers: Vec<String> = answers.collect();
    let is_done = journal.status == Some(windlass::core::journal::CallStatus::Succeeded);
    if is_done && !answers.is_empty() && !answers.iter().any(|answer| outputs[0].contains(answer.as_str())) {
        let what = format!("{session} has {:?} for {call}, and none of {answers:?}", outputs[0]);
        report_violation(&mut verdict.forgotten, "forgotten", what);
    }
}
