//! A test bench for the state machine, driven by scripts: entries separated by `;`, each a verb and its
//! operands.

use std::sync::Arc;

use crate::run::{
    ApplyError, CallEffect, CallFeatures, CallOutcome, CallProgress, OutputCandidateSource, ReplayedRun, Run,
    RunAction, RunEnd, StopRequest, TurnSchedule,
};
use crate::{
    canonical::Digest,
    decision::{Decision, DecisionScope, HoldReason, PersonQuestion},
    failure::RunFailure,
    id::{CallId, Timestamp},
    idempotency::CallKey,
    item::{ContentPart, Item, Message, OpaqueItem, OutputContent, OutputStatus, Role, ToolCall},
    journal::{
        CallBodyEnded, CallEndedLate, CallHeld, CallSettled, CallStarted, CallStatus, CompactionReason,
        DecisionRecorded, DecisionRevoked, FilteredInput, HandoffRecorded, HistoryCompacted, InputAdded,
        JournalEntry, JournalRecord, ModelInputFiltered, ModelRequestFailed, ModelResponded, OutputRejected,
        ResponseRejected, RunCancelled, RunFailed, RunFinished, RunRestored, RunStarted, ToolUsePolicyKind,
    },
    plan::{BodyKind, CallDisposition, ResolvedTool, ResponsePlan, ToolLookup, plan_response},
    tool::{ApprovalPolicy, ToolEffect, ToolKey},
    usage::Usage,
};

/// A run and its journal.
pub(crate) struct RunBench {
    pub(crate) run: Run,
    pub(crate) records: Vec<JournalRecord>,
}

/// Returns the run after a script.
pub(crate) fn play_script(script: &str) -> Run {
    RunBench::from_script(script).run
}

/// Returns the error for `entry` after a script, and asserts that the run is unchanged.
pub(crate) fn refusal_message(script: &str, entry: &str) -> String {
    let mut bench = RunBench::from_script(script);
    let before = bench.run.clone();
    let refused = bench.try_line(entry).expect_err(&format!("`{entry}` does not fit after `{script}`"));
    assert_eq!(bench.run, before, "`{entry}` is refused after `{script}` and changed something");
    refused.to_string()
}

impl RunBench {
    pub(crate) fn new() -> Self {
        let started = run_started("run-1", "desk");
        let first = JournalRecord {
            seq: 0,
            at: Timestamp(0),
            path: vec![],
            entry: JournalEntry::RunStarted(started.clone().into()),
        };
        Self { run: Run::start(started), records: vec![first] }
    }

    pub(crate) fn from_script(script: &str) -> Self {
        let mut bench = Self::new();
        for line in script.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            bench.try_line(line).unwrap_or_else(|why| panic!("`{line}` in `{script}`: {why}"));
        }
        bench
    }

    pub(crate) fn try_line(&mut self, line: &str) -> Result<(), ApplyError> {
        let (path, line) = match line.split_once("/ ") {
            Some((path, line)) => (path.split('/').map(CallId::from).collect(), line),
            None => (Vec::new(), line),
        };
        let entry = parse_entry(self.run.at_path(&path).unwrap_or(&self.run), line);
        self.try_record(path, entry)
    }

    pub(crate) fn try_record(&mut self, path: Vec<CallId>, entry: JournalEntry) -> Result<(), ApplyError> {
        self.run.apply_at(&path, &entry)?;
        let seq = self.records.len() as u64;
        self.records.push(JournalRecord { seq, at: Timestamp(seq), path, entry });
        Ok(())
    }

    pub(crate) fn replay(&self) -> ReplayedRun {
        Run::replay(&self.records).expect("what was accepted replays")
    }
}

pub(crate) fn run_started(run: &str, agent: &str) -> RunStarted {
    RunStarted {
        run: run.into(),
        agent: agent.into(),
        history: Default::default(),
        input: vec![Arc::new(Item::user("go"))],
        max_turns: Some(5),
        session: None,
        previous_response_id: None,
        key_nonce: Some("nonce".into()),
        origin: None,
        build: None,
        budget: None,
        session_budget: None,
    }
}

