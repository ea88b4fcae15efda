//! A sweep: one case for every place at which the process of a run can crash, the shortest failing case first.
//!
//! Invariant: a case has no random part, so a failing case fails every time.

use std::collections::VecDeque;
use std::fmt::Write;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use windlass::BoxFuture;
use windlass::core::id::{CallPath, RunId};
use windlass::core::inspect::step_lines;
use windlass::core::item::OutputContent;
use windlass::error::RunError;
use windlass::run::{RunBuilder, RunResult};
use windlass::tool::ToolError;

use crate::audit::check_record;
use crate::crash_points::CrashPoint;
use crate::seeds::panic_text;
use crate::sim::{RunStart, Sim};
use crate::store::SimStore;

/// Environment variable that selects one case to replay: the numbers of its crash points, separated by commas.
const CASE_VARIABLE: &str = "WINDLASS_CRASH_AT";
/// Maximum number of cases of a sweep.
const DEFAULT_MAX_CASES: usize = 20_000;

/// Kills the process of a run at every write of its journal and at every await of a tool body, one case for each place,
/// and checks the outcome of each case.
///
/// ```
/// use serde_json::json;
/// use windlass::prelude::*;
/// use windlass::core::item::Item;
/// use windlass_sim::{CrashSweep, RunStart, SimModel, SimWorld};
///
/// let report = CrashSweep::new().check(|case| {
///     let world = SimWorld::new();
///     let agent = || {
///         let world = world.clone();
///         let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
///         let refund = Tool::dynamic("refund", "Gives the money back.", schema, move |ctx, _| {
///             let world = world.clone();
///             async move {
///                 tokio::task::yield_now().await;
///                 world.record_effect(&ctx);
///                 tokio::task::yield_now().await;
///                 Ok::<_, ToolError>("refunded")
///             }
///         });
///         let model = SimModel::scripted(case.sim(), [
///             vec![Item::call("c1", "refund", "{}")],
///             vec![Item::assistant("You have your money back.")],
///         ]);
///         Agent::new("desk").model(model).tool(refund)
///     };
///     let result = case.run(|start| match start {
///         RunStart::Fresh => agent().run("My order never came."),
///         RunStart::Recovered { run, store } => agent().recover(run, store),
///     });
///     let result = result.expect("the run ends or pauses");
///     assert!(world.total_count() == 1 || result.is_paused());
/// });
/// assert!(report.case_count > 5);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CrashSweep {
    max_crashes: usize,
    max_cases: usize,
    has_io: bool,
}

/// The extent of a sweep that found no failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepReport {
    /// Number of cases, the one without a crash included.
    pub case_count: usize,
    /// Number of crash points of the case without a crash.
    pub point_count: usize,
}

/// One case of a sweep: a simulated machine with its store, on which a run crashes at chosen points.
#[derive(Debug)]
pub struct SweepCase {
    sim: Sim,
    store: Arc<SimStore>,
    runs: Mutex<Vec<RunId>>,
}

impl Default for CrashSweep {
    fn default() -> Self {
        Self::new()
    }
}

impl CrashSweep {
    /// Creates a sweep with one crash in each case.
    pub fn new() -> Self {
        Self { max_crashes: 1, max_cases: DEFAULT_MAX_CASES, has_io: false }
    }

    /// Sets the maximum number of crashes in one case. With 2, the process that recovers a run crashes too, at each of
    /// its places. The number of cases grows with the power of this number.
    pub fn max_crashes(mut self, count: usize) -> Self {
        self.max_crashes = count;
        self
    }

    /// Sets the maximum number of cases.
    pub fn max_cases(mut self, count: usize) -> Self {
        self.max_cases = count;
        self
    }

    /// Lets the bodies of tools, reconcile functions and hooks do I/O with tokio: a test double of the user's own system may
    /// be a server at an address of this machine. Without it they panic.
    ///
    /// The processes of the runs then have a real clock, because a virtual one jumps to the next timeout while an answer
    /// is awaited; the lease of a dead process is released instead of waited for. Two limits follow. Delays in the runs take
    /// their time in every case. And the number of awaits in a body can depend on the machine: a crash point that a case
    /// does not reach is no crash in it.
    pub fn with_io(mut self) -> Self {
        self.has_io = true;
        self
    }

    /// Checks every case, those with fewer crashes first, then those that crash earlier. `WINDLASS_CRASH_AT=4,2` checks
    /// only the case whose first process crashes at point 4 and whose second crashes at point 2.
    ///
    /// # Panics
    /// Panics at the first failing case with its crash points, its journal and the command to replay it; also if there
    /// are more cases than the maximum, so that no place is left out silently.
    pub fn check(&self, check: impl Fn(&SweepCase)) -> SweepReport {
        if let Some(crashes) = replayed_case() {
            // The case without a crash comes first, as in the whole sweep: a check may compare with it.
            let mut report = SweepReport { case_count: 0, point_count: 0 };
            for case in [Vec::new(), crashes] {
                report.point_count = self.check_case(&case, &check).len();
                report.case_count += 1;
            }
            return report;
        }
        let mut report = SweepReport { case_count: 0, point_count: 0 };
        let mut cases = VecDeque::from([Vec::new()]);
        while let Some(crashes) = cases.pop_front() {
            assert!(
                report.case_count < self.max_cases,
                "the sweep has more than {} cases: raise `max_cases`, or lower `max_crashes`",
                self.max_cases
            );
            let passed = self.check_case(&crashes, &check);
            report.case_count += 1;
            if crashes.is_empty() {
                report.point_count = passed.len();
            }
            if crashes.len() < self.max_crashes {
                // The process after the last crash has these points; each is the next crash of a longer case.
                let process = crashes.len() as u64 + 1;
                let points = passed.iter().filter(|point| point.process == process);
                cases.extend(points.map(|point| [crashes.as_slice(), &[point.number]].concat()));
            }
        }
        report
    }

