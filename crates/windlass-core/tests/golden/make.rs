//! The generator of the golden files of format 1. Each is a journal that a driver could have written. The
//! checked-in files never change; this generator shows that the current code writes the same bytes.

#[path = "budgets.rs"]
mod budgets;
#[path = "later.rs"]
mod later;

use std::sync::Arc;

use serde_json::json;
use windlass_core::{
    canonical::{canonical_json, canonical_text},
    decision::{Decision, DecisionScope, HoldReason},
    failure::RunFailure,
    id::{AgentName, CallId, Timestamp},
    idempotency::{CallKey, IdempotencyKey, KeyScope, UniqueCall, operation_digest},
    inspect,
    item::{
        CallKind, CallOutput, ContentPart, Item, MediaSource, Message, OpaqueItem, OutputContent,
        OutputStatus, ReasoningItem, Role, ToolCall,
    },
    journal::{
        CallBodyEnded, CallEndedLate, CallHeld, CallSettled, CallStarted, CallStatus, DecisionRecorded,
        DecisionRevoked, FilteredInput, HandoffRecorded, InputAdded, ItemRange, JournalEntry, JournalRecord,
        ModelInputFiltered, ModelRequestFailed, ModelResponded, ResponseRejected, RunCancelled, RunFailed,
        RunFinished, RunStarted, StartHistory, ToolUsePolicyKind,
    },
    plan::{
        BodyKind, CallDisposition, InvalidArguments, ModelProtocolError, ResolvedTool, ResponsePlan,
        ToolLookup, plan_response,
    },
    run::Run,
    tool::{ApprovalPolicy, ToolEffect, ToolKey},
    usage::Usage,
};

/// Returns every golden file of format 1: its name and its journal.
pub(crate) fn golden_journals() -> Vec<(&'static str, Vec<JournalRecord>)> {
    vec![
        ("finished", finished_journal()),
        ("paused", paused_journal()),
        ("nested", nested_journal()),
        ("handoffs", handoffs_journal()),
        ("crashed", crashed_journal()),
        ("decisions", decisions_journal()),
        ("statuses", statuses_journal()),
        ("failures", failures_journal()),
        ("items", items_journal()),
        ("forked", forked_journal()),
        ("questions", later::questions_journal()),
        ("approval_each_time", later::approval_each_time_journal()),
        ("withheld", later::withheld_journal()),
        ("corrected", later::corrected_journal()),
        ("compacted", later::compacted_journal()),
        ("restored", later::restored_journal()),
        ("budget_granted", budgets::granted_journal()),
        ("budget_reached", budgets::reached_journal()),
        ("budget_failed", budgets::failed_journal()),
    ]
}

/// A journal under construction, with a run that refuses entries that do not fit.
struct GoldenJournal {
    records: Vec<JournalRecord>,
    run: Run,
}

impl GoldenJournal {
    fn start(run: &str, agent: &str, input: &str) -> Self {
        Self::from_started(run_started(run, agent, input))
    }

    fn from_started(started: RunStarted) -> Self {
        let run = Run::start(started.clone());
        let first = JournalRecord {
            seq: 0,
            at: timestamp_of(0),
            path: vec![],
            entry: JournalEntry::RunStarted(started.into()),
        };
        Self { records: vec![first], run }
    }

    fn append(&mut self, entry: JournalEntry) {
        self.append_at(&[], entry);
    }

    fn append_at(&mut self, path: &[&str], entry: JournalEntry) {
        let path: Vec<CallId> = path.iter().map(|call| CallId::from(*call)).collect();
        let entry = match entry {
            JournalEntry::CallStarted(started) => {
                let key = self.call_key(&path, &started.call);
                JournalEntry::CallStarted(CallStarted::new(started.call, started.attempt, key, started.epoch))
            }
            entry => entry,
        };
        self.run.apply_at(&path, &entry).expect("a driver could have written this");
        let seq = self.records.len() as u64;
        self.records.push(JournalRecord { seq, at: timestamp_of(seq), path, entry });
    }