/// Parses one line of a script into an entry.
fn parse_entry(run: &Run, line: &str) -> JournalEntry {
    let mut words = line.split_whitespace();
    let verb = words.next().expect("a line has a verb");
    let rest: Vec<&str> = words.collect();
    let call = || CallId::from(*rest.first().expect("the line names a call"));
    let decided = |decision, reach| {
        let digest = run.call_digests().get(&call()).copied().unwrap_or_else(|| Digest::of_text("nothing"));
        JournalEntry::DecisionRecorded(DecisionRecorded {
            call: call(),
            digest,
            decision,
            scope: reach,
            decided_by: None,
            displayed: None,
            posted_revision: 0,
            signature: None,
            mac: None,
        })
    };
    let says = |content| {
        Item::Message(Message { role: Role::Assistant, content, item_id: None, sources: Default::default() })
    };
    match verb {
        "started" | "nest" => JournalEntry::RunStarted(run_started("run-1/c1", "clerk").into()),
        "say" => {
            model_response(run, vec![says(vec![ContentPart::text("said")])], ToolUsePolicyKind::RunModelAgain)
        }
        "refuse_to_say" => {
            let refusal = says(vec![ContentPart::Refusal { text: "no".to_owned() }]);
            model_response(run, vec![refusal], ToolUsePolicyKind::RunModelAgain)
        }
        "hosted" => {
            let hosted = Item::HostedTool(OpaqueItem::new("search", true));
            model_response(run, vec![hosted], ToolUsePolicyKind::RunModelAgain)
        }
        "answer" => model_response(run, parse_calls(&rest), ToolUsePolicyKind::RunModelAgain),
        "stop_on_first" => model_response(run, parse_calls(&rest), ToolUsePolicyKind::StopOnFirstTool),
        "judge" => model_response(run, parse_calls(&rest), ToolUsePolicyKind::CustomFunction),
        stop_at if stop_at.starts_with("stop_at:") => {
            let names = vec![stop_at["stop_at:".len()..].to_owned()];
            model_response(run, parse_calls(&rest), ToolUsePolicyKind::StopAtTools(names))
        }
        "refused" => {
            let agent = run.agent().clone();
            JournalEntry::ResponseRejected(ResponseRejected {
                agent,
                items: vec![],
                usage: Usage::of_tokens(1, 1),
            })
        }
        "failed_model" => {
            let (agent, error) = (run.agent().clone(), "overloaded".to_owned());
            JournalEntry::ModelRequestFailed(ModelRequestFailed {
                requested: Default::default(),
                agent,
                error,
                retry_after_ms: None,
                usage: None,
                active_ms: 0,
            })
        }
        "hold" => JournalEntry::CallHeld(CallHeld::new(call(), HoldReason::Approval)),
        "doubt" => JournalEntry::CallHeld(CallHeld::new(call(), HoldReason::InDoubt)),
        "ask" => {
            let question = PersonQuestion::new("Which?").with_schema(serde_json::json!({ "type": "string" }));
            JournalEntry::CallHeld(CallHeld::for_question(call(), question))
        }
        "reply" => decided(Decision::Answer { value: "this".into() }, DecisionScope::ThisCall),
        "reply_badly" => decided(Decision::Answer { value: 7.into() }, DecisionScope::ThisCall),
        "approve" => decided(Decision::Approve, DecisionScope::ThisCall),
        "approve_always" => decided(Decision::Approve, DecisionScope::ToolForRun),
        "edit" => decided(
            Decision::ApproveEdited { arguments: "{\"edited\":true}".to_owned() },
            DecisionScope::ThisCall,
        ),
        "edit_always" => decided(
            Decision::ApproveEdited { arguments: "{\"edited\":true}".to_owned() },
            DecisionScope::ToolForRun,
        ),
        "reject" => decided(Decision::Reject { message: None }, DecisionScope::ThisCall),
        "reject_because" => {
            decided(Decision::Reject { message: Some("because".to_owned()) }, DecisionScope::ThisCall)
        }
        "reject_always" => decided(Decision::Reject { message: None }, DecisionScope::ToolForRun),
        "happened" => decided(Decision::ConfirmExecuted { output: "it did".into() }, DecisionScope::ThisCall),
        "did_not_happen" => decided(Decision::ConfirmNotExecuted, DecisionScope::ThisCall),
        "unknown" => decided(Decision::OutcomeUnknown, DecisionScope::ThisCall),
        "approve_other" => {
            let digest = Digest::of_text("other arguments");
            let (decision, reach) = (Decision::Approve, DecisionScope::ThisCall);
            JournalEntry::DecisionRecorded(DecisionRecorded {
                call: call(),
                digest,
                decision,
                scope: reach,
                decided_by: None,
                displayed: None,
                posted_revision: 0,
                signature: None,
                mac: None,
            })
        }
        "revoke" => JournalEntry::DecisionRevoked(DecisionRevoked {
            mac: None,
            agent: run.agent().clone(),
            tool: ToolKey::bare(rest[0]),
        }),
        "start" => {
            let attempt = rest.get(1).map_or(1, |attempt| attempt.parse().expect("an attempt is a number"));
            let digest = matches!(
                run.call_disposition(&call()),
                Some(CallDisposition::Execute { effect: ToolEffect::Idempotent, .. })
            );
            let digest = digest.then(|| match run.edited_arguments(&call()) {
                Some(edited) => Digest::of_text(&edited),
                None => *run.call_digests().get(&call()).expect("it was planned"),
            });
            JournalEntry::CallStarted(CallStarted::new(call(), attempt, test_key(rest[0], digest), 0))
        }
        "end_body" => JournalEntry::CallBodyEnded(CallBodyEnded {
            call: call(),
            status: parse_status(rest[1]),
            output_digest: OutputContent::from(format!("{} done", rest[0])).digest(),
        }),
        "settle" => JournalEntry::CallSettled(CallSettled::new(
            call(),
            parse_status(rest[1]),
            format!("{} done", rest[0]),
        )),
        "settle_and_end" => {
            let settled = CallSettled::new(call(), parse_status(rest[1]), format!("{} done", rest[0]));
            let tool = run.tool_of_call(&call()).map_or_else(String::new, ToString::to_string);
            let failure = RunFailure::ToolFailed { tool, call: call(), message: format!("{} done", rest[0]) };
            JournalEntry::CallSettled(CallSettled { run_failure: Some(Box::new(failure)), ..settled })
        }
        "late" => JournalEntry::CallEndedLate(CallEndedLate {
            call: call(),
            status: CallStatus::Succeeded,
            output: Some("late".into()),
        }),
        "filter_input" => {
            let number = |at: usize| rest[at].parse().expect("an index is a number");
            let kept = FilteredInput::History { from: number(0), to: number(1) };
            let content = vec![ContentPart::text("in short")];
            let short = Item::Message(Message {
                role: Role::System,
                content,
                item_id: None,
                sources: Default::default(),
            });
            JournalEntry::ModelInputFiltered(ModelInputFiltered {
                agent: run.agent().clone(),
                instructions: None,
                input: vec![FilteredInput::Item(Arc::new(short)), kept],
            })
        }
        "compact" => {
            let number = |at: usize| rest[at].parse().expect("an index is a number");
            let kept = FilteredInput::History { from: number(0), to: number(1) };
            JournalEntry::HistoryCompacted(HistoryCompacted {
                agent: run.agent().clone(),
                reason: CompactionReason::NearContextWindow,
                history: vec![FilteredInput::Item(Arc::new(Item::user("in short"))), kept],
                tokens_before: 9,
                tokens_after: 5,
                summary_usage: Some(Usage::of_tokens(9, 1)),
                learned_window: Some(9),
            })
        }
        "handoff" => JournalEntry::HandoffRecorded(HandoffRecorded {
            call: call(),
            to: rest[1].into(),
            filtered_history: None,
        }),
        "filter" => {
            let history = Some(vec![Arc::new(Item::user("filtered"))]);
            JournalEntry::HandoffRecorded(HandoffRecorded {
                call: call(),
                to: rest[1].into(),
                filtered_history: history,
            })
        }
        "went_on" => JournalEntry::TurnContinued,
        "reject_output" => {
            let correction = Arc::new(Item::user("correct it"));
            JournalEntry::OutputRejected(OutputRejected { correction })
        }
        "input" => {
            JournalEntry::InputAdded(InputAdded { items: vec![Arc::new(Item::user("more"))], order: None })
        }
        "restore" => JournalEntry::RunRestored(RunRestored::default()),
        "finish" => JournalEntry::RunFinished(RunFinished { output: "the end".to_owned(), message: None }),
        "finish_with_message" => {
            let message = Some(Arc::new(Item::assistant("handled")));
            JournalEntry::RunFinished(RunFinished { output: "handled".to_owned(), message })
        }
        "fail" => JournalEntry::RunFailed(RunFailed::new(RunFailure::ModelRequestFailed {
            message: "gone".to_owned(),
        })),
        // The run around this one, or that around it, fails.
        "fail_outer" => JournalEntry::RunFailed(RunFailed::new(outer_failure(rest[0]))),
        "settle_outer" => {
            let settled = CallSettled::new(call(), CallStatus::Cancelled, "stopped");
            JournalEntry::CallSettled(CallSettled {
                run_failure: Some(Box::new(outer_failure(rest[1]))),
                ..settled
            })
        }
        "trip" => JournalEntry::RunFailed(RunFailed::new(RunFailure::OutputGuardrailTripped {
            guardrail: "g".to_owned(),
        })),
        "cancel" => JournalEntry::RunCancelled(RunCancelled::default()),
        other => panic!("`{other}` is no verb"),
    }
}

