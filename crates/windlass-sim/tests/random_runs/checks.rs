//! Checks after a process that did not crash.

use std::sync::Arc;

use futures_util::FutureExt;
use windlass::core::{
    decision::HoldReason,
    id::{CallId, CallPath},
    item::Item,
    journal::{CallHeld, CallStatus, JournalEntry, JournalRecord},
    plan::{BodyKind, CallDisposition},
    run::RunEnd,
    tool::ToolEffect,
};
use windlass::run::{RunRecord, RunSettlement};
use windlass::store::StoreWrapper;
use windlass_sim::{check_history, check_record};

use crate::process::ProcessReport;
use crate::simulated_run::SimulatedRun;

impl SimulatedRun {
    pub(crate) fn check_journal(&self, record: &RunRecord) {
        self.observer.note_text("an export", &record.to_text());
        if let Err(broken) = check_record(record) {
            self.observer.report_violation(broken.to_string());
        }
        match self.observer.store.durable_records(&self.observer.run) {
            // The last records may be deferred ones, which are not durable yet.
            Ok(mut durable) => {
                // A body that was given up on may end after its run.
                let is_late = |record: &JournalRecord| matches!(record.entry, JournalEntry::CallEndedLate(_));
                while durable.len() > record.journal().len() && durable.last().is_some_and(is_late) {
                    durable.pop();
                }
                let is_deferred = |record: &JournalRecord| {
                    matches!(
                        record.entry,
                        JournalEntry::ResponseRejected(_)
                            | JournalEntry::ModelRequestFailed(_)
                            | JournalEntry::ModelInputFiltered(_)
                            | JournalEntry::CallEndedLate(_)
                            | JournalEntry::TurnContinued
                    )
                };
                let rest = record.journal().get(durable.len()..).unwrap_or_default();
                if !record.journal().starts_with(&durable) || !rest.iter().all(is_deferred) {
                    let (kept, written) = (durable.len(), record.journal().len());
                    self.observer.report_violation(format!(
                        "the store has {kept} records that are not the {written} of the run"
                    ));
                }
            }
            Err(error) => self.observer.report_violation(format!("what is durable cannot be read: {error}")),
        }
    }

    /// Checks that every announced call start has an announced end, except for open calls.
    pub(crate) fn check_notifications(&self, record: &RunRecord, lived: &ProcessReport) {
        let is_open = |path: &CallPath| {
            let run = path.parent_calls().iter().try_fold(record.state(), |run, call| run.nested_run(call));
            run.is_some_and(|run| run.outcome().is_none() && run.unsettled_calls().contains(path.call()))
        };
        for (path, (started, settled)) in &lived.events {
            let fits = *settled == 1 || (*settled == 0 && is_open(path));
            if *started > 1 || (*started == 1 && !fits) || *settled > 1 {
                self.observer.report_violation(format!(
                    "watchers saw call {path} start {started} times and settle {settled} times"
                ));
            }
        }
        for path in self.observer.calls_without_end() {
            if !is_open(&CallPath::from(path.as_str())) {
                self.observer.report_violation(format!("hooks were not told the end of call {path}"));
            }
        }
        if record.state().outcome().is_some() {
            for path in self.observer.untold_ends() {
                self.observer.report_violation(format!("no hook was ever told of the end of call {path}"));
            }
        }
        for call in &lived.cancelled_on {
            let started = |record: &JournalRecord| match &record.entry {
                JournalEntry::CallStarted(started) => record.path.is_empty() && started.call == *call,
                _ => false,
            };
            if record.journal().iter().any(started) {
                self.observer
                    .report_violation(format!("the watcher cancelled on seeing call {call}, and it started"));
            }
        }
    }

    pub(crate) fn check_session(&self, record: &RunRecord) {
        let Some(session) = record.state().session() else { return };
        let items = self.sessions.stored_items(session);
        self.observer.note_text("the session", &format!("{items:?}"));
        if let Err(broken) = check_history(&items) {
            self.observer.report_violation(format!("the session is broken: {broken}"));
        }
        // Whatever crashed in between, and however the run ended, the session has all of it that is settled. The end of a
        // run that failed or was cancelled drops calls without effect, which the session got with their turn.
        let mut expected = record.state().input().to_vec();
        expected.extend(record.state().session_items(0));
        let is_whole = match record.state().outcome() {
            Some(RunEnd::Finished(_)) => items == expected,
            // The message of a run that was cancelled before the model answered may be left out.
            Some(RunEnd::Cancelled) if record.state().turn() == 0 && items.is_empty() => true,
            Some(RunEnd::Cancelled | RunEnd::Failed(_)) | None => {
                let mut stored = items.iter();
                expected.iter().all(|item| stored.any(|other| other == item))
            }
        };
        if !is_whole {
            self.observer
                .report_violation(format!("the session holds {items:#?}, and the run {expected:#?}"));
        }
    }

