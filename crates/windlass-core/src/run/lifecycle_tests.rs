//! Tests of the life of a call: an interpreter of its effects, driven in a fixed order and at random.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::decision::{Decision, DecisionScope};
use crate::item::ContentPart;
use crate::journal::{CallHeld, CallSettled, DecisionRecorded};
use crate::run::tests::bench::{RunBench, run_started, status_name, test_key};

/// All checks that a call can have.
const ALL: CallFeatures = CallFeatures {
    has_tool: true,
    has_input_guardrails: true,
    checks_before_approval: true,
    has_output_guardrails: true,
    has_enabled_rule: true,
    has_permits: true,
    has_receipts: true,
    follows_success_only: true,
    is_observed: true,
    approval_policy: ApprovalPolicy::NotRequired,
    max_output_bytes: 3,
};

/// No checks, as for a call that nobody watches.
const NONE: CallFeatures = CallFeatures {
    has_tool: true,
    has_input_guardrails: false,
    checks_before_approval: false,
    has_output_guardrails: false,
    has_enabled_rule: false,
    has_permits: false,
    has_receipts: false,
    follows_success_only: false,
    is_observed: false,
    approval_policy: ApprovalPolicy::NotRequired,
    max_output_bytes: usize::MAX,
};

fn effect_name(effect: &CallEffect) -> &'static str {
    match effect {
        CallEffect::FindReceipt => "find receipt",
        CallEffect::EvaluateApprovalRule { .. } => "approval rule",
        CallEffect::Hold(HoldReason::Approval) => "hold",
        CallEffect::Hold(HoldReason::InDoubt) => "hold in doubt",
        CallEffect::Hold(HoldReason::Question(_)) => "hold for answer",
        CallEffect::Reconcile => "reconcile",
        CallEffect::ClaimReceipt => "claim",
        CallEffect::ReleaseReceipt => "release",
        CallEffect::AcquirePermit => "permit",
        CallEffect::RunEarlyInputGuardrails => "early guardrails",
        CallEffect::RunInputGuardrails => "guardrails",
        CallEffect::CheckEnabled => "enabled",
        CallEffect::Start(_) => "start",
        CallEffect::AnnounceStart => "announce start",
        CallEffect::ReportInvalidArguments { .. } => "invalid arguments",
        CallEffect::RunBody(_) => "body",
        CallEffect::AwaitRetry(_) => "await retry",
        CallEffect::Withhold(_) => "withhold",
        CallEffect::RunOutputGuardrails { .. } => "output guardrails",
        CallEffect::LimitOutput(_) => "limit",
        CallEffect::Settle(_) => "settle",
        CallEffect::AnnounceEnd => "announce end",
        CallEffect::Done(CallOutcome::Settled) => "done settled",
        CallEffect::Done(CallOutcome::Held) => "done held",
        CallEffect::Done(CallOutcome::LeftOpen) => "done left open",
    }
}

/// A driver of one call: it carries out effects, with the reports that a test chose or with the ones of a call to which
/// nothing happens.
struct CallDriver {
    bench: RunBench,
    call: CallId,
    progress: CallProgress,
}

impl CallDriver {
    fn new(script: &str, features: CallFeatures) -> Self {
        let bench = RunBench::from_script(script);
        Self { bench, call: "c1".into(), progress: CallProgress::new(features) }
    }

    fn run(&self) -> &Run {
        &self.bench.run
    }

    /// Returns the next effect, and asserts that asking changes nothing.
    fn next_effect(&self) -> CallEffect {
        let before = self.run().clone();
        let effect = self.run().next_effect(&self.call, &self.progress);
        assert_eq!(self.run().next_effect(&self.call, &self.progress), effect, "the same twice");
        assert_eq!(*self.run(), before, "asking changes nothing");
        effect
    }

    fn record(&mut self, entry: JournalEntry) {
        let shown = format!("{entry:?}");
        self.bench.try_record(vec![], entry).unwrap_or_else(|why| panic!("{shown}: {why}"));
    }

    /// Records what an effect records. Returns true if the effect is of this kind.
    fn record_effect(&mut self, effect: &CallEffect) -> bool {
        let call = self.call.clone();
        match effect {
            CallEffect::Hold(reason) => {
                self.record(JournalEntry::CallHeld(CallHeld::new(call, reason.clone())));
            }
            CallEffect::Withhold(result) => self.record(result.body_ended_entry(&call)),
            CallEffect::Settle(result) => {
                let CallResult { status, output, run_failure } = result.clone();
                let settled = CallSettled::new(call, status, output);
                self.record(JournalEntry::CallSettled(CallSettled { run_failure, ..settled }));
            }
            CallEffect::Start(runnable) => {
                assert_eq!(*runnable.call(), call);
                self.record(runnable.start_entry(0, || test_key(runnable.call().as_str(), None)));
                self.progress.report(CallReport::Started { attempt: runnable.attempt() });
            }
            _ => return false,
        }
        true
    }

    /// Carries out effects until the work is over. Of the chosen reports, each stands for the first time that its effect
    /// comes up. Returns the names of the effects, with the statuses of results.
    fn drive(&mut self, chosen: &[(&str, CallReport)]) -> String {
        let mut chosen: Vec<_> = chosen.to_vec();
        let mut log = Vec::new();
        for _ in 0..60 {
            let effect = self.next_effect();
            let name = effect_name(&effect);
            log.push(match &effect {
                CallEffect::Settle(result) => format!("{name} {}", status_name(&result.status)),
                CallEffect::Start(runnable) => format!("{name}#{}", runnable.attempt()),
                CallEffect::RunBody(runnable) => format!("{name}#{}", runnable.attempt()),
                _ => name.to_owned(),
            });
            if let Some(at) = chosen.iter().position(|(of, _)| *of == name) {
                self.progress.report(chosen.remove(at).1);
                continue;
            }
            if matches!(effect, CallEffect::Done(_)) {
                assert!(chosen.is_empty(), "{chosen:?} never came up in {log:?}");
                return log.join(", ");
            }
            if !self.record_effect(&effect) {
                self.progress.report(plain_report(&effect));
            }
        }
        panic!("it never ends: {log:?}");
    }

    /// Carries out effects up to the first one of this name.
    fn drive_to(&mut self, name: &str) -> CallEffect {
        for _ in 0..60 {
            let effect = self.next_effect();
            if effect_name(&effect) == name {
                return effect;
            }
            assert!(!matches!(effect, CallEffect::Done(_)), "`{name}` never came up");
            if !self.record_effect(&effect) {
                self.progress.report(plain_report(&effect));
            }
        }
        panic!("`{name}` never came up");
    }

    /// Begins to work on the call again, as a new driver does.
    fn restart(&mut self, features: CallFeatures) {
        self.progress = CallProgress::new(features);
    }

    fn decide(&mut self, line: &str) {
        self.bench.try_line(line).unwrap_or_else(|why| panic!("`{line}`: {why}"));
    }

    fn settled(&self) -> &CallSettled {
        let settled = self.bench.records.iter().rev().find_map(|record| match &record.entry {
            JournalEntry::CallSettled(settled) if settled.call == self.call => Some(settled),
            _ => None,
        });
        settled.expect("it settled")
    }
}

