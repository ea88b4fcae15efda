//! A place for a process: the process itself, its fault control, and its successors.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use windlass_sim::SimRng;

use crate::database_server::DatabaseServer;
use crate::deployment::WorkerBuild;
use crate::fault::{Fault, FaultCounts};
use crate::files::{RoundFolder, append_line};
use crate::network::NetworkLink;
use crate::plant::PlantedBug;
use crate::shim::{FaultControl, FaultShim, KillStage};
use crate::torturer::open_world;
use crate::worker::StoreDatabase;

/// The part that a process plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// A worker.
    Worker,
    /// The decider.
    Decider,
}

/// The settings that all processes of a round share.
#[derive(Clone, Debug)]
pub struct RoundSettings {
    /// The folder of the round.
    pub folder: RoundFolder,
    /// Seed of the round.
    pub seed: u64,
    /// Duration of leases.
    pub lease_duration: Duration,
    /// True if the tools pass fences on, and stale ones are refused.
    pub is_fenced: bool,
    /// True if the runs are submitted to the queue of the store, and `windlass::fleet::Worker` drives them.
    pub is_queued: bool,
    /// True if the decider corrects some of her decisions.
    pub has_corrections: bool,
    /// The bug that all processes have, if one is planted.
    pub planted: Option<PlantedBug>,
    /// True if each process has a network namespace of its own.
    pub has_namespaces: bool,
    /// The fault shim, if there is one.
    pub shim: Option<FaultShim>,
}

/// A place for a process.
pub struct ProcessSlot {
    role: ProcessRole,
    name: String,
    build: WorkerBuild,
    incarnation: u64,
    child: Option<Child>,
    control: Option<FaultControl>,
    clock_offset: i64,
    /// Times of the next steps of the clock, the last one first.
    clock_steps: Vec<Instant>,
    /// True while the shim is set to kill the process.
    is_doomed: bool,
    /// Time at which the process is to have ended after a SIGTERM.
    termination: Option<Instant>,
    next_build: Option<WorkerBuild>,
    frozen_until: Option<Instant>,
    disk_full_until: Option<Instant>,
    /// The network between the process and the server of the store, if there is one.
    network: Option<NetworkLink>,
    network_cut_until: Option<Instant>,
}

/// Time within which a process must end after a SIGTERM.
const TERMINATION_LIMIT: Duration = Duration::from_secs(30);

impl ProcessSlot {
    /// Creates a place without a process.
    pub fn new(role: ProcessRole, name: String) -> Self {
        Self {
            role,
            name,
            build: WorkerBuild::Base,
            incarnation: 0,
            child: None,
            control: None,
            clock_offset: 0,
            clock_steps: Vec::new(),
            is_doomed: false,
            termination: None,
            next_build: None,
            frozen_until: None,
            disk_full_until: None,
            network: None,
            network_cut_until: None,
        }
    }

    /// Gives the place a network by which its processes reach the schema of the round.
    ///
    /// # Errors
    /// Returns the message of the error of the file system.
    pub fn attach_network(
        &mut self,
        network: NetworkLink,
        schema: &str,
        folder: &RoundFolder,
    ) -> Result<(), String> {
        let address = DatabaseServer::address_by(network.address());
        let database = StoreDatabase { address, schema: schema.to_owned() };
        append_line(&folder.seen_by(&self.name).database(), &database).map_err(|error| error.to_string())?;
        self.network = Some(network);
        Ok(())
    }

    /// Returns true if no fault is under way here.
    pub fn is_calm(&self) -> bool {
        self.child.is_some()
            && !self.is_doomed
            && self.termination.is_none()
            && self.frozen_until.is_none()
            && self.disk_full_until.is_none()
            && self.network_cut_until.is_none()
    }

    /// Returns true if the process decides.
    pub fn is_decider(&self) -> bool {
        self.role == ProcessRole::Decider
    }

