//! Random walks: whatever the machine asks for is done in some way that fits, and what must hold holds after
//! every step.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::bench::{Bench, answer, started};
use crate::run::{GateStep, Next, Run, Runnable, Step};
use crate::{
    AfterTools, BodyKind, CallEndedLate, CallId, CallSettled, Cancelled, Decided, Decision, Digest, Effect,
    Entry, Failed, Failure, Finished, HandedOff, Held, HoldReason, How, InputAdded, Item, ModelFailed,
    Pending, Question, Reach, Revoked, Role, ToolKey, Work, from_text, time, to_text,
};

const TOOLS: [&str; 10] = [
    "look",
    "print",
    "transfer",
    "send",
    "pay",
    "books",
    "audited_books",
    "to_billing",
    "to_desk",
    "nothing",
];

/// A source of choices: what is left of a list of random numbers, and then zeros.
struct Choices<'a> {
    left: &'a [u32],
}

impl Choices<'_> {
    fn upto(&mut self, limit: usize) -> usize {
        match self.left.split_first() {
            Some((first, rest)) => {
                self.left = rest;
                *first as usize % limit.max(1)
            }
            None => 0,
        }
    }

    fn are_left(&self) -> bool {
        !self.left.is_empty()
    }
}

type Options = Vec<(Vec<CallId>, Entry)>;

/// Everything that a driver could record now.
fn options(run: &Run, path: &[CallId], choices: &mut Choices<'_>, next_id: &mut u32) -> Options {
    let mut found = Options::new();
    let mut add = |entry| found.push((path.to_vec(), entry));
    let fail = |failure| Entry::Failed(Failed { failure });
    match run.next() {
        Next::Model { agent, .. } => {
            let failed =
                ModelFailed { agent, error: "busy".to_owned(), retry_after_ms: Some(1), usage: None };
            add(match choices.upto(10) {
                0 => Entry::ModelFailed(failed),
                1 => answer(run, vec![Item::assistant("said")], AfterTools::RunAgain),
                _ => some_answer(run, choices, next_id),
            });
        }
        Next::Exhausted { max_turns } => {
            add(fail(Failure::TurnsExhausted { max_turns }));
            let message = Some(Arc::new(Item::assistant("handled")));
            add(Entry::Finished(Finished { output: "handled".to_owned(), message }));
        }
        Next::Calls(steps) => {
            for step in steps {
                found.extend(call_options(run, path, step, choices, next_id));
            }
        }
        Next::HandOff { call, to, .. } => {
            add(Entry::HandedOff(HandedOff { call: call.clone(), to: to.clone(), history: None }));
            let history = Some(vec![Arc::new(Item::user("in short"))]);
            add(Entry::HandedOff(HandedOff { call, to, history }));
        }
        Next::Judge { .. } => {
            add(Entry::WentOn);
            add(Entry::Finished(Finished { output: "judged".to_owned(), message: None }));
        }
        Next::Finish(candidate) => {
            add(Entry::Finished(Finished { output: candidate.output, message: None }));
            add(fail(Failure::OutputGuardrail { guardrail: "g".to_owned() }));
            add(fail(Failure::InvalidOutput { message: "no".to_owned() }));
        }
        Next::Fail(failure) => add(fail(failure)),
        Next::Pause(_) | Next::Over => {}
    }
    found
}

/// An answer with up to four calls of any tools.
fn some_answer(run: &Run, choices: &mut Choices<'_>, next_id: &mut u32) -> Entry {
    let mut items = vec![Item::assistant("first")];
    for _ in 0..=choices.upto(4) {
        let tool = TOOLS[choices.upto(TOOLS.len())];
        *next_id += 1;
        let arguments = if choices.upto(8) == 0 { "{" } else { "{}" };
        items.push(Item::call(format!("k{next_id}"), tool, arguments));
    }
    let after = match choices.upto(6) {
        0 => AfterTools::StopOnFirst,
        1 => AfterTools::StopAt(vec!["print".to_owned()]),
        2 => AfterTools::Ask,
        _ => AfterTools::RunAgain,
    };
    answer(run, items, after)
}

