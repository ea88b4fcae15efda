//! What the golden files of format 1 were made from. Each is a journal that a driver could have written; the
//! files are checked in and never change, and this shows that today's code still writes the same bytes.

#[path = "later.rs"]
mod later;

use std::sync::Arc;

use serde_json::json;
use windlass_core::{
    AfterTools, AgentName, AnswerRefused, Answered, BodyKind, Call, CallEndedLate, CallId, CallKind,
    CallSettled, CallStarted, Cancelled, Carried, Content, Decided, Decision, Effect, Entry, Failed, Failure,
    Finished, FoundTool, Gate, HandedOff, Held, HoldReason, How, InputAdded, Item, Lookup, Media, Message,
    Misbehaviour, ModelFailed, Output, OutputContent, OutputStatus, Plan, Reach, Reasoning, Record, Revoked,
    Role, Run, Started, Timestamp, ToolKey, Unfit, Usage, call_digest, canonical, plan, time,
};

/// Every golden file of format 1: its name and its journal.
pub(crate) fn all() -> Vec<(&'static str, Vec<Record>)> {
    vec![
        ("finished", finished()),
        ("paused", paused()),
        ("nested", nested()),
        ("handoffs", handoffs()),
        ("crashed", crashed()),
        ("decisions", decisions()),
        ("hows", hows()),
        ("failures", failures()),
        ("items", items()),
        ("forked", forked()),
        ("asked", later::asked()),
        ("each", later::each()),
    ]
}

/// A journal that grows, and a machine beside it that refuses what does not fit.
struct Journal {
    records: Vec<Record>,
    run: Run,
}

impl Journal {
    fn start(run: &str, agent: &str, input: &str) -> Self {
        Self::from(started(run, agent, input))
    }

    fn from(started: Started) -> Self {
        let run = Run::start(started.clone());
        let first = Record { seq: 0, at: time_of(0), path: vec![], entry: Entry::Started(started.into()) };
        Self { records: vec![first], run }
    }

    fn add(&mut self, entry: Entry) {
        self.add_in(&[], entry);
    }

    fn add_in(&mut self, path: &[&str], entry: Entry) {
        let path: Vec<CallId> = path.iter().map(|call| CallId::from(*call)).collect();
        self.run.apply_at(&path, &entry).expect("a driver could have written this");
        let seq = self.records.len() as u64;
        self.records.push(Record { seq, at: time_of(seq), path, entry });
    }

    fn answer(&mut self, items: Vec<Item>) {
        self.answer_in(&[], items, AfterTools::RunAgain);
    }

    fn answer_in(&mut self, path: &[&str], items: Vec<Item>, after: AfterTools) {
        let run = path.iter().fold(&self.run, |run, call| run.child(&CallId::from(*call)).expect("it runs"));
        let agent = run.agent().clone();
        let items = items.into_iter().map(Arc::new).collect();
        let Plan { items, calls, repeated } =
            plan(items, &agent, run.seen(), look_up).expect("the answer can be carried out");
        let response_id = Some(format!("resp-{}", self.records.len()));
        let usage = Usage { cached_tokens: 3, reasoning_tokens: 2, ..Usage::tokens(20, 7) };
        self.add_in(
            path,
            Entry::Answered(Box::new(Answered {
                agent,
                items,
                calls,
                repeated,
                after,
                usage,
                response_id,
                request_id: None,
                model: None,
            })),
        );
    }

    fn decide(&mut self, call: &str, decision: Decision, reach: Reach, by: Option<&str>) {
        let digest = *self.run.seen().get(&call.into()).expect("the call was made");
        let by = by.map(str::to_owned);
        self.add(Entry::Decided(Decided { call: call.into(), digest, decision, reach, by }));
    }
}

fn time_of(seq: u64) -> Timestamp {
    Timestamp(1_790_000_000_000 + seq * 250)
}

fn started(run: &str, agent: &str, input: &str) -> Started {
    Started {
        run: run.into(),
        agent: agent.into(),
        history: vec![],
        input: vec![Arc::new(Item::user(input))],
        max_turns: Some(10),
        session: None,
        origin: None,
    }
}

