//! Random walks: each requested action is carried out in some legal way, and the invariants are checked after
//! every step.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::bench::{RunBench, describe_next, model_response, ready_calls, run_started, test_key};
use crate::run::{
    ApprovalRequirement, CallEffect, CallFeatures, CallProgress, CallReport, CallResult,
    OutputCandidateSource, ReconcileReport, Run, RunAction,
};
use crate::{
    canonical::Digest,
    decision::{Decision, DecisionScope, HoldReason, PendingCall, PersonQuestion},
    failure::RunFailure,
    history::cut_places,
    id::CallId,
    inspect,
    item::{Item, Role},
    journal::{
        CallEndedLate, CallHeld, CallSettled, CallStatus, CompactionReason, DecisionRecorded,
        DecisionRevoked, FilteredInput, HandoffRecorded, HistoryCompacted, InputAdded, JournalEntry,
        ModelInputFiltered, ModelRequestFailed, OutputRejected, RunCancelled, RunFailed, RunFinished,
        ToolUsePolicyKind, decode_journal, encode_journal,
    },
    plan::{BodyKind, CallDisposition},
    tool::{ToolEffect, ToolKey},
};

const TOOL_NAMES: [&str; 12] = [
    "look",
    "print",
    "transfer",
    "send",
    "pay",
    "post",
    "sign",
    "books",
    "audited_books",
    "to_billing",
    "to_desk",
    "nothing",
];

/// A source of choices: a list of random numbers, followed by zeros.
struct ChoiceSource<'a> {
    numbers_left: &'a [u32],
}

impl ChoiceSource<'_> {
    fn next_below(&mut self, limit: usize) -> usize {
        match self.numbers_left.split_first() {
            Some((first, rest)) => {
                self.numbers_left = rest;
                *first as usize % limit.max(1)
            }
            None => 0,
        }
    }

    fn has_numbers_left(&self) -> bool {
        !self.numbers_left.is_empty()
    }
}

type WalkOptions = Vec<(Vec<CallId>, JournalEntry)>;

/// Returns every entry that a driver could record now.
fn possible_entries(
    run: &Run,
    path: &[CallId],
    choices: &mut ChoiceSource<'_>,
    next_id: &mut u32,
) -> WalkOptions {
    let mut found = WalkOptions::new();
    let mut add = |entry| found.push((path.to_vec(), entry));
    let fail = |failure| JournalEntry::RunFailed(RunFailed::new(failure));
    match run.next() {
        RunAction::RequestModel { agent, .. } => {
            let failed = ModelRequestFailed {
                requested: Default::default(),
                agent,
                error: "busy".to_owned(),
                retry_after_ms: Some(1),
                usage: None,
                active_ms: 0,
            };
            let filtered = |history: &[Arc<Item>]| {
                let kept = FilteredInput::History { from: 0, to: history.len() };
                JournalEntry::ModelInputFiltered(ModelInputFiltered {
                    agent: run.agent().clone(),
                    instructions: Some("Be brief.".to_owned()),
                    input: vec![kept, FilteredInput::Item(Arc::new(Item::user("in short")))],
                })
            };
            let compacted = |history: &[Arc<Item>]| {
                let kept = cut_places(history).last().copied().unwrap_or(history.len());
                JournalEntry::HistoryCompacted(HistoryCompacted {
                    agent: run.agent().clone(),
                    reason: CompactionReason::NearContextWindow,
                    history: vec![
                        FilteredInput::Item(Arc::new(Item::user("in short"))),
                        FilteredInput::History { from: kept, to: history.len() },
                    ],
                    tokens_before: 9,
                    tokens_after: 5,
                    summary_usage: None,
                    learned_window: None,
                })
            };
            add(match choices.next_below(11) {
                10 => compacted(run.history()),
                0 => JournalEntry::ModelRequestFailed(failed),
                9 => filtered(run.history()),
                1 => model_response(run, vec![Item::assistant("said")], ToolUsePolicyKind::RunModelAgain),
                _ => random_response(run, choices, next_id),
            });
        }
        RunAction::MaxTurnsReached { max_turns } => {
            add(fail(RunFailure::MaxTurnsExceeded { max_turns }));
            let message = Some(Arc::new(Item::assistant("handled")));
            add(JournalEntry::RunFinished(RunFinished { output: "handled".to_owned(), message }));
        }
        RunAction::AdvanceCalls => {
            for call in ready_calls(run) {
                found.extend(possible_call_entries(run, path, &call, choices, next_id));
            }
        }
        RunAction::HandOff { call, to, .. } => {
            add(JournalEntry::HandoffRecorded(HandoffRecorded {
                call: call.clone(),
                to: to.clone(),
                filtered_history: None,
            }));
            let history = Some(vec![Arc::new(Item::user("in short"))]);
            let declined = CallSettled::new(call.clone(), CallStatus::UnknownTool, "it is switched off");
            add(JournalEntry::HandoffRecorded(HandoffRecorded { call, to, filtered_history: history }));
            add(JournalEntry::CallSettled(declined));
        }
        RunAction::EvaluateResults { .. } => {
            add(JournalEntry::TurnContinued);
            add(JournalEntry::RunFinished(RunFinished { output: "judged".to_owned(), message: None }));
        }
        RunAction::Cancel => add(JournalEntry::RunCancelled(RunCancelled::default())),
        RunAction::Finish(candidate) => {
            let candidate_source = candidate.source;
            add(JournalEntry::RunFinished(RunFinished { output: candidate.output, message: None }));
            add(fail(RunFailure::OutputGuardrailTripped { guardrail: "g".to_owned() }));
            add(fail(RunFailure::InvalidOutput { message: "no".to_owned() }));
            if candidate_source == OutputCandidateSource::Message {
                let correction = Arc::new(Item::user("again"));
                add(JournalEntry::OutputRejected(OutputRejected { correction }));
            }
        }
        RunAction::Fail(failure) => add(fail(failure)),
        RunAction::Pause(_) | RunAction::Leave | RunAction::Ended => {}
    }
    found
}