fn call_options(
    run: &Run,
    path: &[CallId],
    step: Step,
    choices: &mut Choices<'_>,
    next_id: &mut u32,
) -> Options {
    let call = step.call().clone();
    let settle = |how| Entry::CallSettled(CallSettled::new(call.clone(), how, "given"));
    let is_first = step.after().is_none();
    let mut entries = Vec::new();
    if choices.upto(20) == 0 {
        entries.push(settle(How::Cancelled));
    }
    match step {
        Step::Gate(gate) => entries.extend(gate_options(&gate, is_first)),
        Step::Run(runnable) if run.is_running(&call) && runnable.body() == BodyKind::Agent => {
            let inside: Vec<CallId> = path.iter().cloned().chain([call.clone()]).collect();
            match run.child(&call) {
                None => return vec![(inside, Entry::Started(started("run-1/inside", "clerk").into()))],
                Some(child) if child.end().is_none() => return options(child, &inside, choices, next_id),
                Some(_) => entries = vec![settle(How::Succeeded), settle(How::Failed)],
            }
        }
        Step::Run(runnable) => {
            if is_first {
                entries.push(runnable.started());
            }
            if run.is_running(&call) {
                entries.extend([settle(How::Succeeded), settle(How::Failed), settle(How::TimedOut)]);
                entries.push(Entry::Held(Held::for_answer(call.clone(), Question::new("Which?"))));
            } else if choices.upto(10) == 0 {
                entries.push(settle(How::Guarded));
            }
        }
        Step::Invalid(_) => entries.push(settle(How::Invalid)),
        Step::Settle(step) => entries.push(Entry::CallSettled(step.settled)),
        Step::Doubt(doubt) => {
            entries.extend([settle(How::Succeeded), settle(How::LeftRunning), settle(How::Reconciled)]);
            entries.push(Entry::Held(Held {
                call: call.clone(),
                reason: HoldReason::InDoubt,
                expires: None,
            }));
            entries.push(Entry::Held(Held::for_answer(call.clone(), Question::new("Which?"))));
            entries.push(doubt.did_not_happen().started());
        }
    }
    entries.into_iter().map(|entry| (path.to_vec(), entry)).collect()
}

fn gate_options(gate: &GateStep, is_first: bool) -> Vec<Entry> {
    let held = Held { call: gate.call().clone(), reason: HoldReason::Approval, expires: None };
    let started = gate.free().filter(|_| is_first).map(|runnable: Runnable| runnable.started());
    [Entry::Held(held)].into_iter().chain(started).collect()
}

/// Every decision that answers what a call waits for.
fn decisions(pending: &Pending) -> Options {
    let (call, digest) = (pending.call().clone(), pending.digest);
    let decided = |decision, reach| {
        let decided = Decided { call: call.clone(), digest, decision, reach, by: Some("ann".to_owned()) };
        (pending.path.within().to_vec(), Entry::Decided(decided))
    };
    match &pending.reason {
        HoldReason::Approval => vec![
            decided(Decision::Approve, Reach::Call),
            decided(Decision::Approve, Reach::Always),
            decided(Decision::ApproveEdited { arguments: "{\"edited\":true}".to_owned() }, Reach::Call),
            decided(Decision::Reject { message: None }, Reach::Call),
            decided(Decision::Reject { message: Some("no".to_owned()) }, Reach::Always),
        ],
        HoldReason::InDoubt => vec![
            decided(Decision::Happened { output: "it did".into() }, Reach::Call),
            decided(Decision::DidNotHappen, Reach::Call),
            decided(Decision::Unknown, Reach::Call),
        ],
        HoldReason::Question(_) => vec![
            decided(Decision::Answer { value: "this".into() }, Reach::Call),
            decided(Decision::Reject { message: None }, Reach::Call),
        ],
    }
}

