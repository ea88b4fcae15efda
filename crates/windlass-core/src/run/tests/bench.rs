//! A machine that is played with scripts: entries separated by `;`, each a word and what it is about.

use std::sync::Arc;

use crate::run::{CandidateSource, End, Illegal, Next, Replay, Run, Step};
use crate::{
    AfterTools, AnswerRefused, Answered, BodyKind, Call, CallEndedLate, CallId, CallSettled, CallStarted,
    Cancelled, Carried, Content, Decided, Decision, Effect, Entry, Failed, Failure, Finished, FoundTool,
    Gate, HandedOff, Held, HoldReason, How, InputAdded, Item, Lookup, Message, ModelFailed, OutputStatus,
    Plan, Reach, Record, Revoked, Role, Started, Timestamp, ToolKey, Usage, call_digest, plan,
};

/// A run and its journal.
pub(super) struct Bench {
    pub(super) run: Run,
    pub(super) records: Vec<Record>,
}

/// The run that a script leads to.
pub(super) fn play(script: &str) -> Run {
    Bench::of(script).run
}

/// Why the machine refuses the last entry of a script; it must be as it was before.
pub(super) fn refusal(script: &str, entry: &str) -> String {
    let mut bench = Bench::of(script);
    let before = bench.run.clone();
    let refused = bench.try_line(entry).expect_err(&format!("`{entry}` does not fit after `{script}`"));
    assert_eq!(bench.run, before, "`{entry}` is refused after `{script}` and changed something");
    refused.to_string()
}

impl Bench {
    pub(super) fn new() -> Self {
        let started = started("run-1", "desk");
        let first =
            Record { seq: 0, at: Timestamp(0), path: vec![], entry: Entry::Started(started.clone().into()) };
        Self { run: Run::start(started), records: vec![first] }
    }

    pub(super) fn of(script: &str) -> Self {
        let mut bench = Self::new();
        for line in script.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            bench.try_line(line).unwrap_or_else(|why| panic!("`{line}` in `{script}`: {why}"));
        }
        bench
    }

    pub(super) fn try_line(&mut self, line: &str) -> Result<(), Illegal> {
        let (path, line) = match line.split_once("/ ") {
            Some((path, line)) => (path.split('/').map(CallId::from).collect(), line),
            None => (Vec::new(), line),
        };
        let run = path.iter().try_fold(&self.run, |run, call| run.child(call));
        let entry = entry(run.unwrap_or(&self.run), line);
        self.try_record(path, entry)
    }

    pub(super) fn try_record(&mut self, path: Vec<CallId>, entry: Entry) -> Result<(), Illegal> {
        self.run.apply_at(&path, &entry)?;
        let seq = self.records.len() as u64;
        self.records.push(Record { seq, at: Timestamp(seq), path, entry });
        Ok(())
    }

    pub(super) fn replay(&self) -> Replay {
        Run::replay(&self.records).expect("what was accepted replays")
    }
}

pub(super) fn started(run: &str, agent: &str) -> Started {
    Started {
        run: run.into(),
        agent: agent.into(),
        history: vec![],
        input: vec![Arc::new(Item::user("go"))],
        max_turns: Some(5),
        session: None,
        origin: None,
    }
}

