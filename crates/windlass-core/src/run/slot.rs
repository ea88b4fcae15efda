//! A turn's slots: one for each call, from the plan to its output.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::{Applied, Illegal, Part, Produced, Run, TurnResult};
use crate::calls::CallMap;
use crate::decision::{Decision, HoldReason, Pending, Reach, Reply};
use crate::entry::{AfterTools, How, Started};
use crate::id::{AgentName, CallId, CallPath, Timestamp};
use crate::item::{Call, Item, Output, OutputContent, OutputStatus};
use crate::plan::{BodyKind, Planned, Work};
use crate::tool::Gate;

/// The calls of one answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    pub(super) agent: AgentName,
    pub(super) slots: Vec<Slot>,
    pub(super) after: AfterTools,
    places: Places,
    unsettled: usize,
}

/// Where calls are among the slots. It holds nothing that the slots do not say, so all are alike.
#[derive(Debug, Default)]
struct Places {
    /// Where one was found last: drivers mostly come to them in order.
    last: AtomicUsize,
    /// All of them, once they are come to out of order.
    all: OnceLock<Box<CallMap<usize>>>,
}

impl Clone for Places {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Places {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Places {
    fn of(&self, call: &CallId, slots: &[Slot]) -> Option<usize> {
        let is_at = |at: usize| slots.get(at).is_some_and(|slot| slot.planned.call == *call);
        let last = self.last.load(Ordering::Relaxed);
        let near = [last, last + 1, 0].into_iter().find(|at| is_at(*at));
        let found = near.or_else(|| {
            let all = self.all.get_or_init(|| {
                let mut all = CallMap::default();
                all.reserve(slots.len());
                for (at, slot) in slots.iter().enumerate() {
                    all.insert(slot.planned.call.clone(), at);
                }
                Box::new(all)
            });
            all.get(call).copied()
        });
        if let Some(found) = found {
            self.last.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// One call of the turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) planned: Planned,
    pub(super) item: Arc<Item>,
    pub(super) state: SlotState,
    /// What was decided about it, and how far that reaches.
    pub(super) decided: Option<Box<(Decision, Reach)>>,
    /// Whether that was said of every call of its tool, and not of this one. A call whose rule is asked each time may
    /// be covered and undecided.
    pub(super) is_covered: bool,
    pub(super) child: Option<Box<Run>>,
    /// What its body asked, with the answers.
    pub(super) replies: Vec<Reply>,
}

/// How far a call has come.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SlotState {
    /// Planned, and nothing else.
    Open,
    /// It waits for a person.
    Held { reason: Box<HoldReason>, expires: Option<Timestamp>, attempt: u32, edited: Option<Arc<str>> },
    /// A person said that it may run.
    Approved { edited: Option<Arc<str>>, attempt: u32 },
    /// A person said what its output is, or that it gets none of its own.
    Answered { how: How, output: OutputContent },
    /// Its body was started.
    Running { attempt: u32, edited: Option<Arc<str>> },
    /// It has its output.
    Settled { how: How, output: Arc<Item> },
}

impl Turn {
    /// The turn of an answer with calls. `items` are the answer's call items, in the order of `planned`.
    pub(super) fn new(
        agent: AgentName,
        after: AfterTools,
        count: usize,
        calls: impl Iterator<Item = (Planned, Arc<Item>)>,
    ) -> Self {
        let mut slots = Vec::with_capacity(count);
        slots.extend(calls.map(|(planned, item)| Slot {
            planned,
            item,
            state: SlotState::Open,
            decided: None,
            is_covered: false,
            child: None,
            replies: Vec::new(),
        }));
        let unsettled =
            slots.iter().filter(|slot: &&Slot| !matches!(slot.planned.work, Work::Handoff { .. })).count();
        Self { agent, slots, after, places: Places::default(), unsettled }
    }

    pub(super) fn slot(&self, call: &CallId) -> Option<&Slot> {
        self.slots.get(self.places.of(call, &self.slots)?)
    }

    pub(super) fn slot_mut(&mut self, call: &CallId) -> Option<&mut Slot> {
        let at = self.places.of(call, &self.slots)?;
        self.slots.get_mut(at)
    }

    /// Settles a call. Says whether it was the last one, the handoff aside.
    pub(super) fn settle(&mut self, call: &CallId, how: How, output: OutputContent) -> bool {
        if let Some(slot) = self.slot_mut(call) {
            slot.settle(how, output);
            self.unsettled -= 1;
        }
        self.unsettled == 0
    }

    /// The handoff that the answer asks for.
    pub(super) fn handoff(&self) -> Option<(&Slot, &AgentName)> {
        self.slots.iter().find_map(|slot| match &slot.planned.work {
            Work::Handoff { to } => Some((slot, to)),
            _ => None,
        })
    }

    /// The outputs so far, in the model's order.
    pub(super) fn outputs(&self) -> Vec<Produced> {
        self.slots
            .iter()
            .filter_map(|slot| match &slot.state {
                SlotState::Settled { output, .. } => {
                    Some(Produced { agent: self.agent.clone(), item: output.clone(), part: Part::Output })
                }
                _ => None,
            })
            .collect()
    }

    /// The results of the calls that found a tool, in the model's order.
    pub(super) fn results(&self) -> Vec<TurnResult> {
        self.slots
            .iter()
            .filter_map(|slot| {
                let SlotState::Settled { how, output } = &slot.state else { return None };
                let Item::Output(output) = &**output else { return None };
                match slot.planned.work {
                    Work::Body { .. } | Work::Invalid { .. } => Some(TurnResult {
                        call: slot.planned.call.clone(),
                        tool: slot.planned.key.clone(),
                        how: how.clone(),
                        output: output.content.clone(),
                    }),
                    Work::Missing { .. } | Work::Handoff { .. } | Work::Ignored => None,
                }
            })
            .collect()
    }