    /// Returns the identity with which a driver starts a call: the recorded one, or a new one.
    fn call_key(&self, path: &[CallId], call: &CallId) -> CallKey {
        let run = self.run.at_path(path).expect("it runs");
        if let Some(recorded) = run.call_key(call) {
            return recorded.clone();
        }
        let tool = run.tool_of_call(call).expect("it is open");
        let edited = run.edited_arguments(call);
        let arguments = edited.as_deref().or_else(|| run.call_arguments(call)).expect("it is open");
        let operation = operation_digest(run.agent(), tool, &canonical_text(arguments).expect("it is JSON"));
        let is_idempotent = matches!(
            run.call_disposition(call),
            Some(CallDisposition::Execute { effect: ToolEffect::Idempotent, .. })
        );
        let canonical = canonical_text(arguments).expect("it is JSON");
        let idempotency_key = match is_idempotent {
            true => IdempotencyKey::derive(KeyScope::Run(self.run.id()), &operation, 0),
            false => IdempotencyKey::of_unique_call(UniqueCall {
                run: self.run.id(),
                turn: run.turn(),
                parent_calls: path,
                call,
                agent: run.agent(),
                tool,
                arguments: &canonical,
            }),
        };
        CallKey { idempotency_key, receipt_digest: is_idempotent.then_some(operation), generation: 0 }
    }

    fn append_response(&mut self, items: Vec<Item>) {
        self.append_response_at(&[], items, ToolUsePolicyKind::RunModelAgain);
    }

    fn append_response_at(&mut self, path: &[&str], items: Vec<Item>, after: ToolUsePolicyKind) {
        let calls: Vec<CallId> = path.iter().map(|call| CallId::from(*call)).collect();
        let run = self.run.at_path(&calls).expect("it runs");
        let agent = run.agent().clone();
        let items = items.into_iter().map(Arc::new).collect();
        let ResponsePlan { items, calls, duplicate_calls: repeated, context_sources } =
            plan_response(items, &agent, run, look_up_tool).expect("the answer can be carried out");
        let response_id = Some(format!("resp-{}", self.records.len()));
        let usage = Usage { cached_tokens: 3, reasoning_tokens: 2, ..Usage::of_tokens(20, 7) };
        self.append_at(
            path,
            JournalEntry::ModelResponded(Box::new(ModelResponded {
                agent,
                items,
                calls,
                duplicate_calls: repeated,
                context_sources,
                tool_use_policy: after,
                usage,
                response_id,
                request_id: None,
                model: None,
                attempts: 1,
                requested_at: None,
                requested: Default::default(),
                finish_reason: None,
                active_ms: 0,
            })),
        );
    }

    fn append_decision(&mut self, call: &str, decision: Decision, reach: DecisionScope, by: Option<&str>) {
        self.append_decision_at(&[], call, decision, reach, by);
    }

    fn append_decision_at(
        &mut self,
        path: &[&str],
        call: &str,
        decision: Decision,
        reach: DecisionScope,
        by: Option<&str>,
    ) {
        let calls: Vec<CallId> = path.iter().map(|call| CallId::from(*call)).collect();
        let run = self.run.at_path(&calls).expect("it runs");
        let digest = run.decision_digest(&call.into()).expect("the call was made");
        let by = by.map(str::to_owned);
        let entry = JournalEntry::DecisionRecorded(DecisionRecorded {
            call: call.into(),
            digest,
            decision,
            scope: reach,
            decided_by: by,
            displayed: None,
            posted_revision: 0,
            signature: None,
            mac: None,
        });
        self.append_at(path, entry);
    }
}

fn timestamp_of(seq: u64) -> Timestamp {
    Timestamp(1_790_000_000_000 + seq * 250)
}

fn run_started(run: &str, agent: &str, input: &str) -> RunStarted {
    RunStarted {
        run: run.into(),
        agent: agent.into(),
        history: Default::default(),
        input: vec![Arc::new(Item::user(input))],
        max_turns: Some(10),
        session: None,
        previous_response_id: None,
        origin: None,
        build: None,
        budget: None,
        session_budget: None,
    }
}

