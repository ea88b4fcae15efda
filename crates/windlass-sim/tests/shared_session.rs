//! Several runs share one session, from two connections: crashes at session writes and at any time, parked runs, limits
//! and compaction in between. The session has the items of each run once and in order, and replay derives what the
//! models saw.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use windlass::core::id::RunId;
use windlass::core::item::Item;
use windlass::core::journal::JournalEntry;
use windlass::core::run::Run;
use windlass::core::tool::ToolEffect;
use windlass::model::ModelRequest;
use windlass::prelude::*;
use windlass::run::OnSessionBusy;
use windlass::session::{CompactionPolicy, Session};
use windlass_sim::{
    ProcessExit, SeedList, Sim, SimModel, SimStore, WriteFault, check_history, check_journal, check_seeds,
};

/// Number of processes that are started before the test gives up.
const MAX_PROCESSES: usize = 12;
/// Time after which the leases of a crashed process have expired.
const LEASES_EXPIRED_AFTER: Duration = Duration::from_secs(31);
/// Time that a run waits for the others; longer than they take.
const LONG_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Everything that outlives a process.
#[derive(Clone)]
struct SharedWorld {
    sim: Sim,
    /// Two connections to one store.
    stores: [Arc<SimStore>; 2],
    run_count: usize,
    /// The models' requests: the number of the run, and its input.
    requests: Arc<Mutex<Vec<(usize, Vec<Arc<Item>>)>>>,
    /// Items that each summary stands for.
    summaries: Arc<Mutex<Vec<Vec<Arc<Item>>>>>,
    /// Number of bodies that are running.
    running_bodies: Arc<AtomicUsize>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedWorld {
    fn new(seed: u64) -> Self {
        let sim = Sim::new(seed);
        let latency = Duration::from_millis(sim.draw(|rng| rng.below(40)));
        let first = SimStore::new(&sim).max_latency(latency);
        let second = first.for_other_process().max_latency(latency);
        for store in [&first, &second] {
            if sim.chance(60) {
                let fault = *sim.draw(|rng| *rng.pick(&[&WriteFault::CrashBefore, &WriteFault::CrashAfter]));
                store.inject_session_fault(sim.draw(|rng| rng.below(10)), fault);
            }
        }
        let run_count = 2 + sim.draw(|rng| rng.index(3));
        Self {
            sim,
            stores: [Arc::new(first), Arc::new(second)],
            run_count,
            requests: Arc::default(),
            summaries: Arc::default(),
            running_bodies: Arc::default(),
        }
    }

    /// Returns the agent of a run: it makes a call that needs approval in every other run, then another one, and ends.
    fn agent(&self, number: usize) -> Agent {
        let world = self.clone();
        let model = SimModel::new(&self.sim, move |request: &ModelRequest<'_>, _| {
            lock(&world.requests).push((number, request.input.to_vec()));
            let is_answer = |item: &Arc<Item>| match &**item {
                Item::Output(output) => output.call.as_str().starts_with(&format!("r{number}-")),
                _ => false,
            };
            let answered = request.input.iter().filter(|item| is_answer(item)).count();
            Ok(match answered {
                0 => vec![Item::call(format!("r{number}-pay"), "pay", "{}")],
                1 => vec![Item::call(format!("r{number}-look"), "look", "{}")],
                _ => vec![Item::assistant(format!("r{number} is done"))],
            })
        })
        .max_latency(Duration::from_secs(5));
        let pay = self.tool("pay");
        let pay = if number.is_multiple_of(2) { pay.needs_approval() } else { pay };
        Agent::new(format!("agent-{number}")).model(model).tools((pay, self.tool("look")))
    }

    fn tool(&self, name: &str) -> Tool {
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        let world = self.clone();
        let tool = Tool::dynamic(name, "Works.", schema, move |_, _| {
            let world = world.clone();
            async move {
                let others = world.running_bodies.fetch_add(1, Ordering::Relaxed);
                assert_eq!(others, 0, "two runs worked on one session at once");
                world.sim.random_delay(Duration::from_secs(20)).await;
                world.running_bodies.fetch_sub(1, Ordering::Relaxed);
                Ok::<_, ToolError>("worked")
            }
        });
        tool.effect(ToolEffect::Idempotent)
    }

    /// Drives one run to its end, through its pauses.
    async fn drive_run(&self, number: usize) {
        self.sim.random_delay(Duration::from_secs(60)).await;
        let store = self.stores[number % 2].clone();
        let (agent, id) = (self.agent(number), run_id(number));
        let is_begun = !store.durable_records_from(&id, 0).is_empty();
        let wait = OnSessionBusy::Wait(LONG_WAIT);
        let mut result = if is_begun {
            agent.recover(id, store.clone()).on_session_busy(wait).await
        } else {
            let mut session = Session::new("s", store.clone());
            if self.sim.chance(30) {
                session = session.history_limit(self.sim.draw(|rng| rng.index(8)));
            }
            let run = agent.run(format!("r{number} begins")).run_id(id).store(store.clone());
            run.session(&session).on_session_busy(wait).await
        };
        loop {
            let mut paused = match result.expect("the run goes on") {
                RunResult::Finished(_) => return,
                RunResult::Paused(paused) => paused,
                other => panic!("run {number} came to {other:?}"),
            };
            self.sim.random_delay(Duration::from_secs(120)).await;
            for pending in paused.pending_calls() {
                paused.approve(pending.path).expect("it waits for approval");
            }
            result = agent.resume(paused).store(store.clone()).on_session_busy(wait).await;
        }
    }

