//! A second driver: it interprets the actions of a run and the effects of its calls, and knows nothing else. It has one
//! thread, works on the calls of a turn in turns that the seed decides, and drives a nested agent as one effect.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{
    canonical::{Digest, canonical_text},
    decision::{Decision, DecisionScope, PendingCall},
    history::keep_pairs,
    id::{CallId, RunId, Timestamp},
    idempotency::{CallKey, IdempotencyKey, KeyScope, operation_digest},
    item::{Item, ToolCall},
    journal::{
        CallHeld, CallSettled, CallStatus, DecisionRecorded, FilteredInput, JournalEntry, JournalRecord,
        ModelInputFiltered, ModelResponded, RunCancelled, RunFinished, RunStarted, ToolUsePolicyKind,
    },
    plan::{BodyKind, ResolvedTool, ToolLookup, plan_response},
    run::{
        ApprovalRequirement, CallEffect, CallFeatures, CallProgress, CallReceipt, CallReport, CallResult,
        GateVerdict, ReceiptVerdict, ReconcileReport, Run, RunAction, RunEnd, StopMode, StopRequest,
        TurnSchedule,
    },
    tool::{ApprovalPolicy, ToolEffect, ToolKey},
    usage::Usage,
};
use windlass_sim::SimRng;
use windlass_sim::driver_check::{
    BodyStep, DriverWorld, ProcessCrash, RECEIPT_LIFETIME_MS, ScenarioTool, StopKind, TestedDriver,
};

use crate::careless_drivers::DriverFault;

/// The small driver, with the fault that a test gives it.
#[derive(Debug, Default)]
pub(crate) struct SmallDriver {
    fault: Option<DriverFault>,
    process_count: Cell<u64>,
}

impl SmallDriver {
    pub(crate) fn with_fault(fault: DriverFault) -> Self {
        Self { fault: Some(fault), process_count: Cell::new(0) }
    }
}

/// One process of the driver.
struct Process<'a> {
    world: &'a DriverWorld,
    fault: Option<DriverFault>,
    number: u64,
    rng: SimRng,
    root: Run,
    /// The calls that lead to the agent that is driven now.
    path: Vec<CallId>,
    next_seq: u64,
    receipts: BTreeMap<Digest, CallReceipt>,
    /// Calls with the right to execute, by receipt.
    claims: BTreeMap<Digest, CallId>,
    /// Calls whose body waits for another call.
    waiting: BTreeSet<CallId>,
}

/// The way in which the driver left a run.
#[derive(PartialEq, Eq)]
enum DriveExit {
    Ended,
    Paused,
    Stopped,
}

impl TestedDriver for SmallDriver {
    fn drive(&self, world: &Arc<DriverWorld>) -> Result<(), ProcessCrash> {
        self.process_count.set(self.process_count.get() + 1);
        let mut process = Process::open(world, self.fault, self.process_count.get())?;
        while process.drive()? == DriveExit::Paused {
            for pending in process.root.pending_calls() {
                let decision = world.decide(&pending)?;
                process.record_decision(pending, decision)?;
            }
        }
        Ok(())
    }
}

impl<'a> Process<'a> {
    /// Starts the run, or replays its records.
    fn open(world: &'a DriverWorld, fault: Option<DriverFault>, number: u64) -> Result<Self, ProcessCrash> {
        let rng = SimRng::for_purpose(world.scenario().seed + number, "small driver");
        let records = world.records();
        let (root, receipts) = match Run::replay(&records) {
            Ok(replayed) => (replayed.run, replayed.receipts),
            Err(_) => {
                let started = start_of("run".into(), "agent", "go");
                let first = JournalEntry::RunStarted(Box::new(started.clone()));
                world.append(JournalRecord { seq: 0, at: Timestamp(0), path: Vec::new(), entry: first })?;
                (Run::start(started), BTreeMap::new())
            }
        };
        let mut process = Self {
            world,
            fault,
            number,
            rng,
            root,
            path: Vec::new(),
            next_seq: records.len().max(1) as u64,
            receipts,
            claims: BTreeMap::new(),
            waiting: BTreeSet::new(),
        };
        process.erase_withheld()?;
        Ok(process)
    }

