//! How entries move the machine, and which it refuses.

use std::sync::Arc;

use super::slot::{Slot, SlotState, Turn};
use super::{Candidate, CandidateSource, End, Part, Phase, Produced, Run, text};
use crate::canonical::Digest;
use crate::entry::{AfterTools, Answered, CallSettled, CallStarted, Entry, HandedOff, How};
use crate::failure::Failure;
use crate::id::{AgentName, CallId};
use crate::item::{Handoff, Item, Output, OutputContent, OutputStatus, Role};
use crate::plan::{Planned, Work};
use crate::tool::Gate;

/// What else follows from an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// An idempotent call has a result to keep.
    pub receipt: Option<(Digest, OutputContent)>,
}

/// Why an entry does not fit the state of the run. The run is as it was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Illegal {
    /// The run has ended.
    #[error("the run has ended")]
    Over,
    /// The entry belongs to another moment.
    #[error("`{entry}` does not fit here: {why}")]
    OutOfPlace {
        /// The kind of entry.
        entry: &'static str,
        /// Why it does not fit.
        why: &'static str,
    },
    /// There is no such open call.
    #[error("there is no open call `{0}`")]
    NoSuchCall(CallId),
    /// The call may not start.
    #[error("call `{call}` may not start: {why}")]
    MayNotStart {
        /// Which call.
        call: CallId,
        /// Why not.
        why: &'static str,
    },
    /// The call has its output.
    #[error("call `{0}` has its output already")]
    Settled(CallId),
    /// A different decision was made before.
    #[error("call `{0}` was decided otherwise before")]
    AlreadyDecided(CallId),
    /// The decision was made about other arguments or another tool.
    #[error("the decision was made about something else than what call `{0}` would do")]
    NotCovered(CallId),
    /// The decision does not answer what is asked.
    #[error("call `{call}` waits {waits}, which this decision does not answer")]
    WrongDecision {
        /// Which call.
        call: CallId,
        /// What it waits for.
        waits: &'static str,
    },
}

impl Run {
    /// Moves a nested run, or this one where `path` is empty.
    pub fn apply_at(&mut self, path: &[CallId], entry: &Entry) -> Result<Applied, Illegal> {
        // The agent whose body was given up on may have ended since, and its call with it.
        if matches!(entry, Entry::CallEndedLate(_)) {
            return Ok(Applied::default());
        }
        let Some((call, rest)) = path.split_first() else { return self.apply(entry) };
        let no_such = || Illegal::NoSuchCall(call.clone());
        let slot = self.open_turn_mut().and_then(|turn| turn.slot_mut(call)).ok_or_else(no_such)?;
        match (&mut slot.child, entry) {
            (Some(child), _) => child.apply_at(rest, entry),
            (None, Entry::Started(started)) if rest.is_empty() => slot.nest(started),
            (None, _) => Err(no_such()),
        }
    }