    /// Checks one case. Returns the crash points that it has passed.
    fn check_case(&self, crashes: &[u64], check: &impl Fn(&SweepCase)) -> Vec<CrashPoint> {
        let case = SweepCase::new(crashes, self.has_io);
        match catch_unwind(AssertUnwindSafe(|| check(&case))) {
            Ok(()) => case.sim.passed_crash_points(),
            Err(panic) => {
                let numbers: Vec<String> = crashes.iter().map(u64::to_string).collect();
                let title = match crashes {
                    [] => "the case without a crash fails".to_owned(),
                    [one] => format!("the case with a crash at point {one} fails"),
                    _ => format!("the case with crashes at points {} fails", numbers.join(", ")),
                };
                let replay = match crashes {
                    [] => String::new(),
                    _ => format!("replay it: {CASE_VARIABLE}={} cargo test", numbers.join(",")),
                };
                panic!("{title}: {}\n{}{replay}", panic_text(&*panic), case.describe());
            }
        }
    }
}

impl SweepCase {
    fn new(crashes: &[u64], has_io: bool) -> Self {
        let sim = Sim::with_crash_schedule(0, crashes.to_vec(), has_io);
        let store = Arc::new(SimStore::new(&sim));
        Self { sim, store, runs: Mutex::default() }
    }

    /// Returns the simulated machine.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Returns the store of the runs.
    pub fn store(&self) -> &Arc<SimStore> {
        &self.store
    }

    /// Drives a run to its outcome, through the crashes of this case. `build` configures the run for each process; this
    /// function adds the store and the run id.
    ///
    /// # Errors
    /// Returns the error of the run.
    ///
    /// # Panics
    /// Panics if the journal of the run breaks an invariant.
    pub fn run<C: Send + Sync + 'static>(
        &self,
        build: impl Fn(RunStart) -> RunBuilder<C>,
    ) -> Result<RunResult, RunError> {
        let run = {
            let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            let run = RunId::from(format!("run-{}", runs.len() + 1));
            runs.push(run.clone());
            run
        };
        let outcome = self.sim.run_through_crashes(&self.store, run, |start| {
            let sim = self.sim.clone();
            build(start).call_layer(move |ctx, next| CrashingBody {
                sim: sim.clone(),
                call: ctx.call_path().clone(),
                body: Box::pin(next.run()),
                state: BodyState::NotStarted,
            })
        });
        // A run that failed has a journal too.
        let record = match &outcome {
            Ok(result) => Some(result.record()),
            Err(error) => error.record(),
        };
        if let Some(Err(violation)) = record.map(check_record) {
            panic!("the journal breaks an invariant: {violation}");
        }
        outcome
    }

    /// Describes the crash points that this case has passed, and the journals of its runs.
    fn describe(&self) -> String {
        let mut text = String::new();
        let mut process = 0;
        for point in self.sim.passed_crash_points() {
            if point.process != process {
                process = point.process;
                let _infallible = writeln!(text, "  process {process}");
            }
            let _infallible = writeln!(text, "{point}");
        }
        for run in self.runs.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _infallible = writeln!(text, "  journal of run `{run}`");
            for line in step_lines(&self.store.durable_records_from(run, 0)) {
                let _infallible = writeln!(text, "{line}");
            }
        }
        text
    }
}

/// Returns the case that the environment selects.
fn replayed_case() -> Option<Vec<u64>> {
    let text = std::env::var(CASE_VARIABLE).ok()?;
    let parse = |number: &str| match number.trim().parse() {
        Ok(number) => number,
        Err(error) => {
            panic!("{CASE_VARIABLE} has `{number}`, which is not the number of a crash point: {error}")
        }
    };
    Some(text.split(',').map(parse).collect())
}

/// The progress of a body.
#[derive(Clone, Copy)]
enum BodyState {
    NotStarted,
    Waiting { await_count: u64 },
}

/// The body of a call that can crash before it starts, at each await that suspends it, and after it has ended.
struct CrashingBody {
    sim: Sim,
    call: CallPath,
    body: BoxFuture<'static, Result<OutputContent, ToolError>>,
    state: BodyState,
}

impl Future for CrashingBody {
    type Output = Result<OutputContent, ToolError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.sim.is_crashed() {
            return Poll::Pending;
        }
        let await_count = match self.state {
            BodyState::NotStarted => {
                if self.sim.crashes_at(|| format!("before the body of call {}", self.call)) {
                    return Poll::Pending;
                }
                0
            }
            BodyState::Waiting { await_count } => await_count,
        };
        match self.body.as_mut().poll(cx) {
            Poll::Pending => {
                self.state = BodyState::Waiting { await_count: await_count + 1 };
                // A crash needs no wake-up: the process ends.
                self.sim
                    .crashes_at(|| format!("in the body of call {}, await {}", self.call, await_count + 1));
                Poll::Pending
            }
            Poll::Ready(_) if self.sim.crashes_at(|| format!("after the body of call {}", self.call)) => {
                Poll::Pending
            }
            Poll::Ready(result) => Poll::Ready(result),
        }
    }
}
