//! What must be true of every journal, checked record by record and without trust in the machine that wrote it.

use std::collections::BTreeMap;
use std::fmt;

use windlass::core::{
    AgentName, Answered, BodyKind, CallId, CallSettled, CallStarted, Decided, Decision, Digest, Effect,
    Entry, Gate, HandedOff, Held, HoldReason, How, Planned, Reach, Record, Run, Started, ToolKey, Usage,
    Work,
};
use windlass::run::RunRecord;

use crate::history::check_history;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    what: String,
}

impl Broken {
    /// What does not hold.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Broken {}

/// Reads a journal record by record and checks, after each, what must be true of every journal:
///
/// - its prefix replays, and between turns the history is one that a provider takes;
/// - a call starts at most once for each attempt, and settles at most once;
/// - nothing starts that waits for a decision, was rejected, or follows a call that has not settled;
/// - decisions cover what was shown;
/// - results of idempotent calls are given to identical calls only;
/// - what ended the run ended it.
#[derive(Debug, Default)]
pub struct Audit {
    run: Option<Run>,
    next_seq: u64,
    usage: Usage,
    frames: BTreeMap<Vec<CallId>, Frame>,
    receipts: Vec<Digest>,
}

/// One run: the outermost, or that of a nested agent.
#[derive(Debug, Default)]
struct Frame {
    calls: BTreeMap<CallId, Seen>,
    open: Vec<CallId>,
    standing: BTreeMap<(AgentName, ToolKey), Said>,
    phase: FramePhase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FramePhase {
    #[default]
    Going,
    /// A call settled in a way that ends the run.
    Ending,
    Ended,
}

/// A call, as far as the journal has come.
#[derive(Debug)]
struct Seen {
    planned: Planned,
    agent: AgentName,
    attempts: u32,
    waits: Option<HoldReason>,
    said: Option<Said>,
    edited: bool,
    nested: bool,
    settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Yes,
    No,
}

/// Checks a whole journal.
pub fn check_journal<'a>(records: impl IntoIterator<Item = &'a Record>) -> Result<Audit, Broken> {
    let mut audit = Audit::default();
    for record in records {
        audit.record(record)?;
    }
    Ok(audit)
}

/// Checks what a run did: its journal, and that its state and its cost are what the journal adds up to.
pub fn check_record(record: &RunRecord) -> Result<(), Broken> {
    let audit = check_journal(record.journal())?;
    if audit.run.as_ref() != Some(record.state()) {
        return Err(Broken::new(format!(
            "the journal does not replay to the state of the run:\nreplayed {:#?}\nlive {:#?}",
            audit.run,
            record.state()
        )));
    }
    if audit.usage != *record.usage() {
        let (counted, said) = (audit.usage, record.usage());
        return Err(Broken::new(format!("the entries cost {counted:?} and the run says {said:?}")));
    }
    Ok(())
}

impl Audit {
    /// Takes the next record.
    pub fn record(&mut self, record: &Record) -> Result<(), Broken> {
        let checked = self.check(record);
        checked.map_err(|broken| Broken::new(format!("record {}: {broken}: {:?}", record.seq, record.entry)))
    }

    /// The run that the records so far add up to.
    pub fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// What the records so far cost.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// How often the body of a call was started.
    pub fn attempts(&self, within: &[CallId], call: &CallId) -> u32 {
        self.frames.get(within).and_then(|frame| frame.calls.get(call)).map_or(0, |seen| seen.attempts)
    }

    fn check(&mut self, record: &Record) -> Result<(), Broken> {
        if record.seq != self.next_seq {
            return Err(Broken::new(format!("record {} is due", self.next_seq)));
        }
        self.next_seq += 1;
        self.follow(&record.path, &record.entry)?;
        let illegal = |why| Broken::new(format!("it does not replay: {why}"));
        match (&mut self.run, &record.entry) {
            (run @ None, Entry::Started(started)) => *run = Some(Run::start((**started).clone())),
            (None, _) => return Err(Broken::new("the journal does not begin with a start")),
            (Some(run), entry) => {
                run.apply_at(&record.path, entry).map_err(illegal)?;
            }
        }
        self.check_histories(&record.path)
    }

    /// The histories of the run and of the nested agents on the way to where something happened.
    fn check_histories(&self, path: &[CallId]) -> Result<(), Broken> {
        let mut run = self.run.as_ref();
        let mut on = path.iter();
        while let Some(one) = run {
            if one.is_between_turns() {
                check_history(one.history())?;
            }
            run = on.next().and_then(|call| one.child(call));
        }
        Ok(())
    }

