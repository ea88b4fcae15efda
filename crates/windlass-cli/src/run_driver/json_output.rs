//! The JSON output of a run: one object per event.

use serde_json::{Value, json};
use windlass::core::{decision::PendingCall, id::CallPath};
use windlass::run::RunSettlement;
use windlass::{
    event::{RunEvent, RunEventKind},
    run::RunResult,
};

/// Converts an event; returns `None` for kinds that this version does not know. The types are the names of
/// [`RunEventKind`] in snake case.
pub(super) fn event_to_json(event: &RunEvent) -> Option<Value> {
    let mut value = match &event.kind {
        RunEventKind::AgentUpdated { agent } => json!({ "type": "agent_updated", "agent": agent }),
        RunEventKind::TextDelta { delta } => json!({ "type": "text_delta", "delta": delta }),
        RunEventKind::ReasoningDelta { delta } => json!({ "type": "reasoning_delta", "delta": delta }),
        RunEventKind::ArgumentsDelta { call, delta } => {
            json!({ "type": "arguments_delta", "call": call, "delta": delta })
        }
        RunEventKind::Item(produced) => {
            json!({ "type": "item", "agent": produced.agent, "item": produced.item })
        }
        RunEventKind::CallHeld(held) => {
            let mut value = pending_to_json(held);
            value["type"] = "call_held".into();
            return Some(value);
        }
        RunEventKind::CallStarted { call, tool } => {
            json!({ "type": "call_started", "call": call, "tool": tool.to_string() })
        }
        RunEventKind::CallProgress { call, progress } => {
            json!({ "type": "call_progress", "call": call, "progress": progress })
        }
        RunEventKind::CallSettled { call, status, output, .. } => {
            json!({ "type": "call_settled", "call": call, "status": status, "output": output.text() })
        }
        RunEventKind::ModelRetryScheduled { error, delay } => {
            json!({ "type": "model_retry_scheduled", "error": error, "delay_ms": delay.as_millis() as u64 })
        }
        RunEventKind::DeltasDiscarded => json!({ "type": "deltas_discarded" }),
        RunEventKind::HistoryCompacted { reason, tokens_before, tokens_after } => json!({
            "type": "history_compacted",
            "reason": reason,
            "tokens_before": tokens_before,
            "tokens_after": tokens_after,
        }),
        RunEventKind::BudgetReached { budget, reaction } => {
            json!({ "type": "budget_reached", "budget": budget, "reaction": reaction })
        }
        RunEventKind::Warning { message } => json!({ "type": "warning", "message": message }),
        _ => return None,
    };
    value["seq"] = event.seq.into();
    if let Some((call, within)) = event.path.split_last() {
        value["within"] = CallPath::new(within, call.clone()).to_string().into();
    }
    Some(value)
}

/// Converts a pending call.
pub(crate) fn pending_to_json(pending: &PendingCall) -> Value {
    json!({
        "call": pending.path.to_string(),
        "agent": pending.agent,
        "tool": pending.tool.to_string(),
        "arguments": pending.arguments_value(),
        "reason": pending.reason,
        "call_digest": pending.digest.to_string(),
        "context_sources": pending.context_sources,
        "expires_at": pending.expires_at,
        "last_driver_seen": pending.last_driver_seen,
        "posted": pending.posted.as_ref().map(|posted| json!({
            "decision": posted.decision,
            "decided_by": posted.decided_by,
            "posted_at": posted.posted_at,
        })),
    })
}

/// Converts the outcome of a run.
pub(super) fn outcome_to_json(status: &str, outcome: &RunResult) -> Value {
    let record = outcome.record();
    let mut value = json!({
        "type": "end",
        "status": status,
        "run": record.run_id(),
        "output": outcome.output_text().ok(),
        "records": record.journal().len(),
        "usage": record.usage(),
    });
    if let Some(reason) = record.finish_reason() {
        value["finish_reason"] = json!(reason);
    }
    match outcome {
        RunResult::Paused(paused) => {
            value["pending"] = paused.pending_calls().iter().map(pending_to_json).collect();
        }
        RunResult::Cancelled(cancelled) => {
            let RunSettlement { finished, stopped, in_doubt, draining } = &cancelled.settlement;
            value["calls"] = json!({
                "finished": finished, "stopped": stopped, "in_doubt": in_doubt, "draining": draining,
            });
        }
        RunResult::Finished(_) | RunResult::Detached(_) => {}
    }
    value
}
