//! The calls of a turn, side by side: so many at once, in the model's order, each independent of the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;
use windlass_core::{CallId, CallMap, CallSettled, Entry, Failure, How, SettleStep, Step, text};

use super::call::CallEnd;
use super::prepare::{Again, Ready};
use super::{Driver, Halt};
use crate::agent::{Agent, Toolset};
use crate::hook::Then;
use crate::tool::Around;

/// After how many calls that begin or end the driver lets others go first. So quick bodies end while few of their
/// siblings are open, and a turn of many calls does not keep a thread to itself.
const STRIDE: usize = 64;

/// What is to be done with a call, and what it found.
type Queued<C> = (Step, Option<Ready<C>>);

/// What the calls of one turn share.
pub(super) struct TurnWork<C> {
    pub(super) agent: Agent<C>,
    pub(super) tools: Arc<Toolset<C>>,
    /// Stops the calls of this turn: the run was cancelled, or one of them ends it.
    pub(super) stop: CancellationToken,
    /// What the contexts of the calls share.
    pub(super) around: Arc<Around<C>>,
    /// Whether calls are being begun, each up to its body.
    beginning: AtomicBool,
}

impl<C> TurnWork<C> {
    /// Whether siblings are still on the way to their bodies: one of them may end the run, and then no body that has
    /// not run yet is to run. Whoever begins calls asks each of them again.
    pub(super) fn is_beginning(&self) -> bool {
        self.beginning.load(Ordering::Relaxed)
    }
}

/// What the calls of a turn came to that ends it.
#[derive(Default)]
struct Ends {
    /// The first in the model's order that fails the run.
    failure: Option<(usize, Box<Failure>)>,
    broken: Option<Halt>,
}

impl Ends {
    fn take<C>(&mut self, (place, end): (usize, CallEnd), queue: &mut Queue<C>, turn: &TurnWork<C>) {
        match end {
            CallEnd::Settled => queue.release(place),
            // What follows a call that waits for a person waits with it.
            CallEnd::Held | CallEnd::Left => {}
            CallEnd::Fatal(fatal) => {
                queue.release(place);
                if self.failure.as_ref().is_none_or(|(first, _)| place < *first) {
                    self.failure = Some((place, fatal));
                }
                turn.stop.cancel();
            }
            CallEnd::Broken(halt) => {
                self.broken.get_or_insert(halt);
                turn.stop.cancel();
            }
        }
    }
}

/// The calls that have not begun, by their place in the model's order.
struct Queue<C> {
    calls: Vec<Option<Queued<C>>>,
    /// Up to where those that follow nobody were taken.
    taken: usize,
    /// Calls that follow another, by the place of that one.
    behind: BTreeMap<usize, usize>,
    /// All calls that follow another.
    waiting: BTreeSet<usize>,
    /// Those whose turn has come because what they followed has settled.
    released: BTreeSet<usize>,
}

impl<C> Queue<C> {
    fn new(queued: Vec<Queued<C>>) -> Self {
        let (mut behind, mut waiting) = (BTreeMap::new(), BTreeSet::new());
        if queued.iter().any(|(step, _)| step.after().is_some()) {
            let mut places = CallMap::default();
            for (place, (step, _)) in queued.iter().enumerate() {
                if let Some(before) = step.after() {
                    behind.extend(places.get(before).map(|before| (*before, place)));
                    waiting.insert(place);
                }
                places.insert(step.call().clone(), place);
            }
        }
        let calls = queued.into_iter().map(Some).collect();
        Self { calls, taken: 0, behind, waiting, released: BTreeSet::new() }
    }