    /// Whether the call that `slot` follows, if it follows one, has its output.
    pub(super) fn is_free(&self, slot: &Slot) -> bool {
        slot.planned.after.as_ref().and_then(|call| self.slot(call)).is_none_or(Slot::is_settled)
    }

    /// How each call stands to the one that it follows, in one pass: calls follow earlier ones only.
    pub(super) fn following(&self) -> Vec<Following> {
        let mut all: Vec<Following> = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let before = slot.planned.after.as_ref().and_then(|call| self.places.of(call, &self.slots));
            let following = match before.map(|at| (&self.slots[at], all.get(at))) {
                None => Following::Free,
                Some((before, _)) if before.is_settled() => Following::Free,
                Some((before, _)) if before.waits() => Following::Blocked,
                Some((_, Some(Following::Free | Following::Behind))) => Following::Behind,
                Some((_, Some(Following::Blocked) | None)) => Following::Blocked,
            };
            all.push(following);
        }
        all
    }
}

/// How a call stands to the one whose conflict key it shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Following {
    /// Nothing is in its way.
    Free,
    /// It starts when the one before it has settled.
    Behind,
    /// The one before it waits for a person, and so it waits too.
    Blocked,
}

impl Slot {
    pub(super) fn call(&self) -> &Call {
        match &*self.item {
            Item::Call(call) => call,
            // `Run::apply` makes slots from call items alone.
            _ => unreachable!("a slot holds a call"),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, SlotState::Settled { .. })
    }

    /// Whether its body was started, and it is not known how it ended.
    pub(super) fn has_begun(&self) -> bool {
        match &self.state {
            SlotState::Running { .. } => true,
            SlotState::Held { attempt, .. } | SlotState::Approved { attempt, .. } => *attempt > 0,
            SlotState::Open | SlotState::Answered { .. } | SlotState::Settled { .. } => false,
        }
    }

    /// Whether its body waits for an answer.
    pub(super) fn asks(&self) -> bool {
        matches!(&self.state, SlotState::Held { reason, .. } if matches!(**reason, HoldReason::Question(_)))
    }

    /// Whether it waits for a person, itself or an agent nested in it.
    pub(super) fn waits(&self) -> bool {
        match &self.state {
            SlotState::Held { .. } => true,
            SlotState::Running { .. } => {
                self.child.as_ref().is_some_and(|child| matches!(child.next(), super::Next::Pause(_)))
            }
            SlotState::Open
            | SlotState::Approved { .. }
            | SlotState::Answered { .. }
            | SlotState::Settled { .. } => false,
        }
    }

    pub(super) fn settle(&mut self, how: How, output: OutputContent) {
        let status = if how.is_success() { OutputStatus::Ok } else { OutputStatus::Failed };
        let output = Item::Output(Output { call: self.planned.call.clone(), content: output, status });
        self.state = SlotState::Settled { how, output: Arc::new(output) };
        self.child = None;
    }

    pub(super) fn pending(&self, within: &[CallId], agent: &AgentName) -> Option<Pending> {
        let SlotState::Held { reason, expires, edited, attempt } = &self.state else { return None };
        Some(Pending {
            path: CallPath::new(within, self.planned.call.clone()),
            agent: agent.clone(),
            tool: self.planned.key.clone(),
            arguments: edited.as_deref().unwrap_or(&self.call().arguments).to_owned(),
            reason: (**reason).clone(),
            attempt: *attempt,
            digest: self.planned.digest,
            expires: *expires,
            reach: self.reach(),
        })
    }

    /// How far an approval of the call may reach.
    pub(super) fn reach(&self) -> Reach {
        match self.planned.work {
            Work::Body { gate: Gate::Each, .. } => Reach::Call,
            _ => Reach::Always,
        }
    }

    /// Begins the run of an agent inside the call.
    pub(super) fn nest(&mut self, started: &Started) -> Result<Applied, Illegal> {
        match (&self.planned.work, &self.state) {
            (Work::Body { body: BodyKind::Agent, .. }, SlotState::Running { .. }) => {
                self.child = Some(Box::new(Run::start(started.clone())));
                Ok(Applied::default())
            }
            _ => Err(Illegal::OutOfPlace { entry: "started", why: "the call runs no agent" }),
        }
    }

    /// Why the call cannot come to an output like this.
    pub(super) fn may_not_settle(&self, how: &How) -> Option<&'static str> {
        if matches!(self.planned.work, Work::Handoff { .. }) {
            return Some("the call is a handoff");
        }
        match (&self.state, how) {
            (_, How::Cancelled) => None,
            (SlotState::Held { .. }, _) => Some("the call waits for a decision"),
            (SlotState::Answered { how: decided, .. }, how) if decided == how => None,
            (SlotState::Answered { .. }, _) => Some("it was decided otherwise"),
            (_, How::Rejected | How::Unknown) => Some("nobody decided so"),
            (SlotState::Running { .. }, _) => None,
            (_, How::Succeeded | How::Reconciled | How::TimedOut | How::LeftRunning) => {
                Some("the call never started")
            }
            (_, How::Failed | How::Invalid | How::Missing | How::Ignored | How::Guarded | How::Receipt) => {
                None
            }
        }
    }
}