/// What a line of a script stands for.
fn entry(run: &Run, line: &str) -> Entry {
    let mut words = line.split_whitespace();
    let verb = words.next().expect("a line has a verb");
    let rest: Vec<&str> = words.collect();
    let call = || CallId::from(*rest.first().expect("the line names a call"));
    let decided = |decision, reach| {
        let digest = run.seen().get(&call()).copied().unwrap_or_else(|| crate::Digest::of("nothing"));
        Entry::Decided(Decided { call: call(), digest, decision, reach, by: None })
    };
    let says = |content| Item::Message(Message { role: Role::Assistant, content, item_id: None });
    match verb {
        "started" | "nest" => Entry::Started(started("run-1/c1", "clerk").into()),
        "say" => answer(run, vec![says(vec![Content::text("said")])], AfterTools::RunAgain),
        "refuse_to_say" => {
            let refusal = says(vec![Content::Refusal { text: "no".to_owned() }]);
            answer(run, vec![refusal], AfterTools::RunAgain)
        }
        "hosted" => {
            let hosted = Item::Hosted(Carried { kind: "search".to_owned(), raw: true.into() });
            answer(run, vec![hosted], AfterTools::RunAgain)
        }
        "answer" => answer(run, calls(&rest), AfterTools::RunAgain),
        "stop_on_first" => answer(run, calls(&rest), AfterTools::StopOnFirst),
        "judge" => answer(run, calls(&rest), AfterTools::Ask),
        stop_at if stop_at.starts_with("stop_at:") => {
            let names = vec![stop_at["stop_at:".len()..].to_owned()];
            answer(run, calls(&rest), AfterTools::StopAt(names))
        }
        "refused" => {
            let agent = run.agent().clone();
            Entry::AnswerRefused(AnswerRefused { agent, items: vec![], usage: Usage::tokens(1, 1) })
        }
        "failed_model" => {
            let (agent, error) = (run.agent().clone(), "overloaded".to_owned());
            Entry::ModelFailed(ModelFailed { agent, error, retry_after_ms: None, usage: None })
        }
        "hold" => Entry::Held(Held { call: call(), reason: HoldReason::Approval, expires: None }),
        "doubt" => Entry::Held(Held { call: call(), reason: HoldReason::InDoubt, expires: None }),
        "approve" => decided(Decision::Approve, Reach::Call),
        "approve_always" => decided(Decision::Approve, Reach::Always),
        "edit" => decided(Decision::ApproveEdited { arguments: "{\"edited\":true}".to_owned() }, Reach::Call),
        "edit_always" => {
            decided(Decision::ApproveEdited { arguments: "{\"edited\":true}".to_owned() }, Reach::Always)
        }
        "reject" => decided(Decision::Reject { message: None }, Reach::Call),
        "reject_because" => decided(Decision::Reject { message: Some("because".to_owned()) }, Reach::Call),
        "reject_always" => decided(Decision::Reject { message: None }, Reach::Always),
        "happened" => decided(Decision::Happened { output: "it did".into() }, Reach::Call),
        "did_not_happen" => decided(Decision::DidNotHappen, Reach::Call),
        "unknown" => decided(Decision::Unknown, Reach::Call),
        "approve_other" => {
            let digest = crate::Digest::of("other arguments");
            let (decision, reach) = (Decision::Approve, Reach::Call);
            Entry::Decided(Decided { call: call(), digest, decision, reach, by: None })
        }
        "revoke" => Entry::Revoked(Revoked { agent: run.agent().clone(), tool: ToolKey::bare(rest[0]) }),
        "start" => {
            let attempt = rest.get(1).map_or(1, |attempt| attempt.parse().expect("an attempt is a number"));
            Entry::CallStarted(CallStarted { call: call(), attempt })
        }
        "settle" => Entry::CallSettled(CallSettled::new(call(), how(rest[1]), format!("{} done", rest[0]))),
        "settle_and_end" => {
            let settled = CallSettled::new(call(), how(rest[1]), format!("{} done", rest[0]));
            Entry::CallSettled(CallSettled { ends_run: true, ..settled })
        }
        "late" => Entry::CallEndedLate(CallEndedLate { call: call(), result: Ok("late".into()) }),
        "handoff" => Entry::HandedOff(HandedOff { call: call(), to: rest[1].into(), history: None }),
        "filter" => {
            let history = Some(vec![Arc::new(Item::user("filtered"))]);
            Entry::HandedOff(HandedOff { call: call(), to: rest[1].into(), history })
        }
        "went_on" => Entry::WentOn,
        "input" => Entry::InputAdded(InputAdded { items: vec![Arc::new(Item::user("more"))] }),
        "finish" => Entry::Finished(Finished { output: "the end".to_owned(), message: None }),
        "finish_with_message" => {
            let message = Some(Arc::new(Item::assistant("handled")));
            Entry::Finished(Finished { output: "handled".to_owned(), message })
        }
        "fail" => Entry::Failed(Failed { failure: Failure::Model { message: "gone".to_owned() } }),
        "trip" => Entry::Failed(Failed { failure: Failure::OutputGuardrail { guardrail: "g".to_owned() } }),
        "cancel" => Entry::Cancelled(Cancelled::default()),
        other => panic!("`{other}` is no verb"),
    }
}

/// An answer of the current agent's model, planned.
pub(super) fn answer(run: &Run, items: Vec<Item>, after: AfterTools) -> Entry {
    let agent = run.agent().clone();
    let items = items.into_iter().map(Arc::new).collect();
    let Plan { items, calls, repeated } =
        plan(items, &agent, run.seen(), look_up).expect("it can be planned");
    let usage = Usage::tokens(1, 1);
    let (response_id, request_id, model) = (None, None, None);
    let answered = Answered { agent, items, calls, repeated, after, usage, response_id, request_id, model };
    Entry::Answered(answered.into())
}