/// Returns the failure of a nested run that is so many levels inside the run that fails.
fn outer_failure(levels: &str) -> RunFailure {
    let levels: u32 = levels.parse().expect("a script has numbers of levels");
    let failure = RunFailure::ModelRequestFailed { message: "gone".to_owned() };
    (0..levels).fold(failure, |failure, _| RunFailure::OuterRunFailed { failure: failure.into() })
}

/// Returns the identity with which a call starts in a script.
pub(crate) fn test_key(call: &str, receipt_digest: Option<Digest>) -> CallKey {
    CallKey { idempotency_key: format!("wl-{call}").into(), receipt_digest, generation: 0 }
}

/// Creates a planned response of the current agent's model.
pub(crate) fn model_response(run: &Run, items: Vec<Item>, after: ToolUsePolicyKind) -> JournalEntry {
    let agent = run.agent().clone();
    let items = items.into_iter().map(Arc::new).collect();
    let ResponsePlan { items, calls, duplicate_calls: repeated, context_sources } =
        plan_response(items, &agent, run, look_up_tool).expect("it can be planned");
    let usage = Usage::of_tokens(1, 1);
    let (response_id, request_id, model) = (None, None, None);
    let answered = ModelResponded {
        agent,
        items,
        calls,
        duplicate_calls: repeated,
        context_sources,
        tool_use_policy: after,
        usage,
        response_id,
        request_id,
        model,
        attempts: 1,
        requested_at: None,
        requested: Default::default(),
        finish_reason: None,
        active_ms: 0,
    };
    JournalEntry::ModelResponded(answered.into())
}