/// Creates a response with up to four calls of random tools.
fn random_response(run: &Run, choices: &mut ChoiceSource<'_>, next_id: &mut u32) -> JournalEntry {
    let mut items = vec![Item::assistant("first")];
    for _ in 0..=choices.next_below(4) {
        let tool = TOOL_NAMES[choices.next_below(TOOL_NAMES.len())];
        *next_id += 1;
        let arguments = if choices.next_below(8) == 0 { "{" } else { "{}" };
        items.push(Item::call(format!("k{next_id}"), tool, arguments));
    }
    let after = match choices.next_below(6) {
        0 => ToolUsePolicyKind::StopOnFirstTool,
        1 => ToolUsePolicyKind::StopAtTools(vec!["print".to_owned()]),
        2 => ToolUsePolicyKind::CustomFunction,
        _ => ToolUsePolicyKind::RunModelAgain,
    };
    model_response(run, items, after)
}

fn possible_call_entries(
    run: &Run,
    path: &[CallId],
    call: &CallId,
    choices: &mut ChoiceSource<'_>,
    next_id: &mut u32,
) -> WalkOptions {
    let settle = |how| JournalEntry::CallSettled(CallSettled::new(call.clone(), how, "given"));
    let held = |reason| JournalEntry::CallHeld(CallHeld::new(call.clone(), reason));
    let ask = || held(HoldReason::Question(PersonQuestion::new("Which?")));
    let withhold = |how| CallResult::new(how, "given").body_ended_entry(call);
    let mut progress = CallProgress::new(CallFeatures::default());
    let is_running = run.is_call_running(call);
    let mut entries = Vec::new();
    if choices.next_below(20) == 0 && run.withheld_output(call).is_none() {
        entries.push(settle(CallStatus::Cancelled));
    }
    match run.next_effect(call, &progress) {
        CallEffect::EvaluateApprovalRule { .. } => {
            entries.push(held(HoldReason::Approval));
            progress.report(CallReport::ApprovalRule(ApprovalRequirement::NotRequired));
            let CallEffect::Start(runnable) = run.next_effect(call, &progress) else {
                panic!("call {call} needs no decision")
            };
            entries.push(runnable.start_entry(0, || test_key(runnable.call().as_str(), None)));
        }
        CallEffect::Hold(reason) => entries.push(held(reason)),
        CallEffect::RunBody(runnable) => {
            assert_eq!(runnable.body(), BodyKind::Agent, "a body runs after its start");
            let inside: Vec<CallId> = path.iter().cloned().chain([call.clone()]).collect();
            match run.nested_run(call) {
                None => {
                    let started = run_started("run-1/inside", "clerk");
                    return vec![(inside, JournalEntry::RunStarted(started.into()))];
                }
                Some(child) if child.outcome().is_none() => {
                    return possible_entries(child, &inside, choices, next_id);
                }
                Some(_) => {
                    entries = vec![
                        settle(CallStatus::Succeeded),
                        settle(CallStatus::Failed),
                        withhold(CallStatus::Succeeded),
                    ];
                }
            }
        }
        CallEffect::Start(runnable) => {
            entries.push(runnable.start_entry(0, || test_key(runnable.call().as_str(), None)));
            if is_running {
                entries.extend([
                    settle(CallStatus::Succeeded),
                    settle(CallStatus::Failed),
                    settle(CallStatus::TimedOut),
                    withhold(CallStatus::Succeeded),
                    ask(),
                ]);
            } else if choices.next_below(10) == 0 {
                entries.push(settle(CallStatus::BlockedByGuardrail));
                entries.push(withhold(CallStatus::Deduplicated));
            }
        }
        CallEffect::ReportInvalidArguments { .. } => entries.push(settle(CallStatus::InvalidArguments)),
        CallEffect::Settle(result) => {
            let CallResult { status, output, run_failure } = result;
            let settled = CallSettled::new(call.clone(), status, output);
            entries.push(JournalEntry::CallSettled(CallSettled { run_failure, ..settled }));
        }
        CallEffect::Reconcile => {
            entries.extend([
                settle(CallStatus::Succeeded),
                settle(CallStatus::TimedOutStillRunning),
                settle(CallStatus::Reconciled),
                withhold(CallStatus::Failed),
                withhold(CallStatus::Reconciled),
                held(HoldReason::InDoubt),
                ask(),
            ]);
            progress.report(CallReport::Reconciled(ReconcileReport::NotExecuted));
            let CallEffect::Start(runnable) = run.next_effect(call, &progress) else {
                panic!("call {call} was not executed")
            };
            entries.push(runnable.start_entry(0, || test_key(runnable.call().as_str(), None)));
        }
        CallEffect::RunOutputGuardrails { status, output: None } => {
            entries.extend([settle(status), settle(CallStatus::OutputWithheld)]);
            let failure = RunFailure::ToolOutputGuardrailTripped {
                guardrail: "g".to_owned(),
                tool: "t".to_owned(),
                call: call.clone(),
            };
            let settled = CallSettled::new(call.clone(), CallStatus::OutputWithheld, "blocked");
            if choices.next_below(5) == 0 {
                let run_failure = Some(Box::new(failure));
                entries.push(JournalEntry::CallSettled(CallSettled { run_failure, ..settled }));
            }
        }
        other => panic!("call {call} begins with {other:?}"),
    }
    entries.into_iter().map(|entry| (path.to_vec(), entry)).collect()
}