    fn has_fault(&self, fault: DriverFault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the run that is driven now.
    fn run(&self) -> &Run {
        self.root.at_path(&self.path).unwrap_or(&self.root)
    }

    /// Returns the way in which calls stop, if they are to stop now.
    fn stop_mode(&self) -> Option<StopMode> {
        match self.world.requested_stop()? {
            StopKind::Cancel if self.has_fault(DriverFault::IgnoresCancellation) => None,
            StopKind::Cancel => Some(StopMode::EndRun),
            StopKind::HandOver if self.has_fault(DriverFault::SettlesAtHandOver) => Some(StopMode::EndRun),
            StopKind::HandOver => Some(StopMode::HandOver),
            StopKind::CancelAfterTurn if self.has_fault(DriverFault::StopsInTheTurn) => {
                Some(StopMode::EndRun)
            }
            StopKind::CancelAfterTurn => None,
        }
    }

    /// Returns the request under which the run is to stop, if there is one.
    fn stop_request(&self) -> Option<StopRequest> {
        match (self.stop_mode(), self.world.requested_stop()?) {
            (Some(StopMode::HandOver), _) => Some(StopRequest::Leave),
            (Some(StopMode::EndRun), _) => Some(StopRequest::Cancel),
            (None, StopKind::CancelAfterTurn)
                if self.path.is_empty() && !self.has_fault(DriverFault::IgnoresCancellation) =>
            {
                Some(StopRequest::CancelAfterTurn)
            }
            (None, _) => None,
        }
    }

    /// Drives the run at the current path.
    fn drive(&mut self) -> Result<DriveExit, ProcessCrash> {
        loop {
            match self.run().next_action(self.stop_request()) {
                RunAction::Ended => return Ok(DriveExit::Ended),
                RunAction::Leave => return Ok(DriveExit::Stopped),
                RunAction::Cancel => self.record(JournalEntry::RunCancelled(RunCancelled::default()))?,
                RunAction::RequestModel { .. } => self.request_model()?,
                RunAction::AdvanceCalls => self.advance_calls()?,
                RunAction::Pause(_) => return Ok(DriveExit::Paused),
                RunAction::Finish(candidate) => {
                    let finished = RunFinished { output: candidate.output, message: None };
                    self.record(JournalEntry::RunFinished(finished))?;
                }
                other => {
                    self.world.report_violation(format!("no scenario leads to {other:?}"));
                    return Ok(DriveExit::Ended);
                }
            }
        }
    }

    /// Makes an entry durable, then applies it.
    fn record(&mut self, entry: JournalEntry) -> Result<(), ProcessCrash> {
        self.record_at(self.path.clone(), entry)
    }

    fn record_at(&mut self, path: Vec<CallId>, entry: JournalEntry) -> Result<(), ProcessCrash> {
        let at = self.world.now();
        let record = JournalRecord { seq: self.next_seq, at, path, entry };
        self.world.append(record.clone())?;
        self.next_seq += 1;
        match self.root.apply_at(&record.path, &record.entry) {
            Ok(applied) => {
                if let Some(new) = applied.receipt {
                    let receipt =
                        CallReceipt { output: new.output, created_at: at, generation: new.generation };
                    self.receipts.insert(new.digest, receipt);
                }
            }
            Err(error) => self.world.report_violation(format!("{:?} does not fit: {error}", record.entry)),
        }
        Ok(())
    }

    fn record_decision(&mut self, pending: PendingCall, decision: Decision) -> Result<(), ProcessCrash> {
        let decided = DecisionRecorded {
            call: pending.call().clone(),
            digest: pending.digest,
            decision,
            scope: DecisionScope::ThisCall,
            decided_by: None,
            displayed: None,
            posted_revision: 0,
            signature: None,
            mac: None,
        };
        self.record_at(pending.path.parent_calls().to_vec(), JournalEntry::DecisionRecorded(decided))
    }

    fn request_model(&mut self) -> Result<(), ProcessCrash> {
        let agent = self.run().agent().clone();
        let history = self.run().history().to_vec();
        let mut filtered = self.world.filter_input(history.clone());
        if !self.has_fault(DriverFault::SendsHalfPairs) {
            filtered = keep_pairs(filtered).items;
        }
        if filtered != history && !self.has_fault(DriverFault::FiltersUnrecorded) {
            let input = FilteredInput::from_items(&history, &filtered);
            let entry = ModelInputFiltered { agent: agent.clone(), instructions: None, input };
            self.record(JournalEntry::ModelInputFiltered(entry))?;
        }
        let items = self.world.respond(&filtered)?.into_iter().map(Arc::new).collect();
        let plan = match plan_response(items, &agent, self.run(), |call| self.look_up_tool(call)) {
            Ok(plan) => plan,
            Err(error) => panic!("the response cannot be planned: {error:?}"),
        };
        self.record(JournalEntry::ModelResponded(Box::new(ModelResponded {
            agent,
            items: plan.items,
            calls: plan.calls,
            duplicate_calls: plan.duplicate_calls,
            context_sources: plan.context_sources,
            tool_use_policy: ToolUsePolicyKind::RunModelAgain,
            usage: Usage::default(),
            response_id: None,
            request_id: None,
            model: None,
            attempts: 1,
            requested_at: None,
            requested: Default::default(),
            finish_reason: None,
            active_ms: 0,
        })))
    }

    fn look_up_tool(&self, call: &ToolCall) -> ToolLookup {
        let tools = &self.world.scenario().tools;
        let found = tools.iter().find(|tool| tool.name == call.name && self.is_enabled(tool));
        let Some(tool) = found else {
            return ToolLookup::UnknownTool { message: "There is no such tool.".to_owned() };
        };
        let has_conflicts = tool.is_exclusive && !self.has_fault(DriverFault::IgnoresConflicts);
        ToolLookup::Tool(ResolvedTool {
            sources: Default::default(),
            key: ToolKey::Bare(tool.name.as_str().into()),
            body: if tool.is_agent { BodyKind::Agent } else { BodyKind::Function },
            effect: tool.effect,
            approval_policy: match self.has_fault(DriverFault::ApprovesItself) {
                true => ApprovalPolicy::NotRequired,
                false => tool.approval,
            },
            conflict_key: has_conflicts.then(|| tool.name.clone()),
            arguments: Ok(canonical_text(&call.arguments).unwrap_or_default().into()),
        })
    }

    fn is_enabled(&self, tool: &ScenarioTool) -> bool {
        self.has_fault(DriverFault::IgnoresSwitches) || self.world.is_enabled(&tool.name)
    }

    /// Works on the calls of the turn, one effect at a time, until none can make progress.
    fn advance_calls(&mut self) -> Result<(), ProcessCrash> {
        let limit = self.world.scenario().max_concurrent_calls;
        let mut schedule = TurnSchedule::new(self.run(), limit);
        let mut active: Vec<(usize, CallId, CallProgress)> = Vec::new();
        loop {
            if !self.has_fault(DriverFault::DecidesAtPauses) {
                self.take_live_decisions(&mut schedule)?;
            }
            if self.world.is_crashed() {
                return Err(ProcessCrash);
            }
            let stop = self.stop_mode();
            while stop.is_none()
                && let Some((place, call)) = schedule.begin_call(self.run())
            {
                let progress = CallProgress::new(self.call_features(&call));
                active.push((place, call, progress));
            }
            if active.is_empty() {
                return Ok(());
            }
            let chosen = self.rng.index(active.len());
            let (place, call, progress) = &mut active[chosen];
            if let Some(mode) = stop.filter(|_| !progress.is_stopped()) {
                progress.report(CallReport::Stopped(mode));
            }
            match self.run().next_effect(call, progress) {
                CallEffect::Done(outcome) => {
                    schedule.end_call(*place, outcome, self.root.at_path(&self.path).unwrap_or(&self.root));
                    let (_, call, _) = active.swap_remove(chosen);
                    self.claims.retain(|_, holder| *holder != call);
                }
                effect => {
                    if let Some(report) = self.perform_effect(&call.clone(), effect)? {
                        active[chosen].2.report(report);
                    }
                }
            }
        }
    }

    /// Records the decisions that a person has made while calls run.
    fn take_live_decisions(&mut self, schedule: &mut TurnSchedule) -> Result<(), ProcessCrash> {
        for pending in self.root.pending_calls() {
            if let Some(decision) = self.world.decide_live(&pending)? {
                self.record_decision(pending, decision)?;
                schedule.refresh(self.run());
            }
        }
        Ok(())
    }

    fn tool_of(&self, call: &CallId) -> Option<&'a ScenarioTool> {
        let scenario = self.world.scenario();
        scenario.call(call.as_str()).map(|call| scenario.tool_of(call))
    }