    /// Moves the run by one entry, or says why the entry does not fit and changes nothing.
    pub fn apply(&mut self, entry: &Entry) -> Result<Applied, Illegal> {
        if self.end().is_some() && !matches!(entry, Entry::CallEndedLate(_)) {
            return Err(Illegal::Over);
        }
        // What a call has ended does not go on, whoever drives it; its siblings may still settle.
        if self.ended_by.is_some() && goes_on(entry) {
            return Err(Illegal::Over);
        }
        match entry {
            Entry::Started(_) => {
                return Err(Illegal::OutOfPlace { entry: "started", why: "the run has begun" });
            }
            Entry::Answered(answered) => self.answered(answered)?,
            Entry::AnswerRefused(refused) => {
                self.must_be_ready("answer_refused")?;
                self.turn += 1;
                self.usage.add(&refused.usage);
            }
            Entry::ModelFailed(failed) => {
                self.must_be_ready("model_failed")?;
                self.usage.add(&failed.cost());
            }
            Entry::Held(held) => {
                self.held(held)?;
                self.acted = true;
            }
            Entry::Decided(decided) => self.decided(decided)?,
            Entry::Revoked(revoked) => {
                self.standing.remove(&(revoked.agent.clone(), revoked.tool.clone()));
            }
            Entry::CallStarted(started) => {
                self.call_started(started)?;
                self.acted = true;
            }
            Entry::CallSettled(settled) => return self.call_settled(settled),
            Entry::CallEndedLate(_) => {}
            Entry::HandedOff(handed) => {
                self.handed_off(handed)?;
                self.acted = true;
            }
            Entry::WentOn => match &self.phase {
                Phase::Judging(_) => self.phase = Phase::Ready,
                _ => return Err(Illegal::OutOfPlace { entry: "went_on", why: "nothing is judged" }),
            },
            Entry::InputAdded(added) => {
                if matches!(self.phase, Phase::Ready | Phase::Judging(_)) {
                    self.history.extend(added.items.iter().cloned());
                } else {
                    self.added_input.extend(added.items.iter().cloned());
                }
            }
            Entry::Finished(finished) => {
                if self.open_turn().is_some() {
                    return Err(Illegal::OutOfPlace { entry: "finished", why: "calls are open" });
                }
                if let Some(message) = &finished.message {
                    self.push(&self.agent.clone(), message.clone(), Part::Said);
                }
                self.end_with(End::Finished(finished.output.clone()));
            }
            Entry::Failed(failed) => {
                match failed.failure {
                    Failure::InputGuardrail { .. }
                    | Failure::OutputGuardrail { .. }
                    | Failure::GuardrailFailed { .. } => {
                        self.withhold_outputs();
                        self.drop_untouched_answer();
                    }
                    _ => {}
                }
                self.close_turn();
                self.end_with(End::Failed(failed.failure.clone()));
            }
            Entry::Cancelled(_) => {
                self.drop_untouched_answer();
                self.close_turn();
                self.end_with(End::Cancelled);
            }
        }
        Ok(Applied::default())
    }

    fn must_be_ready(&self, entry: &'static str) -> Result<(), Illegal> {
        match self.phase {
            Phase::Ready => Ok(()),
            _ => Err(Illegal::OutOfPlace { entry, why: "the model was not asked" }),
        }
    }

    fn answered(&mut self, answered: &Answered) -> Result<(), Illegal> {
        self.must_be_ready("answered")?;
        let ids = answered.items.iter().filter_map(|item| match &**item {
            Item::Call(call) => Some(&call.id),
            _ => None,
        });
        let fits = ids.eq(answered.calls.iter().map(|planned| &planned.call));
        let out_of_place = |why| Err(Illegal::OutOfPlace { entry: "answered", why });
        if !fits {
            return out_of_place("its plan is not of its calls");
        }
        if answered.agent != self.agent {
            return out_of_place("another agent is current");
        }
        let seen = self.seen.len();
        if let Err(why) = self.see(&answered.calls) {
            self.seen.truncate(seen);
            return out_of_place(why);
        }
        self.turn += 1;
        self.before_answer = (self.history.len(), self.produced.len());
        self.usage.add(&answered.usage);
        self.last_response_id.clone_from(&answered.response_id);
        let mut planned = answered.calls.iter();
        for item in &answered.items {
            let part = match &**item {
                Item::Call(_) => match planned.next().map(|planned| &planned.work) {
                    Some(Work::Handoff { .. } | Work::Ignored) => Part::HandoffCall,
                    _ => Part::Call,
                },
                _ => Part::Said,
            };
            self.push(&answered.agent, item.clone(), part);
        }
        if answered.calls.is_empty() {
            self.phase = conclusion(answered).map_or(Phase::Ready, Phase::Concluding);
            return Ok(());
        }
        if let Err(place) = self.used_tools.binary_search(&answered.agent) {
            self.used_tools.reserve_exact(1);
            self.used_tools.insert(place, answered.agent.clone());
        }
        self.count_repeats(answered);
        let calls = answered.items.iter().filter(|item| matches!(***item, Item::Call(_)));
        let slots = answered.calls.iter().cloned().zip(calls.cloned());
        let mut turn = Turn::new(answered.agent.clone(), answered.after.clone(), answered.calls.len(), slots);
        for slot in &mut turn.slots {
            let standing = self.standing.get(&(answered.agent.clone(), slot.planned.key.clone()));
            if let Some(verdict) = standing {
                slot.stand_by(verdict);
            }
        }
        let only_handoffs = turn.slots.iter().all(|slot| matches!(slot.planned.work, Work::Handoff { .. }));
        self.phase = if only_handoffs { Phase::HandingOff(turn) } else { Phase::Working(turn) };
        Ok(())
    }

