//! Transfers: one for each operation and generation, under a key that is not handed out again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use windlass::core::journal::CallStatus;
use windlass::tool::ReceiptScope;

use super::effects::{ToolKind, check_recorded, is_inherited, tool_kind};
use super::journal::{JournalCall, RunJournal};
use super::{RoundEvidence, TortureVerdict, report_violation};
use crate::order::RunOrder;
use crate::outside::{BankTransfer, FenceRule, LedgerEffect, OutsideEvent, OutsideWorld};
use crate::tools::{RECEIPT_EXPIRY, operation_name};

/// Largest error of the distance between two times of transfers.
const CLOCK_RESOLUTION: Duration = Duration::from_millis(20);

/// Checks the bank's book and the requests to it.
pub(super) fn check_transfers(
    evidence: &RoundEvidence,
    world: &OutsideWorld,
    verdict: &mut TortureVerdict,
) -> io::Result<()> {
    let transfers = world.load_transfers()?;
    let requests = world.load_requests()?;
    let mut by_operation: BTreeMap<&str, u64> = BTreeMap::new();
    let mut expiring = BTreeSet::new();
    for transfer in &transfers {
        *by_operation.entry(&transfer.operation).or_default() += 1;
        if transfer.tool == "expiring_key" {
            expiring.insert(transfer.operation.as_str());
        }
    }
    let steady_until = match world.fence_rule() {
        FenceRule::Ignore => world.first_clock_step()?.unwrap_or(Duration::MAX),
        // A frozen process may make a transfer late, under the key of a receipt that has expired since.
        FenceRule::RefuseStale => Duration::ZERO,
    };
    for (operation, count) in by_operation.iter().filter(|(_, count)| **count > 1) {
        // An operation takes place again, under another key, when its receipt has expired.
        if expiring.contains(operation) && !is_repeated_early(&transfers, operation, steady_until) {
            verdict.expired_receipts += count - 1;
            continue;
        }
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
        check_recorded(request, evidence, verdict);
    }
    for (call, keys) in keys_by_call.iter().filter(|(_, keys)| keys.len() > 1) {
        report_violation(&mut verdict.twice, "twice", format!("{call:?} was asked for under {keys:?}"));
    }
    for (key, operations) in operations_by_key.iter().filter(|(_, operations)| operations.len() > 1) {
        let what = format!("key {key} stands for {operations:?}");
        report_violation(&mut verdict.twice, "twice", what);
    }
    // A frozen process may hand over late what it was handed before it froze.
    if world.fence_rule() == FenceRule::Ignore {
        check_handed_out(evidence, &world.load_events()?, verdict);
    }
    let keys: BTreeSet<&str> = transfers.iter().map(|transfer| transfer.key.as_str()).collect();
    for (run, journal) in &evidence.journals {
        let Some(order) = evidence.orders.get(run) else { continue };
        // A call that was under way when its run was forked has one key in both, and whoever asks first makes the transfer.
        let is_forked = evidence.orders.values().any(|other| other.fork_of.as_ref() == Some(run));
        let shared_keys = if is_forked || order.fork_of.is_some() { &keys } else { &BTreeSet::new() };
        check_paid(order, journal, &by_operation, shared_keys, verdict);
    }
    Ok(())
}

/// Returns true if an operation took place again before its receipt can have expired, at a time up to which all wall clocks
/// were right.
fn is_repeated_early(transfers: &[BankTransfer], operation: &str, steady_until: Duration) -> bool {
    let times =
        transfers.iter().filter(|transfer| transfer.operation == operation).map(|transfer| transfer.at);
    let mut times: Vec<Duration> = times.filter(|at| *at < steady_until).collect();
    times.sort();
    times.windows(2).any(|pair| pair[1] - pair[0] + CLOCK_RESOLUTION < RECEIPT_EXPIRY)
}

