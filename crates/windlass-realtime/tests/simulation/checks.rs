//! Invariants that hold after every simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass::core::id::CallId;
use windlass::core::item::Item;
use windlass_realtime::testing::{LoopbackServer, find_wire_violations};
use windlass_realtime::{CloseReport, RealtimeEvent, RealtimeItemKind, ReconnectPolicy};

/// The time of a subscription.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WatchStart {
    FromStart,
    AfterStart,
}

/// Checks that each trip is reported once, that each end has a start, and that nothing follows the last event.
pub(crate) fn check_events(events: &[RealtimeEvent], from: WatchStart) {
    assert!(matches!(events.last(), Some(RealtimeEvent::Closed(_))), "a watcher was not told of the end");
    let (mut begun, mut tripped, mut settled, mut started) =
        (BTreeSet::new(), BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut current = None;
    for event in events {
        match event {
            RealtimeEvent::AgentChanged { from, to, .. } => {
                assert!(
                    current.is_none_or(|current| current == from),
                    "a change from an agent that was not current"
                );
                current = Some(to);
            }
            RealtimeEvent::TurnStarted { response, agent } => {
                assert!(begun.insert(response.clone()), "an answer began twice");
                assert!(
                    current.is_none_or(|current| current == agent),
                    "an answer of an agent that is not current"
                );
                current = Some(agent);
            }
            RealtimeEvent::TurnEnded { response, .. } => {
                let is_known = from == WatchStart::AfterStart || begun.contains(response);
                assert!(is_known, "an answer ended that had not begun");
            }
            RealtimeEvent::GuardrailTripped { response, .. } => {
                assert!(tripped.insert(response.clone()), "two messages for one trip");
            }
            RealtimeEvent::CallStarted { call, .. } => *started.entry(call.clone()).or_insert(0) += 1,
            RealtimeEvent::CallSettled { call, .. } => *settled.entry(call.clone()).or_insert(0) += 1,
            RealtimeEvent::Closed(_) => {}
            _ => {}
        }
    }
    for (call, times) in started {
        assert_eq!((times, settled.get(&call)), (1, Some(&1)), "call `{call}` started and ended");
    }
}

/// Checks that each call has at most one output and that item ids are unique.
pub(crate) fn check_report(report: &CloseReport) {
    let ids: BTreeSet<_> = report.history.items().iter().map(|item| &item.id).collect();
    assert_eq!(ids.len(), report.history.items().len(), "two items of one id");
    let mut outputs: BTreeMap<CallId, u32> = BTreeMap::new();
    for item in report.history.items() {
        if let RealtimeItemKind::Output { call, .. } = &item.kind {
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

/// Checks the conduct of the sessions on every connection: one output for each call, one response at a time, and no
/// request without a configuration.
pub(crate) fn check_wire(server: &LoopbackServer, has_hidden_responses: bool) {
    assert_eq!(find_wire_violations(&server.wire_log(), has_hidden_responses), Vec::<String>::new());
}

/// Checks that each message has the instructions of the agent that it is attributed to.
pub(crate) fn check_configuration(report: &CloseReport) {
    for item in report.history.items() {
        let (Some(agent), said) = (&item.agent, item.text()) else { continue };
        if said.starts_with("I am ") && said.len() > 20 {
            assert!(said.starts_with(&format!("I am {agent}.")), "`{agent}` said: {said}");
        }
    }
}

/// Checks that a session does not reconnect more often than its policy says.
pub(crate) fn check_connections(count: u64, elapsed: Duration) {
    let policy = ReconnectPolicy::default();
    let windows = elapsed.as_secs() / policy.window.as_secs() + 1;
    let limit = u64::from(policy.max_attempts) * windows + 1;
    assert!(count <= limit, "{count} connections in {elapsed:?}");
}