/// The tools of all agents in the golden files.
fn look_up(call: &Call) -> Lookup {
    let key = match call.name.as_str() {
        "crawl" => ToolKey::Mcp { server: "web".into(), name: "crawl".into() },
        _ => ToolKey::of_call(call),
    };
    let (body, effect, gate) = match call.name.as_str() {
        "look" | "crawl" => (BodyKind::Function, Effect::Pure, Gate::Open),
        "computer" => (BodyKind::Function, Effect::Once, Gate::Open),
        "read" => (BodyKind::Function, Effect::Pure, Gate::Closed),
        "print" => (BodyKind::Function, Effect::Idempotent, Gate::Open),
        "send" => (BodyKind::Function, Effect::Once, Gate::Ask),
        "pay" => (BodyKind::Function, Effect::Once, Gate::Closed),
        "post" => (BodyKind::Function, Effect::Once, Gate::AskEach),
        "sign" => (BodyKind::Function, Effect::Once, Gate::Each),
        "transfer" => (BodyKind::Function, Effect::Once, Gate::Open),
        "books" => (BodyKind::Agent, Effect::Once, Gate::Open),
        "transfer_to_billing" => return Lookup::Handoff { to: "billing".into() },
        "transfer_to_desk" => return Lookup::Handoff { to: "desk".into() },
        name => return Lookup::Missing { text: format!("Tool '{name}' not found.") },
    };
    let arguments: Result<Arc<str>, Unfit> = match serde_json::from_str(&call.arguments) {
        Ok(value) => Ok(canonical(&value).into()),
        Err(error) => Err(format!("not JSON: {error}").into()),
    };
    let digest = arguments.as_ref().ok().map(|arguments| call_digest(&key, arguments));
    let receipt = digest.filter(|_| effect == Effect::Idempotent);
    let conflict = (call.name == "transfer").then(|| "account".to_owned());
    Lookup::Tool(FoundTool { key, body, effect, gate, conflict, receipt, arguments })
}

fn call(id: &str, tool: &str, arguments: serde_json::Value) -> Item {
    Item::call(id, tool, arguments.to_string())
}

fn start(call: &str) -> Entry {
    attempt(call, 1)
}

fn attempt(call: &str, attempt: u32) -> Entry {
    Entry::CallStarted(CallStarted { call: call.into(), attempt })
}

fn settle(call: &str, how: How, output: impl Into<OutputContent>) -> Entry {
    Entry::CallSettled(CallSettled::new(call.into(), how, output))
}

fn hold(call: &str, reason: HoldReason) -> Entry {
    Entry::Held(Held { call: call.into(), reason, expires: None })
}

fn finish(output: &str) -> Entry {
    Entry::Finished(Finished { output: output.to_owned(), message: None })
}

/// A run from its start to its end, with a model that failed once and input that came in between.
fn finished() -> Vec<Record> {
    let mut journal = Journal::from(Started {
        history: vec![Arc::new(Item::user("Hello.")), Arc::new(Item::assistant("Good morning."))],
        session: Some("session-7".into()),
        ..started("run-finished", "desk", "What does Bo owe?\nAnd Ada?")
    });
    journal.add(Entry::ModelFailed(ModelFailed {
        agent: "desk".into(),
        error: "overloaded".to_owned(),
        retry_after_ms: Some(500),
        usage: None,
    }));
    let reasoning = Item::Reasoning(Reasoning {
        summary: "Two names, two looks.".to_owned(),
        item_id: Some("rs-1".to_owned()),
        raw: json!({ "encrypted": "c2VjcmV0", "weight": 0.25 }),
    });
    let looks = [call("c1", "look", json!({ "name": "Bo" })), call("c2", "look", json!({ "name": "Ada" }))];
    journal.answer([vec![reasoning], looks.into()].concat());
    journal.add(start("c1"));
    journal.add(start("c2"));
    journal.add(settle("c2", How::Succeeded, "Ada owes nothing."));
    journal.add(Entry::InputAdded(InputAdded { items: vec![Arc::new(Item::user("Be brief."))] }));
    journal.add(settle("c1", How::Succeeded, "Bo owes 5 €."));
    journal.answer(vec![Item::assistant("Bo: 5 €. Ada: nothing.")]);
    journal.add(finish("Bo: 5 €. Ada: nothing."));
    journal.records
}