    /// Takes the calls of a plan in, unless something keeps every one of them from having one output in the end.
    fn see(&mut self, calls: &[Planned]) -> Result<(), &'static str> {
        let first = self.seen.len();
        let mut handoffs = 0;
        self.seen.reserve(calls.len());
        for planned in calls {
            let comes_before = |after| self.seen.place(after).is_some_and(|place| place >= first);
            if planned.after.as_ref().is_some_and(|after| !comes_before(after)) {
                return Err("a call is to follow one that does not come before it");
            }
            if self.seen.contains(&planned.call) {
                return Err("a call id stands for two calls");
            }
            self.seen.insert(planned.call.clone(), planned.digest);
            handoffs += u32::from(matches!(planned.work, Work::Handoff { .. }));
        }
        if handoffs > 1 { Err("control can pass to one agent only") } else { Ok(()) }
    }

    fn count_repeats(&mut self, answered: &Answered) {
        let same = self.repeats.last.len() == answered.calls.len()
            && self.repeats.last.iter().zip(&answered.calls).all(|(last, now)| *last == now.digest);
        if same {
            self.repeats.times += 1;
        } else {
            self.repeats.last.clear();
            self.repeats.last.reserve_exact(answered.calls.len());
            self.repeats.last.extend(answered.calls.iter().map(|call| call.digest));
            self.repeats.times = 1;
        }
    }

    pub(super) fn open_slot(&mut self, call: &CallId) -> Result<&mut Slot, Illegal> {
        let slot = self.open_turn_mut().and_then(|turn| turn.slot_mut(call));
        let slot = slot.ok_or_else(|| Illegal::NoSuchCall(call.clone()))?;
        if slot.is_settled() { Err(Illegal::Settled(call.clone())) } else { Ok(slot) }
    }

    fn call_started(&mut self, started: &CallStarted) -> Result<(), Illegal> {
        let may_not = |why| Err(Illegal::MayNotStart { call: started.call.clone(), why });
        let is_free = self.open_turn().and_then(|turn| Some(turn.is_free(turn.slot(&started.call)?)));
        let slot = self.open_slot(&started.call)?;
        if is_free == Some(false) {
            return may_not("the call that it follows has not settled");
        }
        let Work::Body { gate, .. } = slot.planned.work else { return may_not("it has no body") };
        let (attempt, edited) = match &slot.state {
            SlotState::Open => match gate {
                Gate::Open | Gate::Ask | Gate::AskEach => (1, None),
                Gate::Closed | Gate::Each => return may_not("it needs a decision"),
            },
            SlotState::Approved { edited, attempt } => (attempt + 1, edited.clone()),
            SlotState::Running { attempt, edited } => (attempt + 1, edited.clone()),
            SlotState::Held { .. } => return may_not("it waits for a decision"),
            SlotState::Answered { .. } => return may_not("it was decided that it does not run"),
            SlotState::Settled { .. } => return may_not("it has its output"),
        };
        if attempt != started.attempt {
            return may_not("another attempt is due");
        }
        slot.state = SlotState::Running { attempt, edited };
        Ok(())
    }

    fn call_settled(&mut self, settled: &CallSettled) -> Result<Applied, Illegal> {
        let slot = self.open_slot(&settled.call)?;
        let mut applied = Applied::default();
        if let Some(why) = slot.may_not_settle(&settled.how) {
            return Err(Illegal::OutOfPlace { entry: "call_settled", why });
        }
        // A result of changed arguments is no answer to the next call with those of the model.
        if let (
            Work::Body { receipt: Some(receipt), .. },
            SlotState::Running { edited: None, .. },
            How::Succeeded,
        ) = (&slot.planned.work, &slot.state, &settled.how)
        {
            applied.receipt = Some((*receipt, settled.output.clone()));
        }
        self.acted = true;
        let did_nothing =
            settled.ends_run || matches!(settled.how, How::Cancelled | How::Missing | How::Ignored);
        if did_nothing {
            self.undone.insert(settled.call.clone());
        }
        if settled.ends_run {
            self.ended_by(settled);
        }
        if let Phase::Working(turn) = &mut self.phase
            && turn.settle(&settled.call, settled.how.clone(), settled.output.clone())
        {
            self.turn_settled();
        }
        Ok(applied)
    }

    /// Keeps what ends the run, for a driver that comes after the one that recorded it.
    fn ended_by(&mut self, settled: &CallSettled) {
        let place_of = |turn: &Turn| turn.slots.iter().position(|slot| slot.planned.call == settled.call);
        let Some(place) = self.open_turn().and_then(place_of) else { return };
        if self.ended_by.as_ref().is_none_or(|(first, _)| place < *first) {
            let tool = self.tool_of(&settled.call).map(ToString::to_string).unwrap_or_default();
            let (call, message) = (settled.call.clone(), settled.output.text().into_owned());
            self.ended_by = Some((place, Box::new(Failure::EndedByCall { tool, call, message })));
        }
    }

    /// All calls of the turn have their output, a handoff aside.
    fn turn_settled(&mut self) {
        let Phase::Working(turn) = std::mem::replace(&mut self.phase, Phase::Ready) else { return };
        if turn.handoff().is_some() {
            self.phase = Phase::HandingOff(turn);
            return;
        }
        self.commit(&turn);
        self.phase = match &turn.after {
            AfterTools::RunAgain => Phase::Ready,
            AfterTools::StopOnFirst => final_result(&turn, |_| true).map_or(Phase::Ready, Phase::Concluding),
            AfterTools::StopAt(names) => {
                let listed = |name: &str| names.iter().any(|listed| listed == name);
                final_result(&turn, listed).map_or(Phase::Ready, Phase::Concluding)
            }
            AfterTools::Ask => Phase::Judging(turn),
        };
    }

    /// Moves the turn's outputs into the history, in the model's order.
    fn commit(&mut self, turn: &Turn) {
        for produced in turn.outputs() {
            self.history.push(produced.item.clone());
            self.produced.push(produced);
        }
        self.history.append(&mut self.added_input);
    }

    fn handed_off(&mut self, handed: &HandedOff) -> Result<(), Illegal> {
        let Phase::HandingOff(turn) = &self.phase else {
            return Err(Illegal::OutOfPlace { entry: "handed_off", why: "no handoff is due" });
        };
        match turn.handoff() {
            Some((slot, to)) if slot.planned.call == handed.call && *to == handed.to => {}
            _ => return Err(Illegal::OutOfPlace { entry: "handed_off", why: "another handoff is due" }),
        }
        let Phase::HandingOff(turn) = std::mem::replace(&mut self.phase, Phase::Ready) else { return Ok(()) };
        let handoff = Arc::new(Item::Handoff(Handoff {
            call: handed.call.clone(),
            from: turn.agent.clone(),
            to: handed.to.clone(),
        }));
        for slot in &turn.slots {
            if let SlotState::Settled { output, .. } = &slot.state {
                self.history.push(output.clone());
                self.produced.push(Produced {
                    agent: turn.agent.clone(),
                    item: output.clone(),
                    part: Part::Output,
                });
            } else if slot.planned.call == handed.call {
                self.history.push(handoff.clone());
            }
        }
        self.produced.push(Produced { agent: turn.agent, item: handoff, part: Part::Handoff });
        if let Some(history) = &handed.history {
            self.history.clone_from(history);
            // The provider holds another conversation than the one that goes on.
            self.last_response_id = None;
        }
        self.history.append(&mut self.added_input);
        self.agent = handed.to.clone();
        Ok(())
    }

    /// Gives every call of an open turn an output, so that the history stays valid however the run ends.
    fn close_turn(&mut self) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ready);
        let (Phase::Working(mut turn) | Phase::HandingOff(mut turn)) = phase else { return };
        for slot in turn.slots.iter_mut().filter(|slot| !slot.is_settled()) {
            self.undone.insert(slot.planned.call.clone());
            slot.settle(How::Cancelled, text::CANCELLED.into());
        }
        self.commit(&turn);
    }

    /// Ends the run. Input that no turn took in any more is part of what was said.
    fn end_with(&mut self, end: End) {
        self.history.append(&mut self.added_input);
        self.phase = Phase::Over(end);
    }

    /// Takes an answer back of which nothing has taken effect: a message that nobody was given, calls of which
    /// none has started, been decided or been shown to a person.
    fn drop_untouched_answer(&mut self) {
        let is_untouched = match &self.phase {
            Phase::Working(turn) | Phase::HandingOff(turn) => {
                turn.slots.iter().all(|slot| matches!(slot.state, SlotState::Open))
            }
            Phase::Concluding(candidate) => !matches!(candidate.source, CandidateSource::Tool(_)),
            Phase::Ready | Phase::Judging(_) | Phase::Over(_) => false,
        };
        if is_untouched {
            self.history.truncate(self.before_answer.0);
            self.produced.truncate(self.before_answer.1);
            self.phase = Phase::Ready;
        }
    }

    /// A tool's output that was to be the run's, and that a guardrail refused, is not for anybody to see: nor
    /// are the other outputs of its turn, which may hold the same.
    fn withhold_outputs(&mut self) {
        let Phase::Concluding(Candidate { source: CandidateSource::Tool(_), .. }) = &self.phase else {
            return;
        };
        let withheld = |item: &Arc<Item>| match &**item {
            Item::Output(output) => Arc::new(Item::Output(Output {
                content: text::WITHHELD.into(),
                status: OutputStatus::Failed,
                ..output.clone()
            })),
            _ => item.clone(),
        };
        for item in &mut self.history[self.before_answer.0..] {
            *item = withheld(item);
        }
        for produced in &mut self.produced[self.before_answer.1..] {
            produced.item = withheld(&produced.item);
        }
        self.withheld_from = Some(self.before_answer.1);
    }

    fn push(&mut self, agent: &AgentName, item: Arc<Item>, part: Part) {
        self.history.push(item.clone());
        self.produced.push(Produced { agent: agent.clone(), item, part });
    }
}