/// What comes from outside, whatever the run is doing.
fn interruptions() -> Vec<Entry> {
    vec![
        Entry::InputAdded(InputAdded { items: vec![Arc::new(Item::user("more"))] }),
        Entry::Revoked(Revoked { agent: "desk".into(), tool: ToolKey::bare("pay") }),
        Entry::Cancelled(Cancelled::default()),
        Entry::Failed(Failed { failure: Failure::Model { message: "gone".to_owned() } }),
        Entry::Failed(Failed { failure: Failure::InputGuardrail { guardrail: "g".to_owned() } }),
        Entry::CallEndedLate(CallEndedLate { call: "k1".into(), result: Err("late".to_owned()) }),
    ]
}

/// What is known of each call without asking the machine.
#[derive(Default)]
struct Witness {
    calls: BTreeMap<(Vec<CallId>, CallId), Seen>,
}

struct Seen {
    effect: Option<Effect>,
    attempts: u32,
    waits: bool,
    said: Option<Decision>,
    settled: bool,
}

impl Witness {
    fn see(&mut self, path: &[CallId], entry: &Entry) {
        let key = |call: &CallId| (path.to_vec(), call.clone());
        match entry {
            Entry::Answered(answered) => {
                for planned in &answered.calls {
                    let effect = match planned.work {
                        Work::Body { body: BodyKind::Function, effect, .. } => Some(effect),
                        _ => None,
                    };
                    let seen = Seen { effect, attempts: 0, waits: false, said: None, settled: false };
                    assert!(self.calls.insert(key(&planned.call), seen).is_none(), "a call id is used once");
                }
            }
            Entry::Held(held) => {
                let seen = self.calls.get_mut(&key(&held.call)).expect("it was planned");
                assert!(!seen.settled && !seen.waits);
                (seen.waits, seen.said) = (true, None);
            }
            Entry::Decided(decided) => {
                let seen = self.calls.get_mut(&key(&decided.call)).expect("it was planned");
                (seen.waits, seen.said) = (false, Some(decided.decision.clone()));
                if decided.reach == Reach::Always {
                    // It covers siblings, of which this witness does not know the tool: they wait no more than
                    // the machine says.
                    self.calls
                        .iter_mut()
                        .filter(|((at, _), _)| at == path)
                        .for_each(|(_, seen)| seen.waits = false);
                }
            }
            Entry::CallStarted(started) => {
                let seen = self.calls.get_mut(&key(&started.call)).expect("it was planned");
                assert!(!seen.settled && !seen.waits, "call {} may not start", started.call);
                assert!(!matches!(
                    seen.said,
                    Some(Decision::Reject { .. } | Decision::Happened { .. } | Decision::Unknown)
                ));
                seen.attempts += 1;
                assert_eq!(seen.attempts, started.attempt);
                seen.said = None;
            }
            Entry::CallSettled(settled) => {
                let seen = self.calls.get_mut(&key(&settled.call)).expect("it was planned");
                assert!(!std::mem::replace(&mut seen.settled, true), "call {} has two outputs", settled.call);
            }
            _ => {}
        }
    }

    /// A call that must not happen twice is offered again only where somebody said that it did not happen,
    /// or gave it the answer that it asked for.
    fn check_offers(&self, run: &Run, path: &[CallId]) {
        let Next::Calls(steps) = run.next() else { return };
        for step in steps {
            let Step::Run(runnable) = &step else { continue };
            let seen = &self.calls[&(path.to_vec(), runnable.call().clone())];
            assert!(!seen.waits && !seen.settled);
            assert!(
                !matches!(seen.said, Some(Decision::Reject { .. })),
                "call {} was rejected",
                runnable.call()
            );
            if seen.effect == Some(Effect::Once) && seen.attempts > 0 {
                let may_again = matches!(seen.said, Some(Decision::DidNotHappen | Decision::Answer { .. }));
                assert!(may_again, "call {} would run twice after {:?}", runnable.call(), seen.said);
            }
        }
    }
}

/// Every call has one output, after it, in the order of the calls.
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