/// Returns the report of an effect to which nothing special happens.
fn plain_report(effect: &CallEffect) -> CallReport {
    match effect {
        CallEffect::FindReceipt => CallReport::ReceiptFound(false),
        CallEffect::EvaluateApprovalRule { .. } => CallReport::ApprovalRule(ApprovalRequirement::Required),
        CallEffect::Reconcile => CallReport::Reconciled(ReconcileReport::NotExecuted),
        CallEffect::ClaimReceipt => CallReport::Receipt(ReceiptVerdict::Claimed),
        CallEffect::ReleaseReceipt => CallReport::ReceiptReleased,
        CallEffect::AcquirePermit => CallReport::Permit(GateVerdict::Pass),
        CallEffect::RunEarlyInputGuardrails => CallReport::EarlyInputGuardrails(GateVerdict::Pass),
        CallEffect::RunInputGuardrails => CallReport::InputGuardrails(GateVerdict::Pass),
        CallEffect::CheckEnabled => CallReport::Enabled(GateVerdict::Pass),
        CallEffect::AnnounceStart => CallReport::StartAnnounced(GateVerdict::Pass),
        CallEffect::ReportInvalidArguments { problems } => {
            CallReport::BodyEnded(CallResult::new(CallStatus::InvalidArguments, problems.clone()))
        }
        CallEffect::RunBody(_) => CallReport::BodyEnded(given(CallStatus::Succeeded)),
        CallEffect::AwaitRetry(_) => CallReport::RetryReady,
        CallEffect::RunOutputGuardrails { status, output } => {
            let output = output.clone().unwrap_or_else(|| "kept output".into());
            CallReport::OutputGuardrails(CallResult::new(status.clone(), output))
        }
        CallEffect::LimitOutput(result) => {
            CallReport::OutputLimited(CallResult { output: "cut".into(), ..result.clone() })
        }
        CallEffect::AnnounceEnd => CallReport::EndAnnounced,
        CallEffect::Hold(_)
        | CallEffect::Start(_)
        | CallEffect::Withhold(_)
        | CallEffect::Settle(_)
        | CallEffect::Done(_) => panic!("{effect:?} has no report"),
    }
}

fn given(status: CallStatus) -> CallResult {
    CallResult::new(status, "given")
}

fn failure() -> RunFailure {
    RunFailure::HookFailed { hook: "h".to_owned(), message: "broken".to_owned() }
}

#[test]
fn a_call_with_every_check_passes_them_in_order() {
    let mut driver = CallDriver::new("answer c1:send c2:look", ALL);
    assert_eq!(driver.drive(&[]), "find receipt, approval rule, early guardrails, hold, done held");
    driver.decide("approve c1");
    driver.restart(ALL);
    let order = "claim, permit, guardrails, enabled, start#1, announce start, body#1, withhold, output guardrails, \
                 limit, settle succeeded, announce end, done settled";
    assert_eq!(driver.drive(&[]), order);
    assert_eq!(driver.settled().output, "cut".into());
}

#[test]
fn a_call_that_needs_no_decision_passes_the_same_gate() {
    let gate = "claim, permit, guardrails, enabled, start#1, announce start, body#1, withhold, output guardrails, \
                limit, settle succeeded, announce end, done settled";
    assert_eq!(CallDriver::new("answer c1:look", ALL).drive(&[]), gate);
    let free = ("approval rule", CallReport::ApprovalRule(ApprovalRequirement::NotRequired));
    let mut driver = CallDriver::new("answer c1:send c2:look", ALL);
    assert_eq!(driver.drive(&[free]), format!("find receipt, approval rule, {gate}"));
}

#[test]
fn a_rule_can_reject_a_call_and_nobody_is_asked() {
    let verdict = ApprovalRequirement::Rejected("not that one".to_owned());
    let mut driver = CallDriver::new("answer c1:send c2:look", NONE);
    let rejected = ("approval rule", CallReport::ApprovalRule(verdict));
    assert_eq!(driver.drive(&[rejected]), "approval rule, settle guarded, done settled");
    assert_eq!(driver.settled().output, "not that one".into());
}

#[test]
fn the_rule_of_each_time_is_asked_though_an_approval_stands() {
    let standing = "answer c0:post c1:post; hold c0; approve_always c0";
    let mut driver = CallDriver::new(standing, NONE);
    assert_eq!(driver.next_effect(), CallEffect::EvaluateApprovalRule { has_standing_approval: true });
    assert_eq!(driver.drive(&[]), "approval rule, hold, done held", "what the rule requires is required");
    let free = ("approval rule", CallReport::ApprovalRule(ApprovalRequirement::NotRequired));
    assert_eq!(
        CallDriver::new(standing, NONE).drive(&[free]),
        "approval rule, start#1, body#1, settle succeeded, done settled"
    );
    let driver = CallDriver::new("answer c1:post c2:look", NONE);
    assert_eq!(driver.next_effect(), CallEffect::EvaluateApprovalRule { has_standing_approval: false });
    let mut driver = CallDriver::new("answer c0:pay c1:pay; hold c0; approve_always c0", NONE);
    assert_eq!(
        driver.drive(&[]),
        "start#1, body#1, settle succeeded, done settled",
        "here it covers the call"
    );
}

#[test]
fn a_call_without_checks_costs_nothing() {
    assert_eq!(
        CallDriver::new("answer c1:look c2:look", NONE).drive(&[]),
        "start#1, body#1, settle succeeded, done settled"
    );
    assert_eq!(
        CallDriver::new("answer c1:look", NONE).drive(&[]),
        "start#1, body#1, settle succeeded, done settled",
        "the last call of its turn"
    );
    assert_eq!(CallFeatures::default(), NONE);
    assert_eq!(CallDriver::new("answer c1:pay", NONE).drive(&[]), "hold, done held");
    assert_eq!(
        CallDriver::new("answer c1:look!", NONE).drive(&[]),
        "invalid arguments, settle invalid, done settled"
    );
    assert_eq!(CallDriver::new("answer c1:nothing", NONE).drive(&[]), "settle missing, done settled");
    assert_eq!(
        CallDriver::new("answer h1:to_billing c1:to_desk", NONE).drive(&[]),
        "settle ignored, done settled"
    );
    assert_eq!(CallDriver::new("answer c1:to_billing c2:look", NONE).drive(&[]), "done left open");
    assert_eq!(CallDriver::new("answer c2:look", NONE).drive(&[]), "done settled", "a call that is not open");
}

#[test]
fn each_check_alone_comes_in_its_place() {
    let cases = [
        (
            CallFeatures { has_input_guardrails: true, ..NONE },
            "guardrails, start#1, body#1, settle succeeded",
        ),
        (CallFeatures { has_enabled_rule: true, ..NONE }, "enabled, start#1, body#1, settle succeeded"),
        (CallFeatures { has_permits: true, ..NONE }, "permit, start#1, body#1, settle succeeded"),
        (CallFeatures { has_receipts: true, ..NONE }, "claim, start#1, body#1, settle succeeded"),
        (CallFeatures { checks_before_approval: true, ..NONE }, "start#1, body#1, settle succeeded"),
        (CallFeatures { follows_success_only: true, ..NONE }, "start#1, body#1, settle succeeded"),
        (
            CallFeatures { has_output_guardrails: true, ..NONE },
            "start#1, body#1, withhold, output guardrails, settle succeeded",
        ),
        (
            CallFeatures { is_observed: true, ..NONE },
            "start#1, announce start, body#1, settle succeeded, announce end",
        ),
        (CallFeatures { max_output_bytes: 4, ..NONE }, "start#1, body#1, limit, settle succeeded"),
        (CallFeatures { max_output_bytes: 5, ..NONE }, "start#1, body#1, settle succeeded"),
    ];
    for (features, expected) in cases {
        let driven = CallDriver::new("answer c1:look c2:look", features).drive(&[]);
        assert_eq!(driven, format!("{expected}, done settled"), "{features:?}");
    }
    // The tool requires an approval, whatever the record of the plan says.
    let unasked = CallFeatures { approval_policy: ApprovalPolicy::Required, ..NONE };
    assert_eq!(CallDriver::new("answer c1:look c2:look", unasked).drive(&[]), "hold, done held");
    let held = |features| CallDriver::new("answer c1:pay", features).drive(&[]);
    assert_eq!(held(CallFeatures { has_input_guardrails: true, ..NONE }), "hold, done held");
    let early = CallFeatures { has_input_guardrails: true, checks_before_approval: true, ..NONE };
    assert_eq!(held(early), "early guardrails, hold, done held");
    assert_eq!(held(CallFeatures { checks_before_approval: true, ..NONE }), "hold, done held");
    assert_eq!(held(CallFeatures { has_receipts: true, ..NONE }), "find receipt, hold, done held");
}

