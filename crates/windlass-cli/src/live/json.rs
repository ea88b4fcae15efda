//! A run for machines: one JSON object for each event.

use serde_json::{Value, json};
use windlass::core::{CallPath, Pending};
use windlass::run::Settlement;
use windlass::{Event, EventKind, Outcome};

/// An event as an object; none for one that this version does not know.
pub(super) fn event(event: &Event) -> Option<Value> {
    let mut value = match &event.kind {
        EventKind::Agent { agent } => json!({ "type": "agent", "agent": agent }),
        EventKind::TextDelta { delta } => json!({ "type": "text", "delta": delta }),
        EventKind::ReasoningDelta { delta } => json!({ "type": "reasoning", "delta": delta }),
        EventKind::ArgumentsDelta { call, delta } => {
            json!({ "type": "arguments", "call": call, "delta": delta })
        }
        EventKind::Item(produced) => {
            json!({ "type": "item", "agent": produced.agent, "item": produced.item })
        }
        EventKind::Held(held) => {
            let mut value = pending(held);
            value["type"] = "held".into();
            return Some(value);
        }
        EventKind::CallStarted { call, tool } => {
            json!({ "type": "call_started", "call": call, "tool": tool.to_string() })
        }
        EventKind::Progress { call, progress } => {
            json!({ "type": "progress", "call": call, "progress": progress })
        }
        EventKind::CallSettled { call, how, output } => {
            json!({ "type": "call_settled", "call": call, "how": how, "output": output.text() })
        }
        EventKind::Warning { message } => json!({ "type": "warning", "message": message }),
        _ => return None,
    };
    value["seq"] = event.seq.into();
    if let Some((call, within)) = event.path.split_last() {
        value["within"] = CallPath::new(within, call.clone()).to_string().into();
    }
    Some(value)
}

/// A call that waits, as an object.
pub(crate) fn pending(pending: &Pending) -> Value {
    json!({
        "call": pending.path.to_string(),
        "agent": pending.agent,
        "tool": pending.tool.to_string(),
        "arguments": pending.value(),
        "reason": pending.reason,
        "digest": pending.digest.to_string(),
        "expires": pending.expires,
    })
}

/// What a run came to, as an object.
pub(super) fn end(status: &str, outcome: &Outcome) -> Value {
    let record = outcome.record();
    let mut value = json!({
        "type": "end",
        "status": status,
        "run": record.run_id(),
        "output": outcome.text(),
        "records": record.journal().len(),
        "usage": record.usage(),
    });
    match outcome {
        Outcome::Paused(paused) => {
            value["pending"] = paused.pending().iter().map(pending).collect();
        }
        Outcome::Cancelled(cancelled) => {
            let Settlement { finished, stopped, in_doubt, draining } = &cancelled.settlement;
            value["calls"] = json!({
                "finished": finished, "stopped": stopped, "in_doubt": in_doubt, "draining": draining,
            });
        }
        Outcome::Finished(_) | Outcome::HandedOver(_) => {}
    }
    value
}