fn parse_calls(words: &[&str]) -> Vec<Item> {
    words
        .iter()
        .map(|word| {
            let (id, tool) = word
                .split_once(':')
                .expect("a call is written `id:tool`, or `id:tool!` with arguments that cannot be used");
            match tool.strip_suffix('!') {
                Some(tool) => Item::call(id, tool, "{"),
                None => Item::call(id, tool, "{}"),
            }
        })
        .collect()
}

/// Resolves the tools that scripts use.
pub(crate) fn look_up_tool(call: &ToolCall) -> ToolLookup {
    let (body, effect, gate) = match call.name.as_str() {
        "look" => (BodyKind::Function, ToolEffect::Pure, ApprovalPolicy::NotRequired),
        "print" => (BodyKind::Function, ToolEffect::Idempotent, ApprovalPolicy::NotRequired),
        "transfer" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::NotRequired),
        "send" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::ByRule),
        "pay" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::Required),
        "post" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::ByRuleEachTime),
        "sign" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::RequiredEachTime),
        "books" => (BodyKind::Agent, ToolEffect::Once, ApprovalPolicy::NotRequired),
        "audited_books" => (BodyKind::Agent, ToolEffect::Once, ApprovalPolicy::Required),
        "to_billing" => return ToolLookup::Handoff { to: "billing".into() },
        "to_desk" => return ToolLookup::Handoff { to: "desk".into() },
        name => return ToolLookup::UnknownTool { message: format!("no {name}") },
    };
    let key = ToolKey::for_call(call);
    let arguments = if call.arguments == "{" {
        Err("not JSON".to_owned().into())
    } else {
        Ok(call.arguments.as_str().into())
    };
    let conflict = (call.name == "transfer").then(|| "account".to_owned());
    ToolLookup::Tool(ResolvedTool {
        sources: Default::default(),
        key,
        body,
        effect,
        approval_policy: gate,
        conflict_key: conflict,
        arguments,
    })
}