    fn follow(&mut self, path: &[CallId], entry: &Entry) -> Result<(), Broken> {
        match entry {
            Entry::Started(started) => return self.started(path, started),
            Entry::Answered(answered) => self.usage.add(&answered.usage),
            Entry::AnswerRefused(refused) => self.usage.add(&refused.usage),
            Entry::ModelFailed(failed) => self.usage.add(&failed.cost()),
            _ => {}
        }
        let frame = self.frames.get_mut(path).ok_or_else(|| Broken::new("nothing was started there"))?;
        if let Entry::CallEndedLate(late) = entry {
            let has_started = frame.calls.get(&late.call).is_some_and(|seen| seen.attempts > 0);
            return if has_started {
                Ok(())
            } else {
                Err(Broken::new("a call ended late that never started"))
            };
        }
        if frame.phase == FramePhase::Ended {
            return Err(Broken::new("the run has ended"));
        }
        match entry {
            Entry::Answered(answered) => frame.answered(answered),
            Entry::Held(held) => frame.held(held),
            Entry::Decided(decided) => frame.decided(decided),
            Entry::Revoked(revoked) => {
                frame.standing.remove(&(revoked.agent.clone(), revoked.tool.clone()));
                Ok(())
            }
            Entry::CallStarted(started) => frame.call_started(started),
            Entry::CallSettled(settled) => frame.call_settled(settled, &mut self.receipts),
            Entry::HandedOff(handed) => frame.handed_off(handed),
            Entry::Finished(_) => frame.finished(),
            Entry::Failed(_) | Entry::Cancelled(_) => {
                frame.phase = FramePhase::Ended;
                frame.close();
                Ok(())
            }
            Entry::AnswerRefused(_) | Entry::ModelFailed(_) => frame.goes_on("asked its model"),
            _ => Ok(()),
        }
    }

    fn started(&mut self, path: &[CallId], started: &Started) -> Result<(), Broken> {
        if let Some((call, within)) = path.split_last() {
            let outer = self.frames.get_mut(within).and_then(|frame| frame.calls.get_mut(call));
            let seen =
                outer.ok_or_else(|| Broken::new("a nested agent began in a call that is not there"))?;
            let is_agent = matches!(seen.planned.work, Work::Body { body: BodyKind::Agent, .. });
            if !is_agent || seen.attempts == 0 || seen.settled {
                return Err(Broken::new("a nested agent began in a call that is not running"));
            }
            if std::mem::replace(&mut seen.nested, true) {
                return Err(Broken::new("a nested agent began twice in one call"));
            }
        } else if !self.frames.is_empty() {
            return Err(Broken::new("the run began twice"));
        }
        check_history(&started.history)?;
        self.frames.insert(path.to_vec(), Frame::default());
        Ok(())
    }
}

impl Frame {
    fn call(&mut self, call: &CallId) -> Result<&mut Seen, Broken> {
        match self.calls.get_mut(call) {
            Some(seen) if !seen.settled => Ok(seen),
            Some(_) => Err(Broken::new(format!("call `{call}` has its output"))),
            None => Err(Broken::new(format!("there is no call `{call}`"))),
        }
    }

    fn goes_on(&self, how: &str) -> Result<(), Broken> {
        match self.phase {
            FramePhase::Going => Ok(()),
            FramePhase::Ending => Err(Broken::new(format!("a call ended the run, and it {how}"))),
            FramePhase::Ended => Err(Broken::new("the run has ended")),
        }
    }

    fn all_settled(&self) -> Result<(), Broken> {
        match self.open.iter().find(|call| self.calls.get(*call).is_none_or(|seen| !seen.settled)) {
            Some(call) => Err(Broken::new(format!("call `{call}` has no output yet"))),
            None => Ok(()),
        }
    }

    fn close(&mut self) {
        for call in std::mem::take(&mut self.open) {
            if let Some(seen) = self.calls.get_mut(&call) {
                seen.settled = true;
            }
        }
    }

    fn answered(&mut self, answered: &Answered) -> Result<(), Broken> {
        self.goes_on("took another answer")?;
        self.all_settled()?;
        self.open.clear();
        for planned in &answered.calls {
            let standing = self.standing.get(&(answered.agent.clone(), planned.key.clone())).copied();
            let seen = Seen {
                planned: planned.clone(),
                agent: answered.agent.clone(),
                attempts: 0,
                waits: None,
                said: standing.filter(|said| is_covered_by(planned, *said)),
                edited: false,
                nested: false,
                settled: false,
            };
            if self.calls.insert(planned.call.clone(), seen).is_some() {
                return Err(Broken::new(format!("call id `{}` stands for two calls", planned.call)));
            }
            self.open.push(planned.call.clone());
        }
        Ok(())
    }

    fn held(&mut self, held: &Held) -> Result<(), Broken> {
        let seen = self.call(&held.call)?;
        let fits = match held.reason {
            HoldReason::Approval => seen.attempts == 0 && seen.said.is_none() && is_gated(&seen.planned),
            HoldReason::InDoubt => seen.attempts > 0 && seen.is_once(),
            HoldReason::Question(_) => seen.attempts > 0 && !seen.nested,
            _ => true,
        };
        if !fits || seen.waits.is_some() {
            return Err(Broken::new(format!("call `{}` has nothing to wait for", held.call)));
        }
        seen.waits = Some(held.reason.clone());
        Ok(())
    }

