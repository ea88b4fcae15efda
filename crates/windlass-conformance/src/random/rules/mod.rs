//! The declared differences, as rules: each one recognises its difference in a scenario and its two outcomes,
//! and removes exactly that difference from them.

use super::pair::OutcomePair;
use crate::compare::{OutcomeDifference, outcome_differences};

mod admission;
mod cancellation;
mod guardrails;
mod history;
mod siblings;

/// A declared difference.
#[derive(Clone, Copy)]
pub struct DifferenceRule {
    /// Reason, as in `docs/differences.md`.
    pub reason: &'static str,
    /// Removes the difference from both outcomes where it occurs.
    pub reconcile: fn(&mut OutcomePair),
}

/// The result of applying all rules to a pair of outcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedPair {
    /// Reasons of the differences that were found.
    pub reasons: Vec<&'static str>,
    /// Differences that no rule explains.
    pub unexplained: Vec<OutcomeDifference>,
    /// True if a rule forgot what came after a fork.
    pub is_forked: bool,
}

/// Applies rules to a pair of outcomes, in order.
pub fn explain_pair(pair: &OutcomePair, rules: &[DifferenceRule]) -> ExplainedPair {
    let mut pair = pair.clone();
    pair.align();
    let mut reasons = Vec::new();
    let mut unexplained = outcome_differences(&pair.reference, &pair.windlass);
    for rule in rules {
        if unexplained.is_empty() {
            break;
        }
        (rule.reconcile)(&mut pair);
        let left = outcome_differences(&pair.reference, &pair.windlass);
        if left != unexplained {
            reasons.push(rule.reason);
            unexplained = left;
        }
    }
    ExplainedPair { reasons, unexplained, is_forked: pair.is_forked }
}

/// The declared differences, and the ties: events at the same instant, whose order is a matter of scheduling.
pub const DECLARED: &[DifferenceRule] = &[
    DifferenceRule { reason: "strict_arguments", reconcile: admission::strict_arguments },
    DifferenceRule { reason: "unusable_not_asked", reconcile: admission::unusable_not_asked },
    DifferenceRule { reason: "rule_is_asked", reconcile: admission::rule_is_asked },
    DifferenceRule { reason: "decision_stands", reconcile: admission::decision_stands },
    DifferenceRule { reason: "no_dangling_calls", reconcile: cancellation::cancelled_pause },
    DifferenceRule {
        reason: "cancelled_before_end_hook",
        reconcile: cancellation::cancelled_before_end_hook,
    },
    DifferenceRule { reason: "cancelled_at_handoff", reconcile: cancellation::cancelled_at_handoff },
    DifferenceRule { reason: "failure_before_cancel", reconcile: cancellation::failure_before_cancel },
    DifferenceRule { reason: "cancel_at_first_event", reconcile: cancellation::cancel_at_first_event },
    DifferenceRule {
        reason: "resumes_with_output_guardrails",
        reconcile: admission::resumes_with_output_guardrails,
    },
    DifferenceRule { reason: "decided_by_path", reconcile: admission::decided_by_path },
    DifferenceRule {
        reason: "nested_failure_not_asked_again",
        reconcile: admission::nested_failure_not_asked_again,
    },
    DifferenceRule { reason: "failure_before_guardrail", reconcile: guardrails::failure_before_guardrail },
    DifferenceRule {
        reason: "failed_guardrail_keeps_input",
        reconcile: guardrails::failed_guardrail_keeps_input,
    },
    DifferenceRule { reason: "guards_first", reconcile: guardrails::guards_first },
    DifferenceRule { reason: "guards_first", reconcile: guardrails::nested_guards_first },
    DifferenceRule { reason: "failed_guard_refuses", reconcile: guardrails::failed_guard_refuses },
    DifferenceRule { reason: "ids_per_run", reconcile: history::ids_per_run },
    DifferenceRule { reason: "reused_id_refused", reconcile: history::reused_id_refused },
    DifferenceRule { reason: "enabled_before_body", reconcile: siblings::enabled_before_body },
    DifferenceRule { reason: "limit_covers_nested", reconcile: siblings::limit_covers_nested },
    DifferenceRule { reason: "no_start_after_failure", reconcile: siblings::no_start_after_failure },
    DifferenceRule { reason: "earlier_siblings_run_on", reconcile: siblings::earlier_siblings_run_on },
    DifferenceRule { reason: "withheld_output_kept", reconcile: siblings::withheld_output_kept },
    DifferenceRule { reason: "started_calls_kept", reconcile: siblings::started_calls_kept },
    DifferenceRule { reason: "tie", reconcile: siblings::timeout_tie },
    DifferenceRule { reason: "nested_approved_alone", reconcile: admission::nested_approved_alone },
    DifferenceRule { reason: "surplus_handoff_first", reconcile: admission::surplus_handoff_first },
    DifferenceRule { reason: "whole_turns", reconcile: history::whole_turns },
    DifferenceRule { reason: "done_work_kept", reconcile: history::done_work_kept },
    DifferenceRule { reason: "refused_call_kept", reconcile: history::refused_call_kept },
    DifferenceRule { reason: "no_dangling_calls", reconcile: history::no_dangling_calls },
];
