//! Crash points: the places of a simulated process at which it can be killed, in a fixed order.

use std::fmt;

/// A place at which a simulated process can crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// Number of the process, from 1.
    pub process: u64,
    /// Number of the point in its process, from 0.
    pub number: u64,
    /// Description of the place.
    pub place: String,
    /// True if the process crashed here.
    pub is_crash: bool,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_crash { "   <- crash" } else { "" };
        write!(f, "{:>5}  {}{mark}", self.number, self.place)
    }
}

/// The crashes of a sequence of processes: process `n` crashes at the point with the number of entry `n - 1`. Later
/// processes do not crash.
#[derive(Debug, Default)]
pub(crate) struct CrashSchedule {
    crashes: Vec<u64>,
    passed: Vec<CrashPoint>,
}

impl CrashSchedule {
    pub(crate) fn new(crashes: Vec<u64>) -> Self {
        Self { crashes, passed: Vec::new() }
    }

    /// Records that a process passes a point. Returns true if it crashes there.
    pub(crate) fn pass(&mut self, process: u64, place: String) -> bool {
        let number = self.passed.iter().rev().take_while(|point| point.process == process).count() as u64;
        let target = usize::try_from(process.saturating_sub(1)).ok().and_then(|at| self.crashes.get(at));
        let is_crash = target == Some(&number);
        self.passed.push(CrashPoint { process, number, place, is_crash });
        is_crash
    }

    pub(crate) fn passed(&self) -> &[CrashPoint] {
        &self.passed
    }
}
