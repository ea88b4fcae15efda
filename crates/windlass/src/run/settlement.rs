//! The report of a cancelled run: what became of the calls of its last turn.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{Answered, CallId, Effect, Entry, Held, HoldReason, How, Record, Work};

use super::Settlement;

/// A call, and the calls that lead to it.
type Place<'a> = (&'a [CallId], &'a CallId);

/// What a journal says of the calls of the last turn, and of agents inside them.
#[derive(Default)]
struct LastTurn<'a> {
    effects: BTreeMap<Place<'a>, Effect>,
    doubtful: BTreeSet<Place<'a>>,
    settled: BTreeMap<&'a CallId, &'a How>,
    draining: BTreeSet<&'a CallId>,
}

impl Settlement {
    /// Reads it from a journal, in the model's order. What is inside an agent is told of the call that it is in.
    pub(crate) fn of(records: &[Record]) -> Self {
        let answer = |(at, record): (usize, &'_ Record)| match &record.entry {
            Entry::Answered(_) if record.path.is_empty() => Some(at),
            _ => None,
        };
        let Some(from) = records.iter().enumerate().rev().find_map(answer) else { return Self::default() };
        let mut turn = LastTurn::default();
        for record in &records[from..] {
            turn.read(record);
        }
        match &records[from].entry {
            Entry::Answered(answered) => turn.report(answered),
            _ => Self::default(),
        }
    }
}

impl<'a> LastTurn<'a> {
    fn read(&mut self, record: &'a Record) {
        let path = record.path.as_slice();
        match &record.entry {
            Entry::Answered(answered) => {
                let bodies = answered.calls.iter().filter_map(|planned| match planned.work {
                    Work::Body { effect, .. } => Some(((path, &planned.call), effect)),
                    _ => None,
                });
                self.effects.extend(bodies);
            }
            Entry::CallStarted(started) => {
                let place = (path, &started.call);
                if self.effects.get(&place) == Some(&Effect::Once) {
                    self.doubtful.insert(place);
                }
            }
            // It ended by asking, before it had any effect.
            Entry::Held(Held { call, reason: HoldReason::Question(_), .. }) => {
                self.doubtful.remove(&(path, call));
            }
            Entry::CallSettled(settled) => {
                let place = (path, &settled.call);
                match settled.how {
                    How::Cancelled => {}
                    How::LeftRunning => drop(self.doubtful.insert(place)),
                    _ => drop(self.doubtful.remove(&place)),
                }
                if path.is_empty() {
                    self.settled.insert(&settled.call, &settled.how);
                }
            }
            Entry::CallEndedLate(late) => drop(self.doubtful.remove(&(path, &late.call))),
            Entry::Cancelled(cancelled) => {
                self.draining.extend(cancelled.draining.iter().map(|call| path.first().unwrap_or(call)));
            }
            _ => {}
        }
    }

    fn report(&self, answered: &Answered) -> Settlement {
        let in_doubt: BTreeSet<&CallId> =
            self.doubtful.iter().map(|(path, call)| path.first().unwrap_or(call)).collect();
        let mut settlement = Settlement::default();
        for planned in &answered.calls {
            let call = &planned.call;
            let list = match (self.settled.get(call), &planned.work) {
                _ if in_doubt.contains(call) => &mut settlement.in_doubt,
                (Some(How::Cancelled), _) | (None, Work::Body { .. }) => &mut settlement.stopped,
                (Some(_), _) => &mut settlement.finished,
                // Nothing was to be done, and nothing was told.
                (None, _) => continue,
            };
            list.push(call.clone());
            if self.draining.contains(call) {
                settlement.draining.push(call.clone());
            }
        }
        settlement
    }
}
