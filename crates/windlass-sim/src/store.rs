//! A store that delays, fails and crashes where the seed, or a test, says.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use windlass::StoreError;
use windlass::core::{
    AgentName, Chain, Entry, Line, OutputContent, Record, RunId, SavedError, Timestamp, read_lines,
};
use windlass::store::{
    Durability, Lease, LeaseClaim, MemoryStore, Posted, ReceiptClaim, ReceiptKey, RunStatus, Snapshot, Store,
    StoreResult, StoredRun,
};

use crate::sim::Sim;

/// A store of a simulated machine. What it has made durable survives crashes; what was on its way does not.
///
/// Lines are made durable in the order in which they came, each with all before it, as a store with group
/// commit does. Leases run on simulated time, whatever time their owners believe it is.
pub struct SimStore {
    sim: Sim,
    kept: Arc<MemoryStore>,
    state: Mutex<State>,
    reached: Notify,
}

/// What goes wrong with the writing of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing is written: neither they nor what came after them.
    Fail,
    /// They are written, and the answer is that it failed.
    FailAfter,
    /// The process crashes before they are durable.
    CrashBefore,
    /// The process crashes when they are durable, and before anybody is told.
    CrashAfter,
}

#[derive(Default)]
struct State {
    longest: Duration,
    is_cut_off: bool,
    failing: u64,
    appends: u64,
    faults: BTreeMap<u64, Fault>,
    life: u64,
    on_their_way: VecDeque<OnItsWay>,
    /// What became of lines that went with later ones.
    written: BTreeMap<u64, Result<(), StoreError>>,
    /// How far the clock of each owner is ahead of the simulated one, in milliseconds.
    ahead: BTreeMap<String, u64>,
}

struct OnItsWay {
    number: u64,
    lease: Lease,
    at: u64,
    lines: Vec<Line>,
    durability: Durability,
    fault: Option<Fault>,
}

impl SimStore {
    /// A store that answers at once and never fails.
    pub fn new(sim: &Sim) -> Self {
        Self { sim: sim.clone(), kept: Arc::default(), state: Mutex::default(), reached: Notify::new() }
    }

    /// The same store, as another process reaches it: what goes wrong for one need not go wrong for the other.
    #[must_use]
    pub fn for_another(&self) -> Self {
        Self { kept: self.kept.clone(), ..Self::new(&self.sim) }
    }

    /// A store that holds these records of a run, as if a process had written so much and was lost.
    ///
    /// # Panics
    /// Where the records do not begin with the start of a run.
    pub fn holding(sim: &Sim, records: &[Record]) -> Self {
        let store = Self::new(sim);
        let Some(first) = records.first() else { return store };
        let Entry::Started(started) = &first.entry else { panic!("the records do not begin with a start") };
        let claim = LeaseClaim { owner: "a lost process", now: Timestamp(0), until: Timestamp(0) };
        let created = store.kept.create(&started.run, &started.agent, claim).now_or_never();
        if let Some(Ok(lease)) = created {
            let mut chain = Chain::default();
            let lines = records.iter().map(|record| chain.add(record)).collect();
            let kept = store.kept.append(&lease, 0, lines, Durability::Now).now_or_never();
            debug_assert!(matches!(kept, Some(Ok(()))), "an empty store takes any records");
        }
        store
    }

    /// How long anything takes at most.
    #[must_use]
    pub fn longest(self, longest: Duration) -> Self {
        self.state().longest = longest;
        self
    }

    /// In how many of a hundred cases something fails.
    pub fn set_failing(&self, percent: u64) {
        self.state().failing = percent;
    }

    /// The store cannot be reached: nothing comes back until it can again, and then it comes late.
    pub fn set_reachable(&self, is_reachable: bool) {
        self.state().is_cut_off = !is_reachable;
        self.reached.notify_waiters();
    }

    /// Something goes wrong with the writing that is number `number`, from 0, over all lives.
    pub fn at(&self, number: u64, fault: Fault) {
        self.state().faults.insert(number, fault);
    }

    /// How often lines came to be written, over all lives.
    pub fn appends(&self) -> u64 {
        self.state().appends
    }

    /// The records of a run that are durable.
    pub fn durable(&self, run: &RunId) -> Result<Vec<Record>, SavedError> {
        let lines = self.kept.load(run, 0).now_or_never().and_then(Result::ok).unwrap_or_default();
        read_lines(&lines)
    }

