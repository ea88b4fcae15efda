//! Sessions: each has every message, call and output of its runs, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass::core::id::SessionId;
use windlass::core::item::Item;
use windlass::session::SessionStore;

use super::journal::JournalCall;
use super::{RoundEvidence, TortureVerdict, report_violation};
use crate::decision_log::{LoggedDecision, StandingDecisions};
use crate::order::RunOrder;

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

/// Compares each session with the orders of its runs and with their journals.
pub(super) async fn check_sessions(
    evidence: &RoundEvidence,
    store: &dyn SessionStore,
    standing: &BTreeMap<(String, String), StandingDecisions>,
    verdict: &mut TortureVerdict,
) -> Result<(), String> {
    let mut sessions: BTreeMap<&str, Vec<&RunOrder>> = BTreeMap::new();
    for order in evidence.orders.values() {
        if let Some(session) = &order.session {
            sessions.entry(session).or_default().push(order);
        }
    }
    for (session, orders) in sessions {
        let state = store.load_session(&SessionId::new(session)).await;
        let items = CountedItems::count(&state.map_err(|error| error.to_string())?.items);
        for order in orders {
            // A run that did not finish is counted as such.
            let Some(journal) = evidence.journals.get(&order.run) else { continue };
            for message in [order.user_message(), order.final_message()] {
                let count = items.messages.get(&message).copied().unwrap_or_default();
                if count != 1 {
                    let what = format!("{session} has {count} times {message:?}");
                    report_violation(&mut verdict.forgotten, "forgotten", what);
                }
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