    fn decided(&mut self, decided: &Decided) -> Result<(), Broken> {
        let seen = self.call(&decided.call)?;
        if seen.planned.digest != decided.digest {
            return Err(Broken::new(format!(
                "the decision about call `{}` covers another call",
                decided.call
            )));
        }
        let said = match &decided.decision {
            Decision::Approve
            | Decision::ApproveEdited { .. }
            | Decision::DidNotHappen
            | Decision::Answer { .. } => Said::Yes,
            Decision::Reject { .. } | Decision::Happened { .. } | Decision::Unknown => Said::No,
        };
        seen.waits = None;
        seen.said = Some(said);
        seen.edited |= matches!(decided.decision, Decision::ApproveEdited { .. });
        if decided.reach == Reach::Always {
            let covered = (seen.agent.clone(), seen.planned.key.clone());
            for call in &self.open {
                if let Some(seen) = self.calls.get_mut(call)
                    && seen.planned.key == covered.1
                    && seen.attempts == 0
                    && seen.said.is_none()
                    && is_covered_by(&seen.planned, said)
                {
                    seen.said = Some(said);
                    seen.waits = None;
                }
            }
            self.standing.insert(covered, said);
        }
        Ok(())
    }

    fn call_started(&mut self, started: &CallStarted) -> Result<(), Broken> {
        let call = &started.call;
        let seen = self.call(call)?;
        let Work::Body { gate, .. } = seen.planned.work else {
            return Err(Broken::new(format!("call `{call}` started and has no body")));
        };
        if started.attempt != seen.attempts + 1 {
            return Err(Broken::new(format!("call `{call}` started twice for one attempt")));
        }
        if seen.waits.is_some() {
            return Err(Broken::new(format!("call `{call}` started while it waits for a person")));
        }
        match (seen.said, gate) {
            (Some(Said::No), _) => {
                return Err(Broken::new(format!("call `{call}` was rejected and started")));
            }
            (None, Gate::Closed | Gate::Each) => {
                return Err(Broken::new(format!("call `{call}` started without a decision")));
            }
            (Some(Said::Yes), _) | (None, Gate::Open | Gate::Ask | Gate::AskEach) => {}
        }
        seen.attempts += 1;
        let before = seen.planned.after.clone();
        match before.and_then(|before| self.calls.get(&before)) {
            Some(before) if !before.settled => Err(Broken::new(format!(
                "call `{call}` started before call `{}`, which it conflicts with, had settled",
                before.planned.call
            ))),
            _ => Ok(()),
        }
    }

    fn call_settled(&mut self, settled: &CallSettled, receipts: &mut Vec<Digest>) -> Result<(), Broken> {
        let seen = self.call(&settled.call)?;
        let fits = match settled.how {
            How::Succeeded => seen.attempts > 0,
            How::Rejected => seen.said == Some(Said::No),
            // Changed arguments have a digest that the plan does not name.
            How::Receipt => seen.edited || seen.receipt().is_some_and(|receipt| receipts.contains(&receipt)),
            How::Cancelled => true,
            _ => seen.said != Some(Said::No) || seen.attempts > 0,
        };
        if !fits {
            return Err(Broken::new(format!("call `{}` cannot have settled like this", settled.call)));
        }
        seen.settled = true;
        if let (How::Succeeded, false, Some(receipt)) = (&settled.how, seen.edited, seen.receipt()) {
            receipts.push(receipt);
        }
        if settled.ends_run {
            self.phase = FramePhase::Ending;
        }
        Ok(())
    }

    fn handed_off(&mut self, handed: &HandedOff) -> Result<(), Broken> {
        self.goes_on("handed over")?;
        self.call(&handed.call)?.settled = true;
        self.all_settled()
    }

    fn finished(&mut self) -> Result<(), Broken> {
        self.goes_on("finished")?;
        self.phase = FramePhase::Ended;
        self.all_settled()
    }
}

impl Seen {
    fn is_once(&self) -> bool {
        matches!(self.planned.work, Work::Body { body: BodyKind::Function, effect: Effect::Once, .. })
    }

    fn receipt(&self) -> Option<Digest> {
        match self.planned.work {
            Work::Body { receipt, .. } => receipt,
            _ => None,
        }
    }
}

fn is_gated(planned: &Planned) -> bool {
    matches!(planned.work, Work::Body { gate: Gate::Ask | Gate::Closed | Gate::AskEach | Gate::Each, .. })
}

/// Whether what was said for good is said of this call too. An approval is not where each is to be decided about.
fn is_covered_by(planned: &Planned, said: Said) -> bool {
    let Work::Body { gate, .. } = planned.work else { return false };
    match (gate, said) {
        (Gate::Open, _) | (Gate::AskEach | Gate::Each, Said::Yes) => false,
        (Gate::Ask | Gate::Closed, _) | (Gate::AskEach | Gate::Each, Said::No) => true,
    }
}