    /// The records of a run that are durable, from number `from` on, read without looking at the chain.
    ///
    /// # Panics
    /// Where a line is not a record.
    pub fn durable_from(&self, run: &RunId, from: u64) -> Vec<Record> {
        let lines = self.kept.load(run, from).now_or_never().and_then(Result::ok).unwrap_or_default();
        let read = |line: &Line| match serde_json::from_str(&line.body) {
            Ok(record) => record,
            Err(error) => panic!("`{}` is not a record: {error}", line.body),
        };
        lines.iter().map(read).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.life != self.sim.life() {
            state.life = self.sim.life();
            state.on_their_way.clear();
            state.written.clear();
        }
        state
    }

    /// Takes its time and may fail. A process that has crashed gets no answer.
    async fn travel(&self) -> Result<(), StoreError> {
        let (longest, failing) = {
            let state = self.state();
            (state.longest, state.failing)
        };
        self.sim.dawdle(longest).await;
        self.arrives().await;
        if self.sim.chance(failing) { Err(failed()) } else { Ok(()) }
    }

    /// Waits until the store can be reached. A process that has crashed reaches nothing.
    async fn arrives(&self) {
        loop {
            let reached = self.reached.notified();
            if self.sim.is_crashed() {
                std::future::pending::<()>().await;
            }
            if !self.state().is_cut_off {
                return;
            }
            reached.await;
        }
    }

    fn op<'a, T: Send + 'a>(
        &'a self,
        act: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> StoreResult<'a, T> {
        async move {
            self.travel().await?;
            act.await
        }
        .boxed()
    }

    /// Makes lines durable, with all that came before them.
    fn commit(&self, number: u64) -> Result<(), StoreError> {
        let mut state = self.state();
        while state.on_their_way.front().is_some_and(|first| first.number <= number) {
            let Some(one) = state.on_their_way.pop_front() else { break };
            // What comes after lines that are not written does not follow on what is there.
            let written = match one.fault {
                Some(Fault::Fail) => Some(Err(failed())),
                _ => self.kept.append(&one.lease, one.at, one.lines, one.durability).now_or_never(),
            };
            state.written.insert(one.number, written.unwrap_or_else(|| Err(failed())));
        }
        state.written.remove(&number).unwrap_or(Ok(()))
    }

    async fn write(
        &self,
        number: u64,
        durability: Durability,
        fault: Option<Fault>,
    ) -> Result<(), StoreError> {
        if durability == Durability::Now || fault.is_some() {
            let longest = self.state().longest;
            self.sim.dawdle(longest).await;
        }
        self.arrives().await;
        match fault {
            None if durability == Durability::Later => Ok(()),
            None | Some(Fault::Fail) => self.commit(number),
            Some(Fault::FailAfter) => {
                self.commit(number)?;
                Err(failed())
            }
            Some(Fault::CrashBefore) => match self.sim.crash().await {},
            Some(Fault::CrashAfter) => {
                // Whether it could be written does not matter to a process that is gone.
                let _written = self.commit(number);
                match self.sim.crash().await {}
            }
        }
    }