    fn call_features(&self, call: &CallId) -> CallFeatures {
        let Some(tool) = self.tool_of(call) else { return CallFeatures::default() };
        CallFeatures {
            has_input_guardrails: tool.has_input_guardrail
                && !self.has_fault(DriverFault::SkipsInputGuardrails),
            has_output_guardrails: tool.has_output_guardrail && !self.has_fault(DriverFault::RevealsOutputs),
            has_enabled_rule: tool.switched_off_in.is_some() && !self.has_fault(DriverFault::IgnoresSwitches),
            has_receipts: tool.shares_receipts && !self.has_fault(DriverFault::RepeatsTwins),
            follows_success_only: true,
            ..CallFeatures::default()
        }
    }

    /// Carries out one effect of a call.
    fn perform_effect(
        &mut self,
        call: &CallId,
        effect: CallEffect,
    ) -> Result<Option<CallReport>, ProcessCrash> {
        Ok(Some(match effect {
            CallEffect::FindReceipt => CallReport::ReceiptFound(self.find_receipt(call).is_some()),
            CallEffect::EvaluateApprovalRule { .. } => {
                CallReport::ApprovalRule(match self.world.requires_approval(call) {
                    true => ApprovalRequirement::Required,
                    false => ApprovalRequirement::NotRequired,
                })
            }
            CallEffect::Hold(reason) => {
                let held = CallHeld::new(call.clone(), reason);
                self.record(JournalEntry::CallHeld(held))?;
                CallReport::Held
            }
            CallEffect::Reconcile if self.has_fault(DriverFault::RepeatsDoubtfulCalls) => {
                CallReport::Reconciled(ReconcileReport::NotExecuted)
            }
            CallEffect::Reconcile => CallReport::Reconciled(self.world.reconcile(call)?),
            CallEffect::ClaimReceipt => match self.claim_receipt(call) {
                Some(verdict) => CallReport::Receipt(verdict),
                None => return Ok(None),
            },
            CallEffect::ReleaseReceipt => {
                self.claims.retain(|_, holder| holder != call);
                CallReport::ReceiptReleased
            }
            CallEffect::RunInputGuardrails => CallReport::InputGuardrails(verdict(
                self.world.check_input(call)?,
                CallStatus::BlockedByGuardrail,
            )),
            CallEffect::CheckEnabled => {
                let is_enabled = self.tool_of(call).is_some_and(|tool| self.is_enabled(tool));
                CallReport::Enabled(verdict(is_enabled, CallStatus::UnknownTool))
            }
            CallEffect::Start(runnable) if self.has_fault(DriverFault::StartsLate) => {
                let report = self.run_function(call, 1)?;
                self.record(runnable.start_entry(0, || self.new_key(call)))?;
                return Ok(report);
            }
            CallEffect::Start(runnable) => {
                self.record(runnable.start_entry(0, || self.new_key(call)))?;
                CallReport::Started { attempt: runnable.attempt() }
            }
            CallEffect::RunBody(runnable) => match runnable.body() {
                BodyKind::Function => return self.run_function(call, runnable.attempt()),
                BodyKind::Agent => self.run_agent(call)?,
            },
            CallEffect::AwaitRetry(_) => CallReport::RetryReady,
            CallEffect::Withhold(result) => {
                self.world.withhold(call, result.output.clone())?;
                self.record(result.body_ended_entry(call))?;
                CallReport::BodyEnded(result)
            }
            CallEffect::RunOutputGuardrails { status, output } => {
                let output = output.or_else(|| self.world.withheld(call)).unwrap_or_else(|| "".into());
                CallReport::OutputGuardrails(match self.world.check_output(call)? {
                    true => CallResult::new(status, output),
                    false => CallResult::new(CallStatus::OutputWithheld, "The output was withheld."),
                })
            }
            CallEffect::Settle(result) => {
                let settled = CallSettled::new(call.clone(), result.status, result.output);
                self.record(JournalEntry::CallSettled(settled))?;
                self.erase_withheld()?;
                return Ok(None);
            }
            other => panic!("no scenario leads to {other:?}"),
        }))
    }