/// Returns every decision that applies to a held call.
fn possible_decisions(pending: &PendingCall) -> WalkOptions {
    let (call, digest) = (pending.call().clone(), pending.digest);
    let decided = |decision, reach| {
        let decided = DecisionRecorded {
            call: call.clone(),
            digest,
            decision,
            scope: reach,
            decided_by: Some("ann".to_owned()),
            displayed: None,
            posted_revision: 0,
            signature: None,
            mac: None,
        };
        (pending.path.parent_calls().to_vec(), JournalEntry::DecisionRecorded(decided))
    };
    match &pending.reason {
        HoldReason::Approval => vec![
            decided(Decision::Approve, DecisionScope::ThisCall),
            decided(Decision::Approve, pending.max_approval_scope),
            decided(
                Decision::ApproveEdited { arguments: "{\"edited\":true}".to_owned() },
                DecisionScope::ThisCall,
            ),
            decided(Decision::Reject { message: None }, DecisionScope::ThisCall),
            decided(Decision::Reject { message: Some("no".to_owned()) }, DecisionScope::ToolForRun),
        ],
        HoldReason::InDoubt => vec![
            decided(Decision::ConfirmExecuted { output: "it did".into() }, DecisionScope::ThisCall),
            decided(Decision::ConfirmNotExecuted, DecisionScope::ThisCall),
            decided(Decision::OutcomeUnknown, DecisionScope::ThisCall),
        ],
        HoldReason::Question(_) => vec![
            decided(Decision::Answer { value: "this".into() }, DecisionScope::ThisCall),
            decided(Decision::Reject { message: None }, DecisionScope::ThisCall),
        ],
    }
}