    async fn compact_sometimes(&self) {
        let session = Session::new("s", self.stores[0].clone());
        for _ in 0..self.sim.draw(|rng| rng.index(4)) {
            self.sim.random_delay(Duration::from_secs(100)).await;
            let keep = self.sim.draw(|rng| rng.index(5));
            let world = self.clone();
            let policy = CompactionPolicy::above_items(4, keep).with_summariser(move |items| {
                let mut summaries = lock(&world.summaries);
                summaries.push(items);
                std::future::ready(Ok(format!("#{}", summaries.len() - 1)))
            });
            session.compact(&policy).await.expect("the session can be compacted");
        }
    }

    async fn run_process(&self, is_after_crash: bool) {
        self.running_bodies.store(0, Ordering::Relaxed);
        if is_after_crash {
            tokio::time::sleep(LEASES_EXPIRED_AFTER).await;
        } else if self.sim.chance(50) {
            let sim = self.sim.clone();
            tokio::spawn(async move {
                sim.random_delay(Duration::from_secs(200)).await;
                match sim.crash().await {}
            });
        }
        let runs = join_all((0..self.run_count).map(|number| self.drive_run(number)));
        tokio::join!(runs, self.compact_sometimes());
    }

    /// Returns all items that were ever in the session, with the summaries replaced by what they stand for.
    fn expand_items(&self, items: &[Arc<Item>]) -> Vec<Arc<Item>> {
        let summary_of = |item: &Item| match item {
            Item::Message(message) => message.text().split_once("\n#")?.1.parse::<usize>().ok(),
            _ => None,
        };
        let expand = |item: &Arc<Item>| match summary_of(item) {
            Some(number) => {
                let items = lock(&self.summaries)[number].clone();
                self.expand_items(&items)
            }
            None => vec![item.clone()],
        };
        items.iter().flat_map(expand).collect()
    }

    fn check(&self, shown: &[Arc<Item>]) {
        check_history(shown).expect("what the session shows is valid");
        let all = self.expand_items(shown);
        check_history(&all).expect("each call has its output");
        let mut seen: Vec<BTreeSet<String>> = Vec::new();
        for number in 0..self.run_count {
            let records = self.stores[0].durable_records(&run_id(number)).expect("it can be opened");
            check_journal(&records).expect("the journal is whole");
            let run = Run::replay(&records).expect("it replays").run;
            let mut expected = run.input().to_vec();
            expected.extend(run.session_items(0));
            let own: Vec<_> = all.iter().filter(|item| is_of_run(item, number)).cloned().collect();
            assert_eq!(own, expected, "the session has other items of run {number}");
            let is_response = |at: &usize| matches!(records[*at].entry, JournalEntry::ModelResponded(_));
            let views = (0..records.len()).filter(is_response).map(|at| {
                let before = Run::replay(&records[..at]).expect("a prefix replays").run;
                to_text(before.next_model_input())
            });
            seen.push(views.collect());
        }
        for (number, input) in lock(&self.requests).iter() {
            check_history(input).expect("the model was sent a valid history");
            let text = to_text(input);
            assert!(seen[*number].contains(&text), "replay derives no request like {text} of run {number}");
        }
    }
}

fn run_id(number: usize) -> RunId {
    RunId::from(format!("r{number}"))
}

fn to_text(items: &[Arc<Item>]) -> String {
    serde_json::to_string(items).expect("items are plain")
}

fn is_of_run(item: &Item, number: usize) -> bool {
    match item {
        Item::Message(message) => message.text().starts_with(&format!("r{number} ")),
        Item::Call(call) => call.id.as_str().starts_with(&format!("r{number}-")),
        Item::Output(output) => output.call.as_str().starts_with(&format!("r{number}-")),
        _ => false,
    }
}

fn simulate(seed: u64) {
    let world = SharedWorld::new(seed);
    for process in 0..MAX_PROCESSES {
        let lived = world.sim.run_process(world.run_process(process > 0));
        if let ProcessExit::Completed(()) = lived {
            let session = Session::new("s", world.stores[0].clone());
            let shown = world.sim.run_process(async { session.items().await.expect("it can be read") });
            return world.check(&shown.completed().expect("nothing crashes any more"));
        }
    }
    panic!("the runs have not ended after {MAX_PROCESSES} processes");
}

#[test]
fn runs_on_one_session_keep_their_items_and_views() {
    check_seeds(&SeedList::from_zero(200), simulate);
}
