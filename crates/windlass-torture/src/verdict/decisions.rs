//! Decisions: no effect of a gated call without one that stands, and none that is not obeyed.

use std::collections::BTreeMap;
use std::io;

use windlass::core::journal::CallStatus;

use super::{RoundEvidence, TortureVerdict, report_violation};
use crate::decision_log::{LoggedDecision, StandingDecisions};
use crate::outside::{LedgerEffect, OutsideWorld};

type DecisionsByCall = BTreeMap<(String, String), StandingDecisions>;

/// Checks effects and settlements against the decider's own log.
pub(super) fn check_decisions(
    evidence: &RoundEvidence,
    world: &OutsideWorld,
    standing: &DecisionsByCall,
    verdict: &mut TortureVerdict,
) -> io::Result<()> {
    for ((run, call), decisions) in standing {
        for _ in 0..decisions.refused_untaken {
            let what = format!("{run} {call}: a correction was refused before the decision was taken");
            report_violation(&mut verdict.unapproved, "unapproved", what);
        }
        check_obeyed(evidence, (run, call), decisions, verdict);
    }
    let mut effects = world.load_requests()?;
    for run in evidence.orders.keys() {
        effects.extend(world.load_effects(run)?);
    }
    for effect in effects.iter().filter(|effect| effect.tool.starts_with("gated")) {
        let decisions = standing.get(&(effect.run.clone(), effect.call.clone()));
        if !is_approved(evidence, effect, decisions) {
            let what = format!("{effect:?} beside {decisions:?}");
            report_violation(&mut verdict.unapproved, "unapproved", what);
        }
    }
    for effect in effects.iter().filter(|effect| effect.tool == "question") {
        let decisions = standing.get(&(effect.run.clone(), effect.call.clone()));
        if !is_answered(evidence, effect, standing) {
            let what = format!("the answer of {effect:?} is not in {decisions:?}");
            report_violation(&mut verdict.unapproved, "unapproved", what);
        }
    }
    Ok(())
}

/// Returns true if a person gave the answer with which a call acted.
fn is_answered(evidence: &RoundEvidence, effect: &LedgerEffect, standing: &DecisionsByCall) -> bool {
    let is_answer = |decision: &LoggedDecision| matches!(decision, LoggedDecision::Answer { value } if Some(value) == effect.answer.as_ref());
    let of_run = |run: &String| standing.get(&(run.clone(), effect.call.clone()));
    if let Some(decisions) = of_run(&effect.run) {
        return decisions.possible().any(is_answer);
    }
    // A fork inherits the answer that its journal has, also one that was corrected in its origin after that record.
    let journal = evidence.journals.get(&effect.run);
    let recorded = journal.and_then(|journal| journal.calls.get(&effect.call)?.answer.as_ref());
    let mut origins =
        std::iter::successors(Some(&effect.run), |run| evidence.orders.get(*run)?.fork_of.as_ref());
    let given = origins.find_map(of_run);
    recorded == effect.answer.as_ref()
        && given.is_some_and(|given| given.possible().chain(&given.corrected).any(is_answer))
}

fn is_approved(
    evidence: &RoundEvidence,
    effect: &LedgerEffect,
    decisions: Option<&StandingDecisions>,
) -> bool {
    match decisions {
        Some(decisions) => {
            decisions.possible().any(|decision| decision.approved_arguments() == Some(&effect.arguments))
        }
        // A fork inherits the decisions that its journal has.
        None => {
            let is_fork = evidence.orders.get(&effect.run).is_some_and(|order| order.fork_of.is_some());
            // A run that did not finish is counted as such.
            let Some(journal) = evidence.journals.get(&effect.run) else { return is_fork };
            let call = journal.calls.get(&effect.call);
            is_fork && call.is_some_and(|call| call.approvals.last() == Some(&true))
        }
    }
}

/// Checks that a call was not rejected against a standing approval.
fn check_obeyed(
    evidence: &RoundEvidence,
    (run, path): (&str, &str),
    decisions: &StandingDecisions,
    verdict: &mut TortureVerdict,
) {
    let journal = evidence.journals.get(run);
    let Some(call) = journal.and_then(|journal| journal.calls.get(path)) else { return };
    let is_rejected = call.status == Some(CallStatus::Rejected);
    if is_rejected && !decisions.possible().any(|decision| *decision == LoggedDecision::Reject) {
        let what = format!("{run} {path} was rejected beside {decisions:?}");
        report_violation(&mut verdict.unapproved, "unapproved", what);
    }
}
