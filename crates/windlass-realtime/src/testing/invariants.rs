//! Invariants of a client's conduct, checked on the recorded events of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::server::{WireRecord, WireSender};

/// Time after which a client has read the start of a response that it did not request.
const READ_TIME: Duration = Duration::from_secs(1);
/// Time in which a client waits for the start of a response that it requested. Sessions wait longer than this.
const START_TIME: Duration = Duration::from_secs(9);

/// The client's conduct on one connection, as far as it was read.
#[derive(Default)]
struct ConnectionConduct {
    /// Number of calls by the provider's id: made by the model or replayed by the client.
    calls: BTreeMap<String, u32>,
    /// Responses and items of the calls that the model made.
    call_items: BTreeSet<(String, String)>,
    /// Number of outputs by call id, without those that the server rejected.
    outputs: BTreeMap<String, u32>,
    /// Outputs that the server has neither announced nor rejected, by the id of the client's event.
    open_outputs: BTreeMap<String, SentOutput>,
    is_configured: bool,
    /// The responses whose start the client was sent.
    starts: BTreeMap<String, AnnouncedStart>,
    /// The time of the client's request that was neither met nor rejected.
    open_request: Option<Instant>,
    /// The responses that the client has cancelled.
    cancelled: BTreeSet<String>,
}

/// The start of a response that the client was sent.
struct AnnouncedStart {
    at: Instant,
    is_requested: bool,
}

/// An output that a client sent.
struct SentOutput {
    call: String,
    item: String,
}

/// Checks the recorded events of a server, and returns the violations of these rules:
///
/// - a call has at most one output on a connection, apart from outputs that the server rejected, or may have rejected: an
///   error without an event id may be about any output that is not announced yet;
/// - no output is sent for a call that the connection does not have;
/// - no response is requested before the server has acknowledged a configuration on that connection;
/// - no response is requested while one is active whose start the client was sent, and which it has not cancelled: at once
///   if the client had requested it, and after a second if the server started it by itself;
/// - no response is requested while an earlier request is open.
///
/// A start that a fault hides from the client is not in the record, and one that a fault delays is in it when it is sent.
pub fn find_wire_violations(log: &[WireRecord]) -> Vec<String> {
    let mut connections: BTreeMap<u64, ConnectionConduct> = BTreeMap::new();
    let mut violations = Vec::new();
    for record in log {
        let conduct = connections.entry(record.connection).or_default();
        let (event, number) = (&record.event, record.connection);
        let kind = event["type"].as_str().unwrap_or_default();
        let mut report = |message: String| violations.push(format!("connection {number}: {message}"));
        match (record.sender, kind) {
            (WireSender::Server, "response.output_item.done") => {
                conduct.call_items.insert((text(&event["response_id"]), text(&event["item"]["id"])));
                conduct.record_call(&event["item"]);
            }
            // A call whose own event was lost is known from the end of its response.
            (WireSender::Server, "response.done") => {
                let response = &event["response"];
                for item in response["output"].as_array().into_iter().flatten() {
                    if conduct.call_items.insert((text(&response["id"]), text(&item["id"]))) {
                        conduct.record_call(item);
                    }
                }
            }
            (WireSender::Server, "session.updated") => conduct.is_configured = true,
            (WireSender::Server, "response.created") => conduct.record_start(record.at, &event["response"]),
            (WireSender::Server, "conversation.item.added" | "conversation.item.done") => {
                let item = text(&event["item"]["id"]);
                conduct.open_outputs.retain(|_, output| output.item != item);
            }
            (WireSender::Server, "error") => {
                // It may be about the request.
                conduct.open_request = None;
                conduct.record_error(&event["error"]);
            }
            (WireSender::Client, "conversation.item.create") => {
                let item = &event["item"];
                conduct.record_call(item);
                if item["type"] == "function_call_output" {
                    let call = text(&item["call_id"]);
                    *conduct.outputs.entry(call.clone()).or_default() += 1;
                    let output = SentOutput { call: call.clone(), item: text(&item["id"]) };
                    conduct.open_outputs.insert(text(&event["event_id"]), output);
                    let calls = conduct.calls.get(&call).copied().unwrap_or_default();
                    let outputs = conduct.outputs.get(&call).copied().unwrap_or_default();
                    if outputs > calls {
                        report(format!("{outputs} outputs for {calls} calls with the id `{call}`"));
                    }
                }
            }
            (WireSender::Client, "response.cancel") => {
                let named = event["response_id"].as_str().map(str::to_owned);
                conduct.cancelled.extend(named.or(record.active_response.clone()));
            }
            (WireSender::Client, "response.create") if event["response"]["conversation"] != "none" => {
                if !conduct.is_configured {
                    report("a response was requested without a configuration".to_owned());
                }
                if let Some(active) = &record.active_response
                    && let Some(reason) = conduct.active_violation(active, record.at)
                {
                    report(format!("a response was requested while `{active}` was active, {reason}"));
                }
                conduct.open_request = Some(record.at);
            }
            _ => {}
        }
    }
    violations
}

/// Returns the largest number of connections in a row on which the server acknowledged no configuration.
pub fn count_unacknowledged_connections(log: &[WireRecord]) -> u64 {
    let mut acknowledged: BTreeMap<u64, bool> = BTreeMap::new();
    for record in log {
        let is_it = record.sender == WireSender::Server && record.event["type"] == "session.updated";
        *acknowledged.entry(record.connection).or_default() |= is_it;
    }
    let (mut longest, mut current) = (0, 0);
    for is_acknowledged in acknowledged.into_values() {
        current = if is_acknowledged { 0 } else { current + 1 };
        longest = longest.max(current);
    }
    longest
}

impl ConnectionConduct {
    fn record_start(&mut self, at: Instant, response: &Value) {
        let is_side = response.get("conversation_id").is_some_and(Value::is_null);
        if is_side {
            return;
        }
        // An error without an event id may have told the client that its request was refused.
        let is_requested = !response["metadata"].is_null() && self.open_request.take().is_some();
        self.starts.entry(text(&response["id"])).or_insert(AnnouncedStart { at, is_requested });
    }

    /// Returns the reason for which no response may be requested while this one is active.
    fn active_violation(&self, active: &str, now: Instant) -> Option<&'static str> {
        if self.cancelled.contains(active) {
            return None;
        }
        match self.starts.get(active) {
            Some(AnnouncedStart { is_requested: true, .. }) => Some("which the client had requested"),
            Some(AnnouncedStart { at, .. }) => {
                (now.duration_since(*at) >= READ_TIME).then_some("whose start the client had been sent")
            }
            None => {
                let is_open = self.open_request.is_some_and(|at| now.duration_since(at) < START_TIME);
                is_open.then_some("and an earlier request was open")
            }
        }
    }

    fn record_call(&mut self, item: &Value) {
        if item["type"] == "function_call" {
            *self.calls.entry(text(&item["call_id"])).or_default() += 1;
        }
    }

    fn record_error(&mut self, error: &Value) {
        let rejected = match error["event_id"].as_str() {
            Some(command) => self.open_outputs.remove(command).into_iter().collect(),
            None => std::mem::take(&mut self.open_outputs).into_values().collect::<Vec<_>>(),
        };
        for SentOutput { call, .. } in rejected {
            if let Some(outputs) = self.outputs.get_mut(&call) {
                *outputs = outputs.saturating_sub(1);
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