#[test]
fn an_agent_holds_no_permit_and_goes_on_where_it_was() {
    let mut driver = CallDriver::new("answer c1:books c2:look", ALL);
    let pause = [("body", CallReport::AgentPaused)];
    assert_eq!(
        driver.drive(&pause),
        "claim, guardrails, enabled, start#1, announce start, body#1, done held"
    );
    driver.decide("c1/ nest");
    driver.restart(ALL);
    driver.progress.assume_start_announced();
    assert!(driver.progress.is_start_announced());
    assert_eq!(
        driver.drive(&[]),
        "body#1, withhold, output guardrails, limit, settle succeeded, announce end, done settled",
        "it has begun, so nothing is asked again"
    );
}

#[test]
fn a_receipt_passes_the_gate_and_starts_nothing() {
    let found = ("find receipt", CallReport::ReceiptFound(true));
    let completed = ("claim", CallReport::Receipt(ReceiptVerdict::Completed("page 1".into())));
    let after = "claim, guardrails, enabled, withhold, output guardrails, limit, settle receipt, announce end, done settled";
    let mut driver = CallDriver::new("answer c1:print c2:look", ALL);
    assert_eq!(driver.drive(std::slice::from_ref(&completed)), after);
    let mut driver = CallDriver::new("answer c1:send c2:look", ALL);
    assert_eq!(
        driver.drive(&[found.clone(), completed.clone()]),
        format!("find receipt, {after}"),
        "nothing runs, so nobody is asked"
    );
    let disabled = CallReport::Enabled(GateVerdict::End(given(CallStatus::UnknownTool)));
    let mut driver = CallDriver::new("answer c1:print c2:look", CallFeatures { max_output_bytes: 9, ..ALL });
    assert_eq!(
        driver.drive(&[completed.clone(), ("enabled", disabled)]),
        "claim, guardrails, enabled, settle missing, announce end, done settled"
    );
    let blocked = CallReport::InputGuardrails(GateVerdict::End(given(CallStatus::BlockedByGuardrail)));
    let mut driver = CallDriver::new("answer c1:print c2:look", CallFeatures { max_output_bytes: 9, ..ALL });
    assert_eq!(
        driver.drive(&[completed, ("guardrails", blocked)]),
        "claim, guardrails, settle guarded, announce end, done settled"
    );
    // The receipt is gone by the time that it is claimed.
    let mut driver = CallDriver::new("answer c1:send c2:look", ALL);
    assert_eq!(
        driver.drive(&[found]),
        "find receipt, claim, release, approval rule, early guardrails, hold, done held"
    );
}

#[test]
fn a_check_that_ends_the_call_ends_it_before_its_body() {
    let blocked = || GateVerdict::End(given(CallStatus::BlockedByGuardrail));
    let features = CallFeatures { max_output_bytes: 9, ..ALL };
    let end = "settle guarded, announce end, done settled";
    let mut driver = CallDriver::new("answer c1:pay c2:look", features);
    let early = ("early guardrails", CallReport::EarlyInputGuardrails(blocked()));
    assert_eq!(driver.drive(&[early]), format!("find receipt, early guardrails, {end}"));
    let mut driver = CallDriver::new("answer c1:look c2:look", features);
    let gate = ("guardrails", CallReport::InputGuardrails(blocked()));
    assert_eq!(driver.drive(&[gate]), format!("claim, permit, guardrails, {end}"));
    // A hook that fails comes after the start, so the call has run as far as anybody knows.
    let mut driver = CallDriver::new("answer c1:look c2:look", features);
    let hook = CallReport::StartAnnounced(GateVerdict::End(given(CallStatus::Failed)));
    assert_eq!(
        driver.drive(&[("announce start", hook)]),
        "claim, permit, guardrails, enabled, start#1, announce start, withhold, output guardrails, settle failed, \
         announce end, done settled"
    );
    let failing = CallResult::failing_run(CallStatus::BlockedByGuardrail, "no", failure());
    let mut driver = CallDriver::new("answer c1:look c2:look", features);
    driver.drive(&[("guardrails", CallReport::InputGuardrails(GateVerdict::End(failing)))]);
    assert_eq!(driver.run().next(), crate::run::RunAction::Fail(failure()));
}

fn retry_due() -> CallReport {
    let result = Box::new(CallResult::new(CallStatus::Failed, "attempt 1"));
    CallReport::RetryDue { delay: Duration::from_secs(1), result }
}

/// The first attempt may have taken effect, so the settlement does not say that no body ran.
#[test]
fn a_retry_that_a_check_refuses_leaves_the_result_of_the_attempt_before() {
    let end = |status, failure: Option<_>| {
        GateVerdict::End(CallResult {
            run_failure: failure.map(Box::new),
            ..CallResult::new(status, "refused")
        })
    };
    let features = CallFeatures { has_input_guardrails: true, has_enabled_rule: true, ..NONE };
    let refusals = [
        ("guardrails", CallReport::InputGuardrails(end(CallStatus::BlockedByGuardrail, None))),
        ("guardrails", CallReport::InputGuardrails(end(CallStatus::BlockedByGuardrail, Some(failure())))),
        ("enabled", CallReport::Enabled(end(CallStatus::UnknownTool, None))),
    ];
    for (step, refusal) in refusals {
        let fails_run = matches!(&refusal, CallReport::InputGuardrails(GateVerdict::End(result)) if result.run_failure.is_some());
        let mut driver = CallDriver::new("answer c1:transfer c2:look", features);
        let pass = (
            step,
            match step {
                "enabled" => CallReport::Enabled(GateVerdict::Pass),
                _ => CallReport::InputGuardrails(GateVerdict::Pass),
            },
        );
        let steps = driver.drive(&[pass, ("body", retry_due()), (step, refusal)]);
        assert!(steps.ends_with("settle failed, done settled"), "{steps}");
        assert_eq!(driver.run().next() == crate::run::RunAction::Fail(failure()), fails_run, "{step}");
    }
}

#[test]
fn guards_run_again_before_each_attempt() {
    let retry = ("body", retry_due());
    let mut driver = CallDriver::new("answer c1:look c2:look", CallFeatures { max_output_bytes: 9, ..ALL });
    assert_eq!(
        driver.drive(std::slice::from_ref(&retry)),
        "claim, permit, guardrails, enabled, start#1, announce start, body#1, await retry, \
         permit, guardrails, enabled, start#2, body#2, withhold, output guardrails, settle succeeded, announce end, \
         done settled",
        "the start is announced once"
    );
    let mut driver = CallDriver::new("answer c1:transfer c2:look", NONE);
    assert_eq!(
        driver.drive(&[retry.clone(), retry.clone()]),
        "start#1, body#1, await retry, start#2, body#2, await retry, start#3, body#3, settle succeeded, done settled",
        "whoever says that it may be tried again knows that it did not happen"
    );
    let stop = ("await retry", CallReport::Stopped(StopMode::EndRun));
    let mut driver = CallDriver::new("answer c1:look c2:look", NONE);
    assert_eq!(driver.drive(&[retry, stop]), "start#1, body#1, await retry, settle cancelled, done settled");
}