/// Two calls wait for a person, and their sibling is done.
fn paused() -> Vec<Record> {
    let mut journal = Journal::start("run-paused", "desk", "Pay Bo and Ada.");
    journal.answer(vec![
        call("c1", "look", json!({ "name": "Bo" })),
        call("c2", "pay", json!({ "to": "Bo", "cents": 500 })),
        call("c3", "pay", json!({ "to": "Ada", "cents": 900 })),
    ]);
    journal.add(start("c1"));
    journal.add(hold("c2", HoldReason::Approval));
    journal.add(Entry::Held(Held {
        call: "c3".into(),
        reason: HoldReason::Approval,
        expires: Some(Timestamp(4_102_444_800_000)),
    }));
    journal.add(settle("c1", How::Succeeded, "Bo is known."));
    journal.records
}

/// A call inside an agent inside a call waits for a person.
fn nested() -> Vec<Record> {
    let mut journal = Journal::start("run-nested", "office", "Is anything open?");
    journal.answer(vec![call("c1", "books", json!({ "input": "Settle invoice 9." }))]);
    journal.add(start("c1"));
    let inner = Started { max_turns: None, ..started("run-nested/c1", "clerk", "Settle invoice 9.") };
    journal.add_in(&["c1"], Entry::Started(inner.into()));
    let pay = call("p1", "pay", json!({ "to": "Bo", "cents": 900 }));
    journal.answer_in(&["c1"], vec![pay], AfterTools::RunAgain);
    journal.add_in(&["c1"], hold("p1", HoldReason::Approval));
    journal.records
}

/// Control passes twice, once with a filtered history, and the results of tools are judged.
fn handoffs() -> Vec<Record> {
    let mut journal = Journal::start("run-handoffs", "desk", "My invoice is wrong.");
    journal.answer(vec![
        call("h1", "transfer_to_billing", json!({})),
        call("c1", "look", json!({ "name": "invoice" })),
        call("h2", "transfer_to_desk", json!({})),
    ]);
    journal.add(start("c1"));
    journal.add(settle("h2", How::Ignored, "Multiple handoffs detected, ignoring this one."));
    journal.add(settle("c1", How::Succeeded, "Invoice 9."));
    let history = Some(vec![Arc::new(Item::user("My invoice is wrong."))]);
    journal.add(Entry::HandedOff(HandedOff { call: "h1".into(), to: "billing".into(), history }));
    journal.answer_in(&[], vec![call("c2", "look", json!({ "name": "9" }))], AfterTools::Ask);
    journal.add(start("c2"));
    journal.add(settle("c2", How::Succeeded, "It is right."));
    journal.add(Entry::WentOn);
    journal.answer(vec![call("h3", "transfer_to_desk", json!({ "why": "done" }))]);
    journal.add(Entry::HandedOff(HandedOff { call: "h3".into(), to: "desk".into(), history: None }));
    let after = AfterTools::StopAt(vec!["print".to_owned()]);
    journal.answer_in(&[], vec![call("c3", "print", json!({ "page": 1 }))], after);
    journal.add(start("c3"));
    journal.add(settle("c3", How::Succeeded, "Printed."));
    journal.add(finish("Printed."));
    journal.records
}

/// The process ended inside three calls, before a fourth that follows one of them.
fn crashed() -> Vec<Record> {
    let mut journal = Journal::start("run-crashed", "bank", "Send Bo 50 euros.");
    journal.answer(vec![
        call("c1", "look", json!({ "name": "Bo" })),
        call("c2", "print", json!({ "page": 1 })),
        call("c3", "transfer", json!({ "cents": 5000 })),
        call("c4", "transfer", json!({ "cents": 1 })),
    ]);
    for id in ["c1", "c2", "c3"] {
        journal.add(start(id));
    }
    journal.records
}

