//! The faults that the torturer injects, and their counts.

use windlass_sim::SimRng;

/// A fault that hits one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, at this instant.
    Kill,
    /// SIGKILL inside one of the next store operations.
    KillInStore,
    /// SIGTERM: the process detaches from its runs.
    Terminate,
    /// SIGTERM, and a start with another build.
    Redeploy,
    /// SIGSTOP for longer than a lease.
    Freeze,
    /// A series of steps of the wall clock, each by an hour or two.
    ClockStep,
    /// Writes to the store fail for a while.
    FullDisk,
    /// The next syncs of the store fail.
    FailedSync,
    /// The server of the store crashes and starts again. It hits all processes.
    ServerCrash,
    /// The network between the process and the server of the store is cut, delayed or half-closed.
    NetworkCut,
}

impl Fault {
    /// All faults.
    const ALL: [Self; 10] = [
        Self::Kill,
        Self::KillInStore,
        Self::Terminate,
        Self::Redeploy,
        Self::Freeze,
        Self::ClockStep,
        Self::FullDisk,
        Self::FailedSync,
        Self::ServerCrash,
        Self::NetworkCut,
    ];

    /// Returns the name of the fault in the option `--except`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillInStore => "kill_in_store",
            Self::Terminate => "terminate",
            Self::Redeploy => "redeploy",
            Self::Freeze => "freeze",
            Self::ClockStep => "clock_step",
            Self::FullDisk => "full_disk",
            Self::FailedSync => "failed_sync",
            Self::ServerCrash => "server_crash",
            Self::NetworkCut => "network_cut",
        }
    }
}

/// The set of faults that a round has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultMenu {
    /// Names of the faults that the user has left out.
    pub left_out: Vec<String>,
    /// True if the round has freezes. Its tools pass fences on.
    pub has_freezes: bool,
    /// True if the fault shim could be compiled.
    pub has_shim: bool,
    /// True if the store is in a database: its server crashes, and no process has files of the store.
    pub has_server: bool,
}

impl FaultMenu {
    /// Returns true if the round can have a fault.
    fn has(&self, fault: Fault) -> bool {
        let is_available = match fault {
            Fault::Kill | Fault::Terminate | Fault::Redeploy => true,
            Fault::Freeze => self.has_freezes,
            Fault::ClockStep => self.has_shim,
            Fault::KillInStore | Fault::FullDisk | Fault::FailedSync => self.has_shim && !self.has_server,
            Fault::ServerCrash | Fault::NetworkCut => self.has_server,
        };
        is_available && !self.left_out.iter().any(|name| name == fault.name())
    }

    /// Draws a fault. Every other time it is one that the torture has not had yet, so that a short one has them all.
    pub fn draw(&self, rng: &mut SimRng, counts: &FaultCounts) -> Fault {
        let is_new = |fault: &Fault| self.has(*fault) && counts.of(*fault) == 0;
        let new: Vec<Fault> = Fault::ALL.into_iter().filter(is_new).collect();
        if !new.is_empty() && rng.chance(50) {
            return *rng.pick(&new);
        }
        if self.has(Fault::Freeze) && rng.chance(15) {
            return Fault::Freeze;
        }
        loop {
            let fault = match rng.below(100) {
                0..=23 => Fault::Kill,
                // Faults of the server and of the way to it take the places of the faults of files.
                24..=43 if self.has_server => Fault::NetworkCut,
                24..=43 => Fault::KillInStore,
                44..=51 => Fault::Terminate,
                52..=58 => Fault::Redeploy,
                59..=66 => Fault::Freeze,
                67..=84 => Fault::ClockStep,
                85..=91 => Fault::FullDisk,
                _ if self.has_server => Fault::ServerCrash,
                _ => Fault::FailedSync,
            };
            if self.has(fault) {
                return fault;
            }
        }
    }
}

/// The number of faults that were injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// SIGKILLs, those inside store operations included.
    pub kills: u64,
    /// SIGKILLs inside store operations.
    pub kills_in_store: u64,
    /// SIGTERMs, redeploys included.
    pub terminations: u64,
    /// SIGSTOPs beyond the lease.
    pub freezes: u64,
    /// Series of steps of the wall clock.
    pub clock_faults: u64,
    /// Steps of the wall clock.
    pub clock_steps: u64,
    /// Processes that started with another build than the one before them.
    pub redeploys: u64,
    /// Periods with a full disk.
    pub full_disks: u64,
    /// Series of failing syncs.
    pub failed_syncs: u64,
    /// Writes that failed for want of space.
    pub failed_write_calls: u64,
    /// Sync calls that failed.
    pub failed_sync_calls: u64,
    /// Crashes of the server of the store.
    pub server_crashes: u64,
    /// Cuts, delays and half-closed connections between a process and the server of the store.
    pub network_cuts: u64,
}

impl FaultCounts {
    /// Returns the number of faults of one kind.
    fn of(&self, fault: Fault) -> u64 {
        match fault {
            Fault::Kill => self.kills - self.kills_in_store,
            Fault::KillInStore => self.kills_in_store,
            Fault::Terminate => self.terminations,
            Fault::Redeploy => self.redeploys,
            Fault::Freeze => self.freezes,
            Fault::ClockStep => self.clock_faults,
            Fault::FullDisk => self.full_disks,
            Fault::FailedSync => self.failed_syncs,
            Fault::ServerCrash => self.server_crashes,
            Fault::NetworkCut => self.network_cuts,
        }
    }

    /// Returns the number of faults, each counted once.
    pub fn total(&self) -> u64 {
        self.kills
            + self.terminations
            + self.freezes
            + self.clock_faults
            + self.full_disks
            + self.failed_syncs
            + self.server_crashes
            + self.network_cuts
    }
}