#[test]
fn a_question_holds_the_call_and_its_answer_starts_it_again() {
    let question = PersonQuestion::new("Which?");
    let mut driver =
        CallDriver::new("answer c1:transfer c2:look", CallFeatures { max_output_bytes: 9, ..ALL });
    let asked = driver.drive(&[("body", CallReport::QuestionAsked(question))]);
    assert!(asked.ends_with("start#1, announce start, body#1, hold for answer, done held"), "{asked}");
    driver.decide("reply c1");
    driver.restart(CallFeatures { max_output_bytes: 9, ..ALL });
    assert_eq!(
        driver.drive(&[]),
        "claim, permit, guardrails, enabled, start#2, announce start, body#2, withhold, output guardrails, \
         settle succeeded, announce end, done settled"
    );
}

#[test]
fn a_call_that_an_earlier_driver_started_follows_its_effect() {
    let gate = "claim, permit, guardrails, enabled, start#2, announce start, body#2, withhold, output guardrails, limit, \
                settle succeeded, announce end, done settled";
    for tool in ["look", "print"] {
        let mut driver = CallDriver::new(&format!("answer c1:{tool} c2:look; start c1"), ALL);
        assert_eq!(driver.drive(&[]), gate, "{tool}");
    }
    let once = "answer c1:transfer c2:look; start c1";
    let reconciled = |report| [("reconcile", CallReport::Reconciled(report))];
    assert_eq!(CallDriver::new(once, ALL).drive(&[]), format!("reconcile, {gate}"));
    assert_eq!(
        CallDriver::new(once, ALL).drive(&reconciled(ReconcileReport::Unknown)),
        "reconcile, hold in doubt, done held"
    );
    let executed = ReconcileReport::Executed("it did".into());
    assert_eq!(
        CallDriver::new(once, ALL).drive(&reconciled(executed)),
        "reconcile, withhold, output guardrails, limit, settle reconciled, announce end, done settled",
        "every way to an output passes the output guardrails"
    );
    let confirmed = format!("{once}; doubt c1; happened c1");
    assert_eq!(
        CallDriver::new(&confirmed, ALL).drive(&[]),
        "withhold, output guardrails, limit, settle reconciled, announce end, done settled"
    );
    let not_executed = format!("{once}; doubt c1; did_not_happen c1");
    assert_eq!(CallDriver::new(&not_executed, ALL).drive(&[]), gate);
}

#[test]
fn a_withheld_output_that_may_become_a_receipt_is_claimed_by_the_next_driver() {
    let bench = RunBench::from_script("answer c1:print; start c1; end_body c1 succeeded");
    let (call, mut progress) =
        ("c1".into(), CallProgress::new(CallFeatures { has_output_guardrails: true, ..NONE }));
    assert_eq!(bench.run.next_effect(&call, &progress), CallEffect::ClaimReceipt);
    let checked = CallEffect::RunOutputGuardrails { status: CallStatus::Succeeded, output: None };
    for verdict in [ReceiptVerdict::Claimed, ReceiptVerdict::Completed("page 1".into())] {
        progress.report(CallReport::Receipt(verdict));
        assert_eq!(bench.run.next_effect(&call, &progress), checked);
    }
    progress.report(CallReport::Stopped(StopMode::HandOver));
    assert_eq!(bench.run.next_effect(&call, &progress), CallEffect::Done(CallOutcome::LeftOpen));
}

#[test]
fn a_withheld_output_is_checked_by_the_next_driver() {
    let mut driver = CallDriver::new("answer c1:transfer c2:look", ALL);
    driver.drive_to("output guardrails");
    let digest = driver.run().withheld_output(&"c1".into()).expect("it is withheld");
    assert_eq!(digest, OutputContent::from("given").digest());
    // The process dies.
    driver.restart(ALL);
    let effect = driver.next_effect();
    assert_eq!(effect, CallEffect::RunOutputGuardrails { status: CallStatus::Succeeded, output: None });
    let blocked = CallReport::OutputGuardrails(CallResult::new(CallStatus::OutputWithheld, "no"));
    assert_eq!(
        driver.drive(&[("output guardrails", blocked)]),
        "output guardrails, settle withheld, announce end, done settled"
    );
    let mut driver = CallDriver::new("answer c1:transfer c2:look; start c1; end_body c1 failed", NONE);
    assert_eq!(
        driver.drive(&[]),
        "output guardrails, settle failed, done settled",
        "what was withheld is checked, whatever the tool has now"
    );
}

#[test]
fn a_call_without_its_tool_is_answered() {
    let absent = CallFeatures::without_tool();
    let mut driver = CallDriver::new("answer c1:look!", absent);
    let CallEffect::Settle(result) = driver.next_effect() else { panic!("the call has no output") };
    assert_eq!(result.status, CallStatus::InvalidArguments);
    assert_eq!(driver.drive(&[]), "settle invalid, done settled");
    let withheld = "answer c1:transfer c2:look; start c1; end_body c1 succeeded";
    let mut driver = CallDriver::new(withheld, absent);
    assert_eq!(driver.next_effect(), CallEffect::Settle(unchecked_result()));
    assert_eq!(driver.drive(&[]), "settle withheld, done settled");
    let mut driver = CallDriver::new(withheld, absent);
    driver.progress.report(CallReport::Stopped(StopMode::HandOver));
    assert_eq!(driver.next_effect(), CallEffect::Done(CallOutcome::LeftOpen));
}

#[test]
fn an_output_guardrail_may_fail_the_run() {
    let tripped = CallResult::failing_run(CallStatus::OutputWithheld, "no", failure());
    let mut driver = CallDriver::new("answer c1:look c2:look", CallFeatures { max_output_bytes: 9, ..ALL });
    let driven = driver.drive(&[("output guardrails", CallReport::OutputGuardrails(tripped))]);
    assert!(
        driven.ends_with("withhold, output guardrails, settle withheld, announce end, done settled"),
        "{driven}"
    );
    assert_eq!(driver.settled().run_failure.as_deref(), Some(&failure()));
    assert_eq!(driver.run().next(), crate::run::RunAction::Fail(failure()));
}

#[test]
fn an_error_that_fails_the_run_is_withheld_from_what_no_guardrail_has_checked() {
    for (has_output_guardrails, output) in
        [(true, model_text::ERROR_NOT_CHECKED), (false, "the customer is ada")]
    {
        let features = CallFeatures { has_output_guardrails, max_output_bytes: 99, ..ALL };
        for status in [CallStatus::Failed, CallStatus::TimedOut, CallStatus::TimedOutStillRunning] {
            let failing = CallResult::failing_run(status, "the customer is ada", failure());
            let mut driver = CallDriver::new("answer c1:look c2:look", features);
            let driven = driver.drive(&[("body", CallReport::BodyEnded(failing))]);
            let end = driven.split_once("body#1, settle ").map(|(_, end)| end.split_once(", "));
            assert_eq!(end.flatten().map(|(_, end)| end), Some("announce end, done settled"), "{driven}");
            let settled = driver.settled();
            assert_eq!(
                (settled.output.text().as_ref(), settled.run_failure.as_deref()),
                (output, Some(&failure()))
            );
        }
    }
}

#[test]
fn the_text_of_all_parts_of_an_output_counts() {
    let parts = OutputContent::Parts(vec![ContentPart::text("page"), ContentPart::text("one")]);
    let driven = |max_output_bytes| {
        let mut driver = CallDriver::new("answer c1:look c2:look", CallFeatures { max_output_bytes, ..NONE });
        let result = CallResult::new(CallStatus::Succeeded, parts.clone());
        driver.drive(&[("body", CallReport::BodyEnded(result))])
    };
    assert_eq!(driven(7), "start#1, body#1, settle succeeded, done settled");
    assert_eq!(driven(6), "start#1, body#1, limit, settle succeeded, done settled");
}