    /// The first in the model's order that may begin.
    fn pop(&mut self) -> Option<(usize, Queued<C>)> {
        while self.waiting.contains(&self.taken) {
            self.taken += 1;
        }
        let place = match self.released.first() {
            Some(released) if *released < self.taken || self.taken >= self.calls.len() => *released,
            _ => self.taken,
        };
        if !self.released.remove(&place) {
            self.taken += 1;
        }
        let queued = self.calls.get_mut(place)?.take()?;
        if self.taken == self.calls.len() && self.waiting.is_empty() {
            // Nothing comes any more, and the calls may run for long.
            self.calls = Vec::new();
        }
        Some((place, queued))
    }

    /// Lets the call begin that follows this one.
    fn release(&mut self, place: usize) {
        self.released.extend(self.behind.remove(&place));
    }
}

/// Takes a call's tool and arguments out. Calls mostly come in the order in which they were read.
fn take<C>(fresh: &mut VecDeque<(CallId, Ready<C>)>, call: &CallId) -> Option<Ready<C>> {
    let place = fresh.iter().position(|(one, _)| one == call)?;
    fresh.remove(place).map(|(_, ready)| ready)
}

impl<C: Send + Sync + 'static> Driver<C> {
    /// Works on the open calls until each has settled or waits for a person.
    pub(super) async fn work(&mut self, steps: Vec<Step>) -> Result<(), Halt> {
        self.guards_settled().await?;
        let turn = self.turn_work().await?;
        let queue = self.with_tools(steps, &turn.agent, &turn.tools)?;
        let failure = self.run_queue(queue, &turn).await?;
        self.tools = Some(turn.tools);
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        if self.stop.is_cancelled() {
            return Err(Halt::Cancelled);
        }
        self.show_turn().await;
        Ok(())
    }

    async fn turn_work(&mut self) -> Result<TurnWork<C>, Halt> {
        let name = self.run().agent().clone();
        let agent = self.agent(&name)?;
        let tools = match self.tools.take() {
            Some(tools) => tools,
            None => self.unless_stopped(agent.toolset(&self.context(&name), &self.graph)).boxed().await??,
        };
        let stop = self.stop.child_token();
        let around = Arc::new(Around {
            run: self.context(&name),
            within: self.path.clone(),
            stop: stop.clone(),
            emitter: self.emitter.for_body(),
            artefacts: self.shared.artefacts.clone(),
            at_end: self.at_end.list(),
            inherited: self.run().inherited().clone(),
        });
        Ok(TurnWork { agent, tools, stop, around, beginning: AtomicBool::new(false) })
    }

    /// Every call with its tool. Whatever is missing is found out here, before any of them runs.
    fn with_tools(
        &mut self,
        steps: Vec<Step>,
        agent: &Agent<C>,
        tools: &Toolset<C>,
    ) -> Result<Vec<Queued<C>>, Halt> {
        let mut fresh = std::mem::take(&mut self.ready);
        let mut queue = Vec::with_capacity(steps.len());
        for step in steps {
            let edited = step.edited();
            let ready = match (&step, take(&mut fresh, step.call())) {
                (Step::Settle(_), _) => None,
                (_, Some(ready)) if edited.is_none() => Some(ready),
                (Step::Invalid(_), None) => self.again_unread(step.call(), tools),
                (_, _) => match self.again(step.call(), edited, agent, tools)? {
                    Again::Ready(ready) => Some(ready),
                    Again::Gone { how, text } => {
                        let settled = CallSettled::new(step.call().clone(), how, text);
                        queue.push((Step::Settle(SettleStep { settled }), None));
                        continue;
                    }
                },
            };
            queue.push((step, ready));
        }
        Ok(queue)
    }

    /// Runs the queue, each call after the one that it follows. Gives the failure that ends the run, if one does:
    /// of several, the first in the model's order, whichever came first.
    async fn run_queue(&self, queue: Vec<Queued<C>>, turn: &TurnWork<C>) -> Result<Option<Failure>, Halt> {
        let limit = self.shared.config.concurrency.unwrap_or(usize::MAX);
        let mut queue = Queue::new(queue);
        let mut running = FuturesUnordered::new();
        let mut ends = Ends::default();
        loop {
            let (mut begun, mut ended_at_once) = (0, Vec::new());
            turn.beginning.store(true, Ordering::Relaxed);
            while begun < STRIDE && running.len() < limit && !turn.stop.is_cancelled() {
                let Some((place, (step, found))) = queue.pop() else { break };
                // The set keeps one more in reserve, so those that it holds are small.
                let mut call = self.call(place, step, found, turn).boxed();
                match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                    Poll::Ready(end) => ended_at_once.push(end),
                    Poll::Pending => running.push(call),
                }
                begun += 1;
            }
            turn.beginning.store(false, Ordering::Relaxed);
            for end in ended_at_once {
                ends.take(end, &mut queue, turn);
            }
            let mut ended = 0;
            while ended < STRIDE {
                let waits = begun < STRIDE && ended == 0;
                let next = poll_fn(|cx| match running.poll_next_unpin(cx) {
                    Poll::Pending if waits => Poll::Pending,
                    Poll::Pending => Poll::Ready(None),
                    ready => ready,
                });
                let Some(end) = next.await else { break };
                ended += 1;
                ends.take(end, &mut queue, turn);
            }
            if begun == 0 && ended == 0 {
                break;
            }
            if begun == STRIDE || ended == STRIDE {
                tokio::task::yield_now().await;
            }
        }
        if let Some(halt) = ends.broken {
            return Err(halt);
        }
        while let Some((place, call)) = queue.pop().map(|(place, (step, _))| (place, step.call().clone())) {
            self.settle_unstarted(&call).boxed().await?;
            queue.release(place);
        }
        Ok(ends.failure.map(|(_, failure)| *failure))
    }

    /// A call that the end of the run kept from starting has its output too; one that waits for a person keeps
    /// waiting, unless the run ends.
    async fn settle_unstarted(&self, call: &CallId) -> Result<(), Halt> {
        if self.shared.cancel.hands_over() || self.locked(|run| run.is_settled(call) || run.waits(call)) {
            return Ok(());
        }
        let settled = CallSettled::new(call.clone(), How::Cancelled, text::CANCELLED);
        self.record(Entry::CallSettled(settled)).await
    }

    /// Ends calls that had begun and that the run ends without: agents that wait for a person inside, and calls
    /// that an earlier driver started. What was told to have started is told to have ended.
    pub(super) async fn end_begun(&mut self) -> Result<(), Halt> {
        let begun = self.run().begun();
        if begun.is_empty() {
            return Ok(());
        }
        let turn = self.turn_work().await?;
        turn.stop.cancel();
        for call in begun {
            let (has_agent, has_asked) =
                self.locked(|run| (run.child(&call).is_some(), run.has_asked(&call)));
            let work = self.again_unread(&call, &turn.tools).map(|ready| self.begin(&call, ready, &turn));
            let settled = CallSettled::new(call, How::Cancelled, text::CANCELLED);
            match work {
                Some(work) if has_agent => drop(self.resume_agent(&work).boxed().await?),
                // It was told to have started when it asked, by this driver or by an earlier one.
                Some(work) if has_asked => self.settle(Some((&work, Then::Ends)), settled).await?,
                Some(_) | None => self.settle(None, settled).await?,
            }
        }
        self.tools = Some(turn.tools);
        Ok(())
    }

    /// Shows watchers the outputs of a turn that has settled.
    async fn show_turn(&mut self) {
        if !self.emitter.is_watched() {
            return;
        }
        let outputs: Vec<_> = self.locked(|run| {
            if !run.is_between_turns() {
                return Vec::new();
            }
            let is_output = |part| part == windlass_core::Part::Output;
            let of_turn = run.produced().iter().rev().take_while(|one| is_output(one.part)).count();
            let from = run.produced().len() - of_turn;
            run.produced()[from..].to_vec()
        });
        self.show(outputs).await;
        self.emitter.settled().await;
    }
}
