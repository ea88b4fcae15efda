//! What must be true of a life that came to an outcome.

use windlass::core::{BodyKind, CallId, CallPath, Effect, End, Entry, Held, HoldReason, How, Record, Work};
use windlass::run::{CancelledRun, RunRecord};
use windlass_sim::{check_history, check_record};

use crate::life::Whole;
use crate::process::Lived;

impl Whole {
    pub(crate) fn check_journal(&self, record: &RunRecord) {
        if let Err(broken) = check_record(record) {
            self.lab.wrong(broken.to_string());
        }
        match self.lab.store.durable(&self.lab.run) {
            // The last records may be such as can be worked out again.
            Ok(durable) => {
                if !record.journal().starts_with(&durable) || durable.len() + 2 < record.journal().len() {
                    let (kept, written) = (durable.len(), record.journal().len());
                    self.lab
                        .wrong(format!("the store has {kept} records that are not the {written} of the run"));
                }
            }
            Err(error) => self.lab.wrong(format!("what is durable cannot be read: {error}")),
        }
    }

    /// Every start that hooks and watchers were told of has its end, but for calls that are still open.
    pub(crate) fn check_told(&self, record: &RunRecord, lived: &Lived) {
        let is_open = |path: &CallPath| {
            let run = path.within().iter().try_fold(record.state(), |run, call| run.child(call));
            run.is_some_and(|run| run.end().is_none() && run.unsettled().contains(path.call()))
        };
        for (path, (started, settled)) in &lived.events {
            let fits = *settled == 1 || (*settled == 0 && is_open(path));
            if *started > 1 || (*started == 1 && !fits) || *settled > 1 {
                self.lab.wrong(format!(
                    "watchers saw call {path} start {started} times and settle {settled} times"
                ));
            }
        }
        for path in self.lab.unended() {
            if !is_open(&CallPath::from(path.as_str())) {
                self.lab.wrong(format!("hooks were not told the end of call {path}"));
            }
        }
        for call in &lived.stopped_on {
            let started = |record: &Record| match &record.entry {
                Entry::CallStarted(started) => record.path.is_empty() && started.call == *call,
                _ => false,
            };
            if record.journal().iter().any(started) {
                self.lab.wrong(format!("the watcher cancelled on seeing call {call}, and it started"));
            }
        }
    }

    pub(crate) fn check_session(&self, record: &RunRecord) {
        let Some(session) = record.state().session() else { return };
        let items = self.sessions.items(session);
        if let Err(broken) = check_history(&items) {
            self.lab.wrong(format!("the session is broken: {broken}"));
        }
        // A crash between the journal and the session may cost the session a turn.
        if !self.was_hurt && matches!(record.state().end(), Some(End::Finished(_))) {
            let mut expected = record.state().input().to_vec();
            expected.extend(record.state().for_session(0));
            if !items.ends_with(&expected) {
                self.lab.wrong(format!("the session holds {items:#?}, and the run {expected:#?}"));
            }
        }
    }

    /// The report names every call of the last turn once, and those in doubt that may have happened.
    pub(crate) fn check_settlement(&self, cancelled: &CancelledRun) {
        let settlement = &cancelled.settlement;
        let lists = [&settlement.finished, &settlement.stopped, &settlement.in_doubt];
        for (call, is_doubtful) in last_answer(cancelled.record.journal()) {
            let times = lists.iter().filter(|list| list.contains(&call)).count();
            if times != 1 {
                self.lab.wrong(format!("the report names call {call} {times} times: {settlement:?}"));
            }
            if is_doubtful && !settlement.in_doubt.contains(&call) {
                self.lab.wrong(format!("call {call} may have happened and is not reported in doubt"));
            }
        }
    }
}

/// The calls with bodies of the last answer, and whether each must not happen twice, was begun, and was not seen
/// to end.
fn last_answer(journal: &[Record]) -> Vec<(CallId, bool)> {
    let mut calls: Vec<(CallId, bool)> = Vec::new();
    let mut once: Vec<CallId> = Vec::new();
    let of_run = journal.iter().filter(|record| record.path.is_empty());
    for record in of_run {
        let mut note = |call: &CallId, is_doubtful| {
            calls.iter_mut().filter(|one| one.0 == *call).for_each(|one| one.1 = is_doubtful);
        };
        match &record.entry {
            Entry::Answered(answered) => {
                let bodies = |kind: fn(&Work) -> bool| {
                    answered.calls.iter().filter(move |one| kind(&one.work)).map(|one| one.call.clone())
                };
                once = bodies(is_once).collect();
                calls = bodies(has_body).map(|call| (call, false)).collect();
            }
            Entry::CallStarted(started) if once.contains(&started.call) => note(&started.call, true),
            Entry::CallSettled(settled) if !matches!(settled.how, How::Cancelled | How::LeftRunning) => {
                note(&settled.call, false);
            }
            Entry::CallEndedLate(late) => note(&late.call, false),
            // Bodies ask before they have any effect.
            Entry::Held(Held { call, reason: HoldReason::Question(_), .. }) => note(call, false),
            _ => {}
        }
    }
    calls
}

fn has_body(work: &Work) -> bool {
    matches!(work, Work::Body { .. })
}

fn is_once(work: &Work) -> bool {
    matches!(work, Work::Body { body: BodyKind::Function, effect: Effect::Once, .. })
}
