//! Sessions under whatever a seed decides: what is said, what tools and guardrails do and how long they take, what
//! gets lost, late or twice on the way, what the application does, and when it closes.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::core::{CallId, Decision, Reach, Role};
use windlass::guardrail::{OutputGuardrail, Verdict};
use windlass::prelude::*;
use windlass::{Item, MemoryStore};
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::settings::{LiveSettings, SilenceDetection, TurnDetection};
use windlass_realtime::testing::{Fault, From, Loopback, Moment, Reply, tone};
use windlass_realtime::{
    Answer, CloseReport, LiveEvent, LiveItemKind, LiveSession, MemoryJournal, Part, Realtime, ToolMode,
};
use windlass_sim::{Seeds, Sim, World, check};

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

#[test]
fn whatever_happens_sessions_are_whole_and_end() {
    check(&Seeds::first(24), |seed| {
        Sim::run(seed, live);
    });
}

#[test]
fn a_seed_decides_everything() {
    let told = |seed| Sim::run(seed, live);
    for seed in [3, 17, 42] {
        assert_eq!(told(seed), told(seed), "seed {seed}");
    }
}

/// A session from its beginning to its end. Gives what watchers were told.
async fn live(sim: Sim) -> Vec<String> {
    let (world, calls) = (World::new(), Arc::new(AtomicU64::new(0)));
    let server = server(&sim, &calls);
    let journal = MemoryJournal::default();
    let store = Arc::new(MemoryStore::default());
    let build = || {
        let mode = if sim.chance(25) { ToolMode::InLine } else { ToolMode::Background };
        let turns = TurnDetection::Silence(SilenceDetection::default());
        Realtime::new(agents(&sim, &world), server.model())
            .session_id("talk")
            .settings(LiveSettings { turns, ..LiveSettings::default() })
            .store(store.clone())
            .journal(journal.clone())
            .tools(mode)
            .debounce(20)
    };
    let session = build().connect().await.expect("connects");
    let watchers: Vec<_> = (0..3).map(|_| tokio::spawn(watch(session.events()))).collect();
    let is_lossy = use_it(&sim, &session, &server).await;
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
    for watcher in watchers {
        let seen = watcher.await.expect("a watcher ends");
        check_events(&seen);
        told = seen.iter().map(|event| format!("{event:?}")).collect();
    }
    check_report(&report, &world, calls.load(Ordering::Relaxed));
    if !is_lossy {
        check_wire(&server);
    }
    drop(session);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
    told
}

fn server(sim: &Sim, calls: &Arc<AtomicU64>) -> Loopback {
    let (sim, calls) = (sim.clone(), calls.clone());
    Loopback::thinking(move |_| {
        let mut reply = match sim.draw(|rng| rng.below(4)) {
            0 => Reply::default(),
            length => Reply::say("word ".repeat(usize::try_from(length * length).unwrap_or(1) * 2)),
        };
        for _ in 0..sim.draw(|rng| rng.below(3)) {
            let name = sim.draw(|rng| {
                *rng.pick(&["quick", "slow", "gated", "fails", "transfer_to_back", "transfer_to_front"])
            });
            let id = format!("call_{}", calls.fetch_add(1, Ordering::Relaxed));
            reply = reply.and_call(&id, name, "{}");
        }
        if sim.chance(60) {
            reply = reply.paced(u32::try_from(1 + sim.draw(|rng| rng.below(8))).unwrap_or(1));
        }
        reply.after(Duration::from_millis(sim.draw(|rng| rng.below(400))))
    })
}

fn agents(sim: &Sim, world: &World) -> Agent {
    let tool = |name: &'static str, longest: u64, fails: u64| {
        let (sim, world) = (sim.clone(), world.clone());
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        Tool::dynamic(name, "Does something.", schema, move |ctx, _| {
            let (sim, world) = (sim.clone(), world.clone());
            async move {
                sim.dawdle(Duration::from_millis(longest)).await;
                world.effect(&ctx);
                sim.dawdle(Duration::from_millis(longest)).await;
                match sim.chance(fails) {
                    true => Err(ToolError::tell("no luck")),
                    false => Ok(format!("{name} is done")),
                }
            }
        })
    };
    let guard = {
        let sim = sim.clone();
        OutputGuardrail::new("guard", move |_, _| {
            let sim = sim.clone();
            async move {
                sim.dawdle(Duration::from_millis(600)).await;
                match sim.draw(|rng| rng.below(12)) {
                    0 => Ok(Verdict::Trip),
                    1 => Err("the guardrail fails".into()),
                    _ => Ok(Verdict::Pass),
                }
            }
        })
    };
    let set = |agent: Agent| {
        agent
            .tools((
                tool("quick", 0, 0),
                tool("slow", 3000, 0),
                tool("gated", 500, 0).approve_always(),
                tool("fails", 200, 50),
            ))
            .output_guardrail(guard.clone())
    };
    let back = set(Agent::new("back")).handoff(windlass::agent::Handoff::to_named("front"));
    set(Agent::new("front")).handoff(&back)
}