    /// Checks that an output that its guardrails blocked is nowhere, and that no driver left one behind.
    pub(crate) fn check_withheld_outputs(&self, end: &str) {
        let (lab, run) = (&self.observer, &self.observer.run);
        let store = lab.store.inner();
        let artefacts = store.list_artefacts(run, None, 1_000).now_or_never().and_then(Result::ok);
        for name in artefacts.unwrap_or_default() {
            let body = store.load_artefact(run, &name).now_or_never().and_then(Result::ok).flatten();
            lab.note_text("an artefact", &String::from_utf8_lossy(&body.unwrap_or_default()));
        }
        lab.report_leaks();
        let has_ended = ["finished", "failed", "cancelled"].contains(&end);
        let left = store.list_withheld_outputs(run).now_or_never().and_then(Result::ok).unwrap_or_default();
        if has_ended && lab.spec.faults.store_failure_percent == 0 && !left.is_empty() {
            lab.report_violation(format!("the run has ended, and the withheld outputs of {left:?} are kept"));
        }
    }

    /// Checks that the settlement of a run that was cancelled or failed lists every call of the last turn once, that calls
    /// that may have taken effect are in doubt, and that the session keeps every call that did.
    pub(crate) fn check_settlement(&self, settlement: &RunSettlement, record: &RunRecord) {
        let lists = [&settlement.finished, &settlement.stopped, &settlement.in_doubt];
        for (call, is_doubtful) in calls_of_last_response(record.journal()) {
            let times = lists.iter().filter(|list| list.contains(&call)).count();
            if times != 1 {
                self.observer
                    .report_violation(format!("the report names call {call} {times} times: {settlement:?}"));
            }
            if is_doubtful && !settlement.in_doubt.contains(&call) {
                self.observer
                    .report_violation(format!("call {call} may have happened and is not reported in doubt"));
            }
        }
        // The next run on the session knows of every call that happened.
        let kept = record.state().session_items(0);
        let happened = self.observer.world.effects().into_iter().map(|effect| effect.path);
        for path in happened.filter(|path| !self.observer.was_denied(path)) {
            let outermost = path.parent_calls().first().unwrap_or(path.call());
            let is_kept = |item: &Arc<Item>| matches!(&**item, Item::Call(made) if made.id == *outermost);
            if !kept.iter().any(is_kept) {
                self.observer.report_violation(format!(
                    "call {path} has happened, and the session does not know of it"
                ));
            }
        }
    }
}

/// Returns the calls with bodies of the last response. The flag is true for an at-most-once call that started
/// and has no observed end.
fn calls_of_last_response(journal: &[JournalRecord]) -> Vec<(CallId, bool)> {
    let mut calls: Vec<(CallId, bool)> = Vec::new();
    let mut once: Vec<CallId> = Vec::new();
    let of_run = journal.iter().filter(|record| record.path.is_empty());
    for record in of_run {
        let mut note = |call: &CallId, is_doubtful| {
            calls.iter_mut().filter(|one| one.0 == *call).for_each(|one| one.1 = is_doubtful);
        };
        match &record.entry {
            JournalEntry::ModelResponded(answered) => {
                let bodies = |kind: fn(&CallDisposition) -> bool| {
                    answered
                        .calls
                        .iter()
                        .filter(move |one| kind(&one.disposition))
                        .map(|one| one.call.clone())
                };
                once = bodies(is_at_most_once).collect();
                calls = bodies(has_body).map(|call| (call, false)).collect();
            }
            JournalEntry::CallStarted(started) if once.contains(&started.call) => note(&started.call, true),
            JournalEntry::CallSettled(settled)
                if !matches!(settled.status, CallStatus::Cancelled | CallStatus::TimedOutStillRunning) =>
            {
                note(&settled.call, false);
            }
            JournalEntry::CallEndedLate(late) => note(&late.call, false),
            // Bodies ask before they take effect.
            JournalEntry::CallHeld(CallHeld { call, reason: HoldReason::Question(_), .. }) => {
                note(call, false)
            }
            _ => {}
        }
    }
    calls
}

fn has_body(work: &CallDisposition) -> bool {
    matches!(work, CallDisposition::Execute { .. })
}

fn is_at_most_once(work: &CallDisposition) -> bool {
    matches!(work, CallDisposition::Execute { body: BodyKind::Function, effect: ToolEffect::Once, .. })
}