/// Resolves the tools of all agents in the golden files.
fn look_up_tool(call: &ToolCall) -> ToolLookup {
    let key = match call.name.as_str() {
        "crawl" => ToolKey::Mcp { server: "web".into(), name: "crawl".into(), definition: None },
        _ => ToolKey::for_call(call),
    };
    let (body, effect, gate) = match call.name.as_str() {
        "look" | "crawl" => (BodyKind::Function, ToolEffect::Pure, ApprovalPolicy::NotRequired),
        "computer" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::NotRequired),
        "read" => (BodyKind::Function, ToolEffect::Pure, ApprovalPolicy::Required),
        "print" => (BodyKind::Function, ToolEffect::Idempotent, ApprovalPolicy::NotRequired),
        "send" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::ByRule),
        "pay" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::Required),
        "post" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::ByRuleEachTime),
        "sign" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::RequiredEachTime),
        "transfer" => (BodyKind::Function, ToolEffect::Once, ApprovalPolicy::NotRequired),
        "books" => (BodyKind::Agent, ToolEffect::Once, ApprovalPolicy::NotRequired),
        "transfer_to_billing" => return ToolLookup::Handoff { to: "billing".into() },
        "transfer_to_desk" => return ToolLookup::Handoff { to: "desk".into() },
        name => return ToolLookup::UnknownTool { message: format!("Tool '{name}' not found.") },
    };
    let arguments: Result<Arc<str>, InvalidArguments> = match serde_json::from_str(&call.arguments) {
        Ok(value) => Ok(canonical_json(&value).into()),
        Err(error) => Err(format!("not JSON: {error}").into()),
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

fn tool_call_item(id: &str, tool: &str, arguments: serde_json::Value) -> Item {
    Item::call(id, tool, arguments.to_string())
}

fn start_entry(call: &str) -> JournalEntry {
    attempt_entry(call, 1)
}

/// Creates the start of an attempt. The journal that it is appended to sets its key.
fn attempt_entry(call: &str, attempt: u32) -> JournalEntry {
    let key = CallKey { idempotency_key: "".into(), receipt_digest: None, generation: 0 };
    JournalEntry::CallStarted(CallStarted::new(call.into(), attempt, key, 0))
}

fn body_ended_entry(call: &str, how: CallStatus, output: impl Into<OutputContent>) -> JournalEntry {
    let output_digest = output.into().digest();
    JournalEntry::CallBodyEnded(CallBodyEnded { call: call.into(), status: how, output_digest })
}

fn settled_entry(call: &str, how: CallStatus, output: impl Into<OutputContent>) -> JournalEntry {
    JournalEntry::CallSettled(CallSettled::new(call.into(), how, output))
}

fn held_entry(call: &str, reason: HoldReason) -> JournalEntry {
    JournalEntry::CallHeld(CallHeld::new(call.into(), reason))
}

fn finished_entry(output: &str) -> JournalEntry {
    JournalEntry::RunFinished(RunFinished { output: output.to_owned(), message: None })
}

/// A complete run with one failed model request and added input.
fn finished_journal() -> Vec<JournalRecord> {
    let history = vec![Arc::new(Item::user("Hello.")), Arc::new(Item::assistant("Good morning."))];
    let ranges = ItemRange::from_positions([4, 5]);
    let mut journal = GoldenJournal::from_started(RunStarted {
        history: StartHistory::referenced("session-7".into(), 6, ranges, history),
        session: Some("session-7".into()),
        ..run_started("run-finished", "desk", "What does Bo owe?\nAnd Ada?")
    });
    journal.append(JournalEntry::ModelRequestFailed(ModelRequestFailed {
        requested: Default::default(),
        agent: "desk".into(),
        error: "overloaded".to_owned(),
        retry_after_ms: Some(500),
        usage: None,
        active_ms: 0,
    }));
    let reasoning = Item::Reasoning(ReasoningItem {
        summary: "Two names, two looks.".to_owned(),
        item_id: Some("rs-1".to_owned()),
        raw: json!({ "encrypted": "c2VjcmV0", "weight": 0.25 }),
        origin: None,
    });
    let looks = [
        tool_call_item("c1", "look", json!({ "name": "Bo" })),
        tool_call_item("c2", "look", json!({ "name": "Ada" })),
    ];
    journal.append_response([vec![reasoning], looks.into()].concat());
    journal.append(start_entry("c1"));
    journal.append(start_entry("c2"));
    journal.append(settled_entry("c2", CallStatus::Succeeded, "Ada owes nothing."));
    journal.append(JournalEntry::InputAdded(InputAdded {
        items: vec![Arc::new(Item::user("Be brief."))],
        order: None,
    }));
    journal.append(settled_entry("c1", CallStatus::Succeeded, "Bo owes 5 €."));
    journal.append_response(vec![Item::assistant("Bo: 5 €. Ada: nothing.")]);
    journal.append(finished_entry("Bo: 5 €. Ada: nothing."));
    journal.records
}

/// Two calls are held, and their sibling has settled.
fn paused_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-paused", "desk", "Pay Bo and Ada.");
    journal.append_response(vec![
        tool_call_item("c1", "look", json!({ "name": "Bo" })),
        tool_call_item("c2", "pay", json!({ "to": "Bo", "cents": 500 })),
        tool_call_item("c3", "pay", json!({ "to": "Ada", "cents": 900 })),
    ]);
    journal.append(start_entry("c1"));
    journal.append(held_entry("c2", HoldReason::Approval));
    journal.append(JournalEntry::CallHeld(CallHeld {
        expires_at: Some(Timestamp(4_102_444_800_000)),
        ..CallHeld::new("c3".into(), HoldReason::Approval)
    }));
    journal.append(settled_entry("c1", CallStatus::Succeeded, "Bo is known."));
    journal.records
}