#[test]
fn what_no_body_gave_is_guarded_without_being_withheld() {
    let features = CallFeatures { max_output_bytes: 9, ..ALL };
    assert_eq!(
        CallDriver::new("answer c1:look! c2:look", features).drive(&[]),
        "guardrails, announce start, invalid arguments, output guardrails, settle invalid, announce end, done settled"
    );
    let mut driver = CallDriver::new("answer c1:look c2:look", features);
    let left = ("body", CallReport::BodyEnded(given(CallStatus::TimedOutStillRunning)));
    let driven = driver.drive(&[left]);
    assert!(
        driven.ends_with("body#1, output guardrails, settle left_running, announce end, done settled"),
        "{driven}"
    );
    for (script, end) in [
        ("answer c1:nothing c2:look", "settle missing"),
        ("answer c1:pay c2:look; reject c1", "settle rejected"),
        ("answer c1:transfer c2:look; start c1; doubt c1; unknown c1", "settle unknown"),
    ] {
        let features = CallFeatures { max_output_bytes: 999, ..ALL };
        let driven = CallDriver::new(script, features).drive(&[]);
        assert_eq!(driven, format!("{end}, announce end, done settled"), "{script}");
    }
}

#[test]
fn what_follows_a_failure_does_not_run() {
    let script = "answer c0:transfer c1:transfer c2:look; start c0; settle c0";
    let follows = CallFeatures { follows_success_only: true, ..NONE };
    let driven = |how: &str, features| CallDriver::new(&format!("{script} {how}"), features).drive(&[]);
    assert_eq!(driven("failed", follows), "settle guarded, done settled");
    assert_eq!(driven("succeeded", follows), "start#1, body#1, settle succeeded, done settled");
    assert_eq!(driven("failed", NONE), "start#1, body#1, settle succeeded, done settled");
    let started = CallDriver::new(&format!("{script} failed; start c1"), follows).drive(&[]);
    assert!(started.starts_with("reconcile"), "what has begun is not broken off: {started}");
}

/// Every effect at which a run can stop, each reached in a call of its own.
#[test]
fn a_run_that_ends_gives_each_call_its_output() {
    let features = CallFeatures { max_output_bytes: 999, ..ALL };
    let stop = |script: &str, at: &str, mode| {
        let mut driver = CallDriver::new(script, features);
        driver.drive_to(at);
        driver.progress.report(CallReport::Stopped(mode));
        assert!(driver.progress.is_stopped());
        driver.drive(&[])
    };
    let (fresh, asked) = ("answer c1:look c2:look", "answer c1:send c2:look");
    let gate = [
        (asked, "find receipt"),
        (asked, "approval rule"),
        (asked, "early guardrails"),
        (fresh, "claim"),
        (fresh, "permit"),
        (fresh, "guardrails"),
        (fresh, "enabled"),
        (fresh, "announce start"),
        (fresh, "body"),
        ("answer c1:transfer c2:look; start c1", "reconcile"),
        ("answer c1:look! c2:look", "guardrails"),
        ("answer c1:look! c2:look", "invalid arguments"),
    ];
    for (script, at) in gate {
        let ends = stop(script, at, StopMode::EndRun);
        assert_eq!(ends, "settle cancelled, announce end, done settled", "{script} at {at}");
        assert_eq!(stop(script, at, StopMode::HandOver), "done left open", "{script} at {at}");
    }
    // Its body has ended: that it was executed is not forgotten.
    let ends = stop(fresh, "output guardrails", StopMode::EndRun);
    assert_eq!(ends, "settle withheld, announce end, done settled");
    assert_eq!(stop(fresh, "output guardrails", StopMode::HandOver), "done left open");
    let ends = stop(fresh, "withhold", StopMode::EndRun);
    assert_eq!(ends, "withhold, settle withheld, announce end, done settled");
    assert_eq!(stop(fresh, "withhold", StopMode::HandOver), "withhold, done left open");
    // What needs no further check is recorded.
    for mode in [StopMode::EndRun, StopMode::HandOver] {
        assert_eq!(stop(fresh, "settle", mode), "settle succeeded, announce end, done settled");
        assert_eq!(stop(fresh, "announce end", mode), "announce end, done settled");
    }
    // What waits for a person waits on, unless the run ends.
    let waits = "answer c1:pay c2:look; hold c1";
    let ends = stop(waits, "done held", StopMode::EndRun);
    assert_eq!(ends, "settle cancelled, announce end, done settled");
    assert_eq!(stop(waits, "done held", StopMode::HandOver), "done held");
    let nested = "answer c1:books c2:look; start c1; c1/ nest";
    assert_eq!(stop(nested, "body", StopMode::HandOver), "done left open");
    let mut driver = CallDriver::new(nested, features);
    driver.progress.report(CallReport::Stopped(StopMode::EndRun));
    assert_eq!(
        driver.drive(&[("body", CallReport::BodyEnded(CallResult::cancelled()))]),
        "body#1, settle cancelled, announce end, done settled",
        "the nested run ends in its own journal too"
    );
    let mut driver = CallDriver::new(nested, features);
    driver.progress.report(CallReport::Stopped(StopMode::HandOver));
    driver.progress.report(CallReport::BodyEnded(CallResult::cancelled()));
    assert_eq!(
        driver.drive(&[]),
        "done left open",
        "a call that was stopped is not over for the next driver"
    );
}

#[test]
fn a_secret_stays_out_of_an_output_that_was_not_checked() {
    let mut driver = CallDriver::new("answer c1:look c2:look", ALL);
    let secret = ("body", CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, "the secret")));
    let stop = ("output guardrails", CallReport::Stopped(StopMode::EndRun));
    driver.drive(&[secret, stop]);
    assert!(!format!("{:?}", driver.bench.records).contains("the secret"));
    assert_eq!(driver.settled().output, model_text::OUTPUT_NOT_CHECKED.into());
}

/// A seeded source of choices.
struct Choices(u64);

impl Choices {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn pick<T>(&mut self, mut values: Vec<T>) -> T {
        let at = self.below(values.len() as u64) as usize;
        values.swap_remove(at)
    }

    fn features(&mut self) -> CallFeatures {
        CallFeatures {
            has_tool: true,
            has_input_guardrails: self.one_in(2),
            checks_before_approval: self.one_in(2),
            has_output_guardrails: self.one_in(2),
            has_enabled_rule: self.one_in(2),
            has_permits: self.one_in(2),
            has_receipts: self.one_in(2),
            follows_success_only: self.one_in(2),
            is_observed: self.one_in(2),
            approval_policy: ApprovalPolicy::NotRequired,
            max_output_bytes: if self.one_in(2) { 3 } else { usize::MAX },
        }
    }
}

const WALK_STARTS: [&str; 24] = [
    "answer c1:look",
    "answer c1:look c2:look",
    "answer c1:print c2:look",
    "answer c1:transfer c2:look",
    "answer c1:send c2:look",
    "answer c1:pay",
    "answer c1:post c2:look",
    "answer c1:sign c2:look",
    "answer c1:books c2:look",
    "answer c1:audited_books",
    "answer c1:look! c2:look",
    "answer c1:nothing c2:look",
    "answer h1:to_billing c1:to_desk",
    "answer c1:transfer c2:look; start c1",
    "answer c1:print c2:look; start c1",
    "answer c1:books c2:look; start c1; c1/ nest",
    "answer c1:look c2:look; start c1; end_body c1 succeeded",
    "answer c1:pay c2:look; hold c1; edit c1; start c1",
    "answer c1:pay c2:look; reject c1",
    "answer c1:transfer c2:look; start c1; doubt c1; happened c1",
    "answer c1:look c2:look; start c1; ask c1; reply c1",
    "answer c0:transfer c1:transfer c2:look; start c0; settle c0 failed",
    "answer c0:post c1:post; hold c0; approve_always c0",
    "answer c0:pay c1:pay; hold c0; approve_always c0",
];

