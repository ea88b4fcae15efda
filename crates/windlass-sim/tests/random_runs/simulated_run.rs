//! Drives one run from its start to its end, through all its processes, pauses and decisions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass::core::{
    id::{RunId, Timestamp},
    journal::{JournalEntry, JournalRecord},
};
use windlass::{error::RunError, run::RunResult};
use windlass_sim::{ProcessExit, Sim, SimSessions};

use crate::observer::WorldObserver;
use crate::process::{ProcessOrigin, ProcessReport, run_process};
use crate::spec::WorldSpec;

/// Maximum number of processes per run; more than any run needs.
const MAX_PROCESSES: u64 = 80;

/// The report of a simulation. It is equal for equal seeds, with timestamps removed.
#[derive(Debug, PartialEq)]
pub(crate) struct SimReport {
    pub(crate) ending: String,
    pub(crate) process_count: u64,
    pub(crate) elapsed: Duration,
    pub(crate) journal: Vec<JournalRecord>,
    pub(crate) effects: String,
    /// States that the journal does not tell, for the coverage.
    pub(crate) labels: BTreeSet<&'static str>,
}

/// Simulates one world.
pub(crate) fn simulate(seed: u64, spec: WorldSpec) -> SimReport {
    SimulatedRun::new(seed, spec, &[]).run_to_end()
}

/// Simulates the rest of a run whose process was lost after it had written these records.
pub(crate) fn simulate_from(seed: u64, spec: WorldSpec, records: &[JournalRecord]) -> SimReport {
    let faults = spec.faults.without_crashes();
    SimulatedRun::new(seed, WorldSpec { faults, ..spec }, records).run_to_end()
}

/// A simulated world and its run.
pub(crate) struct SimulatedRun {
    pub(crate) observer: Arc<WorldObserver>,
    pub(crate) sessions: Arc<SimSessions>,
    /// Number of approval rounds.
    pub(crate) approval_rounds: u64,
    /// True if a process crashed or a write failed.
    pub(crate) had_fault: bool,
    /// True if a process of the seed cancels the run.
    pub(crate) may_be_cancelled: bool,
}

/// The reason why the next process does not continue normally.
enum ProcessStop {
    /// The run could not be written and must be recovered.
    MustRecover,
    RunEnded(&'static str, Vec<JournalRecord>),
}

impl SimulatedRun {
    fn new(seed: u64, spec: WorldSpec, records: &[JournalRecord]) -> Self {
        let sim = Sim::new(seed);
        let lab = WorldObserver::new(&sim, spec, records);
        let faults = &lab.spec.faults;
        let sessions = SimSessions::new(&sim).max_latency(Duration::from_millis(faults.store_latency_ms));
        sessions.set_failure_percent(faults.session_failure_percent);
        lab.store.set_failure_percent(faults.store_failure_percent);
        Self {
            observer: lab,
            sessions: Arc::new(sessions),
            approval_rounds: 0,
            had_fault: !records.is_empty(),
            may_be_cancelled: WorldSpec::from_seed(seed).faults.may_cancel(),
        }
    }

    fn run_to_end(mut self) -> SimReport {
        let (end, journal) = self.run_processes();
        self.check_withheld_outputs(end);
        let account = self.build_report(end, journal);
        let wrong = self.observer.violations();
        assert!(wrong.is_empty(), "{}\n{:#?}\n{}", wrong.join("\n"), self.observer.spec, account.to_text());
        account
    }

    fn run_processes(&mut self) -> (&'static str, Vec<JournalRecord>) {
        let mut origin = self.stored_origin();
        let mut is_after_loss = false;
        for _ in 0..MAX_PROCESSES {
            self.observer.start_process();
            let life = run_process(self.observer.clone(), self.sessions.clone(), origin, is_after_loss);
            let ended = self.observer.sim.run_process(life);
            self.observer.check_new_records();
            let over = match ended {
                ProcessExit::Crashed => Err(ProcessStop::MustRecover),
                ProcessExit::Completed(lived) => self.handle_process_end(lived),
            };
            match over {
                Ok(next) => (origin, is_after_loss) = (next, false),
                Err(ProcessStop::MustRecover) => {
                    (self.had_fault, is_after_loss) = (true, true);
                    origin = self.stored_origin();
                }
                Err(ProcessStop::RunEnded(end, journal)) => return (end, journal),
            }
            if !self.observer.violations().is_empty() {
                return ("stopped", self.stored_records());
            }
        }
        self.observer.report_violation("the run has not ended after many lives");
        ("endless", self.stored_records())
    }