/// Whether an entry leads to another turn, or to an output.
fn goes_on(entry: &Entry) -> bool {
    match entry {
        Entry::Answered(_)
        | Entry::AnswerRefused(_)
        | Entry::ModelFailed(_)
        | Entry::HandedOff(_)
        | Entry::WentOn
        | Entry::Finished(_) => true,
        Entry::Started(_)
        | Entry::Held(_)
        | Entry::Decided(_)
        | Entry::Revoked(_)
        | Entry::CallStarted(_)
        | Entry::CallSettled(_)
        | Entry::CallEndedLate(_)
        | Entry::InputAdded(_)
        | Entry::Failed(_)
        | Entry::Cancelled(_) => false,
    }
}

/// The final output of an answer without calls; none where a provider's tool is all there is.
fn conclusion(answered: &Answered) -> Option<Candidate> {
    let candidate = |output, source| Some(Candidate { agent: answered.agent.clone(), output, source });
    let last = answered.items.iter().rev().find_map(|item| match &**item {
        Item::Message(message) if message.role == Role::Assistant => Some(message),
        _ => None,
    });
    match last {
        Some(message) => match message.refusal() {
            Some(words) => candidate(words.to_owned(), CandidateSource::Refusal),
            None => candidate(message.text(), CandidateSource::Message),
        },
        // Where nothing was said, repeated calls are still to be gone on from, with the outputs that they have.
        None if answered.repeated > 0 => None,
        None if answered.items.iter().any(|item| matches!(**item, Item::Hosted(_))) => None,
        None => candidate(String::new(), CandidateSource::Message),
    }
}

fn final_result(turn: &Turn, listed: impl Fn(&str) -> bool) -> Option<Candidate> {
    let result = turn
        .results()
        .into_iter()
        .find(|result| listed(result.tool.name()) || listed(&result.tool.to_string()))?;
    Some(Candidate {
        agent: turn.agent.clone(),
        output: result.output.text().into_owned(),
        source: CandidateSource::Tool(result.call),
    })
}
