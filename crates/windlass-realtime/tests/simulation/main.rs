//! Sessions under whatever a seed decides: what is said, what tools and guardrails do and how long they take, what
//! gets lost, late or twice on the way, what the application does, which agents fail to come, who decides where, when the
//! process crashes in the middle of what it writes, and when the session is closed.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod cast;
mod checks;
mod journal;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::Store;
use windlass::core::{Decision, HoldReason, OutputContent, Reach, Role};
use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::settings::{LiveSettings, SilenceDetection, TurnDetection};
use windlass_realtime::testing::{Fault, Loopback, Moment, tone};
use windlass_realtime::{Answer, Ended, LiveEvent, LiveEvents, LiveSession, Part, Realtime, ToolMode};
use windlass_sim::{Life, Seeds, Sim, SimStore, World, check};

use cast::{agents, server, shaky};
use checks::{Watched, check_events, check_report, check_wire};
use journal::SimJournal;

const SENT: [&str; 9] = [
    "response.created",
    "response.done",
    "response.output_audio.delta",
    "response.output_item.done",
    "session.updated",
    "conversation.item.added",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "response.output_audio_transcript.delta",
];
const RECEIVED: [&str; 5] = [
    "response.create",
    "conversation.item.create",
    "session.update",
    "response.cancel",
    "conversation.item.truncate",
];

/// More lives than a session has here.
const LIVES: u64 = 4;

#[test]
fn whatever_happens_sessions_are_whole_and_end() {
    check(&Seeds::first(24), |seed| drop(lives(seed)));
}

#[test]
fn a_seed_decides_everything() {
    for seed in [3, 17, 42] {
        assert_eq!(lives(seed), lives(seed), "seed {seed}");
    }
}

/// What outlives a crash.
#[derive(Clone)]
struct Kept {
    sim: Sim,
    world: World,
    calls: Arc<AtomicU64>,
    server: Loopback,
    journal: SimJournal,
    store: Arc<SimStore>,
}

/// A session from its beginning to its end, through as many crashes as come. Gives what watchers were told in its last
/// life.
fn lives(seed: u64) -> Vec<String> {
    let sim = Sim::new(seed);
    let calls = Arc::new(AtomicU64::new(0));
    let kept = Kept {
        server: server(&sim, &calls),
        world: World::new(),
        journal: SimJournal::new(&sim),
        store: Arc::new(SimStore::new(&sim)),
        calls,
        sim: sim.clone(),
    };
    for life in 1..=LIVES {
        // The last life is one that nothing cuts short.
        let crashes = life < LIVES && sim.chance(50);
        kept.journal.crash_at(crashes.then(|| sim.draw(|rng| rng.below(30))));
        if let Life::Ended(told) = sim.live(one_life(kept.clone())) {
            return told;
        }
        kept.check_world();
    }
    panic!("a session crashed in a life that nothing cuts short");
}

impl Kept {
    fn realtime(&self) -> Realtime {
        let mode = if self.sim.chance(25) { ToolMode::InLine } else { ToolMode::Background };
        let turns = TurnDetection::Silence(SilenceDetection::default());
        Realtime::new(agents(&self.sim, &self.world), self.server.model())
            .session_id("talk")
            .settings(LiveSettings { turns, ..LiveSettings::default() })
            .agents([Agent::new("left"), Agent::new("right")])
            .store(self.store.clone())
            .journal(self.journal.clone())
            .tools(mode)
            .debounce(20)
    }

