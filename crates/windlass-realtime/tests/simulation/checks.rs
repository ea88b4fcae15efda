//! What must be so, whatever happened.

use std::collections::{BTreeMap, BTreeSet};

use windlass::Item;
use windlass::core::CallId;
use windlass_realtime::testing::{From, Loopback};
use windlass_realtime::{CloseReport, LiveEvent, LiveItemKind};

/// Since when a watcher watched.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Watched {
    FromTheBeginning,
    Later,
}

/// One message for a trip, one end for a beginning, and an end after which nothing comes.
pub(crate) fn check_events(events: &[LiveEvent], from: Watched) {
    assert!(matches!(events.last(), Some(LiveEvent::Closed(_))), "a watcher was not told of the end");
    let (mut begun, mut tripped, mut settled, mut started) =
        (BTreeSet::new(), BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut current = None;
    for event in events {
        match event {
            LiveEvent::AgentChanged { from, to, .. } => {
                assert!(
                    current.is_none_or(|current| current == from),
                    "a change from an agent that was not current"
                );
                current = Some(to);
            }
            LiveEvent::TurnStarted { response, agent } => {
                assert!(begun.insert(response.clone()), "an answer began twice");
                assert!(
                    current.is_none_or(|current| current == agent),
                    "an answer of an agent that is not current"
                );
                current = Some(agent);
            }
            LiveEvent::TurnEnded { response, .. } => {
                let is_known = from == Watched::Later || begun.contains(response);
                assert!(is_known, "an answer ended that had not begun");
            }
            LiveEvent::GuardrailTripped { response, .. } => {
                assert!(tripped.insert(response.clone()), "two messages for one trip");
            }
            LiveEvent::CallStarted { call, .. } => *started.entry(call.clone()).or_insert(0) += 1,
            LiveEvent::CallSettled { call, .. } => *settled.entry(call.clone()).or_insert(0) += 1,
            LiveEvent::Closed(_) => {}
            _ => {}
        }
    }
    for (call, times) in started {
        assert_eq!((times, settled.get(&call)), (1, Some(&1)), "call `{call}` started and ended");
    }
}

/// Every call that has an output has one, and ids are of one item each.
pub(crate) fn check_report(report: &CloseReport) {
    let ids: BTreeSet<_> = report.history.items().iter().map(|item| &item.id).collect();
    assert_eq!(ids.len(), report.history.items().len(), "two items of one id");
    let mut outputs: BTreeMap<CallId, u32> = BTreeMap::new();
    for item in report.history.items() {
        if let LiveItemKind::Output { call, .. } = &item.kind {
            *outputs.entry(call.clone()).or_default() += 1;
        }
    }
    assert!(outputs.values().all(|count| *count == 1), "{outputs:?}");
    let open = report.history.to_items().iter().fold(BTreeSet::new(), |mut open, item| {
        match item {
            Item::Call(call) => drop(open.insert(call.id.clone())),
            Item::Output(output) => assert!(open.remove(&output.call), "an output before its call"),
            _ => {}
        }
        open
    });
    assert!(open.is_empty(), "{open:?}");
}

/// One answer at a time: one is asked for while another is under way only where the server began that by itself.
pub(crate) fn check_wire(server: &Loopback) {
    let mut active: BTreeMap<u64, bool> = BTreeMap::new();
    for seen in server.seen() {
        match (seen.from, seen.event["type"].as_str()) {
            (From::Server, Some("response.created")) => {
                let is_ours = !seen.event["response"]["metadata"].is_null();
                active.insert(seen.connection, is_ours);
            }
            (From::Client, Some("response.create")) if seen.is_answering => {
                let is_ours = active.get(&seen.connection).copied().unwrap_or_default();
                assert!(!is_ours, "an answer was asked for while one that was asked for is under way");
            }
            _ => {}
        }
    }
}