/// Returns entries that can arrive at any time.
fn external_entries() -> Vec<JournalEntry> {
    vec![
        JournalEntry::InputAdded(InputAdded { items: vec![Arc::new(Item::user("more"))], order: None }),
        JournalEntry::DecisionRevoked(DecisionRevoked {
            agent: "desk".into(),
            tool: ToolKey::bare("pay"),
            mac: None,
        }),
        JournalEntry::RunCancelled(RunCancelled::default()),
        JournalEntry::RunFailed(RunFailed::new(RunFailure::ModelRequestFailed {
            message: "gone".to_owned(),
        })),
        JournalEntry::RunFailed(RunFailed::new(RunFailure::InputGuardrailTripped {
            guardrail: "g".to_owned(),
        })),
        JournalEntry::CallEndedLate(CallEndedLate {
            call: "k1".into(),
            status: CallStatus::Failed,
            output: None,
        }),
    ]
}

/// An independent record of each call's state, kept without the state machine.
#[derive(Default)]
struct InvariantChecker {
    calls: BTreeMap<(Vec<CallId>, CallId), ObservedCall>,
}

struct ObservedCall {
    effect: Option<ToolEffect>,
    attempts: u32,
    is_waiting: bool,
    last_decision: Option<Decision>,
    /// The status with which the body ended, if its output is withheld.
    ended: Option<CallStatus>,
    is_settled: bool,
}

impl InvariantChecker {
    fn observe(&mut self, path: &[CallId], entry: &JournalEntry) {
        let key = |call: &CallId| (path.to_vec(), call.clone());
        match entry {
            JournalEntry::ModelResponded(answered) => {
                for planned in &answered.calls {
                    let effect = match planned.disposition {
                        CallDisposition::Execute { body: BodyKind::Function, effect, .. } => Some(effect),
                        _ => None,
                    };
                    let seen = ObservedCall {
                        effect,
                        attempts: 0,
                        is_waiting: false,
                        last_decision: None,
                        ended: None,
                        is_settled: false,
                    };
                    assert!(self.calls.insert(key(&planned.call), seen).is_none(), "a call id is used once");
                }
            }
            JournalEntry::CallHeld(held) => {
                let seen = self.calls.get_mut(&key(&held.call)).expect("it was planned");
                assert!(!seen.is_settled && !seen.is_waiting && seen.ended.is_none());
                (seen.is_waiting, seen.last_decision) = (true, None);
            }
            JournalEntry::DecisionRecorded(decided) => {
                let seen = self.calls.get_mut(&key(&decided.call)).expect("it was planned");
                (seen.is_waiting, seen.last_decision) = (false, Some(decided.decision.clone()));
                if decided.scope == DecisionScope::ToolForRun {
                    // A standing decision also covers siblings. The checker does not know their tools, so it
                    // stops expecting them to wait.
                    self.calls
                        .iter_mut()
                        .filter(|((at, _), _)| at == path)
                        .for_each(|(_, seen)| seen.is_waiting = false);
                }
            }
            JournalEntry::CallStarted(started) => {
                let seen = self.calls.get_mut(&key(&started.call)).expect("it was planned");
                assert!(
                    !seen.is_settled && !seen.is_waiting && seen.ended.is_none(),
                    "call {} may not start",
                    started.call
                );
                assert!(!matches!(
                    seen.last_decision,
                    Some(
                        Decision::Reject { .. } | Decision::ConfirmExecuted { .. } | Decision::OutcomeUnknown
                    )
                ));
                seen.attempts += 1;
                assert_eq!(seen.attempts, started.attempt);
                seen.last_decision = None;
            }
            JournalEntry::CallBodyEnded(ended) => {
                let seen = self.calls.get_mut(&key(&ended.call)).expect("it was planned");
                assert!(!seen.is_settled && !seen.is_waiting);
                let before = seen.ended.replace(ended.status.clone());
                assert_eq!(before, None, "the body of call {} ended twice", ended.call);
            }
            JournalEntry::CallSettled(settled) => {
                let seen = self.calls.get_mut(&key(&settled.call)).expect("it was planned");
                assert!(
                    !std::mem::replace(&mut seen.is_settled, true),
                    "call {} has two outputs",
                    settled.call
                );
                match &seen.ended {
                    Some(ended) => {
                        assert!(settled.status == *ended || settled.status == CallStatus::OutputWithheld)
                    }
                    None => assert_ne!(settled.status, CallStatus::OutputWithheld),
                }
            }
            _ => {}
        }
    }