/// What a walk has seen of its call since the current driver began to work on it.
#[derive(Default)]
struct WalkRecord {
    started: BTreeSet<u32>,
    rule_verdict: Option<ApprovalRequirement>,
    passed: BTreeSet<&'static str>,
    may_retry: bool,
    was_not_executed: bool,
    has_completed_receipt: bool,
    is_guarded: bool,
    stopped: Option<StoppedCall>,
}

/// The call as it was when its run was stopped.
#[derive(Clone, Copy)]
struct StoppedCall {
    mode: StopMode,
    had_result: bool,
}

struct CallWalk {
    driver: CallDriver,
    features: CallFeatures,
    seen: WalkRecord,
    settlements: u32,
}

impl CallWalk {
    fn policy(&self) -> Option<ApprovalPolicy> {
        match self.driver.run().call_disposition(&self.driver.call)? {
            CallDisposition::Execute { approval_policy, .. } => Some(*approval_policy),
            _ => None,
        }
    }

    fn effect_of_tool(&self) -> Option<ToolEffect> {
        match self.driver.run().call_disposition(&self.driver.call)? {
            CallDisposition::Execute { effect, .. } => Some(*effect),
            _ => None,
        }
    }

    /// Returns the last decision about the call, or the one that stands for its tool.
    fn last_decision(&self) -> Option<Decision> {
        self.driver.bench.records.iter().rev().find_map(|record| match &record.entry {
            JournalEntry::DecisionRecorded(decided)
                if decided.call == self.driver.call || decided.scope == DecisionScope::ToolForRun =>
            {
                Some(decided.decision.clone())
            }
            _ => None,
        })
    }

    /// Returns true if a decision was made about this very call.
    fn has_own_decision(&self) -> bool {
        self.driver.bench.records.iter().any(|record| match &record.entry {
            JournalEntry::DecisionRecorded(decided) => decided.call == self.driver.call,
            _ => false,
        })
    }

    /// Asserts what must hold of an effect before it is carried out.
    fn check(&self, effect: &CallEffect) {
        let (run, call, seen) = (self.driver.run(), &self.driver.call, &self.seen);
        let is_agent = matches!(
            run.call_disposition(call),
            Some(CallDisposition::Execute { body: BodyKind::Agent, .. })
        );
        if self.settlements > 0 {
            let is_after = matches!(effect, CallEffect::AnnounceEnd | CallEffect::Done(CallOutcome::Settled));
            assert!(is_after, "a settled call goes on with {effect:?}");
        }
        if let Some(stopped) = seen.stopped {
            let is_allowed = match effect {
                CallEffect::Withhold(_) | CallEffect::LimitOutput(_) | CallEffect::Settle(_) => true,
                CallEffect::AnnounceEnd | CallEffect::Done(_) => true,
                CallEffect::RunBody(_) => run.nested_run(call).is_some() && stopped.mode == StopMode::EndRun,
                _ => false,
            };
            assert!(is_allowed, "a stopped call goes on with {effect:?}");
        }
        match effect {
            CallEffect::Start(runnable) => self.check_start(runnable),
            CallEffect::RunBody(runnable) => {
                assert!(is_agent || seen.started.contains(&runnable.attempt()), "{effect:?} was not started");
                assert!(run.is_call_running(call));
            }
            CallEffect::RunOutputGuardrails { status, .. } => {
                assert_eq!(status.is_body_result(), run.withheld_output(call).is_some(), "{effect:?}");
                assert!(!seen.is_guarded, "guardrails judge once");
            }
            CallEffect::Withhold(result) => {
                assert!(self.features.has_output_guardrails && result.status.is_body_result());
                assert_eq!(run.withheld_output(call), None);
            }
            CallEffect::Settle(result) => self.check_settlement(result),
            CallEffect::Done(outcome) => match outcome {
                CallOutcome::Settled => assert!(run.is_call_settled(call)),
                CallOutcome::Held => assert!(run.is_call_waiting(call) || is_agent),
                CallOutcome::LeftOpen => {
                    assert_eq!(seen.stopped.map(|stopped| stopped.mode), Some(StopMode::HandOver));
                    assert!(!run.is_call_settled(call));
                }
            },
            _ => {}
        }
    }

    fn check_start(&self, runnable: &RunnableCall) {
        let seen = &self.seen;
        let decision = self.last_decision();
        assert!(!seen.has_completed_receipt, "a receipt answers the call");
        let is_final = matches!(
            decision,
            Some(Decision::Reject { .. } | Decision::ConfirmExecuted { .. } | Decision::OutcomeUnknown)
        );
        assert!(!is_final, "it was decided otherwise: {decision:?}");
        if runnable.attempt() == 1 {
            let is_free_by_rule = seen.rule_verdict == Some(ApprovalRequirement::NotRequired);
            let may_run = match self.policy() {
                Some(ApprovalPolicy::NotRequired) => true,
                Some(ApprovalPolicy::ByRule) => is_free_by_rule || decision.is_some(),
                Some(ApprovalPolicy::ByRuleEachTime) => is_free_by_rule || self.has_own_decision(),
                Some(ApprovalPolicy::Required) => decision.is_some(),
                Some(ApprovalPolicy::RequiredEachTime) => self.has_own_decision(),
                None => false,
            };
            assert!(may_run, "nobody let it run");
        } else if self.effect_of_tool() == Some(ToolEffect::Once) {
            let was_told = matches!(decision, Some(Decision::ConfirmNotExecuted | Decision::Answer { .. }));
            assert!(seen.may_retry || seen.was_not_executed || was_told, "it may have happened");
        }
        assert!(!self.features.has_input_guardrails || seen.passed.contains("guardrails"));
        assert!(!self.features.has_enabled_rule || seen.passed.contains("enabled"));
        assert!(!self.features.has_receipts || seen.passed.contains("claim"));
    }

    fn check_settlement(&self, result: &CallResult) {
        let (run, call, seen) = (self.driver.run(), &self.driver.call, &self.seen);
        let is_withheld = run.withheld_output(call).is_some();
        if result.status == CallStatus::Deduplicated && seen.has_completed_receipt && !is_withheld {
            assert!(!self.features.has_input_guardrails || seen.passed.contains("guardrails"));
            assert!(!self.features.has_enabled_rule || seen.passed.contains("enabled"));
        }
        let slot = run.open_turn().and_then(|turn| turn.slot(call));
        let ran_before = slot.is_some_and(|slot| {
            matches!(slot.state, CallSlotState::Running { .. })
                && slot.body_kind() == Some(BodyKind::Function)
        }) && self.effect_of_tool() != Some(ToolEffect::Pure)
            && seen.started.is_empty()
            && !seen.was_not_executed;
        let denies_start = matches!(
            result.status,
            CallStatus::BlockedByGuardrail | CallStatus::UnknownTool | CallStatus::InvalidArguments
        );
        assert!(!(ran_before && denies_start), "{result:?}: an earlier driver may have run it");
        let may_leak = self.features.has_output_guardrails
            && result.status.is_body_result()
            && !seen.is_guarded
            && !(result.run_failure.is_some() && result.output == model_text::ERROR_NOT_CHECKED.into());
        assert!(!may_leak, "{result:?} was not checked");
        let Some(stopped) = seen.stopped else {
            assert!(!is_withheld || seen.is_guarded, "{result:?} was not checked");
            return;
        };
        let is_decided = run.is_output_known(call);
        match stopped.mode {
            StopMode::EndRun if is_withheld && !seen.is_guarded => {
                assert_eq!(result.status, CallStatus::OutputWithheld)
            }
            StopMode::EndRun if !stopped.had_result && !is_decided => {
                assert_eq!(result.status, CallStatus::Cancelled)
            }
            StopMode::EndRun => {}
            StopMode::HandOver => {
                assert!(stopped.had_result || is_decided, "the next driver goes on with the call");
                assert_ne!(result.status, CallStatus::Cancelled);
            }
        }
    }