/// Every decision, for one call and for good, and one taken back.
fn decisions() -> Vec<Record> {
    let pay = |id: &str, cents: u32| call(id, "pay", json!({ "to": "Bo", "cents": cents }));
    let send = |id: &str| call(id, "send", json!({ "text": id }));
    let mut journal = Journal::start("run-decisions", "desk", "Do it all.");
    journal.answer(vec![
        pay("c1", 1),
        pay("c2", 2),
        pay("c3", 3),
        pay("c4", 4),
        pay("c5", 5),
        send("s1"),
        send("s2"),
    ]);
    for id in ["c1", "c2", "c3", "c4", "c5", "s1", "s2"] {
        journal.add(hold(id, HoldReason::Approval));
    }
    let edited = Decision::ApproveEdited { arguments: r#"{"cents":20,"to":"Bo"}"#.to_owned() };
    journal.decide("c1", Decision::Approve, Reach::Call, Some("ann"));
    journal.decide("c2", edited, Reach::Call, Some("ann"));
    journal.decide("c3", Decision::Reject { message: None }, Reach::Call, None);
    journal.decide(
        "c4",
        Decision::Reject { message: Some("Too much.".to_owned()) },
        Reach::Call,
        Some("bob"),
    );
    journal.decide("c5", Decision::Approve, Reach::Call, Some("ann"));
    journal.decide("s1", Decision::Approve, Reach::Always, Some("bob"));
    for id in ["c1", "c2", "c5"] {
        journal.add(start(id));
        journal.add(hold(id, HoldReason::InDoubt));
    }
    journal.decide("c1", Decision::Happened { output: "1 paid".into() }, Reach::Call, Some("ann"));
    journal.decide("c2", Decision::DidNotHappen, Reach::Call, Some("ann"));
    journal.decide("c5", Decision::Unknown, Reach::Call, None);
    journal.add(settle("c1", How::Reconciled, "1 paid"));
    journal.add(attempt("c2", 2));
    journal.add(settle("c2", How::Succeeded, "20 paid"));
    journal.add(settle("c3", How::Rejected, "Tool execution was not approved."));
    journal.add(settle("c4", How::Rejected, "Too much."));
    journal.add(settle("c5", How::Unknown, "It is not known."));
    for id in ["s1", "s2"] {
        journal.add(start(id));
        journal.add(settle(id, How::Succeeded, "sent"));
    }
    journal.answer(vec![send("s3")]);
    journal.add(Entry::Revoked(Revoked { agent: "desk".into(), tool: ToolKey::bare("send") }));
    journal.add(start("s3"));
    journal.add(settle("s3", How::Succeeded, "sent"));
    journal.answer(vec![send("s4")]);
    journal.add(start("s4"));
    journal.add(settle("s4", How::Succeeded, "sent"));
    journal.records
}

/// Every other way in which a call comes to its output, and a run that was cancelled.
fn hows() -> Vec<Record> {
    let mut journal = Journal::start("run-hows", "desk", "Try everything.");
    journal.answer(vec![call("p0", "print", json!({ "page": 1 }))]);
    journal.add(start("p0"));
    journal.add(settle("p0", How::Succeeded, "page 1"));
    let look = |id: &str| call(id, "look", json!({ "name": id }));
    journal.answer(vec![
        look("failed"),
        look("late"),
        look("left"),
        look("left2"),
        Item::call("invalid", "look", "{\"name\":"),
        call("missing", "lok", json!({})),
        look("guarded"),
        call("receipt", "print", json!({ "page": 1 })),
        look("stopped"),
        look("open"),
        call("p0", "print", json!({ "page": 1 })),
    ]);
    for id in ["failed", "late", "left", "left2", "stopped"] {
        journal.add(start(id));
    }
    journal.add(attempt("failed", 2));
    journal.add(settle("failed", How::Failed, "An error occurred while running the tool. Please try again."));
    journal.add(settle("late", How::TimedOut, "Tool 'look' timed out after 1 seconds."));
    journal.add(settle("left", How::LeftRunning, "Tool 'look' timed out after 1 seconds."));
    journal.add(settle("left2", How::LeftRunning, "Tool 'look' timed out after 1 seconds."));
    journal.add(settle("invalid", How::Invalid, "not JSON"));
    journal.add(settle("missing", How::Missing, "Tool 'lok' not found."));
    journal.add(settle("guarded", How::Guarded, "No."));
    journal.add(settle("receipt", How::Receipt, "page 1"));
    let late = |call: &str, result| Entry::CallEndedLate(CallEndedLate { call: call.into(), result });
    journal.add(late("left", Ok("at last".into())));
    journal.add(settle("stopped", How::Cancelled, "The call was stopped before it finished."));
    journal.add(Entry::Cancelled(Cancelled { draining: vec!["left2".into()] }));
    journal.add(late("left2", Err("broken pipe".to_owned())));
    journal.records
}

/// Every failure, each as the end of a nested agent; and one that ends the run.
fn failures() -> Vec<Record> {
    let (tool, call_id, text) = (|| "look".to_owned(), || CallId::from("c9"), |text: &str| text.to_owned());
    let failures = [
        Failure::TurnsExhausted { max_turns: 3 },
        Failure::LoopDetected { times: 5 },
        Failure::Misbehaviour(Misbehaviour::EmptyCallId { name: tool() }),
        Failure::Misbehaviour(Misbehaviour::ReusedCallId { call: call_id(), name: tool() }),
        Failure::Misbehaviour(Misbehaviour::MissingTool {
            name: text("lok"),
            agent: "clerk".into(),
            offered: vec![tool()],
        }),
        Failure::Model { message: text("unreachable") },
        Failure::Refused { message: text("I cannot do that.") },
        Failure::InvalidOutput { message: text("`total` is missing") },
        Failure::Tool { tool: tool(), call: call_id(), message: text("no such file") },
        Failure::InvalidArguments { tool: tool(), call: call_id(), problems: text("`name`: missing") },
        Failure::ToolTimeout { tool: tool(), call: call_id(), seconds: text("1.5") },
        Failure::EndedByCall { tool: tool(), call: call_id(), message: text("disk full") },
        Failure::ToolInputGuardrail { guardrail: text("polite"), tool: tool(), call: call_id() },
        Failure::ToolOutputGuardrail { guardrail: text("no names"), tool: tool(), call: call_id() },
        Failure::InputGuardrail { guardrail: text("on topic") },
        Failure::OutputGuardrail { guardrail: text("no promises") },
        Failure::GuardrailFailed { guardrail: text("on topic"), message: text("timed out") },
        Failure::Hook { hook: text("agent_started"), message: text("no database") },
        Failure::Handoff { to: text("billing"), message: text("closed") },
    ];
    let id_of = |at: usize| format!("c{at}");
    let books = |at: usize| call(&id_of(at), "books", json!({ "input": at.to_string() }));
    let mut journal = Journal::start("run-failures", "office", "Fail in every way.");
    journal.answer((0..failures.len()).map(books).collect());
    for (at, failure) in failures.into_iter().enumerate() {
        let (id, agent) = (id_of(at), AgentName::from("clerk"));
        journal.add(start(&id));
        let inner = started(&format!("run-failures/{id}"), "clerk", &at.to_string());
        journal.add_in(&[&id], Entry::Started(inner.into()));
        if let Failure::Misbehaviour(_) = failure {
            let items = vec![Arc::new(call("", "look", json!({})))];
            let refused = AnswerRefused { agent, items, usage: Usage::unknown() };
            journal.add_in(&[&id], Entry::AnswerRefused(refused));
        }
        journal.add_in(&[&id], Entry::Failed(Failed { failure }));
        journal.add(settle(&id, How::Failed, "An error occurred while running the tool. Please try again."));
    }
    journal.answer(vec![call("x1", "look", json!({ "name": "x" }))]);
    journal.add(start("x1"));
    let ends = CallSettled { ends_run: true, ..CallSettled::new("x1".into(), How::Failed, "broken") };
    journal.add(Entry::CallSettled(ends));
    let failure = Failure::Tool { tool: tool(), call: "x1".into(), message: text("disk full") };
    journal.add(Entry::Failed(Failed { failure }));
    journal.records
}

/// Every kind of item, part and tool, and an output that a handler made.
fn items() -> Vec<Record> {
    let media = Media {
        url: Some("https://example.org/a.png".to_owned()),
        file_id: Some("file-1".to_owned()),
        data: Some("aGk=".to_owned()),
        media_type: Some("image/png".to_owned()),
        name: Some("a.png".to_owned()),
        detail: Some("low".to_owned()),
    };
    let carried =
        |kind: &str| Carried { kind: kind.to_owned(), raw: json!({ "id": 7, "list": [null, true, -1.5] }) };
    let parts = vec![
        Content::text("Look: \u{2028}\u{1f980}\t\"quoted\" \\ \u{0}"),
        Content::Image(media.clone()),
        Content::File(Media { url: None, ..media }),
        Content::Unknown(carried("audio")),
    ];
    let message = |role, content| Item::Message(Message { role, content, item_id: Some("msg-1".to_owned()) });
    let refusal = vec![Content::Refusal { text: "No.".to_owned() }];
    let spoken = |namespace: Option<&str>, id: &str, name: &str| {
        Item::Call(Call {
            id: id.into(),
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
            arguments: "{}".to_owned(),
            item_id: Some("fc-1".to_owned()),
            kind: CallKind::Function,
        })
    };
    let given = |call: &str, content, status| Item::Output(Output { call: call.into(), content, status });
    let handoff = windlass_core::Handoff { call: "o2".into(), from: "desk".into(), to: "billing".into() };
    let history = vec![
        message(Role::System, vec![Content::text("Be kind.")]),
        message(Role::User, parts.clone()),
        spoken(None, "o1", "look"),
        given("o1", OutputContent::Parts(parts), OutputStatus::Ok),
        spoken(None, "o2", "transfer_to_billing"),
        Item::Handoff(handoff),
        spoken(None, "o3", "look"),
        given("o3", "gone".into(), OutputStatus::Failed),
        Item::Hosted(carried("web_search_call")),
        Item::Unknown(carried("dream")),
        message(Role::Assistant, refusal.clone()),
    ];
    let mut journal = Journal::from(Started {
        history: history.into_iter().map(Arc::new).collect(),
        max_turns: None,
        ..started("run-items", "desk", "Go on.")
    });
    let after = AfterTools::StopOnFirst;
    let missing = vec![spoken(Some("crm"), "c1", "find"), spoken(Some("find"), "c2", "find")];
    journal.answer_in(&[], missing, after);
    journal.add(settle("c1", How::Missing, "Tool 'find' not found."));
    journal.add(settle("c2", How::Missing, "Tool 'find' not found."));
    journal.answer(vec![spoken(None, "c3", "crawl")]);
    journal.add(start("c3"));
    journal.add(settle("c3", How::Succeeded, OutputContent::Parts(vec![Content::text("crawled")])));
    journal.answer(vec![Item::Hosted(carried("web_search_call"))]);
    journal.answer(vec![message(Role::Assistant, refusal)]);
    let message = Some(Arc::new(Item::assistant("I would rather not.")));
    journal.add(Entry::Finished(Finished { output: "I would rather not.".to_owned(), message }));
    journal.records
}

/// A fork of the finished run, in which a call has another output.
fn forked() -> Vec<Record> {
    let records = finished();
    let call = "c1".into();
    let at = time::settlement_of(&records, &call).expect("it settled");
    let change = time::Change::Output { call, how: How::Succeeded, output: "Bo owes 7 €.".into() };
    time::fork(&records, at, "run-forked".into(), change).expect("it fits")
}
