//! The outside world: a ledger of effects, a bank that honours idempotency keys, and a counter that refuses stale fences.
//! It is independent of Windlass.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files::{append_line, read_lines, write_line};
use crate::order::RunOrder;

/// One effect, as the body of a tool recorded it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerEffect {
    /// Tool that caused the effect.
    pub tool: String,
    /// The outermost run.
    pub run: String,
    /// Path of the call.
    pub call: String,
    /// Agent that made the call.
    pub agent: String,
    /// Idempotency key of the call.
    pub key: String,
    /// Fencing token of the driver.
    pub fence: u64,
    /// Arguments of the call, without nulls.
    pub arguments: Value,
    /// Answer of a person, if the tool asked.
    pub answer: Option<Value>,
    /// Process and build, for the reader of a failure.
    pub actor: String,
}

/// A transfer in the bank's book: one for each idempotency key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BankTransfer {
    /// Idempotency key.
    pub key: String,
    /// Tool that asked first.
    pub tool: String,
    /// Identity of the operation: the scope of its receipt, the agent, the tool and the arguments.
    pub operation: String,
    /// The outermost run that asked first.
    pub run: String,
    /// The call that asked first.
    pub call: String,
    /// Time of the transfer, since the machine was started. No step of the wall clock changes it.
    pub at: Duration,
}

/// One line of the file that orders what happens in all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutsideEvent {
    /// A request to the bank.
    Request(LedgerEffect),
    /// The model of a run was asked for a response: all calls of earlier turns have settled.
    TurnBegun {
        /// The outermost run.
        run: String,
        /// Number of the turn, from 1.
        turn: u32,
        /// Process and build.
        actor: String,
    },
}

/// The reply of a target to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectReply {
    /// The effect took place, or had taken place under the same key.
    Done,
    /// The request came from a driver that had been replaced, and was refused.
    StaleFence,
}

/// The rule by which the ledger accepts effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceRule {
    /// Every effect is accepted.
    Ignore,
    /// An effect with a fence below the highest of its run is refused.
    RefuseStale,
}

/// The outside world of a round.
#[derive(Clone, Debug)]
pub struct OutsideWorld {
    folder: PathBuf,
    fence_rule: FenceRule,
}

impl OutsideWorld {
    /// Opens the outside world of a round.
    pub fn in_folder(folder: &Path, fence_rule: FenceRule) -> Self {
        Self { folder: folder.to_owned(), fence_rule }
    }

    /// Returns the rule of the ledger.
    pub fn fence_rule(&self) -> FenceRule {
        self.fence_rule
    }