fn check(bench: &Bench, witness: &Witness) {
    let mut runs = vec![(Vec::new(), &bench.run)];
    while let Some((path, run)) = runs.pop() {
        if run.is_between_turns() {
            check_history(run.history());
        }
        witness.check_offers(run, &path);
        match run.next() {
            Next::Pause(pending) => assert!(!pending.is_empty(), "a pause without a question never ends"),
            Next::Calls(steps) => {
                assert!(!steps.is_empty());
                assert!(steps.iter().any(|step| step.after().is_none()), "somebody can begin");
            }
            Next::Over => {
                assert!(run.end().is_some() && run.pending().is_empty() && run.unsettled().is_empty());
            }
            Next::Model { .. }
            | Next::Exhausted { .. }
            | Next::HandOff { .. }
            | Next::Judge { .. }
            | Next::Finish(_)
            | Next::Fail(_) => {}
        }
        for call in run.unsettled() {
            if let Some(child) = run.child(&call) {
                runs.push((path.iter().cloned().chain([call]).collect(), child));
            }
        }
    }
    assert_eq!(bench.replay().run, bench.run, "a journal replays to the same run");
}

/// Entries out of place: taken from this run, with calls and digests mixed up.
fn check_strangers(bench: &Bench, choices: &mut Choices<'_>) {
    let at = choices.upto(bench.records.len());
    let mut stranger = bench.records[at].entry.clone();
    match &mut stranger {
        Entry::Decided(decided) if choices.upto(2) == 0 => decided.digest = Digest::of("another"),
        Entry::CallStarted(started) => started.attempt += u32::try_from(choices.upto(3)).unwrap_or_default(),
        _ => {}
    }
    let path = bench.records[choices.upto(bench.records.len())].path.clone();
    let mut run = bench.run.clone();
    if run.apply_at(&path, &stranger).is_err() {
        assert_eq!(run, bench.run, "what is refused changes nothing: {stranger:?}");
    }
}

fn walk(numbers: &[u32]) -> Bench {
    let mut choices = Choices { left: numbers };
    let (mut bench, mut witness, mut next_id) = (Bench::new(), Witness::default(), 0);
    while choices.are_left() && bench.run.end().is_none() {
        let mut possible = options(&bench.run, &[], &mut choices, &mut next_id);
        possible.extend(bench.run.pending().iter().flat_map(decisions));
        assert!(!possible.is_empty(), "nothing can be done after {:?}", bench.records.last());
        if choices.upto(20) == 0 {
            possible.extend(interruptions().into_iter().map(|entry| (Vec::new(), entry)));
        }
        let (path, entry) = possible.swap_remove(choices.upto(possible.len()));
        let shown = format!("{entry:?}");
        bench
            .try_record(path.clone(), entry.clone())
            .unwrap_or_else(|why| panic!("{shown} at {path:?}: {why}"));
        witness.see(&path, &entry);
        check(&bench, &witness);
        check_strangers(&bench, &mut choices);
    }
    bench
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_must_hold_holds_after_every_step(numbers in prop::collection::vec(any::<u32>(), 20..600)) {
        let bench = walk(&numbers);
        let text = to_text(&bench.records);
        prop_assert_eq!(from_text(&text).expect("it was just written"), bench.records);
        prop_assert!(time::verify_text(&text).is_ok());
    }

    #[test]
    fn a_walk_can_be_forked_anywhere(numbers in prop::collection::vec(any::<u32>(), 20..200), at in any::<u32>()) {
        let records = walk(&numbers).records;
        let at = u64::from(at) % records.len() as u64;
        let fork = time::fork(&records, at, "run-2".into(), time::Change::None).expect("any record will do");
        let forked = Run::replay(&fork).expect("a fork replays").run;
        prop_assert_eq!(forked.next(), time::at(&records, at).expect("it is there").next());
        let diff = time::diff(&records, &fork);
        prop_assert_eq!((diff.common, diff.second.len()), (at + 1, 0));
    }
}