    fn stored_records(&self) -> Vec<JournalRecord> {
        self.observer.store.durable_records_from(&self.observer.run, 0)
    }

    fn stored_origin(&self) -> ProcessOrigin {
        if self.stored_records().is_empty() { ProcessOrigin::Fresh } else { ProcessOrigin::Stored }
    }

    /// Checks a process that did not crash, and returns the origin of the next one.
    fn handle_process_end(&mut self, lived: ProcessReport) -> Result<ProcessOrigin, ProcessStop> {
        let record = match &lived.result {
            Ok(outcome) => outcome.record(),
            Err(RunError::Failed(failed)) => &failed.record,
            Err(error @ (RunError::Store(_) | RunError::Session(_))) => {
                // The run state machine rejected an entry of the driver.
                if error.to_string().contains("would become invalid") {
                    self.observer.report_violation(error.to_string());
                }
                // Simulates the replacement of the disk.
                self.observer.store.set_failure_percent(0);
                self.sessions.set_failure_percent(0);
                return Err(ProcessStop::MustRecover);
            }
            Err(error) => {
                self.observer.report_violation(format!("the run cannot go on: {error}"));
                return Err(ProcessStop::MustRecover);
            }
        };
        self.check_journal(record);
        self.check_notifications(record, &lived);
        self.check_session(record);
        let journal = record.journal().to_vec();
        match lived.result {
            Ok(RunResult::Paused(paused)) => Ok(self.decide_pending(paused)),
            Ok(RunResult::Detached(_)) => Ok(ProcessOrigin::Stored),
            Ok(RunResult::Finished(_)) => Err(ProcessStop::RunEnded("finished", journal)),
            Ok(RunResult::Cancelled(cancelled)) => {
                if !self.may_be_cancelled {
                    self.observer.report_violation("the run ended as cancelled, and nobody cancelled it");
                }
                self.check_settlement(&cancelled.settlement, &cancelled.record);
                Err(ProcessStop::RunEnded("cancelled", journal))
            }
            Err(RunError::Failed(failed)) => {
                self.check_settlement(&failed.settlement, &failed.record);
                Err(ProcessStop::RunEnded("failed", journal))
            }
            Err(_) => Err(ProcessStop::RunEnded("failed", journal)),
        }
    }

    fn build_report(&self, end: &str, mut journal: Vec<JournalRecord>) -> SimReport {
        for record in &mut journal {
            // Timestamps are the only values that the seed does not decide.
            record.at = Timestamp(0);
            match &mut record.entry {
                JournalEntry::ModelResponded(responded) => responded.requested_at = None,
                JournalEntry::CallHeld(held) => held.last_driver_seen = None,
                _ => {}
            }
        }
        let effects = format!("{:#?}", self.observer.world.effects());
        SimReport {
            ending: end.to_owned(),
            process_count: self.observer.sim.process_number(),
            elapsed: self.observer.sim.elapsed(),
            journal,
            effects,
            labels: self.observer.labels(),
        }
    }
}

impl SimReport {
    pub(crate) fn to_text(&self) -> String {
        let lines = self.journal.iter().map(|record| serde_json::to_string(record).unwrap_or_default());
        let lines: Vec<String> = lines.collect();
        let Self { ending: end, process_count: lives, elapsed: took, effects, .. } = self;
        format!("{end} after {lives} lives at {took:?}\n{}\n{effects}", lines.join("\n"))
    }
}

/// Returns the run id that every simulation uses.
pub(crate) fn run_id() -> RunId {
    RunId::from("run")
}