/// A call of a nested agent is held.
fn nested_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-nested", "office", "Is anything open?");
    journal.append_response(vec![tool_call_item("c1", "books", json!({ "input": "Settle invoice 9." }))]);
    journal.append(start_entry("c1"));
    let inner = RunStarted { max_turns: None, ..run_started("run-nested/c1", "clerk", "Settle invoice 9.") };
    journal.append_at(&["c1"], JournalEntry::RunStarted(inner.into()));
    let pay = tool_call_item("p1", "pay", json!({ "to": "Bo", "cents": 900 }));
    journal.append_response_at(&["c1"], vec![pay], ToolUsePolicyKind::RunModelAgain);
    journal.append_at(&["c1"], held_entry("p1", HoldReason::Approval));
    journal.records
}

/// Two handoffs, one with a filtered history, and results that the application's function evaluates.
fn handoffs_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-handoffs", "desk", "My invoice is wrong.");
    journal.append_response(vec![
        tool_call_item("h1", "transfer_to_billing", json!({})),
        tool_call_item("c1", "look", json!({ "name": "invoice" })),
        tool_call_item("h2", "transfer_to_desk", json!({})),
    ]);
    journal.append(start_entry("c1"));
    journal.append(settled_entry(
        "h2",
        CallStatus::SurplusHandoff,
        "Multiple handoffs detected, ignoring this one.",
    ));
    journal.append(settled_entry("c1", CallStatus::Succeeded, "Invoice 9."));
    let history = Some(vec![Arc::new(Item::user("My invoice is wrong."))]);
    journal.append(JournalEntry::HandoffRecorded(HandoffRecorded {
        call: "h1".into(),
        to: "billing".into(),
        filtered_history: history,
    }));
    journal.append_response_at(
        &[],
        vec![tool_call_item("c2", "look", json!({ "name": "9" }))],
        ToolUsePolicyKind::CustomFunction,
    );
    journal.append(start_entry("c2"));
    journal.append(settled_entry("c2", CallStatus::Succeeded, "It is right."));
    journal.append(JournalEntry::TurnContinued);
    journal.append_response(vec![tool_call_item("h3", "transfer_to_desk", json!({ "why": "done" }))]);
    journal.append(JournalEntry::HandoffRecorded(HandoffRecorded {
        call: "h3".into(),
        to: "desk".into(),
        filtered_history: None,
    }));
    let after = ToolUsePolicyKind::StopAtTools(vec!["print".to_owned()]);
    journal.append_response_at(&[], vec![tool_call_item("c3", "print", json!({ "page": 1 }))], after);
    journal.append(start_entry("c3"));
    journal.append(settled_entry("c3", CallStatus::Succeeded, "Printed."));
    journal.append(finished_entry("Printed."));
    journal.records
}