    /// Puts a claim on simulated time.
    fn claim_of<'a>(&self, claim: LeaseClaim<'a>) -> LeaseClaim<'a> {
        let now = self.now();
        let ahead = claim.now.0.saturating_sub(now);
        self.state().ahead.insert(claim.owner.to_owned(), ahead);
        let until = Timestamp(now.saturating_add(claim.until.0.saturating_sub(claim.now.0)));
        LeaseClaim { owner: claim.owner, now: Timestamp(now), until }
    }

    fn to_simulated(&self, owner: &str, time: Timestamp) -> Timestamp {
        Timestamp(time.0.saturating_sub(self.ahead_of(owner)))
    }

    fn ahead_of(&self, owner: &str) -> u64 {
        self.state().ahead.get(owner).copied().unwrap_or_default()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.sim.now().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Store for SimStore {
    fn create<'a>(
        &'a self,
        run: &'a RunId,
        agent: &'a AgentName,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, Lease> {
        self.op(async move { self.kept.create(run, agent, self.claim_of(claim)).await })
    }

    fn acquire<'a>(&'a self, run: &'a RunId, claim: LeaseClaim<'a>) -> StoreResult<'a, Lease> {
        self.op(async move { self.kept.acquire(run, self.claim_of(claim)).await })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, until: Timestamp) -> StoreResult<'a, ()> {
        self.op(async move { self.kept.renew(lease, self.to_simulated(&lease.owner, until)).await })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreResult<'a, ()> {
        self.op(async move { self.kept.release(lease).await })
    }

    fn append<'a>(
        &'a self,
        lease: &'a Lease,
        at: u64,
        lines: Vec<Line>,
        durability: Durability,
    ) -> StoreResult<'a, ()> {
        if self.sim.is_crashed() {
            return std::future::pending().boxed();
        }
        let (number, fault) = {
            let mut state = self.state();
            let number = state.appends;
            state.appends += 1;
            let by_chance = || self.sim.chance(state.failing).then_some(Fault::Fail);
            let fault = state.faults.get(&number).copied().or_else(by_chance);
            state.on_their_way.push_back(OnItsWay {
                number,
                lease: lease.clone(),
                at,
                lines,
                durability,
                fault,
            });
            (number, fault)
        };
        self.write(number, durability, fault).boxed()
    }

    fn mark<'a>(&'a self, lease: &'a Lease, status: RunStatus, now: Timestamp) -> StoreResult<'a, ()> {
        self.op(async move { self.kept.mark(lease, status, self.to_simulated(&lease.owner, now)).await })
    }

    fn load<'a>(&'a self, run: &'a RunId, from: u64) -> StoreResult<'a, Vec<Line>> {
        self.op(async move {
            // A process reads what it wrote, durable or not.
            let last = self.state().on_their_way.back().map(|last| last.number);
            if let Some(last) = last {
                let _written = self.commit(last);
            }
            self.kept.load(run, from).await
        })
    }

    fn snapshot_every(&self) -> Option<u64> {
        Some(3)
    }

    // At once, and durable before the lines that it covers may be: it must do no harm then.
    fn keep_snapshot<'a>(&'a self, lease: &'a Lease, snapshot: Snapshot) -> StoreResult<'a, ()> {
        self.kept.keep_snapshot(lease, snapshot)
    }

    fn snapshot<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Option<Snapshot>> {
        self.kept.snapshot(run)
    }

    fn runs(&self) -> StoreResult<'_, Vec<StoredRun>> {
        self.op(async move { self.kept.runs().await })
    }

    fn post<'a>(&'a self, run: &'a RunId, posted: Posted) -> StoreResult<'a, ()> {
        self.op(async move { self.kept.post(run, posted).await })
    }

    fn posted<'a>(&'a self, run: &'a RunId) -> StoreResult<'a, Vec<Posted>> {
        self.op(async move { self.kept.posted(run).await })
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
    ) -> StoreResult<'a, ReceiptClaim> {
        self.op(async move {
            let found = self.kept.claim_receipt(key, self.claim_of(claim)).await?;
            Ok(match found {
                ReceiptClaim::Busy { until } => ReceiptClaim::Busy {
                    until: Timestamp(until.0.saturating_add(self.ahead_of(claim.owner))),
                },
                found @ (ReceiptClaim::Receipt(_) | ReceiptClaim::Mine) => found,
            })
        })
    }

    fn keep_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        owner: &'a str,
        output: &'a OutputContent,
        expires: Option<Timestamp>,
    ) -> StoreResult<'a, ()> {
        self.op(async move {
            let expires = expires.map(|expires| self.to_simulated(owner, expires));
            self.kept.keep_receipt(key, owner, output, expires).await
        })
    }

    fn give_up_receipt<'a>(&'a self, key: &'a ReceiptKey, owner: &'a str) -> StoreResult<'a, ()> {
        self.op(async move { self.kept.give_up_receipt(key, owner).await })
    }

    fn keep_artefact<'a>(&'a self, run: &'a RunId, name: &'a str, text: &'a str) -> StoreResult<'a, ()> {
        self.op(async move { self.kept.keep_artefact(run, name, text).await })
    }

    fn artefact<'a>(&'a self, run: &'a RunId, name: &'a str) -> StoreResult<'a, Option<String>> {
        self.op(async move { self.kept.artefact(run, name).await })
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStore").field("appends", &self.appends()).finish_non_exhaustive()
    }
}

fn failed() -> StoreError {
    StoreError::new("the simulated disk failed")
}