    /// Asserts that asking what a call needs changes nothing, and that an at-most-once call is offered again only after
    /// it was confirmed as not executed or its question was answered.
    fn check_offered_calls(&self, run: &Run, path: &[CallId]) {
        if run.next() != RunAction::AdvanceCalls {
            return;
        }
        for call in ready_calls(run) {
            let progress = CallProgress::new(CallFeatures::default());
            let effect = run.next_effect(&call, &progress);
            assert_eq!(run.next_effect(&call, &progress), effect, "asking changes nothing");
            let seen = &self.calls[&(path.to_vec(), call.clone())];
            assert!(!seen.is_waiting && !seen.is_settled);
            let is_checked = matches!(effect, CallEffect::RunOutputGuardrails { .. });
            assert_eq!(seen.ended.is_some(), is_checked, "call {call}: {effect:?}");
            let CallEffect::Start(runnable) = &effect else { continue };
            assert_eq!((runnable.call(), runnable.attempt()), (&call, seen.attempts + 1));
            assert!(!matches!(seen.last_decision, Some(Decision::Reject { .. })), "call {call} was rejected");
            if seen.effect == Some(ToolEffect::Once) && seen.attempts > 0 {
                let may_again = matches!(
                    seen.last_decision,
                    Some(Decision::ConfirmNotExecuted | Decision::Answer { .. })
                );
                assert!(may_again, "call {call} would run twice after {:?}", seen.last_decision);
            }
        }
    }
}