    /// Returns a report of an effect that a driver could give, chosen at random.
    fn random_report(&self, effect: &CallEffect, choices: &mut Choices) -> CallReport {
        let verdict = |choices: &mut Choices, status: CallStatus| match choices.below(8) {
            0 => GateVerdict::End(given(status)),
            1 => GateVerdict::End(CallResult::failing_run(status, "given", failure())),
            _ => GateVerdict::Pass,
        };
        match effect {
            CallEffect::FindReceipt => CallReport::ReceiptFound(choices.one_in(3)),
            CallEffect::EvaluateApprovalRule { .. } => CallReport::ApprovalRule(choices.pick(vec![
                ApprovalRequirement::Required,
                ApprovalRequirement::NotRequired,
                ApprovalRequirement::Rejected("not that one".to_owned()),
            ])),
            CallEffect::Reconcile => CallReport::Reconciled(choices.pick(vec![
                ReconcileReport::Executed("it did".into()),
                ReconcileReport::NotExecuted,
                ReconcileReport::Unknown,
            ])),
            CallEffect::ClaimReceipt => CallReport::Receipt(match choices.one_in(3) {
                true => ReceiptVerdict::Completed("page 1".into()),
                false => ReceiptVerdict::Claimed,
            }),
            CallEffect::RunEarlyInputGuardrails => {
                CallReport::EarlyInputGuardrails(verdict(choices, CallStatus::BlockedByGuardrail))
            }
            CallEffect::RunInputGuardrails => {
                CallReport::InputGuardrails(verdict(choices, CallStatus::BlockedByGuardrail))
            }
            CallEffect::CheckEnabled => CallReport::Enabled(verdict(choices, CallStatus::UnknownTool)),
            CallEffect::AnnounceStart => {
                // A call with invalid arguments has no body that a hook could keep from running.
                let status = match self.policy() {
                    Some(_) => CallStatus::Failed,
                    None => CallStatus::InvalidArguments,
                };
                CallReport::StartAnnounced(verdict(choices, status))
            }
            CallEffect::RunBody(runnable) => {
                let status = choices.pick(vec![
                    CallStatus::Succeeded,
                    CallStatus::Succeeded,
                    CallStatus::Failed,
                    CallStatus::TimedOut,
                    CallStatus::TimedOutStillRunning,
                ]);
                let is_stopped = self.driver.progress.is_stopped();
                match (choices.below(8), runnable.body()) {
                    (_, BodyKind::Agent) if is_stopped => CallReport::BodyEnded(CallResult::cancelled()),
                    (0, BodyKind::Function) => CallReport::QuestionAsked(PersonQuestion::new("Which?")),
                    (1 | 2, BodyKind::Function) => retry_due(),
                    (0 | 1, BodyKind::Agent) => CallReport::AgentPaused,
                    (3, _) => CallReport::BodyEnded(CallResult::failing_run(status, "given", failure())),
                    _ => CallReport::BodyEnded(given(status)),
                }
            }
            CallEffect::RunOutputGuardrails { status, output } => {
                let blocked = match status.is_body_result() {
                    true => CallStatus::OutputWithheld,
                    false => status.clone(),
                };
                let output = output.clone().unwrap_or_else(|| "kept".into());
                CallReport::OutputGuardrails(match choices.below(4) {
                    0 => CallResult::new(blocked, "blocked"),
                    1 => CallResult::failing_run(blocked, "blocked", failure()),
                    2 => CallResult::new(status.clone(), "replaced"),
                    _ => CallResult::new(status.clone(), output),
                })
            }
            other => plain_report(other),
        }
    }

    fn report(&mut self, report: CallReport) {
        let seen = &mut self.seen;
        match &report {
            CallReport::ApprovalRule(verdict) => seen.rule_verdict = Some(verdict.clone()),
            CallReport::InputGuardrails(GateVerdict::Pass) => drop(seen.passed.insert("guardrails")),
            CallReport::Enabled(GateVerdict::Pass) => drop(seen.passed.insert("enabled")),
            CallReport::Receipt(verdict) => {
                seen.passed.insert("claim");
                seen.has_completed_receipt = matches!(verdict, ReceiptVerdict::Completed(_));
            }
            CallReport::ReceiptReleased => drop(seen.passed.remove("claim")),
            CallReport::RetryReady => {
                seen.may_retry = true;
                seen.passed.remove("guardrails");
                seen.passed.remove("enabled");
            }
            CallReport::Reconciled(ReconcileReport::NotExecuted) => seen.was_not_executed = true,
            CallReport::OutputGuardrails(_) => seen.is_guarded = true,
            CallReport::Stopped(mode) => {
                seen.stopped =
                    Some(StoppedCall { mode: *mode, had_result: self.driver.progress.result().is_some() });
            }
            _ => {}
        }
        self.driver.progress.report(report);
    }

    fn restart(&mut self, choices: &mut Choices) {
        self.features = choices.features();
        self.driver.restart(self.features);
        self.seen = WalkRecord::default();
    }

    /// Decides about the call, if it waits or has not been decided about.
    fn decide(&mut self, choices: &mut Choices) {
        let (run, call) = (self.driver.run(), self.driver.call.clone());
        let approvals = || {
            let edited = Decision::ApproveEdited { arguments: "{\"edited\":true}".to_owned() };
            vec![Decision::Approve, edited, Decision::Reject { message: None }]
        };
        let decision = match run.pending_call(&call).map(|pending| pending.reason) {
            Some(HoldReason::InDoubt) => choices.pick(vec![
                Decision::ConfirmExecuted { output: "it did".into() },
                Decision::ConfirmNotExecuted,
                Decision::OutcomeUnknown,
            ]),
            Some(HoldReason::Question(_)) => choices
                .pick(vec![Decision::Answer { value: "this".into() }, Decision::Reject { message: None }]),
            Some(HoldReason::Approval) | None => choices.pick(approvals()),
        };
        let digest = *run.call_digests().get(&call).expect("it was planned");
        let (scope, decided_by) = (DecisionScope::ThisCall, None);
        let decided = DecisionRecorded {
            call,
            digest,
            decision,
            scope,
            decided_by,
            displayed: None,
            posted_revision: 0,
            signature: None,
            mac: None,
        };
        // A decision that comes too late, or about a call that needs none, changes nothing.
        let _ = self.driver.bench.try_record(vec![], JournalEntry::DecisionRecorded(decided));
    }