/// What the application and the world do to a session.
async fn use_it(sim: &Sim, session: &LiveSession, server: &Loopback) -> bool {
    let mut lossy = false;
    let steps = 4 + sim.draw(|rng| rng.below(16));
    for step in 0..steps {
        sim.dawdle(Duration::from_secs(2)).await;
        if sim.chance(35) {
            let (fault, is_lossy) = fault(sim);
            lossy |= is_lossy;
            server.fault(fault);
        }
        let done = match sim.draw(|rng| rng.below(9)) {
            0 | 1 => session.say(format!("step {step}")).await.map(drop),
            2 => speak(sim, session).await,
            3 => session.interrupt().await,
            4 => session.respond().await,
            5 | 6 => decide(sim, session).await,
            7 => {
                let parts = vec![Part::text("by the way")];
                session.message(Role::User, parts, Answer::NotYet).await.map(drop)
            }
            _ => {
                let name = if sim.chance(50) { "left" } else { "right" };
                let session = session.clone();
                // Nobody waits for it: it may come about while other things do.
                tokio::spawn(async move { session.update_agent(Agent::new(name)).await.map(drop) });
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

async fn speak(sim: &Sim, session: &LiveSession) -> Result<(), windlass_realtime::Ended> {
    let mut speech = tone(100 + sim.draw(|rng| rng.below(500)));
    speech.extend(vec![0; 24 * 600]);
    for piece in speech.chunks(2400) {
        session.hear(AudioFormat::Pcm24k.encode(piece))?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn decide(sim: &Sim, session: &LiveSession) -> Result<(), windlass_realtime::Ended> {
    for pending in session.pending().await? {
        let decision = if sim.chance(60) { Decision::Approve } else { Decision::Reject { message: None } };
        let reach = if sim.chance(10) { Reach::Always } else { Reach::Call };
        session
            .decide(pending.path.clone(), decision, reach, None)
            .await?
            .expect("what is pending can be decided");
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
    match sim.draw(|rng| rng.below(8)) {
        0 => (Fault::drop_event(moment), is_hidden),
        1 => (Fault::repeat(moment), false),
        2 | 3 => (Fault::delay(moment, late), is_hidden),
        4 => (Fault::insert(moment, json!({ "type": "moon.rising" })), false),
        5 => (Fault::vanish(moment), false),
        6 => (Fault::close(moment, 1011), false),
        _ => (Fault::refuse("conversation.item.create", "server_error"), false),
    }
}

async fn watch(mut events: windlass_realtime::LiveEvents) -> Vec<LiveEvent> {
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    seen
}

/// One message for a trip, one end for a beginning, and an end after which nothing comes.
fn check_events(events: &[LiveEvent]) {
    assert!(matches!(events.last(), Some(LiveEvent::Closed(_))), "a watcher was not told of the end");
    let (mut begun, mut tripped, mut settled, mut started) =
        (BTreeSet::new(), BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    for event in events {
        match event {
            LiveEvent::TurnStarted { response, .. } => {
                assert!(begun.insert(response.clone()), "an answer began twice");
            }
            LiveEvent::TurnEnded { response, .. } => {
                assert!(begun.contains(response), "an answer ended that had not begun");
            }
            LiveEvent::GuardrailTripped { response, .. } => {
                assert!(tripped.insert(response.clone()), "two messages for one trip");
            }
            LiveEvent::CallStarted { call, .. } => *started.entry(call.clone()).or_insert(0) += 1,
            LiveEvent::CallSettled { call, .. } => *settled.entry(call.clone()).or_insert(0) += 1,
            LiveEvent::Closed(_) => {}
            _ => {}
        }
    }
    for (call, times) in started {
        assert_eq!((times, settled.get(&call)), (1, Some(&1)), "call `{call}` started and ended");
    }
}

/// No tool ran twice, and every call that has an output has one.
fn check_report(report: &CloseReport, world: &World, calls: u64) {
    for call in 0..calls {
        let call = format!("call_{call}");
        assert!(
            world.by_call(call.as_str()) <= 1,
            "call `{call}` ran {} times",
            world.by_call(call.as_str())
        );
    }
    let mut outputs: BTreeMap<CallId, u32> = BTreeMap::new();
    for item in report.history.items() {
        if let LiveItemKind::Output { call, .. } = &item.kind {
            *outputs.entry(call.clone()).or_default() += 1;
        }
    }
    assert!(outputs.values().all(|count| *count == 1), "{outputs:?}");
    let open = report.history.to_items().iter().fold(BTreeSet::new(), |mut open, item| {
        match item {
            Item::Call(call) => drop(open.insert(call.id.clone())),
            Item::Output(output) => assert!(open.remove(&output.call), "an output before its call"),
            _ => {}
        }
        open
    });
    assert!(open.is_empty(), "{open:?}");
}

/// One answer at a time: one is asked for while another is under way only where the server began that by itself.
fn check_wire(server: &Loopback) {
    let mut active: BTreeMap<u64, bool> = BTreeMap::new();
    for seen in server.seen() {
        match (seen.from, seen.event["type"].as_str()) {
            (From::Server, Some("response.created")) => {
                let is_ours = !seen.event["response"]["metadata"].is_null();
                active.insert(seen.connection, is_ours);
            }
            (From::Client, Some("response.create")) if seen.is_answering => {
                let is_ours = active.get(&seen.connection).copied().unwrap_or_default();
                assert!(!is_ours, "an answer was asked for while one that was asked for is under way");
            }
            _ => {}
        }
    }
}