    /// Starts the next process here.
    ///
    /// # Errors
    /// Returns the message of the error.
    pub fn start(&mut self, round: &RoundSettings, counts: &mut FaultCounts) -> Result<(), String> {
        let said = |error: std::io::Error| error.to_string();
        if let Some(build) = self.next_build.take().filter(|_| self.role == ProcessRole::Worker) {
            counts.redeploys += u64::from(build != self.build);
            self.build = build;
        }
        self.incarnation += 1;
        self.collect_failures(counts);
        let program = std::env::current_exe().map_err(said)?;
        let mut command = match &self.network {
            Some(network) => network.command(&program),
            None => Command::new(program),
        };
        command.arg(match self.role {
            ProcessRole::Worker if round.is_queued => "queue-worker",
            ProcessRole::Worker => "worker",
            ProcessRole::Decider => "decider",
        });
        command
            .arg(round.folder.path())
            .arg(if round.has_corrections { "correcting" } else { "final" })
            .arg(if round.is_fenced { "fenced" } else { "plain" })
            .arg(round.lease_duration.as_millis().to_string())
            .arg(round.seed.to_string())
            .arg(format!("{}-{}", self.name, self.incarnation))
            .arg(self.build.to_string())
            .args(round.planted.map(|bug| bug.to_string()));
        let log = round.folder.path().join("logs").join(format!("{}.log", self.name));
        let log = OpenOptions::new().create(true).append(true).open(log).map_err(said)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        if let Some(shim) = &round.shim {
            let path = round.folder.path().join("shim").join(format!("{}-{}", self.name, self.incarnation));
            let control = FaultControl::create(path).map_err(said)?;
            control.set_clock_offset(self.clock_offset).map_err(said)?;
            shim.preload(&mut command, &control);
            self.control = Some(control);
        }
        self.child = Some(command.spawn().map_err(said)?);
        (self.is_doomed, self.termination) = (false, None);
        (self.frozen_until, self.disk_full_until) = (None, None);
        Ok(())
    }

    /// Injects a fault. Returns false if it cannot hit this process.
    ///
    /// # Errors
    /// Returns the message of the error.
    pub fn inject(
        &mut self,
        fault: Fault,
        round: &RoundSettings,
        rng: &mut SimRng,
        counts: &mut FaultCounts,
    ) -> Result<bool, String> {
        let said = |error: std::io::Error| error.to_string();
        let Some(child) = &mut self.child else { return Ok(false) };
        let control = self.control.as_ref();
        let next_build = rng.chance(40).then(|| *rng.pick(WorkerBuild::DEPLOYED));
        match fault {
            Fault::Kill => {
                child.kill().map_err(said)?;
                counts.kills += 1;
                // The next loop finds it ended; a doomed process is not counted again.
                self.is_doomed = true;
                self.next_build = next_build;
            }
            Fault::KillInStore => {
                let Some(control) = control else { return Ok(false) };
                let stage = *rng.pick(&[KillStage::Before, KillStage::Torn, KillStage::After]);
                let operations = 1 + rng.below(120) as i64;
                control.kill_in_operation(operations, stage).map_err(said)?;
                counts.kills += 1;
                counts.kills_in_store += 1;
                self.is_doomed = true;
                self.next_build = next_build;
            }
            Fault::Terminate | Fault::Redeploy => {
                if self.role == ProcessRole::Decider {
                    return Ok(false);
                }
                send_signal(child, Signal::TERM)?;
                counts.terminations += 1;
                self.termination = Some(Instant::now() + TERMINATION_LIMIT);
                self.next_build = match fault {
                    Fault::Redeploy => {
                        let others = WorkerBuild::DEPLOYED.iter().filter(|build| **build != self.build);
                        Some(**rng.pick(&others.collect::<Vec<_>>()))
                    }
                    _ => next_build,
                };
            }
            Fault::Freeze => {
                if self.role == ProcessRole::Decider {
                    return Ok(false);
                }
                send_signal(child, Signal::STOP)?;
                counts.freezes += 1;
                self.frozen_until = Some(Instant::now() + beyond_lease(round, rng));
            }
            Fault::ClockStep => {
                if control.is_none() {
                    return Ok(false);
                }
                // Some bodies last longer than the whole series, so that a run is contended for at several times.
                let mut at = Instant::now();
                for _ in 0..2 + rng.below(6) {
                    self.clock_steps.insert(0, at);
                    at += Duration::from_millis(20 + rng.below(120));
                }
                counts.clock_faults += 1;
            }
            Fault::FullDisk => {
                let Some(control) = control else { return Ok(false) };
                control.set_disk_full(true).map_err(said)?;
                counts.full_disks += 1;
                self.disk_full_until = Some(Instant::now() + Duration::from_millis(20 + rng.below(200)));
            }
            Fault::NetworkCut => {
                let Some(network) = &self.network else { return Ok(false) };
                // Long leases make long cuts.
                let long_chance = if round.is_fenced { 30 } else { 10 };
                let long = beyond_lease(round, rng);
                let lasting = network.cut(rng, long_chance, long)?;
                counts.network_cuts += 1;
                self.network_cut_until = lasting.map(|lasting| Instant::now() + lasting);
            }
            // It does not hit a process.
            Fault::ServerCrash => return Ok(false),
            Fault::FailedSync => {
                let Some(control) = control else { return Ok(false) };
                control.fail_syncs(1 + rng.below(3) as i64).map_err(said)?;
                counts.failed_syncs += 1;
            }
        }
        Ok(true)
    }