/// The process ended during three calls, before a fourth that has one of them as its predecessor.
fn crashed_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-crashed", "bank", "Send Bo 50 euros.");
    journal.append_response(vec![
        tool_call_item("c1", "look", json!({ "name": "Bo" })),
        tool_call_item("c2", "print", json!({ "page": 1 })),
        tool_call_item("c3", "transfer", json!({ "cents": 5000 })),
        tool_call_item("c4", "transfer", json!({ "cents": 1 })),
    ]);
    for id in ["c1", "c2", "c3"] {
        journal.append(start_entry(id));
    }
    journal.records
}

/// Every decision, for single calls and standing, and one revocation.
fn decisions_journal() -> Vec<JournalRecord> {
    let pay = |id: &str, cents: u32| tool_call_item(id, "pay", json!({ "to": "Bo", "cents": cents }));
    let send = |id: &str| tool_call_item(id, "send", json!({ "text": id }));
    let mut journal = GoldenJournal::start("run-decisions", "desk", "Do it all.");
    journal.append_response(vec![
        pay("c1", 1),
        pay("c2", 2),
        pay("c3", 3),
        pay("c4", 4),
        pay("c5", 5),
        send("s1"),
        send("s2"),
    ]);
    for id in ["c1", "c2", "c3", "c4", "c5", "s1", "s2"] {
        journal.append(held_entry(id, HoldReason::Approval));
    }
    let edited = Decision::ApproveEdited { arguments: r#"{"cents":20,"to":"Bo"}"#.to_owned() };
    journal.append_decision("c1", Decision::Approve, DecisionScope::ThisCall, Some("ann"));
    journal.append_decision("c2", edited, DecisionScope::ThisCall, Some("ann"));
    journal.append_decision("c3", Decision::Reject { message: None }, DecisionScope::ThisCall, None);
    journal.append_decision(
        "c4",
        Decision::Reject { message: Some("Too much.".to_owned()) },
        DecisionScope::ThisCall,
        Some("bob"),
    );
    journal.append_decision("c5", Decision::Approve, DecisionScope::ThisCall, Some("ann"));
    journal.append_decision("s1", Decision::Approve, DecisionScope::ToolForRun, Some("bob"));
    for id in ["c1", "c2", "c5"] {
        journal.append(start_entry(id));
        journal.append(held_entry(id, HoldReason::InDoubt));
    }
    journal.append_decision(
        "c1",
        Decision::ConfirmExecuted { output: "1 paid".into() },
        DecisionScope::ThisCall,
        Some("ann"),
    );
    journal.append_decision("c2", Decision::ConfirmNotExecuted, DecisionScope::ThisCall, Some("ann"));
    journal.append_decision("c5", Decision::OutcomeUnknown, DecisionScope::ThisCall, None);
    journal.append(settled_entry("c1", CallStatus::Reconciled, "1 paid"));
    journal.append(attempt_entry("c2", 2));
    journal.append(settled_entry("c2", CallStatus::Succeeded, "20 paid"));
    journal.append(settled_entry("c3", CallStatus::Rejected, "Tool execution was not approved."));
    journal.append(settled_entry("c4", CallStatus::Rejected, "Too much."));
    journal.append(settled_entry("c5", CallStatus::OutcomeUnknown, "It is not known."));
    for id in ["s1", "s2"] {
        journal.append(start_entry(id));
        journal.append(settled_entry(id, CallStatus::Succeeded, "sent"));
    }
    journal.append_response(vec![send("s3")]);
    journal.append(JournalEntry::DecisionRevoked(DecisionRevoked {
        agent: "desk".into(),
        tool: ToolKey::bare("send"),
        mac: None,
    }));
    journal.append(start_entry("s3"));
    journal.append(settled_entry("s3", CallStatus::Succeeded, "sent"));
    journal.append_response(vec![send("s4")]);
    journal.append(start_entry("s4"));
    journal.append(settled_entry("s4", CallStatus::Succeeded, "sent"));
    journal.records
}

/// All other call statuses, and a cancelled run.
fn statuses_journal() -> Vec<JournalRecord> {
    let mut journal = GoldenJournal::start("run-statuses", "desk", "Try everything.");
    journal.append_response(vec![tool_call_item("p0", "print", json!({ "page": 1 }))]);
    journal.append(start_entry("p0"));
    journal.append(settled_entry("p0", CallStatus::Succeeded, "page 1"));
    let look = |id: &str| tool_call_item(id, "look", json!({ "name": id }));
    journal.append_response(vec![
        look("failed"),
        look("late"),
        look("left"),
        look("left2"),
        Item::call("invalid", "look", "{\"name\":"),
        tool_call_item("missing", "lok", json!({})),
        look("guarded"),
        tool_call_item("receipt", "print", json!({ "page": 1 })),
        look("stopped"),
        look("open"),
        look("checked"),
        look("blocked"),
        look("unchecked"),
        tool_call_item("p0", "print", json!({ "page": 1 })),
    ]);
    for id in ["failed", "late", "left", "left2", "stopped", "checked", "blocked", "unchecked"] {
        journal.append(start_entry(id));
    }
    journal.append(attempt_entry("failed", 2));
    journal.append(settled_entry(
        "failed",
        CallStatus::Failed,
        "An error occurred while running the tool. Please try again.",
    ));
    journal.append(settled_entry("late", CallStatus::TimedOut, "Tool 'look' timed out after 1 seconds."));
    journal.append(settled_entry(
        "left",
        CallStatus::TimedOutStillRunning,
        "Tool 'look' timed out after 1 seconds.",
    ));
    journal.append(settled_entry(
        "left2",
        CallStatus::TimedOutStillRunning,
        "Tool 'look' timed out after 1 seconds.",
    ));
    journal.append(settled_entry("invalid", CallStatus::InvalidArguments, "not JSON"));
    journal.append(settled_entry("missing", CallStatus::UnknownTool, "Tool 'lok' not found."));
    journal.append(settled_entry("guarded", CallStatus::BlockedByGuardrail, "No."));
    journal.append(settled_entry("receipt", CallStatus::Deduplicated, "page 1"));
    for (id, output) in [("checked", "seen"), ("blocked", "a secret"), ("unchecked", "another")] {
        journal.append(body_ended_entry(id, CallStatus::Succeeded, output));
    }
    journal.append(settled_entry("checked", CallStatus::Succeeded, "seen"));
    journal.append(settled_entry("blocked", CallStatus::OutputWithheld, "Output withheld."));
    let late = |call: &str, status, output| {
        JournalEntry::CallEndedLate(CallEndedLate { call: call.into(), status, output })
    };
    journal.append(late("left", CallStatus::Succeeded, Some("at last".into())));
    journal.append(settled_entry(
        "stopped",
        CallStatus::Cancelled,
        "The call was stopped before it finished.",
    ));
    journal.append(JournalEntry::RunCancelled(RunCancelled { draining_calls: vec!["left2".into()] }));
    journal.append(late("left2", CallStatus::Failed, None));
    journal.records
}

/// Every failure, each as the outcome of a nested agent, and one as the outcome of the run.
fn failures_journal() -> Vec<JournalRecord> {
    let (tool, call_id, text) = (|| "look".to_owned(), || CallId::from("c9"), |text: &str| text.to_owned());
    let failures = [
        RunFailure::MaxTurnsExceeded { max_turns: 3 },
        RunFailure::LoopDetected { repetitions: 5 },
        RunFailure::ModelProtocolError(ModelProtocolError::EmptyCallId { name: tool() }),
        RunFailure::ModelProtocolError(ModelProtocolError::ReusedCallId { call: call_id(), name: tool() }),
        RunFailure::ModelProtocolError(ModelProtocolError::UnknownTool {
            name: text("lok"),
            agent: "clerk".into(),
            available_tools: vec![tool()],
        }),
        RunFailure::ModelRequestFailed { message: text("unreachable") },
        RunFailure::ModelRefused { message: text("I cannot do that.") },
        RunFailure::InvalidOutput { message: text("`total` is missing") },
        RunFailure::ToolFailed { tool: tool(), call: call_id(), message: text("no such file") },
        RunFailure::InvalidArguments { tool: tool(), call: call_id(), problems: text("`name`: missing") },
        RunFailure::ToolTimeout { tool: tool(), call: call_id(), seconds: text("1.5") },
        RunFailure::ToolInputGuardrailTripped { guardrail: text("polite"), tool: tool(), call: call_id() },
        RunFailure::ToolOutputGuardrailTripped { guardrail: text("no names"), tool: tool(), call: call_id() },
        RunFailure::InputGuardrailTripped { guardrail: text("on topic") },
        RunFailure::OutputGuardrailTripped { guardrail: text("no promises") },
        RunFailure::GuardrailFailed { guardrail: text("on topic"), message: text("timed out") },
        RunFailure::HookFailed { hook: text("agent_started"), message: text("no database") },
        RunFailure::ApplicationPanicked { message: text("index out of bounds") },
        RunFailure::HandoffFailed { to: text("billing"), message: text("closed") },
    ];
    let id_of = |at: usize| format!("c{at}");
    let books = |at: usize| tool_call_item(&id_of(at), "books", json!({ "input": at.to_string() }));
    let mut journal = GoldenJournal::start("run-failures", "office", "Fail in every way.");
    journal.append_response((0..failures.len()).map(books).collect());
    for (at, failure) in failures.into_iter().enumerate() {
        let (id, agent) = (id_of(at), AgentName::from("clerk"));
        journal.append(start_entry(&id));
        let inner = run_started(&format!("run-failures/{id}"), "clerk", &at.to_string());
        journal.append_at(&[&id], JournalEntry::RunStarted(inner.into()));
        if let RunFailure::ModelProtocolError(_) = failure {
            let items = vec![Arc::new(tool_call_item("", "look", json!({})))];
            let refused = ResponseRejected { agent, items, usage: Usage::of_unknown_request() };
            journal.append_at(&[&id], JournalEntry::ResponseRejected(refused));
        }
        journal.append_at(&[&id], JournalEntry::RunFailed(RunFailed::new(failure)));
        journal.append(settled_entry(
            &id,
            CallStatus::Failed,
            "An error occurred while running the tool. Please try again.",
        ));
    }
    journal.append_response(vec![tool_call_item("x1", "look", json!({ "name": "x" }))]);
    journal.append(start_entry("x1"));
    let failure = RunFailure::ToolFailed { tool: tool(), call: "x1".into(), message: text("disk full") };
    let settled = CallSettled::new("x1".into(), CallStatus::Failed, "broken");
    let run_failure = Some(Box::new(failure.clone()));
    journal.append(JournalEntry::CallSettled(CallSettled { run_failure, ..settled }));
    journal.append(JournalEntry::RunFailed(RunFailed::new(failure)));
    journal.records
}

/// Every kind of item, part and tool key, and an output that a handler produced.
fn items_journal() -> Vec<JournalRecord> {
    let media = MediaSource {
        url: Some("https://example.org/a.png".to_owned()),
        file_id: Some("file-1".to_owned()),
        data: Some("aGk=".to_owned()),
        media_type: Some("image/png".to_owned()),
        name: Some("a.png".to_owned()),
        detail: Some("low".to_owned()),
    };
    let carried = |kind: &str| OpaqueItem::new(kind, json!({ "id": 7, "list": [null, true, -1.5] }));
    let parts = vec![
        ContentPart::text("Look: \u{2028}\u{1f980}\t\"quoted\" \\ \u{0}"),
        ContentPart::Image(media.clone()),
        ContentPart::File(MediaSource { url: None, ..media }),
        ContentPart::Unknown(carried("audio")),
    ];
    let message = |role, content| {
        Item::Message(Message {
            role,
            content,
            item_id: Some("msg-1".to_owned()),
            sources: Default::default(),
        })
    };
    let refusal = vec![ContentPart::Refusal { text: "No.".to_owned() }];
    let spoken = |namespace: Option<&str>, id: &str, name: &str| {
        Item::Call(ToolCall {
            id: id.into(),
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
            arguments: "{}".to_owned(),
            item_id: Some("fc-1".to_owned()),
            kind: CallKind::Function,
            provider_data: None,
        })
    };
    let given = |call: &str, content, status| {
        Item::Output(CallOutput { call: call.into(), content, status, sources: Default::default() })
    };
    let handoff =
        windlass_core::item::HandoffOutput { call: "o2".into(), from: "desk".into(), to: "billing".into() };
    let history = vec![
        message(Role::System, vec![ContentPart::text("Be kind.")]),
        message(Role::User, parts.clone()),
        spoken(None, "o1", "look"),
        given("o1", OutputContent::Parts(parts), OutputStatus::Ok),
        spoken(None, "o2", "transfer_to_billing"),
        Item::Handoff(handoff),
        spoken(None, "o3", "look"),
        given("o3", "gone".into(), OutputStatus::Failed),
        Item::HostedTool(carried("web_search_call")),
        Item::Unknown(carried("dream")),
        message(Role::Assistant, refusal.clone()),
    ];
    let mut journal = GoldenJournal::from_started(RunStarted {
        history: history.into_iter().map(Arc::new).collect::<Vec<_>>().into(),
        max_turns: None,
        ..run_started("run-items", "desk", "Go on.")
    });
    let after = ToolUsePolicyKind::StopOnFirstTool;
    let missing = vec![spoken(Some("crm"), "c1", "find"), spoken(Some("find"), "c2", "find")];
    journal.append_response_at(&[], missing, after);
    journal.append(settled_entry("c1", CallStatus::UnknownTool, "Tool 'find' not found."));
    journal.append(settled_entry("c2", CallStatus::UnknownTool, "Tool 'find' not found."));
    journal.append_response(vec![spoken(None, "c3", "crawl")]);
    journal.append(start_entry("c3"));
    journal.append(settled_entry(
        "c3",
        CallStatus::Succeeded,
        OutputContent::Parts(vec![ContentPart::text("crawled")]),
    ));
    let part = |from, to| FilteredInput::History { from, to };
    journal.append(JournalEntry::ModelInputFiltered(ModelInputFiltered {
        agent: "desk".into(),
        instructions: Some("Be brief.".to_owned()),
        input: vec![part(0, 2), FilteredInput::Item(Arc::new(Item::user("In short."))), part(11, 12)],
    }));
    journal.append_response(vec![Item::HostedTool(carried("web_search_call"))]);
    journal.append_response(vec![message(Role::Assistant, refusal)]);
    let message = Some(Arc::new(Item::assistant("I would rather not.")));
    journal
        .append(JournalEntry::RunFinished(RunFinished { output: "I would rather not.".to_owned(), message }));
    journal.records
}

/// A fork of the finished run in which a call has another output.
fn forked_journal() -> Vec<JournalRecord> {
    let records = finished_journal();
    let call = "c1".into();
    let at = inspect::settlement_seq(&records, &call).expect("it settled");
    let change = inspect::ForkChange::CallOutput {
        call,
        status: CallStatus::Succeeded,
        output: "Bo owes 7 €.".into(),
    };
    inspect::fork(&records, at, "run-forked".into(), change).expect("it fits")
}