    /// Appends an effect to the ledger of its run. It is on disk when this returns.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn record_effect(&self, effect: &LedgerEffect) -> io::Result<EffectReply> {
        let mut ledger = self.lock_ledger(&effect.run)?;
        if self.fence_rule == FenceRule::RefuseStale && !self.admit_fence(&effect.run, effect.fence)? {
            return Ok(EffectReply::StaleFence);
        }
        write_line(&mut ledger, effect)?;
        Ok(EffectReply::Done)
    }

    /// Returns true if the ledger has an effect under a key, in the run or in the run that it is a fork of. A fence shuts
    /// out earlier drivers first, so that the reply stays true.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn has_effect(&self, order: &RunOrder, key: &str, fence: Option<u64>) -> io::Result<bool> {
        for run in std::iter::once(&order.run).chain(&order.fork_of) {
            let _ledger = self.lock_ledger(run)?;
            if let Some(fence) = fence.filter(|_| run == &order.run) {
                self.admit_fence(run, fence)?;
            }
            if self.load_effects(run)?.iter().any(|effect| effect.key == key) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the effects of a run in order.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn load_effects(&self, run: &str) -> io::Result<Vec<LedgerEffect>> {
        read_lines(&self.ledger_path(run))
    }

    /// Transfers money under a key: once, however often it is asked. The request is recorded in any case.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn transfer(&self, request: &LedgerEffect, operation: String) -> io::Result<EffectReply> {
        append_line(&self.events_path(), &OutsideEvent::Request(request.clone()))?;
        let book = self.folder.join("bank").join(format!("{}.json", request.key));
        static DRAFT_COUNT: AtomicU64 = AtomicU64::new(0);
        let number = DRAFT_COUNT.fetch_add(1, Ordering::SeqCst);
        let draft = self.folder.join("bank").join(format!("{}-{number}.draft", std::process::id()));
        let transfer = BankTransfer {
            key: request.key.clone(),
            tool: request.tool.clone(),
            operation,
            run: request.run.clone(),
            call: request.call.clone(),
            at: time_since_boot()?,
        };
        std::fs::remove_file(&draft).ok();
        append_line(&draft, &transfer)?;
        // A link is made once: a second request under the key finds the name taken.
        let linked = std::fs::hard_link(&draft, &book);
        std::fs::remove_file(&draft).ok();
        match linked {
            Ok(()) => Ok(EffectReply::Done),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(EffectReply::Done),
            Err(error) => Err(error),
        }
    }

    /// Notes that the model of a run is asked for a response.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn note_turn(&self, run: &str, turn: u32, actor: &str) -> io::Result<()> {
        let (run, actor) = (run.to_owned(), actor.to_owned());
        append_line(&self.events_path(), &OutsideEvent::TurnBegun { run, turn, actor })
    }

    /// Returns the requests to the bank and the turns of all runs, in order.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn load_events(&self) -> io::Result<Vec<OutsideEvent>> {
        read_lines(&self.events_path())
    }

    /// Returns all requests to the bank in order.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn load_requests(&self) -> io::Result<Vec<LedgerEffect>> {
        let events = self.load_events()?.into_iter();
        let requests = events.filter_map(|event| match event {
            OutsideEvent::Request(request) => Some(request),
            OutsideEvent::TurnBegun { .. } => None,
        });
        Ok(requests.collect())
    }

    /// Returns the bank's book.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn load_transfers(&self) -> io::Result<Vec<BankTransfer>> {
        let mut transfers = Vec::new();
        for file in std::fs::read_dir(self.folder.join("bank"))? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                transfers.extend(read_lines::<BankTransfer>(&path)?);
            }
        }
        Ok(transfers)
    }

    /// Notes that the wall clock of a process is about to be moved.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn note_clock_step(&self) -> io::Result<()> {
        append_line(&self.clock_steps_path(), &time_since_boot()?)
    }

    /// Returns the time of the first step of a wall clock, since the machine was started.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn first_clock_step(&self) -> io::Result<Option<Duration>> {
        Ok(read_lines(&self.clock_steps_path())?.into_iter().min())
    }

    fn clock_steps_path(&self) -> PathBuf {
        self.folder.join("clock_steps.jsonl")
    }

    fn events_path(&self) -> PathBuf {
        self.folder.join("events.jsonl")
    }

    fn ledger_path(&self, run: &str) -> PathBuf {
        self.folder.join("ledger").join(format!("{run}.jsonl"))
    }

    fn lock_ledger(&self, run: &str) -> io::Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(self.ledger_path(run))?;
        file.lock()?;
        Ok(file)
    }

    /// Raises the highest fence of a run; returns false if it is higher already. The ledger of the run is locked.
    fn admit_fence(&self, run: &str, fence: u64) -> io::Result<bool> {
        let path = self.folder.join("ledger").join(format!("{run}.fence"));
        let highest = read_lines::<u64>(&path)?.into_iter().max().unwrap_or(0);
        if fence > highest {
            append_line(&path, &fence)?;
        }
        Ok(fence >= highest)
    }
}

/// Reads the time since the machine was started, which is the same for all processes.
fn time_since_boot() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/uptime cannot be read"))
}