    /// Ends faults whose time is over, and starts the next process if this one has ended.
    ///
    /// # Errors
    /// Returns the message of the error, also if the process ended by itself or outlives its SIGTERM.
    pub fn tend(&mut self, round: &RoundSettings, counts: &mut FaultCounts) -> Result<(), String> {
        let now = Instant::now();
        if self.frozen_until.is_some_and(|until| until <= now) {
            self.frozen_until = None;
            if let Some(child) = &self.child {
                send_signal(child, Signal::CONT)?;
            }
        }
        if self.disk_full_until.is_some_and(|until| until <= now) {
            self.disk_full_until = None;
            if let Some(control) = &self.control {
                control.set_disk_full(false).map_err(|error| error.to_string())?;
            }
        }
        if self.network_cut_until.is_some_and(|until| until <= now) {
            self.heal_network();
        }
        while self.clock_steps.last().is_some_and(|at| *at <= now) {
            self.clock_steps.pop();
            self.step_clock(round, counts)?;
        }
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => {
                if !self.is_doomed && self.termination.is_none() {
                    return Err(format!("{} ended by itself: {status}", self.name));
                }
                // A SIGTERM may come before the process listens for it.
                let is_stopped = status.success() || status.signal() == Some(Signal::TERM.as_raw());
                if !self.is_doomed && !is_stopped {
                    return Err(format!("{} failed after a SIGTERM: {status}", self.name));
                }
                self.child = None;
                self.start(round, counts)
            }
            None if self.termination.is_some_and(|limit| limit <= now) => {
                Err(format!("{} has not ended {TERMINATION_LIMIT:?} after a SIGTERM", self.name))
            }
            None => Ok(()),
        }
    }

    /// Moves the wall clock of the process: an hour ahead, an hour back, and right again.
    fn step_clock(&mut self, round: &RoundSettings, counts: &mut FaultCounts) -> Result<(), String> {
        let Some(control) = &self.control else { return Ok(()) };
        self.clock_offset = match self.clock_offset {
            0 => 3_600,
            3_600 => -3_600,
            _ => 0,
        };
        counts.clock_steps += 1;
        let world = open_world(round.folder.path(), round.is_fenced);
        world.note_clock_step().map_err(|error| error.to_string())?;
        control.set_clock_offset(self.clock_offset).map_err(|error| error.to_string())
    }

    /// Ends a cut of the network.
    fn heal_network(&mut self) {
        self.network_cut_until = None;
        if let Some(network) = &self.network {
            network.heal();
        }
    }

    /// Ends a freeze, and a cut of the network.
    ///
    /// # Errors
    /// Returns the message of the error.
    pub fn thaw(&mut self) -> Result<(), String> {
        self.heal_network();
        match (&self.child, self.frozen_until.take()) {
            (Some(child), Some(_)) => send_signal(child, Signal::CONT),
            _ => Ok(()),
        }
    }

    /// Ends all faults and replaces the process by one of the build that knows the tools and parameters of all others.
    ///
    /// # Errors
    /// Returns the message of the error.
    pub fn calm_down(&mut self, round: &RoundSettings, counts: &mut FaultCounts) -> Result<(), String> {
        // A kill that was announced takes place.
        if !self.is_doomed && self.termination.is_none() && self.role == ProcessRole::Worker {
            self.stop()?;
        } else {
            self.kill();
        }
        self.next_build = WorkerBuild::DEPLOYED.last().copied();
        self.start(round, counts)
    }

    /// Stops the process with a SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// Returns the message of the error, also if the process outlives its SIGTERM.
    pub fn stop(&mut self) -> Result<(), String> {
        self.heal_network();
        let Some(child) = &mut self.child else { return Ok(()) };
        if let Some(control) = &self.control {
            control.clear_faults().map_err(|error| error.to_string())?;
        }
        if child.try_wait().map_err(|error| error.to_string())?.is_none() {
            send_signal(child, Signal::TERM)?;
        }
        let limit = Instant::now() + TERMINATION_LIMIT;
        while child.try_wait().map_err(|error| error.to_string())?.is_none() {
            if Instant::now() > limit {
                self.kill();
                return Err(format!("{} has not ended {TERMINATION_LIMIT:?} after a SIGTERM", self.name));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child = None;
        Ok(())
    }

    /// Kills the process, if there is one.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    fn collect_failures(&mut self, counts: &mut FaultCounts) {
        if let Some(Ok((writes, syncs))) = self.control.take().map(|control| control.failure_counts()) {
            counts.failed_write_calls += writes;
            counts.failed_sync_calls += syncs;
        }
    }
}

impl Drop for ProcessSlot {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a time for which no process keeps its leases.
fn beyond_lease(round: &RoundSettings, rng: &mut SimRng) -> Duration {
    round.lease_duration.mul_f64(1.2 + rng.below(150) as f64 / 100.0)
}

fn send_signal(child: &Child, signal: Signal) -> Result<(), String> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| format!("{} is no process id", child.id()))?;
    match kill_process(pid, signal) {
        // The child has ended and was not waited for yet, so its id is not in use again.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