pub(crate) const STATUS_NAMES: [(&str, CallStatus); 14] = [
    ("succeeded", CallStatus::Succeeded),
    ("failed", CallStatus::Failed),
    ("timed_out", CallStatus::TimedOut),
    ("left_running", CallStatus::TimedOutStillRunning),
    ("invalid", CallStatus::InvalidArguments),
    ("missing", CallStatus::UnknownTool),
    ("ignored", CallStatus::SurplusHandoff),
    ("rejected", CallStatus::Rejected),
    ("guarded", CallStatus::BlockedByGuardrail),
    ("withheld", CallStatus::OutputWithheld),
    ("receipt", CallStatus::Deduplicated),
    ("cancelled", CallStatus::Cancelled),
    ("reconciled", CallStatus::Reconciled),
    ("unknown", CallStatus::OutcomeUnknown),
];

fn parse_status(word: &str) -> CallStatus {
    STATUS_NAMES.iter().find(|(name, _)| *name == word).expect("a way to settle").1.clone()
}

/// Returns the next action as short text.
pub(crate) fn describe_next(run: &Run) -> String {
    describe_action(run, None)
}

/// Returns the next action of a driver that was asked to stop, as short text.
pub(crate) fn describe_action(run: &Run, request: Option<StopRequest>) -> String {
    match run.next_action(request) {
        RunAction::RequestModel { agent, turn } => format!("model {agent} {turn}"),
        RunAction::MaxTurnsReached { max_turns } => format!("exhausted {max_turns}"),
        RunAction::AdvanceCalls => {
            let steps: Vec<String> =
                ready_calls(run).iter().map(|call| describe_first_effect(run, call)).collect();
            format!("calls {}", steps.join(", "))
        }
        RunAction::HandOff { call, from, to, .. } => format!("handoff {call} {from} {to}"),
        RunAction::EvaluateResults { agent } => format!("judge {agent}"),
        RunAction::Finish(candidate) => {
            let source = match &candidate.source {
                OutputCandidateSource::Message => "message".to_owned(),
                OutputCandidateSource::Refusal => "refusal".to_owned(),
                OutputCandidateSource::Tool(call) => format!("tool {call}"),
            };
            format!("finish “{}” {source}", candidate.output)
        }
        RunAction::Fail(failure) => format!("fail {failure}"),
        RunAction::Pause(pending) => {
            let paths: Vec<String> = pending.iter().map(|pending| pending.path.to_string()).collect();
            format!("pause {}", paths.join(", "))
        }
        RunAction::Cancel => "cancel".to_owned(),
        RunAction::Leave => "leave".to_owned(),
        RunAction::Ended => "over".to_owned(),
    }
}

