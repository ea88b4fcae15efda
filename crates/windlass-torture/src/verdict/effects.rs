//! Effects: none twice, none lost, none under the key of another operation.

use std::collections::BTreeMap;
use std::io;

use windlass::core::journal::CallStatus;
use windlass::tool::ReceiptScope;

use super::journal::JournalCall;
use super::{RoundEvidence, TortureVerdict, report_violation};
use crate::order::RunOrder;
use crate::outside::{LedgerEffect, OutsideWorld};

/// The kind of a tool, as the oracle knows it.
pub(super) enum ToolKind {
    Once,
    Idempotent(ReceiptScope),
    WithoutEffect,
}

pub(super) fn tool_kind(tool: &str) -> ToolKind {
    match tool {
        "once" | "asked" | "guarded" | "gated" | "question" | "legacy" => ToolKind::Once,
        "key" | "gated_key" => ToolKind::Idempotent(ReceiptScope::Run),
        "session_key" => ToolKind::Idempotent(ReceiptScope::Session),
        "store_key" | "expiring_key" => ToolKind::Idempotent(ReceiptScope::Store),
        _ => ToolKind::WithoutEffect,
    }
}

/// Checks the ledger of calls that happen once.
pub(super) fn check_effects(
    evidence: &RoundEvidence,
    world: &OutsideWorld,
    verdict: &mut TortureVerdict,
) -> io::Result<()> {
    let mut by_key: BTreeMap<String, Vec<LedgerEffect>> = BTreeMap::new();
    let mut by_call: BTreeMap<(String, String), Vec<LedgerEffect>> = BTreeMap::new();
    for run in evidence.orders.keys() {
        for effect in world.load_effects(run)? {
            by_key.entry(effect.key.clone()).or_default().push(effect.clone());
            by_call.entry((effect.run.clone(), effect.call.clone())).or_default().push(effect);
        }
    }
    for ((run, call), effects) in &by_call {
        let is_repeated = effects.len() > 1;
        if is_repeated {
            let what = format!("{run} {call} has {} effects: {effects:?}", effects.len());
            report_violation(&mut verdict.twice, "twice", what);
        }
        check_recorded(&effects[0], evidence, verdict);
    }
    for (key, effects) in &by_key {
        let is_of_first =
            |effect: &LedgerEffect| (&effect.run, &effect.call) == (&effects[0].run, &effects[0].call);
        if !effects.iter().all(is_of_first) {
            report_violation(&mut verdict.twice, "twice", format!("key {key} has effects {effects:?}"));
        }
    }
    for (run, journal) in &evidence.journals {
        for (path, call) in &journal.calls {
            let is_done = matches!(call.status, Some(CallStatus::Succeeded | CallStatus::Reconciled));
            if !is_done || !matches!(tool_kind(&call.tool), ToolKind::Once) {
                continue;
            }
            let has_effect = call.keys.iter().any(|key| by_key.contains_key(key));
            if !has_effect {
                report_violation(&mut verdict.lost, "lost", format!("{run} {path}: {call:?}"));
            }
        }
    }
    Ok(())
}

/// Checks that the journal knows of an effect: its start, its key, and no settlement that denies it.
pub(super) fn check_recorded(effect: &LedgerEffect, evidence: &RoundEvidence, verdict: &mut TortureVerdict) {
    let Some(call) = evidence.find_call(&effect.run, &effect.call) else { return };
    // A call that was under way when its run was forked has the key of the origin, and one of the fork if it runs again
    // although the first had no effect.
    let origin = evidence.orders.get(&effect.run).and_then(|order| order.fork_of.as_ref());
    let inherited = origin.and_then(|origin| evidence.find_call(origin, &effect.call));
    let is_inherited = |key: &String| inherited.is_some_and(|call| call.keys.contains(key));
    if !is_inherited(&effect.key) && call.keys.iter().any(|key| *key != effect.key && !is_inherited(key)) {
        let what = format!("{} {} has the keys {:?} beside {effect:?}", effect.run, effect.call, call.keys);
        report_violation(&mut verdict.twice, "twice", what);
    }
    let is_cancelled = evidence.journals.get(&effect.run).is_some_and(|journal| journal.is_cancelled);
    let denies = match &call.status {
        // A call that had started when its run was stopped may have had its effect before. The run has to say so.
        Some(CallStatus::Cancelled) | None if is_cancelled => {
            call.first_epoch == 0 || !is_left_open(evidence, effect, call)
        }
        Some(
            CallStatus::InvalidArguments
            | CallStatus::UnknownTool
            | CallStatus::SurplusHandoff
            | CallStatus::Rejected
            | CallStatus::BlockedByGuardrail
            | CallStatus::Cancelled,
        ) => true,
        // An idempotent call that was interrupted may find the receipt of its twin, under the same key.
        Some(CallStatus::Deduplicated) => matches!(tool_kind(&effect.tool), ToolKind::Once),
        Some(
            CallStatus::Succeeded
            | CallStatus::Failed
            | CallStatus::TimedOut
            | CallStatus::TimedOutStillRunning
            | CallStatus::OutputWithheld
            | CallStatus::Reconciled
            | CallStatus::OutcomeUnknown,
        )
        | None => false,
    };
    if denies || call.keys.is_empty() {
        let what = format!("the journal denies {effect:?}: {call:?}");
        report_violation(&mut verdict.twice, "twice", what);
    }
}

/// Returns true if the history of a cancelled run leaves open that a call took effect: the output of the call, if it has one of
/// its own, and that of the outermost call do not say that nothing happened.
fn is_left_open(evidence: &RoundEvidence, effect: &LedgerEffect, call: &JournalCall) -> bool {
    let leaves_open = |text: &str| {
        text.contains("it is not known whether it took effect") || text.contains("The call was executed.")
    };
    let outermost = effect.call.split('/').next().unwrap_or_default();
    let journal = evidence.journals.get(&effect.run);
    let shown = journal.and_then(|journal| journal.final_outputs.get(outermost));
    let is_settled = call.status.is_some();
    (!is_settled || leaves_open(&call.output)) && shown.is_some_and(|text| leaves_open(text))
}

/// Returns true if a fork repeats a call that was under way in its origin, with the origin's key.
pub(super) fn is_inherited(evidence: &RoundEvidence, order: &RunOrder, request: &LedgerEffect) -> bool {
    let call = order.fork_of.as_ref().and_then(|origin| evidence.find_call(origin, &request.call));
    call.is_some_and(|call| call.keys.contains(&request.key))
}