/// Checks that no key is handed out again after a call has succeeded under it and its run has gone on: until the receipt
/// expires it answers all identical calls, and then the generation of the key is another one.
fn check_handed_out(evidence: &RoundEvidence, events: &[OutsideEvent], verdict: &mut TortureVerdict) {
    let mut requests: BTreeMap<&str, Vec<&LedgerEffect>> = BTreeMap::new();
    let mut receipts: BTreeMap<&str, &LedgerEffect> = BTreeMap::new();
    for event in events {
        match event {
            OutsideEvent::TurnBegun { run, turn, .. } => {
                // The receipt is written with the settlement, before the run goes on, whoever drives it then.
                let is_settled =
                    |request: &&&LedgerEffect| request.run == *run && root_turn(&request.call) < *turn;
                for request in requests.values().flatten().filter(is_settled) {
                    let call = evidence.find_call(run, &request.call);
                    if call.is_some_and(|call| call.status == Some(CallStatus::Succeeded)) {
                        receipts.entry(&request.key).or_insert(request);
                    }
                }
            }
            OutsideEvent::Request(request) => {
                let earlier = requests.entry(&request.key).or_default();
                let is_first = !earlier.iter().any(|other| is_same_call(other, request));
                earlier.push(request);
                if let Some(receipt) = receipts.get(request.key.as_str())
                    && is_first
                    && !is_recorded_earlier(evidence, request)
                {
                    let what =
                        format!("key {} of {receipt:?} was handed out again: {request:?}", request.key);
                    report_violation(&mut verdict.twice, "twice", what);
                }
            }
        }
    }
}

fn is_same_call(one: &LedgerEffect, other: &LedgerEffect) -> bool {
    (&one.run, &one.call) == (&other.run, &other.call)
}

/// Returns true if an earlier driver had started the call: it keeps the key that was recorded then.
fn is_recorded_earlier(evidence: &RoundEvidence, request: &LedgerEffect) -> bool {
    let Some(order) = evidence.orders.get(&request.run) else { return true };
    let call = evidence.find_call(&request.run, &request.call);
    is_inherited(evidence, order, request) || call.is_none_or(|call| call.first_epoch < request.fence)
}

/// Returns the turn of the outermost agent in which a call was made. Call ids are `run.agent.t1c0`.
fn root_turn(path: &str) -> u32 {
    let outermost = path.split('/').next().unwrap_or_default();
    let place = outermost.rsplit_once(".t").and_then(|(_, place)| place.split_once('c'));
    place.and_then(|(turn, _)| turn.parse().ok()).unwrap_or(u32::MAX)
}

/// Checks that each successful idempotent call of a run has its operation in the book.
fn check_paid(
    order: &RunOrder,
    journal: &RunJournal,
    operations: &BTreeMap<&str, u64>,
    shared_keys: &BTreeSet<&str>,
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
        // A call that a receipt answered has no key: its twin of the same run, which left the receipt, has one.
        let is_twin = |other: &&JournalCall| {
            (&other.agent, &other.tool) == (&call.agent, &call.tool)
                && other.edited.as_ref().unwrap_or(&other.arguments) == arguments
        };
        let is_deduplicated = call.status == Some(CallStatus::Deduplicated);
        let twins = journal.calls.values().filter(|_| is_deduplicated).filter(is_twin);
        let has_shared_key = std::iter::once(call)
            .chain(twins)
            .flat_map(|call| &call.keys)
            .any(|key| shared_keys.contains(key.as_str()));
        let is_paid = has_shared_key
            || std::iter::once(operation).chain(inherited).any(|name| operations.contains_key(name.as_str()));
        if !is_paid {
            report_violation(&mut verdict.lost, "lost", format!("{} {path}: {call:?}", order.run));
        }
    }
}

fn request_operation(order: &RunOrder, request: &LedgerEffect) -> String {
    let scope = match tool_kind(&request.tool) {
        ToolKind::Idempotent(scope) => scope,
        ToolKind::Once | ToolKind::WithoutEffect => ReceiptScope::Call,
    };
    operation_name(order, scope, &request.agent, &request.tool, &request.arguments)
}