/// Asserts that every call has one output after it, in the order of the calls.
fn check_history(items: &[Arc<Item>]) {
    let mut open = std::collections::VecDeque::new();
    for item in items {
        match &**item {
            Item::Call(call) => open.push_back(call.id.clone()),
            Item::Output(output) => assert_eq!(open.pop_front().as_ref(), Some(&output.call)),
            Item::Handoff(handoff) => assert_eq!(open.pop_front().as_ref(), Some(&handoff.call)),
            Item::Message(message) if message.role == Role::User => {
                assert!(open.is_empty(), "{open:?} is open");
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} has no output");
}

fn check_invariants(bench: &RunBench, witness: &InvariantChecker) {
    let mut runs = vec![(Vec::new(), &bench.run)];
    while let Some((path, run)) = runs.pop() {
        if run.is_between_turns() {
            check_history(run.history());
        }
        witness.check_offered_calls(run, &path);
        match run.next() {
            RunAction::Pause(pending) => {
                assert!(!pending.is_empty(), "a pause without a question never ends")
            }
            RunAction::AdvanceCalls => assert!(!ready_calls(run).is_empty(), "somebody can begin"),
            RunAction::Ended => {
                assert!(
                    run.outcome().is_some()
                        && run.pending_calls().is_empty()
                        && run.unsettled_calls().is_empty()
                );
            }
            RunAction::RequestModel { .. }
            | RunAction::MaxTurnsReached { .. }
            | RunAction::HandOff { .. }
            | RunAction::EvaluateResults { .. }
            | RunAction::Finish(_)
            | RunAction::Cancel
            | RunAction::Fail(_) => {}
            RunAction::Leave => panic!("nobody asked the run to stop"),
        }
        for call in run.unsettled_calls() {
            if let Some(child) = run.nested_run(&call) {
                runs.push((path.iter().cloned().chain([call]).collect(), child));
            }
        }
    }
    assert_eq!(bench.replay().run, bench.run, "a journal replays to the same run");
}

/// Asserts that an entry of this run in the wrong place, with another digest or attempt, changes nothing if it
/// is refused.
fn check_misplaced_entry(bench: &RunBench, choices: &mut ChoiceSource<'_>) {
    let at = choices.next_below(bench.records.len());
    let mut stranger = bench.records[at].entry.clone();
    match &mut stranger {
        JournalEntry::DecisionRecorded(decided) if choices.next_below(2) == 0 => {
            decided.digest = Digest::of_text("another")
        }
        JournalEntry::CallStarted(started) => {
            started.attempt += u32::try_from(choices.next_below(3)).unwrap_or_default()
        }
        _ => {}
    }
    let path = bench.records[choices.next_below(bench.records.len())].path.clone();
    let mut run = bench.run.clone();
    if run.apply_at(&path, &stranger).is_err() {
        assert_eq!(run, bench.run, "what is refused changes nothing: {stranger:?}");
    }
}

fn random_walk(numbers: &[u32]) -> RunBench {
    let mut choices = ChoiceSource { numbers_left: numbers };
    let (mut bench, mut witness, mut next_id) = (RunBench::new(), InvariantChecker::default(), 0);
    while choices.has_numbers_left() && bench.run.outcome().is_none() {
        let mut possible = possible_entries(&bench.run, &[], &mut choices, &mut next_id);
        possible.extend(bench.run.pending_calls().iter().flat_map(possible_decisions));
        assert!(!possible.is_empty(), "nothing can be done after {:?}", bench.records.last());
        if choices.next_below(20) == 0 {
            possible.extend(external_entries().into_iter().map(|entry| (Vec::new(), entry)));
        }
        let (path, entry) = possible.swap_remove(choices.next_below(possible.len()));
        let shown = format!("{entry:?}");
        bench
            .try_record(path.clone(), entry.clone())
            .unwrap_or_else(|why| panic!("{shown} at {path:?}: {why}"));
        witness.observe(&path, &entry);
        check_invariants(&bench, &witness);
        check_misplaced_entry(&bench, &mut choices);
    }
    bench
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_must_hold_holds_after_every_step(numbers in prop::collection::vec(any::<u32>(), 20..600)) {
        let bench = random_walk(&numbers);
        let text = encode_journal(&bench.records);
        prop_assert_eq!(decode_journal(&text).expect("it was just written"), bench.records);
        prop_assert!(inspect::verify_text(&text).is_ok());
    }

    #[test]
    fn a_walk_can_be_forked_anywhere(numbers in prop::collection::vec(any::<u32>(), 20..200), at in any::<u32>()) {
        let records = random_walk(&numbers).records;
        let at = u64::from(at) % records.len() as u64;
        let fork = inspect::fork(&records, at, "run-2".into(), inspect::ForkChange::Unchanged).expect("any record will do");
        let forked = Run::replay(&fork).expect("a fork replays").run;
        let before = inspect::run_at(&records, at).expect("it is there");
        prop_assert_eq!(forked.next(), before.next());
        prop_assert_eq!(describe_next(&forked), describe_next(&before));
        let diff = inspect::diff_runs(&records, &fork);
        prop_assert_eq!((diff.common_records, diff.second_steps.len()), (at + 1, 0));
    }
}