/// Returns the calls that a driver without a limit begins with, in the order in which it does.
pub(crate) fn ready_calls(run: &Run) -> Vec<CallId> {
    let mut schedule = TurnSchedule::new(run, usize::MAX);
    std::iter::from_fn(|| schedule.begin_call(run)).map(|(_, call)| call).collect()
}

/// Returns the first effect of a call, for a driver that knows nothing of it, as short text.
pub(crate) fn describe_first_effect(run: &Run, call: &CallId) -> String {
    let features = CallFeatures::default();
    let effect = run.next_effect(call, &CallProgress::new(features));
    let edited = if run.edited_arguments(call).is_some() { " edited" } else { "" };
    match &effect {
        CallEffect::EvaluateApprovalRule { has_standing_approval } => {
            let covered = if *has_standing_approval { " covered" } else { "" };
            format!("gate {call}{covered}")
        }
        CallEffect::Hold(HoldReason::Approval) => format!("hold {call}"),
        CallEffect::Start(runnable) => format!("run {}#{}{edited}", runnable.call(), runnable.attempt()),
        CallEffect::RunBody(runnable) => {
            assert_eq!(runnable.body(), BodyKind::Agent, "a body runs after its start");
            format!("go on {}#{}{edited}", runnable.call(), runnable.attempt())
        }
        CallEffect::ReportInvalidArguments { .. } => format!("invalid {call}"),
        CallEffect::Settle(result) => format!("settle {call} {}", status_name(&result.status)),
        CallEffect::Reconcile => {
            // The attempt in doubt is the one that a person would be asked about.
            let held = CallHeld::new(call.clone(), HoldReason::InDoubt);
            let mut asked = run.clone();
            asked.apply(&JournalEntry::CallHeld(held)).expect("nobody knows what happened");
            let pending = asked.pending_call(call).expect("it waits");
            format!("doubt {call}#{}{edited}", pending.attempt)
        }
        CallEffect::RunOutputGuardrails { status, output } => {
            assert_eq!(*output, None, "a new driver has no output at hand");
            format!("check {call} {}{edited}", status_name(status))
        }
        CallEffect::Done(CallOutcome::Settled) => format!("done {call} settled"),
        other => format!("{other:?}"),
    }
}

pub(crate) fn status_name(status: &CallStatus) -> &'static str {
    STATUS_NAMES.iter().find(|(_, known)| known == status).expect("all are listed").0
}

/// Returns the history as short text.
pub(crate) fn describe_history(run: &Run) -> String {
    describe_items(run.history().iter())
}

pub(crate) fn describe_items<'a>(items: impl Iterator<Item = &'a Arc<Item>>) -> String {
    let words: Vec<String> = items
        .map(|item| match &**item {
            Item::Message(message) => match message.role {
                Role::System => "system".to_owned(),
                Role::User => "user".to_owned(),
                Role::Assistant => "assistant".to_owned(),
            },
            Item::Call(call) => format!("call {}", call.id),
            Item::Output(output) if output.status == OutputStatus::Ok => format!("output {}", output.call),
            Item::Output(output) => format!("output {} failed", output.call),
            Item::Handoff(handoff) => format!("handoff {}", handoff.call),
            Item::Reasoning(_) | Item::HostedTool(_) | Item::Unknown(_) => "other".to_owned(),
        })
        .collect();
    words.join(", ")
}

pub(crate) fn describe_outcome(run: &Run) -> &'static str {
    match run.outcome() {
        Some(RunEnd::Finished(_)) => "finished",
        Some(RunEnd::Failed(_)) => "failed",
        Some(RunEnd::Cancelled) => "cancelled",
        None => "going",
    }
}
