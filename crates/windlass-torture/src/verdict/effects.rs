//! Effects: none twice, none lost, none under the key of another operation.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use windlass::core::journal::CallStatus;
use windlass::tool::ReceiptScope;

use super::journal::{JournalCall, RunJournal};
use super::{RoundEvidence, TortureVerdict, report_violation};
use crate::order::RunOrder;
use crate::outside::{LedgerEffect, OutsideWorld};
use crate::tools::operation_name;

/// The kind of a tool, as the oracle knows it.
enum ToolKind {
    Once,
    Idempotent(ReceiptScope),
    WithoutEffect,
}

fn tool_kind(tool: &str) -> ToolKind {
    match tool {
        "once" | "asked" | "guarded" | "gated" | "question" | "legacy" => ToolKind::Once,
        "key" | "gated_key" => ToolKind::Idempotent(ReceiptScope::Run),
        "session_key" => ToolKind::Idempotent(ReceiptScope::Session),
        "store_key" => ToolKind::Idempotent(ReceiptScope::Store),
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
        let journal = evidence.journals.get(run).and_then(|journal| journal.calls.get(call));
        check_recorded(&effects[0], journal, verdict);
    }
    for (key, effects) in &mut by_key {
        // A call that waited for an answer when its run was forked had started: the fork answers it under the same key.
        effects.retain(|effect| {
            let order = evidence.orders.get(&effect.run);
            let is_inherited = order.is_some_and(|order| is_inherited(evidence, order, effect));
            effect.tool != "question" || !is_inherited
        });
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
fn check_recorded(effect: &LedgerEffect, call: Option<&JournalCall>, verdict: &mut TortureVerdict) {
    let Some(call) = call else { return };
    if call.keys.iter().any(|key| *key != effect.key) {
        let what = format!("{} {} has the keys {:?} beside {effect:?}", effect.run, effect.call, call.keys);
        report_violation(&mut verdict.twice, "twice", what);
    }
    let denies = match &call.status {
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

/// Checks the bank's book and the requests to it.
pub(super) fn check_transfers(
    evidence: &RoundEvidence,
    world: &OutsideWorld,
    verdict: &mut TortureVerdict,
) -> io::Result<()> {
    let transfers = world.load_transfers()?;
    let requests = world.load_requests()?;
    let mut by_operation: BTreeMap<&str, u64> = BTreeMap::new();
    for transfer in &transfers {
        *by_operation.entry(&transfer.operation).or_default() += 1;
    }
    for (operation, count) in by_operation.iter().filter(|(_, count)| **count > 1) {
        let keys: Vec<_> = transfers.iter().filter(|transfer| transfer.operation == *operation).collect();
        report_violation(&mut verdict.twice, "twice", format!("{count} transfers of {operation}: {keys:?}"));
    }
    let mut keys_by_call: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut operations_by_key: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for request in &requests {
        keys_by_call.entry((&request.run, &request.call)).or_default().insert(&request.key);
        let Some(order) = evidence.orders.get(&request.run) else { continue };
        if !is_inherited(evidence, order, request) {
            operations_by_key.entry(&request.key).or_default().insert(request_operation(order, request));
        }
        let call = evidence.journals.get(&request.run).and_then(|journal| journal.calls.get(&request.call));
        check_recorded(request, call, verdict);
    }
    for (call, keys) in keys_by_call.iter().filter(|(_, keys)| keys.len() > 1) {
        report_violation(&mut verdict.twice, "twice", format!("{call:?} was asked for under {keys:?}"));
    }
    for (key, operations) in operations_by_key.iter().filter(|(_, operations)| operations.len() > 1) {
        let what = format!("key {key} stands for {operations:?}");
        report_violation(&mut verdict.twice, "twice", what);
    }
    let keys: BTreeSet<&str> = transfers.iter().map(|transfer| transfer.key.as_str()).collect();
    for (run, journal) in &evidence.journals {
        let Some(order) = evidence.orders.get(run) else { continue };
        check_paid(order, journal, &by_operation, &keys, verdict);
    }
    Ok(())
}

/// Checks that each successful idempotent call of a run has its operation in the book.
fn check_paid(
    order: &RunOrder,
    journal: &RunJournal,
    operations: &BTreeMap<&str, u64>,
    keys: &BTreeSet<&str>,
    verdict: &mut TortureVerdict,
) {
    for (path, call) in &journal.calls {
        let ToolKind::Idempotent(scope) = tool_kind(&call.tool) else { continue };
        if !call.status.as_ref().is_some_and(CallStatus::is_success) {
            continue;
        }
        let arguments = call.edited.as_ref().unwrap_or(&call.arguments);
        let operation = operation_name(order, scope, &call.agent, &call.tool, arguments);
        // The calls that a fork has inherited were made by its origin.
        let origin = order.fork_of.iter().map(|origin| RunOrder { run: origin.clone(), ..order.clone() });
        let inherited =
            origin.map(|origin| operation_name(&origin, scope, &call.agent, &call.tool, arguments));
        let is_paid =
            std::iter::once(operation).chain(inherited).any(|name| operations.contains_key(name.as_str()))
                || (order.fork_of.is_some() && call.keys.iter().any(|key| keys.contains(key.as_str())));
        if !is_paid {
            report_violation(&mut verdict.lost, "lost", format!("{} {path}: {call:?}", order.run));
        }
    }
}

/// Returns true if a fork repeats a call that was under way in its origin, with the origin's key.
fn is_inherited(evidence: &RoundEvidence, order: &RunOrder, request: &LedgerEffect) -> bool {
    let origin = order.fork_of.as_ref().and_then(|origin| evidence.journals.get(origin));
    let call = origin.and_then(|journal| journal.calls.get(&request.call));
    call.is_some_and(|call| call.keys.contains(&request.key))
}

fn request_operation(order: &RunOrder, request: &LedgerEffect) -> String {
    let scope = match tool_kind(&request.tool) {
        ToolKind::Idempotent(scope) => scope,
        ToolKind::Once | ToolKind::WithoutEffect => ReceiptScope::Call,
    };
    operation_name(order, scope, &request.agent, &request.tool, &request.arguments)
}
