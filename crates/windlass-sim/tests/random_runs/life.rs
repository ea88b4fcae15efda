//! A run from its beginning to its end, through as many lives, pauses and decisions as it takes.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::{Record, RunId, Timestamp};
use windlass::{Outcome, RunError};
use windlass_sim::{Life, Sim, SimSessions};

use crate::lab::Lab;
use crate::process::{Lived, Origin, one_life};
use crate::spec::Spec;

/// More lives than any run needs.
const LIVES: u64 = 80;

/// What a simulation came to: the same for the same seed, but for the time of day.
#[derive(Debug, PartialEq)]
pub(crate) struct Account {
    pub(crate) end: String,
    pub(crate) lives: u64,
    pub(crate) took: Duration,
    pub(crate) journal: Vec<Record>,
    pub(crate) effects: String,
}

/// Simulates one seed.
pub(crate) fn simulate(seed: u64) -> Account {
    Whole::new(seed, Spec::of(seed), &[]).live_out()
}

/// Simulates the rest of a run of which this much had been written when its process was lost.
pub(crate) fn simulate_from(seed: u64, records: &[Record]) -> Account {
    let spec = Spec::of(seed);
    let faults = spec.faults.without_crashes();
    Whole::new(seed, Spec { faults, ..spec }, records).live_out()
}

/// A world and the run in it.
pub(crate) struct Whole {
    pub(crate) lab: Arc<Lab>,
    pub(crate) sessions: Arc<SimSessions>,
    /// How often people were asked.
    pub(crate) rounds: u64,
    /// Whether anything crashed or failed to be written.
    pub(crate) was_hurt: bool,
}

/// Why there is no next life as usual.
enum Over {
    /// The run could not be written, and must be recovered.
    Lost,
    Ended(&'static str, Vec<Record>),
}

impl Whole {
    fn new(seed: u64, spec: Spec, records: &[Record]) -> Self {
        let sim = Sim::new(seed);
        let lab = Lab::new(&sim, spec, records);
        let faults = &lab.spec.faults;
        let sessions = SimSessions::new(&sim).longest(Duration::from_millis(faults.store_latency_ms));
        sessions.set_failing(faults.session_failing);
        lab.store.set_failing(faults.store_failing);
        Self { lab, sessions: Arc::new(sessions), rounds: 0, was_hurt: !records.is_empty() }
    }

    fn live_out(mut self) -> Account {
        let (end, journal) = self.lives();
        let account = self.account(end, journal);
        let wrong = self.lab.all_wrong();
        assert!(wrong.is_empty(), "{}\n{:#?}\n{}", wrong.join("\n"), self.lab.spec, account.text());
        account
    }

    fn lives(&mut self) -> (&'static str, Vec<Record>) {
        let mut origin = self.what_is_stored();
        let mut is_after_loss = false;
        for _ in 0..LIVES {
            self.lab.new_life();
            let life = one_life(self.lab.clone(), self.sessions.clone(), origin, is_after_loss);
            let ended = self.lab.sim.live(life);
            self.lab.look();
            let over = match ended {
                Life::Crashed => Err(Over::Lost),
                Life::Ended(lived) => self.after(lived),
            };
            match over {
                Ok(next) => (origin, is_after_loss) = (next, false),
                Err(Over::Lost) => {
                    (self.was_hurt, is_after_loss) = (true, true);
                    origin = self.what_is_stored();
                }
                Err(Over::Ended(end, journal)) => return (end, journal),
            }
            if !self.lab.all_wrong().is_empty() {
                return ("stopped", self.stored());
            }
        }
        self.lab.wrong("the run has not ended after many lives");
        ("endless", self.stored())
    }

    fn stored(&self) -> Vec<Record> {
        self.lab.store.durable_from(&self.lab.run, 0)
    }

    fn what_is_stored(&self) -> Origin {
        if self.stored().is_empty() { Origin::Fresh } else { Origin::Stored }
    }

    /// What comes after a life that did not crash.
    fn after(&mut self, lived: Lived) -> Result<Origin, Over> {
        let record = match &lived.result {
            Ok(outcome) => outcome.record(),
            Err(RunError::Failed(failed)) => &failed.record,
            Err(error @ (RunError::Store(_) | RunError::Session(_))) => {
                // The machine refused what the driver recorded.
                if error.to_string().contains("would become invalid") {
                    self.lab.wrong(error.to_string());
                }
                // The disk was replaced.
                self.lab.store.set_failing(0);
                self.sessions.set_failing(0);
                return Err(Over::Lost);
            }
            Err(error) => {
                self.lab.wrong(format!("the run cannot go on: {error}"));
                return Err(Over::Lost);
            }
        };
        self.check_journal(record);
        self.check_told(record, &lived);
        self.check_session(record);
        let journal = record.journal().to_vec();
        match lived.result {
            Ok(Outcome::Paused(paused)) => Ok(self.decide(paused)),
            Ok(Outcome::HandedOver(_)) => Ok(Origin::Stored),
            Ok(Outcome::Finished(_)) => Err(Over::Ended("finished", journal)),
            Ok(Outcome::Cancelled(cancelled)) => {
                self.check_settlement(&cancelled);
                Err(Over::Ended("cancelled", journal))
            }
            Err(_) => Err(Over::Ended("failed", journal)),
        }
    }

    fn account(&self, end: &str, mut journal: Vec<Record>) -> Account {
        for record in &mut journal {
            // The time of day is the only thing that the seed does not decide.
            record.at = Timestamp(0);
        }
        let effects = format!("{:#?}", self.lab.world.effects());
        Account {
            end: end.to_owned(),
            lives: self.lab.sim.life(),
            took: self.lab.sim.now(),
            journal,
            effects,
        }
    }
}

impl Account {
    pub(crate) fn text(&self) -> String {
        let lines = self.journal.iter().map(|record| serde_json::to_string(record).unwrap_or_default());
        let lines: Vec<String> = lines.collect();
        let Self { end, lives, took, effects, .. } = self;
        format!("{end} after {lives} lives at {took:?}\n{}\n{effects}", lines.join("\n"))
    }
}

/// The run of every simulation.
pub(crate) fn run_id() -> RunId {
    RunId::from("run")
}