    /// Runs one attempt of a function, or polls it if it waits. Returns no report while it waits.
    fn run_function(&mut self, call: &CallId, attempt: u32) -> Result<Option<CallReport>, ProcessCrash> {
        let step = match self.waiting.contains(call) {
            true => self.world.poll_body(call)?,
            false => {
                self.world.enter_body(call);
                let recorded = self.run().call_key(call);
                let mut key = recorded.map(|key| key.idempotency_key.to_string()).unwrap_or_default();
                if self.has_fault(DriverFault::ChangesKeys) {
                    key = format!("{key}/{}", self.number);
                }
                let answers = match self.has_fault(DriverFault::ForgetsAnswers) {
                    true => &[],
                    false => self.run().answered_questions(call),
                };
                self.world.run_body(call, &key, answers)?
            }
        };
        if step == BodyStep::Waits {
            self.waiting.insert(call.clone());
            return Ok(None);
        }
        self.waiting.remove(call);
        match step {
            BodyStep::Asked(_) | BodyStep::Hangs => self.world.abandon_body(),
            _ => self.world.leave_body(call),
        }
        if self.has_fault(DriverFault::DiscardsResults) && self.stop_mode().is_some() {
            return Ok(None);
        }
        let tool = self.tool_of(call);
        let can_retry = match self.fault {
            Some(DriverFault::NeverRetries) => false,
            Some(DriverFault::RetriesForever) => attempt < 5,
            _ => tool.is_some_and(|tool| attempt < tool.max_attempts),
        };
        let may_repeat_timeout = tool.is_some_and(|tool| tool.effect != ToolEffect::Once)
            || self.has_fault(DriverFault::RepeatsTimeouts);
        let text = "The tool did not return in time.";
        let ended = |status, text: String, is_retry_due| {
            let result = CallResult::new(status, text);
            match is_retry_due {
                true => CallReport::RetryDue { delay: Duration::ZERO, result: result.into() },
                false => CallReport::BodyEnded(result),
            }
        };
        Ok(Some(match step {
            BodyStep::Returned(output) => {
                CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output))
            }
            BodyStep::Failed(error) => ended(CallStatus::Failed, error, can_retry),
            BodyStep::Hangs => ended(CallStatus::TimedOut, text.into(), can_retry && may_repeat_timeout),
            BodyStep::Waits => ended(CallStatus::TimedOut, text.into(), false),
            BodyStep::Asked(question) => CallReport::QuestionAsked(question),
        }))
    }

    /// Drives the agent of a call, from its start or from where an earlier driver left it.
    fn run_agent(&mut self, call: &CallId) -> Result<CallReport, ProcessCrash> {
        let is_new = self.run().nested_run(call).is_none() || self.has_fault(DriverFault::RestartsAgents);
        self.path.push(call.clone());
        if is_new {
            let id = RunId::new(format!("{}/{call}", self.root.id()));
            let started = start_of(id, "helper", call.as_str());
            self.record(JournalEntry::RunStarted(Box::new(started)))?;
        }
        let exit = self.drive();
        let outcome = self.run().outcome().cloned();
        self.path.pop();
        Ok(match (exit?, outcome) {
            (DriveExit::Paused, _) => CallReport::AgentPaused,
            (DriveExit::Stopped, _) => CallReport::Stopped(StopMode::HandOver),
            (DriveExit::Ended, Some(RunEnd::Finished(output))) => {
                CallReport::BodyEnded(CallResult::new(CallStatus::Succeeded, output))
            }
            (DriveExit::Ended, _) => CallReport::BodyEnded(CallResult::cancelled()),
        })
    }

    /// Returns the digest under which the result of a call is shared.
    fn receipt_digest(&self, call: &CallId) -> Digest {
        let arguments = self.run().call_arguments(call).unwrap_or_default();
        let tool = self.run().tool_of_call(call).cloned().unwrap_or(ToolKey::Bare("".into()));
        operation_digest(self.run().agent(), &tool, arguments)
    }

    /// Returns the receipt that answers a call, unless it has expired.
    fn find_receipt(&self, call: &CallId) -> Option<&CallReceipt> {
        let lives_for_ever = self.has_fault(DriverFault::IgnoresExpiry)
            || !self.tool_of(call).is_some_and(|tool| tool.receipts_expire);
        let is_fresh = |receipt: &&CallReceipt| {
            self.world.now().0 < receipt.created_at.0.saturating_add(RECEIPT_LIFETIME_MS)
        };
        self.receipts.get(&self.receipt_digest(call)).filter(|receipt| lives_for_ever || is_fresh(receipt))
    }

    /// Claims the execution of a call; `None` while an identical call is in flight.
    fn claim_receipt(&mut self, call: &CallId) -> Option<ReceiptVerdict> {
        let digest = self.receipt_digest(call);
        if let Some(receipt) = self.find_receipt(call) {
            return Some(ReceiptVerdict::Completed(receipt.output.clone()));
        }
        if self.claims.get(&digest).is_some_and(|holder| holder != call)
            || self.is_withheld_elsewhere(call, digest)
        {
            return None;
        }
        self.claims.insert(digest, call.clone());
        Some(ReceiptVerdict::Claimed)
    }

    /// Returns true if an identical call has ended, and waits for its output guardrails.
    fn is_withheld_elsewhere(&self, call: &CallId, digest: Digest) -> bool {
        let mut withheld = self.root.withheld_calls().into_iter().filter(|path| path.call() != call);
        withheld.any(|path| {
            let key = self.root.at_path(path.parent_calls()).and_then(|run| run.call_key(path.call()));
            key.and_then(|key| key.receipt_digest) == Some(digest)
        })
    }

    /// Derives the identity of a call that starts for the first time.
    fn new_key(&self, call: &CallId) -> CallKey {
        let operation = self.receipt_digest(call);
        let expired = self.receipts.get(&operation).map(|receipt| receipt.generation + 1);
        let generation = expired.unwrap_or_default();
        let idempotency_key = IdempotencyKey::derive(KeyScope::Run(self.root.id()), &operation, generation);
        let shares = self.tool_of(call).is_some_and(|tool| tool.shares_receipts);
        CallKey { idempotency_key, receipt_digest: shares.then_some(operation), generation }
    }

    /// Erases the outputs of calls that have settled: after each settlement, and after a crash right behind one.
    fn erase_withheld(&mut self) -> Result<(), ProcessCrash> {
        if self.has_fault(DriverFault::KeepsWithheldOutputs) {
            return Ok(());
        }
        let open = self.root.withheld_calls();
        let mut settled = self.world.withheld_calls();
        settled.retain(|call| !open.iter().any(|path| path.call() == call));
        self.world.erase_withheld(&settled)
    }
}

fn start_of(run: RunId, agent: &str, input: &str) -> RunStarted {
    let mut started = RunStarted::new(run, agent.into());
    started.input = vec![Arc::new(Item::user(input))];
    started
}

fn verdict(passes: bool, status: CallStatus) -> GateVerdict {
    match passes {
        true => GateVerdict::Pass,
        false => GateVerdict::End(CallResult::new(status, "It was blocked.")),
    }
}