    /// Carries out one effect. Returns its name; `None` if the walk is over.
    fn step(&mut self, choices: &mut Choices) -> Option<&'static str> {
        let effect = self.driver.next_effect();
        self.check(&effect);
        let name = effect_name(&effect);
        let can_stop = match effect {
            CallEffect::Done(outcome) => outcome == CallOutcome::Held,
            CallEffect::AnnounceEnd => false,
            _ => true,
        };
        if can_stop && self.seen.stopped.is_none() && choices.one_in(20) {
            let mode = choices.pick(vec![StopMode::EndRun, StopMode::HandOver]);
            self.report(CallReport::Stopped(mode));
            return Some("stop");
        }
        if choices.one_in(25) && self.settlements == 0 {
            self.restart(choices);
            return Some("crash");
        }
        // A person may decide at any time before the call has a result. A call that waits is decided about below: its
        // progress does not outlive the wait.
        let is_done = matches!(effect, CallEffect::Done(_));
        if choices.one_in(25) && self.driver.progress.result().is_none() && !is_done {
            self.decide(choices);
            return Some("decide");
        }
        match &effect {
            CallEffect::Done(CallOutcome::Settled) => return None,
            CallEffect::Done(CallOutcome::Held) => {
                self.decide(choices);
                self.restart(choices);
            }
            CallEffect::Done(CallOutcome::LeftOpen) => self.restart(choices),
            effect => {
                if let CallEffect::Start(runnable) = effect {
                    self.seen.started.insert(runnable.attempt());
                    (self.seen.may_retry, self.seen.was_not_executed) = (false, false);
                    // Each attempt has its own guards.
                    self.seen.passed.retain(|passed| *passed == "claim");
                }
                if let CallEffect::RunBody(runnable) = effect
                    && runnable.body() == BodyKind::Agent
                    && self.driver.run().nested_run(&self.driver.call).is_none()
                {
                    let started = JournalEntry::RunStarted(run_started("run-1/c1", "clerk").into());
                    self.driver.bench.try_record(vec![self.driver.call.clone()], started).expect("it fits");
                }
                if !self.driver.record_effect(effect) {
                    let report = self.random_report(effect, choices);
                    self.report(report);
                }
                self.settlements += u32::from(matches!(effect, CallEffect::Settle(_)));
            }
        }
        Some(name)
    }
}

#[test]
fn whatever_is_reported_the_invariants_of_a_call_hold() {
    let mut times: BTreeMap<&'static str, u32> = BTreeMap::new();
    for seed in 0..6_000_u64 {
        let mut choices = Choices::new(seed);
        let script = WALK_STARTS[choices.below(WALK_STARTS.len() as u64) as usize];
        let features = choices.features();
        let (driver, seen) = (CallDriver::new(script, features), WalkRecord::default());
        let mut walk = CallWalk { driver, features, seen, settlements: 0 };
        let mut names = Vec::new();
        let walked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..400 {
                let Some(name) = walk.step(&mut choices) else { return true };
                names.push(name);
            }
            false
        }));
        assert!(walked.is_ok(), "seed {seed}, {script}: {names:?}");
        assert!(matches!(walked, Ok(true)), "seed {seed}, {script} never ends: {names:?}");
        assert_eq!(walk.settlements, 1, "seed {seed}, {script}: {names:?}");
        assert_eq!(walk.driver.bench.replay().run, *walk.driver.run(), "seed {seed}");
        names.into_iter().for_each(|name| *times.entry(name).or_default() += 1);
    }
    let rare: Vec<_> = times.iter().filter(|(_, times)| **times < 20).collect();
    assert_eq!((times.len(), rare), (27, vec![]), "{times:?}");
}

/// Returns the effects of a call after its run was restored from a backup.
fn drive_restored(script: &str, chosen: &[(&str, CallReport)]) -> String {
    CallDriver::new(&format!("{script}; restore"), NONE).drive(chosen)
}

#[test]
fn a_call_that_may_have_started_after_the_backup_is_in_doubt() {
    let unknown = || [("reconcile", CallReport::Reconciled(ReconcileReport::Unknown))];
    let in_doubt = "reconcile, hold in doubt, done held";
    let scripts = [
        "answer c1:transfer",
        "answer c1:pay",
        "answer c1:pay; hold c1",
        "answer c1:pay; hold c1; approve c1",
        "answer c1:transfer; start c1",
        "answer c1:transfer; start c1; doubt c1",
        "answer c1:transfer; start c1; doubt c1; did_not_happen c1",
        "answer c1:transfer; start c1; ask c1",
    ];
    for script in scripts {
        assert_eq!(drive_restored(script, &unknown()), in_doubt, "{script}");
    }
    let executed = CallReport::Reconciled(ReconcileReport::Executed("paid".into()));
    for script in scripts {
        assert_eq!(
            drive_restored(script, &[("reconcile", executed.clone())]),
            "reconcile, settle reconciled, done settled",
            "{script}"
        );
    }
}

#[test]
fn a_restored_call_whose_effect_can_be_repeated_is_not_in_doubt() {
    let runs = "start#1, body#1, settle succeeded, done settled";
    assert_eq!(drive_restored("answer c1:look", &[]), runs);
    assert_eq!(drive_restored("answer c1:print", &[]), runs, "its key is the one that it had");
    assert_eq!(
        drive_restored("answer c1:print; start c1", &[]),
        "start#2, body#2, settle succeeded, done settled"
    );
}

#[test]
fn a_restored_call_that_did_not_start_still_needs_its_approval() {
    // The reconcile function says so.
    assert_eq!(
        drive_restored("answer c1:transfer", &[]),
        "reconcile, start#2, body#2, settle succeeded, done settled"
    );
    for script in ["answer c1:pay", "answer c1:pay; hold c1"] {
        let mut driver = CallDriver::new(&format!("{script}; restore"), NONE);
        assert_eq!(driver.drive(&[]), "reconcile, hold, done held", "{script}");
        driver.decide("approve c1");
        driver.restart(NONE);
        assert_eq!(driver.drive(&[]), "start#2, body#2, settle succeeded, done settled", "{script}");
    }
    assert_eq!(
        drive_restored("answer c1:pay; hold c1; approve c1", &[]),
        "reconcile, start#2, body#2, settle succeeded, done settled",
        "it was approved before the backup"
    );
    // A person says so.
    let unknown = || [("reconcile", CallReport::Reconciled(ReconcileReport::Unknown))];
    let mut driver = CallDriver::new("answer c1:pay; hold c1; restore", NONE);
    assert_eq!(driver.drive(&unknown()), "reconcile, hold in doubt, done held");
    assert!(driver.bench.try_line("approve c1").is_err(), "an approval does not answer the question");
    driver.decide("did_not_happen c1");
    driver.restart(NONE);
    assert_eq!(driver.drive(&[]), "hold, done held", "that it did not happen is no approval");
    driver.decide("approve c1");
    driver.restart(NONE);
    assert_eq!(driver.drive(&[]), "start#1, body#1, settle succeeded, done settled");
    // No driver may start it unasked.
    let mut driver = CallDriver::new("answer c1:pay; hold c1; restore", NONE);
    assert!(driver.bench.try_line("start c1 2").is_err());
}

#[test]
fn later_calls_of_a_restored_run_may_repeat_what_it_did() {
    let before = "answer c0:look; start c0; settle c0 succeeded; restore";
    for (call, then) in
        [("c1:transfer", "start#1, body#1, settle succeeded, done settled"), ("c1:pay", "hold, done held")]
    {
        let mut driver = CallDriver::new(&format!("{before}; answer {call}"), NONE);
        assert_eq!(driver.drive(&[]), "hold in doubt, done held", "{call}: its key says nothing");
        assert!(driver.bench.try_line("start c1 2").is_err(), "{call}");
        driver.decide("did_not_happen c1");
        driver.restart(NONE);
        assert_eq!(driver.drive(&[]), then, "{call}");
    }
    let print = format!("{before}; answer c1:print");
    assert_eq!(
        CallDriver::new(&print, NONE).drive(&[]),
        "hold in doubt, done held",
        "it has another key now"
    );
    let look = format!("{before}; answer c1:look");
    assert_eq!(CallDriver::new(&look, NONE).drive(&[]), "start#1, body#1, settle succeeded, done settled");
    let ended = RunBench::from_script("say; finish");
    assert!(ended.run.outcome().is_some());
}

#[test]
fn calls_of_nested_agents_are_in_doubt_too() {
    let nested =
        RunBench::from_script("answer c1:books; start c1; c1/ nest; c1/ answer n1:pay; c1/ hold n1; restore");
    assert!(
        nested.run.pending_calls().is_empty(),
        "the approval of the backup is void until the doubt is resolved"
    );
    assert!(nested.run.is_restored());
}
