//! Invariants of a client's conduct, checked on the recorded events of a server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::server::{WireRecord, WireSender};

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
    /// True if the client requested the active response.
    is_response_requested: bool,
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
/// - no response is requested while one is active that the client requested.
///
/// Events that faults hid from the client are not known here: leave out the last rule with
/// `has_hidden_responses` if starts or ends of responses were dropped or delayed.
pub fn find_wire_violations(log: &[WireRecord], has_hidden_responses: bool) -> Vec<String> {
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
            (WireSender::Server, "response.created") => {
                conduct.is_response_requested = !event["response"]["metadata"].is_null();
            }
            (WireSender::Server, "conversation.item.added" | "conversation.item.done") => {
                let item = text(&event["item"]["id"]);
                conduct.open_outputs.retain(|_, output| output.item != item);
            }
            (WireSender::Server, "error") => conduct.record_error(&event["error"]),
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
            (WireSender::Client, "response.create") if event["response"]["conversation"] != "none" => {
                if !conduct.is_configured {
                    report("a response was requested without a configuration".to_owned());
                }
                if record.is_responding && conduct.is_response_requested && !has_hidden_responses {
                    report("a response was requested while a requested one was active".to_owned());
                }
            }
            _ => {}
        }
    }
    violations
}

impl ConnectionConduct {
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