fn calls(words: &[&str]) -> Vec<Item> {
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

/// The tools that scripts know.
pub(super) fn look_up(call: &Call) -> Lookup {
    let (body, effect, gate) = match call.name.as_str() {
        "look" => (BodyKind::Function, Effect::Pure, Gate::Open),
        "print" => (BodyKind::Function, Effect::Idempotent, Gate::Open),
        "transfer" => (BodyKind::Function, Effect::Once, Gate::Open),
        "send" => (BodyKind::Function, Effect::Once, Gate::Ask),
        "pay" => (BodyKind::Function, Effect::Once, Gate::Closed),
        "post" => (BodyKind::Function, Effect::Once, Gate::AskEach),
        "sign" => (BodyKind::Function, Effect::Once, Gate::Each),
        "books" => (BodyKind::Agent, Effect::Once, Gate::Open),
        "audited_books" => (BodyKind::Agent, Effect::Once, Gate::Closed),
        "to_billing" => return Lookup::Handoff { to: "billing".into() },
        "to_desk" => return Lookup::Handoff { to: "desk".into() },
        name => return Lookup::Missing { text: format!("no {name}") },
    };
    let key = ToolKey::of_call(call);
    let arguments = if call.arguments == "{" {
        Err("not JSON".to_owned().into())
    } else {
        Ok(call.arguments.as_str().into())
    };
    let receipt = (effect == Effect::Idempotent).then(|| call_digest(&key, &call.arguments));
    let conflict = (call.name == "transfer").then(|| "account".to_owned());
    Lookup::Tool(FoundTool { key, body, effect, gate, conflict, receipt, arguments })
}

pub(super) const HOWS: [(&str, How); 13] = [
    ("succeeded", How::Succeeded),
    ("failed", How::Failed),
    ("timed_out", How::TimedOut),
    ("left_running", How::LeftRunning),
    ("invalid", How::Invalid),
    ("missing", How::Missing),
    ("ignored", How::Ignored),
    ("rejected", How::Rejected),
    ("guarded", How::Guarded),
    ("receipt", How::Receipt),
    ("cancelled", How::Cancelled),
    ("reconciled", How::Reconciled),
    ("unknown", How::Unknown),
];

fn how(word: &str) -> How {
    HOWS.iter().find(|(name, _)| *name == word).expect("a way to settle").1.clone()
}

/// What the machine asks for, in short.
pub(super) fn next(run: &Run) -> String {
    match run.next() {
        Next::Model { agent, turn } => format!("model {agent} {turn}"),
        Next::Exhausted { max_turns } => format!("exhausted {max_turns}"),
        Next::Calls(steps) => {
            let steps: Vec<String> = steps.iter().map(step).collect();
            format!("calls {}", steps.join(", "))
        }
        Next::HandOff { call, from, to, .. } => format!("handoff {call} {from} {to}"),
        Next::Judge { agent } => format!("judge {agent}"),
        Next::Finish(candidate) => {
            let source = match &candidate.source {
                CandidateSource::Message => "message".to_owned(),
                CandidateSource::Refusal => "refusal".to_owned(),
                CandidateSource::Tool(call) => format!("tool {call}"),
            };
            format!("finish “{}” {source}", candidate.output)
        }
        Next::Fail(failure) => format!("fail {failure}"),
        Next::Pause(pending) => {
            let paths: Vec<String> = pending.iter().map(|pending| pending.path.to_string()).collect();
            format!("pause {}", paths.join(", "))
        }
        Next::Over => "over".to_owned(),
    }
}

fn step(step: &Step) -> String {
    let after = step.after().map_or_else(String::new, |call| format!(" after {call}"));
    let edited = |edited: Option<&str>| if edited.is_some() { " edited" } else { "" };
    match step {
        Step::Gate(gate) => {
            let covered = if gate.is_covered() { " covered" } else { "" };
            format!("gate {}{covered}{after}", gate.call())
        }
        Step::Run(run) => format!("run {}#{}{after}{}", run.call(), run.attempt(), edited(run.edited())),
        Step::Invalid(invalid) => format!("invalid {}", invalid.call),
        Step::Settle(settle) => {
            let how = HOWS.iter().find(|(_, how)| *how == settle.settled.how).expect("all are listed").0;
            format!("settle {} {how}", settle.settled.call)
        }
        Step::Doubt(doubt) => format!("doubt {}#{}{}", doubt.call, doubt.attempt, edited(doubt.edited())),
    }
}

/// The history, in short.
pub(super) fn history(run: &Run) -> String {
    items(run.history().iter())
}

pub(super) fn items<'a>(items: impl Iterator<Item = &'a Arc<Item>>) -> String {
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
            Item::Reasoning(_) | Item::Hosted(_) | Item::Unknown(_) => "other".to_owned(),
        })
        .collect();
    words.join(", ")
}

pub(super) fn end(run: &Run) -> &'static str {
    match run.end() {
        Some(End::Finished(_)) => "finished",
        Some(End::Failed(_)) => "failed",
        Some(End::Cancelled) => "cancelled",
        None => "going",
    }
}