    /// Begins, or goes on. Faults of the life before may keep it from that a few times.
    async fn enter(&self) -> LiveSession {
        for _ in 0..50 {
            let entered = match self.journal.is_empty() {
                true => self.realtime().connect().await,
                false => self.realtime().resume().await,
            };
            match entered {
                Ok(session) => return session,
                Err(error) => drop(error),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("the session cannot be entered");
    }

    /// No tool ran twice.
    fn check_world(&self) {
        for call in 0..self.calls.load(Ordering::Relaxed) {
            let call = format!("call_{call}");
            let times = self.world.by_call(call.as_str());
            assert!(times <= 1, "call `{call}` ran {times} times");
        }
    }
}

async fn one_life(kept: Kept) -> Vec<String> {
    let sim = &kept.sim;
    let session = kept.enter().await;
    let watchers: Vec<_> = (0..3).map(|_| tokio::spawn(watch(session.events()))).collect();
    let is_lossy = use_it(&kept, &session).await;
    let began = tokio::time::Instant::now();
    let report = match sim.chance(50) {
        true => session.close().await,
        false => {
            let (one, other) = tokio::join!(session.close(), session.leave());
            assert!(Arc::ptr_eq(&one, &other), "there is one end");
            one
        }
    };
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?} to end", began.elapsed());
    let mut told = Vec::new();
    for (number, watcher) in watchers.into_iter().enumerate() {
        let seen = watcher.await.expect("a watcher ends");
        check_events(&seen, if number == 0 { Watched::FromTheBeginning } else { Watched::Later });
        told = seen.iter().map(|event| format!("{event:?}")).collect();
    }
    kept.check_world();
    check_report(&report);
    if !is_lossy && sim.life() == 1 {
        check_wire(&kept.server);
    }
    drop(session);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
    told
}

/// What the application and the world do to a session.
async fn use_it(kept: &Kept, session: &LiveSession) -> bool {
    let Kept { sim, server, .. } = kept;
    let mut lossy = false;
    let steps = 4 + sim.draw(|rng| rng.below(16));
    for step in 0..steps {
        sim.dawdle(Duration::from_secs(2)).await;
        if sim.chance(35) {
            let (fault, is_lossy) = fault(sim);
            lossy |= is_lossy;
            server.fault(fault);
        }
        if sim.chance(5) {
            server.refuse_connections(sim.draw(|rng| rng.below(3)));
            server.hang_up();
        }
        let done = match sim.draw(|rng| rng.below(10)) {
            0 | 1 => session.say(format!("step {step}")).await.map(drop),
            2 => speak(sim, session).await,
            3 => session.interrupt().await,
            4 => session.respond().await,
            5 | 6 => decide(sim, session).await,
            7 => decide_elsewhere(kept, session).await,
            8 => {
                let parts = vec![Part::text("by the way")];
                session.message(Role::User, parts, Answer::NotYet).await.map(drop)
            }
            _ => {
                let agent = match sim.draw(|rng| rng.below(3)) {
                    0 => Agent::new("left"),
                    1 => Agent::new("right"),
                    _ => shaky(sim),
                };
                let session = session.clone();
                // Nobody waits for it: it may come about while other things do.
                tokio::spawn(async move { session.update_agent(agent).await.map(drop) });
                Ok(())
            }
        };
        if done.is_err() {
            return lossy;
        }
    }
    sim.dawdle(Duration::from_secs(20)).await;
    lossy
}

async fn speak(sim: &Sim, session: &LiveSession) -> Result<(), Ended> {
    let mut speech = tone(100 + sim.draw(|rng| rng.below(500)));
    speech.extend(vec![0; 24 * 600]);
    for piece in speech.chunks(2400) {
        session.hear(AudioFormat::Pcm24k.encode(piece))?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// What somebody says to a question. A call in doubt is not run again here: it may have happened.
fn answer(sim: &Sim, reason: &HoldReason) -> Decision {
    let is_yes = sim.chance(60);
    match (reason, is_yes) {
        (HoldReason::InDoubt, true) => {
            Decision::Happened { output: OutputContent::Text("it did".to_owned()) }
        }
        (HoldReason::InDoubt, false) => Decision::Unknown,
        (_, true) => Decision::Approve,
        (_, false) => Decision::Reject { message: None },
    }
}

async fn decide(sim: &Sim, session: &LiveSession) -> Result<(), Ended> {
    for pending in session.pending().await? {
        let decision = answer(sim, &pending.reason);
        let reach = if sim.chance(10) { Reach::Always } else { Reach::Call };
        // Somebody may have decided elsewhere just now.
        let _ = session.decide(pending.path.clone(), decision, reach, None).await?;
    }
    Ok(())
}

/// Another process decides, in the store.
async fn decide_elsewhere(kept: &Kept, session: &LiveSession) -> Result<(), Ended> {
    for pending in session.pending().await? {
        let decision = answer(&kept.sim, &pending.reason);
        for run in kept.store.runs().await.unwrap_or_default() {
            let path = pending.path.clone();
            let posted =
                windlass::store::decide(&*kept.store, &run.run, path, decision.clone(), Reach::Call, "ada");
            // It waits in one of them, if it has come to rest there.
            let _ = posted.await;
        }
    }
    Ok(())
}

/// A fault, and whether it hides from one side what the other side takes to be under way.
fn fault(sim: &Sim) -> (Fault, bool) {
    let sending = Moment::sending(sim.draw(|rng| *rng.pick(&SENT)));
    let receiving = Moment::receiving(sim.draw(|rng| *rng.pick(&RECEIVED)));
    let moment = if sim.chance(60) { sending } else { receiving };
    let late = Duration::from_millis(sim.draw(|rng| rng.below(1500)));
    let hides = [
        Moment::sending("response.created"),
        Moment::sending("response.done"),
        Moment::receiving("response.cancel"),
    ];
    let is_hidden = hides.contains(&moment);
    match sim.draw(|rng| rng.below(9)) {
        0 => (Fault::drop_event(moment), is_hidden),
        1 => (Fault::repeat(moment), false),
        2 | 3 => (Fault::delay(moment, late), is_hidden),
        4 => (Fault::insert(moment, json!({ "type": "moon.rising" })), false),
        5 => (Fault::vanish(moment), false),
        6 => (Fault::close(moment, 1011), false),
        7 => (Fault::refuse("session.update", "invalid_value"), false),
        _ => (Fault::refuse("conversation.item.create", "server_error"), false),
    }
}

async fn watch(mut events: LiveEvents) -> Vec<LiveEvent> {
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    seen
}
