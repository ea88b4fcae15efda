//! Invariants that hold after every simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass::core::id::CallId;
use windlass_realtime::testing::{
    LoopbackServer, WireRecord, WireSender, count_unacknowledged_connections, find_wire_violations,
};
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
pub(crate) fn check_wire(server: &LoopbackServer) {
    let log = server.wire_log();
    let violations = find_wire_violations(&log);
    assert!(violations.is_empty(), "{violations:#?}\n{}", describe_responses(&log));
}

/// Describes the events about responses, and the errors, for the message of a failed check.
fn describe_responses(log: &[WireRecord]) -> String {
    let Some(first) = log.first().map(|seen| seen.at) else { return String::new() };
    let is_about = |seen: &&WireRecord| {
        let kind = seen.event["type"].as_str().unwrap_or_default();
        matches!(kind, "response.create" | "response.cancel" | "response.created" | "response.done" | "error")
            || kind.starts_with("session.")
    };
    let line = |seen: &WireRecord| {
        let WireRecord { connection, sender, event, active_response, at } = seen;
        format!(
            "{connection} {:>9.3?} {sender:?} {} {} {} {} active {active_response:?}\n",
            at.saturating_duration_since(first),
            event["type"],
            event["response"]["id"],
            event["response"]["metadata"],
            event["error"],
        )
    };
    log.iter().filter(is_about).map(line).collect()
}

/// Checks that each message has the instructions of the agent that it is attributed to. If starts of responses are hidden,
/// one that the server made by itself may arrive after the acknowledgement of a later configuration: then requested
/// responses are checked.
pub(crate) fn check_configuration(server: &LoopbackServer, report: &CloseReport, has_hidden_responses: bool) {
    let log = server.wire_log();
    let is_start =
        |seen: &&WireRecord| seen.sender == WireSender::Server && seen.event["type"] == "response.created";
    let unrequested: BTreeSet<&str> = log
        .iter()
        .filter(is_start)
        .filter(|seen| seen.event["response"]["metadata"].is_null())
        .filter_map(|seen| seen.event["response"]["id"].as_str())
        .collect();
    for item in report.history.items() {
        let (Some(agent), Some(response), said) = (&item.agent, &item.response, item.text()) else {
            continue;
        };
        let wire_id = response.as_str().split('.').next().unwrap_or_default();
        let is_exempt = has_hidden_responses && unrequested.contains(wire_id);
        if !is_exempt && said.starts_with("I am ") && said.len() > 20 {
            assert!(said.starts_with(&format!("I am {agent}.")), "`{agent}` said: {said}");
        }
    }
}

/// Checks that each response request has a cause, and that a cause has at most three requests, apart from those that the
/// server refused because of another response. Causes are inputs and requests of the application, outputs, follow-ups of
/// guardrails, cancelled responses and lost connections.
pub(crate) fn check_requests(server: &LoopbackServer, inputs: u64) {
    let log = server.wire_log();
    let (mut items, mut requests, mut others) = (BTreeSet::new(), 0, 0);
    for seen in &log {
        let item = &seen.event["item"];
        match (seen.sender, seen.event["type"].as_str().unwrap_or_default()) {
            (WireSender::Client, "conversation.item.create") => {
                let is_follow_up = item["content"][0]["text"]
                    .as_str()
                    .is_some_and(|text| text.starts_with("guardrail triggered"));
                if is_follow_up || item["type"] == "function_call_output" {
                    items.insert(item["id"].as_str().unwrap_or_default().to_owned());
                }
            }
            (WireSender::Client, "response.create") if seen.event["response"]["conversation"] != "none" => {
                requests += 1;
            }
            (WireSender::Client, "response.cancel") => others += 1,
            (WireSender::Server, "error")
                if seen.event["error"]["code"] == "conversation_already_has_active_response" =>
            {
                requests -= 1;
            }
            _ => {}
        }
    }
    let causes = inputs + items.len() as u64 + others + server.connection_count();
    let limit = i64::try_from(3 * causes).unwrap_or(i64::MAX);
    assert!(requests <= limit, "{requests} requests for {causes} causes");
}

/// Checks that a model that only calls is not asked for ever: the rounds of calls without an input are limited. The start of a process counts as one.
pub(crate) fn check_call_rounds(entries: &[RealtimeEntry], inputs: u64, limit: u64) {
    let planned = entries.iter().filter_map(|entry| match entry {
        RealtimeEntry::CallsPlanned { response, .. } => Some(response),
        _ => None,
    });
    let rounds = planned.collect::<BTreeSet<_>>().len() as u64;
    assert!(rounds <= limit * inputs, "{rounds} rounds of calls for {inputs} inputs");
}

/// Checks that a session does not reconnect more often than its policy says, and that it gives up on a server that
/// acknowledges no configuration. `first` is its first connection.
pub(crate) fn check_connections(server: &LoopbackServer, first: u64, elapsed: Duration) {
    let count = server.connection_count() - first;
    let log: Vec<WireRecord> = server.wire_log().into_iter().filter(|seen| seen.connection > first).collect();
    let unacknowledged = count_unacknowledged_connections(&log);
    let limit = u64::from(ReconnectPolicy::default().max_attempts);
    assert!(unacknowledged <= limit, "{unacknowledged} connections in a row without a configuration");
    let policy = ReconnectPolicy::default();
    let windows = elapsed.as_secs() / policy.window.as_secs() + 1;
    let limit = u64::from(policy.max_attempts) * windows + 1;
    assert!(count <= limit, "{count} connections in {elapsed:?}");
}
