//! Invariants that hold after every simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass::core::id::CallId;
use windlass_realtime::testing::{LoopbackServer, find_wire_violations};
use windlass_realtime::{
    CloseReason, CloseReport, RealtimeEntry, RealtimeEvent, RealtimeHistory, RealtimeItemKind,
    ReconnectPolicy, ReplayedSession,
};

/// The time of a subscription.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WatchStart {
    FromStart,
    AfterStart,
}

/// Checks that each trip is reported once, that each start has an end and each end a start, and that nothing follows the
/// last event.
pub(crate) fn check_events(events: &[RealtimeEvent], from: WatchStart) {
    assert!(matches!(events.last(), Some(RealtimeEvent::Closed(_))), "a watcher was not told of the end");
    let (mut begun, mut ended, mut tripped, mut settled, mut started) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
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
                assert!(ended.insert(response.clone()), "an answer ended twice");
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
    // A response that is open when the session is left to another process is asked for again there.
    if events
        .last()
        .is_some_and(|last| matches!(last, RealtimeEvent::Closed(reason) if !is_left_open(reason)))
    {
        let open: Vec<_> = begun.difference(&ended).collect();
        assert!(open.is_empty(), "answers that never ended: {open:?}");
    }
    for (call, times) in started {
        assert_eq!((times, settled.get(&call)), (1, Some(&1)), "call `{call}` started and ended");
    }
}

/// Returns true if the calls of a session are left to the process that resumes it.
fn is_left_open(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::Detached | CloseReason::JournalFailed(_))
}

/// Checks that each call has one output, after the call, unless the report says what became of the call, and that the
/// journal has the same conversation.
pub(crate) fn check_report(report: &CloseReport, entries: &[RealtimeEntry]) {
    let open = open_calls(&report.history);
    let CloseReport { in_doubt, draining, awaiting_decision, .. } = report;
    let known: BTreeSet<&CallId> = in_doubt.iter().chain(draining).chain(awaiting_decision).collect();
    let forgotten: Vec<_> = open.iter().filter(|call| !known.contains(call)).collect();
    assert!(forgotten.is_empty() || is_left_open(&report.reason), "calls without an output: {forgotten:?}");
    let replayed = ReplayedSession::replay(entries).expect("the journal can be read").history;
    let journalled_open = open_calls(&replayed);
    match &report.reason {
        CloseReason::JournalFailed(_) => {}
        CloseReason::Detached => assert_eq!(journalled_open, open, "the journal forgot an output"),
        _ => assert_eq!(replayed, report.history, "the journal has another conversation"),
    }
}

/// Checks that no call has two outputs and that item ids are unique, and returns the calls without an output.
fn open_calls(history: &RealtimeHistory) -> BTreeSet<CallId> {
    let ids: BTreeSet<_> = history.items().iter().map(|item| &item.id).collect();
    assert_eq!(ids.len(), history.items().len(), "two items of one id");
    let mut open = BTreeSet::new();
    for item in history.items() {
        match &item.kind {
            RealtimeItemKind::Call { call, .. } => {
                assert!(open.insert(call.clone()), "two calls of the id `{call}`");
            }
            RealtimeItemKind::Output { call, .. } => {
                assert!(open.remove(call), "a second output of `{call}`, or one before the call");
            }
            _ => {}
        }
    }
    open
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
