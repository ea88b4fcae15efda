//! Deterministic simulation of sessions. A seed determines the conversation, the results and delays of tools
//! and guardrails, lost, late and duplicate events, acknowledgements that never come, floods, half-closes, errors without ids, ids that restart, loops,
//! muted speech, the application's requests, agents that cannot be resolved, the place of decisions, crashes during journal
//! appends, and the close.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod cast;
mod checks;
mod journal;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use windlass::core::{
    decision::{Decision, DecisionScope, HoldReason},
    item::{OutputContent, Role},
};
use windlass::prelude::*;
use windlass::store::Store;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::model::{ResponseOptions, ResponseScope};
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{FaultTrigger, LoopbackServer, WireFault, tone};
use windlass_realtime::{
    RealtimeContentPart, RealtimeEvent, RealtimeEvents, RealtimeJournal, RealtimeSession,
    RealtimeSessionBuilder, RespondWhen, SessionClosed, SessionRequestError, ToolCallMode,
};
use windlass_sim::{ProcessExit, SeedList, Sim, SimStore, SimWorld, check_seeds};

use cast::{flaky_agent, named_agent, random_agents, random_server};
use checks::{
    WatchStart, check_call_rounds, check_configuration, check_connections, check_events, check_report,
    check_requests, check_wire,
};
use journal::SimJournal;

const SERVER_EVENTS: [&str; 9] = [
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
const CLIENT_EVENTS: [&str; 5] = [
    "response.create",
    "conversation.item.create",
    "session.update",
    "response.cancel",
    "conversation.item.truncate",
];

/// Maximum number of responses with calls without an input of the user.
const MAX_CALL_ROUNDS: u32 = 12;

/// Maximum number of processes that a session goes through.
const MAX_LIVES: u64 = 4;

#[test]
fn whatever_happens_sessions_are_whole_and_end() {
    let seeds = SeedList::from_zero(24).with_regressions(include_str!("../../seeds.txt"));
    check_seeds(&seeds, |seed| drop(run_lives(seed)));
}

#[test]
fn a_seed_decides_everything() {
    for seed in [3, 17, 42] {
        assert_eq!(run_lives(seed), run_lives(seed), "seed {seed}");
    }
}

/// The state that survives a crash.
#[derive(Clone)]
struct CrashSurvivors {
    sim: Sim,
    world: SimWorld,
    calls: Arc<AtomicU64>,
    server: LoopbackServer,
    journal: SimJournal,
    store: Arc<SimStore>,
    /// True once a fault has hidden an active response from one side, in any life.
    is_lossy: Arc<AtomicBool>,
    /// Number of inputs and requests of the application, in all lives.
    inputs: Arc<AtomicU64>,
}

/// Runs a session from start to end, through all its crashes. Returns the events of its last process.
fn run_lives(seed: u64) -> Vec<String> {
    let sim = Sim::new(seed);
    let calls = Arc::new(AtomicU64::new(0));
    let kept = CrashSurvivors {
        server: random_server(&sim, &calls),
        world: SimWorld::new(),
        journal: SimJournal::new(&sim),
        store: Arc::new(SimStore::new(&sim)),
        is_lossy: Arc::default(),
        inputs: Arc::default(),
        calls,
        sim: sim.clone(),
    };
    for life in 1..=MAX_LIVES {
        // The last process does not crash.
        let crashes = life < MAX_LIVES && sim.chance(50);
        kept.journal.crash_at_append(crashes.then(|| sim.draw(|rng| rng.below(30))));
        if let ProcessExit::Completed(told) = sim.run_process(run_life(kept.clone())) {
            return told;
        }
        kept.check_effects();
    }
    panic!("a session crashed in a life that nothing cuts short");
}

impl CrashSurvivors {
    fn session_builder(&self) -> RealtimeSessionBuilder {
        let mode = if self.sim.chance(25) { ToolCallMode::Blocking } else { ToolCallMode::Background };
        let turns = TurnDetection::ServerVad(ServerVad::default());
        RealtimeSessionBuilder::new(random_agents(&self.sim, &self.world), self.server.client_model())
            .session_id("talk")
            .settings(RealtimeSettings { turn_detection: turns, ..RealtimeSettings::default() })
            .known_agents([named_agent("left"), named_agent("right")])
            .max_call_rounds(MAX_CALL_ROUNDS)
            .store(self.store.clone())
            .journal(self.journal.clone())
            .tool_call_mode(mode)
            .guardrail_debounce(20)
    }

    /// Starts or resumes the session. Faults left over from the previous process may make this fail a few
    /// times.
    async fn start_session(&self) -> RealtimeSession {
        for attempt in 0..50 {
            if attempt == 10 {
                // The server acknowledges again.
                self.server.clear_faults();
            }
            let entered = match self.journal.is_empty() {
                true => self.session_builder().connect().await,
                false => self.session_builder().resume().await,
            };
            match entered {
                Ok(session) => return session,
                Err(error) => drop(error),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("the session cannot be entered");
    }

    /// Checks that no tool ran twice.
    fn check_effects(&self) {
        for call in 0..self.calls.load(Ordering::Relaxed) {
            let call = format!("call_{call}");
            let times = self.world.count_by_call(call.as_str());
            assert!(times <= 1, "call `{call}` ran {times} times");
        }
    }
}

async fn run_life(kept: CrashSurvivors) -> Vec<String> {
    let sim = &kept.sim;
    let session = kept.start_session().await;
    let (entered, connected) = (tokio::time::Instant::now(), kept.server.connection_count());
    let watchers: Vec<_> = (0..3).map(|_| tokio::spawn(collect_events(session.events()))).collect();
    drive_session(&kept, &session).await;
    let began = tokio::time::Instant::now();
    let report = match sim.chance(50) {
        true => session.close().await,
        false => {
            let (one, other) = tokio::join!(session.close(), session.detach());
            assert!(Arc::ptr_eq(&one, &other), "there is one end");
            one
        }
    };
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?} to end", began.elapsed());
    let mut told = Vec::new();
    for (number, watcher) in watchers.into_iter().enumerate() {
        let seen = watcher.await.expect("a watcher ends");
        check_events(&seen, if number == 0 { WatchStart::FromStart } else { WatchStart::AfterStart });
        told = seen.iter().map(|event| format!("{event:?}")).collect();
    }
    kept.check_effects();
    let entries = kept.journal.load(&"talk".into()).await.expect("the journal can be read");
    check_report(&report, &entries);
    check_connections(&kept.server, connected, entered.elapsed());
    check_wire(&kept.server);
    check_configuration(&kept.server, &report, kept.is_lossy.load(Ordering::Relaxed));
    let inputs = kept.inputs.load(Ordering::Relaxed);
    check_requests(&kept.server, inputs);
    check_call_rounds(&entries, inputs + MAX_LIVES, u64::from(MAX_CALL_ROUNDS));
    drop(session);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
    told
}

/// Drives a session as the application and the environment would.
async fn drive_session(kept: &CrashSurvivors, session: &RealtimeSession) {
    let CrashSurvivors { sim, server, .. } = kept;
    let steps = 4 + sim.draw(|rng| rng.below(16));
    for step in 0..steps {
        sim.random_delay(Duration::from_secs(2)).await;
        if sim.chance(35) {
            let (fault, is_lossy) = random_fault(sim);
            kept.is_lossy.fetch_or(is_lossy, Ordering::Relaxed);
            server.inject_fault(fault);
        }
        if sim.chance(5) {
            server.refuse_connections(sim.draw(|rng| rng.below(3)));
            server.drop_connections();
        }
        kept.inputs.fetch_add(1, Ordering::Relaxed);
        let done = match sim.draw(|rng| rng.below(11)) {
            0 | 1 => session.send_text(format!("step {step}")).await.map(drop),
            2 => send_speech(sim, session).await,
            3 => session.interrupt().await,
            4 => session.request_response().await,
            5 | 6 => decide_in_session(sim, session).await,
            7 => decide_in_store(kept, session).await,
            8 => {
                let options =
                    ResponseOptions { scope: ResponseScope::OutOfBand, ..ResponseOptions::default() };
                match session.request_response_with(options).await {
                    Err(SessionRequestError::Closed(closed)) => Err(closed),
                    _ => Ok(()),
                }
            }
            9 => {
                let parts = vec![RealtimeContentPart::text("by the way")];
                session.send_message(Role::User, parts, RespondWhen::Later).await.map(drop)
            }
            _ => {
                let agent = match sim.draw(|rng| rng.below(3)) {
                    0 => named_agent("left"),
                    1 => named_agent("right"),
                    _ => flaky_agent(sim),
                };
                let session = session.clone();
                // Not awaited, so that the change can overlap with other requests.
                tokio::spawn(async move { session.update_agent(agent).await });
                Ok(())
            }
        };
        if done.is_err() {
            return;
        }
    }
    sim.random_delay(Duration::from_secs(20)).await;
}

async fn send_speech(sim: &Sim, session: &RealtimeSession) -> Result<(), SessionClosed> {
    let mut speech = tone(100 + sim.draw(|rng| rng.below(500)));
    // Without silence, the user is muted in the middle of a word.
    let is_muted = sim.chance(20);
    if !is_muted {
        speech.extend(vec![0; 24 * 600]);
    }
    for piece in speech.chunks(2400) {
        session.send_audio(AudioFormat::Pcm24k.encode(piece))?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if is_muted && sim.chance(50) {
        session.clear_audio().await?;
    }
    Ok(())
}

/// Returns a random decision. A call in doubt is not executed again: it may have happened.
fn random_decision(sim: &Sim, reason: &HoldReason) -> Decision {
    let is_yes = sim.chance(60);
    match (reason, is_yes) {
        (HoldReason::InDoubt, true) => {
            Decision::ConfirmExecuted { output: OutputContent::Text("it did".to_owned()) }
        }
        (HoldReason::InDoubt, false) => Decision::OutcomeUnknown,
        (_, true) => Decision::Approve,
        (_, false) => Decision::Reject { message: None },
    }
}

async fn decide_in_session(sim: &Sim, session: &RealtimeSession) -> Result<(), SessionClosed> {
    for pending in session.pending_calls().await? {
        let decision = random_decision(sim, &pending.reason);
        let reach = if sim.chance(10) { DecisionScope::ToolForRun } else { DecisionScope::ThisCall };
        match session.decide(pending.path.clone(), decision, reach, None).await {
            // Another process may have decided just now, or the store has failed.
            Ok(())
            | Err(SessionRequestError::Decision(_) | SessionRequestError::DecisionNotStored { .. }) => {}
            Err(SessionRequestError::Closed(closed)) => return Err(closed),
            Err(other) => panic!("{other}"),
        }
    }
    Ok(())
}

/// Decides in the store, as another process would.
async fn decide_in_store(kept: &CrashSurvivors, session: &RealtimeSession) -> Result<(), SessionClosed> {
    for pending in session.pending_calls().await? {
        let decision = random_decision(&kept.sim, &pending.reason);
        for run in kept.store.list_runs(&windlass::store::RunQuery::default()).await.unwrap_or_default() {
            let path = pending.path.clone();
            let posted = windlass::store::post_decision(
                &*kept.store,
                &run.run,
                path,
                decision.clone(),
                DecisionScope::ThisCall,
                "ada",
            );
            // The call waits in one of the runs, if that run is paused.
            let _ = posted.await;
        }
    }
    Ok(())
}

/// Returns a random fault, and true if it hides an active response from one side.
fn random_fault(sim: &Sim) -> (WireFault, bool) {
    let sending = FaultTrigger::on_send(sim.draw(|rng| *rng.pick(&SERVER_EVENTS)));
    let receiving = FaultTrigger::on_receive(sim.draw(|rng| *rng.pick(&CLIENT_EVENTS)));
    let moment = if sim.chance(60) { sending } else { receiving };
    // A fifth of the delays are longer than any timeout of the session.
    let longest = if sim.chance(20) { 40_000 } else { 1500 };
    let late = Duration::from_millis(sim.draw(|rng| rng.below(longest)));
    let hides = [
        FaultTrigger::on_send("response.created"),
        FaultTrigger::on_send("response.done"),
        FaultTrigger::on_receive("response.cancel"),
    ];
    let is_hidden = hides.contains(&moment);
    let anonymous = json!({ "type": "error", "error": {
        "type": "server_error", "code": "server_error", "message": "something went wrong", "param": null,
        "event_id": null,
    } });
    let refused = sim.draw(|rng| *rng.pick(&CLIENT_EVENTS));
    match sim.draw(|rng| rng.below(15)) {
        0 => (WireFault::drop_event(moment), is_hidden),
        1 => (WireFault::duplicate_event(moment), false),
        2 | 3 => (WireFault::delay_event(moment, late), is_hidden),
        4 => (WireFault::insert_event(moment, json!({ "type": "moon.rising" })), false),
        5 => (WireFault::drop_connection(moment), false),
        6 => (WireFault::close_connection(moment, 1011), false),
        7 => (WireFault::reject_event("session.update", "invalid_value"), false),
        8 => (WireFault::flood(moment, json!({ "type": "moon.rising" }), 300), false),
        9 => (WireFault::half_close(moment), false),
        10 => (WireFault::insert_event(moment, anonymous), false),
        11 => (WireFault::reject_anonymously(refused, "invalid_value"), refused == "response.cancel"),
        12 => {
            // A loop: the connection is lost at every request.
            let lost = WireFault::drop_connection(FaultTrigger::on_receive("response.create"));
            (if sim.chance(25) { lost.repeated() } else { lost }, false)
        }
        13 => {
            // Acknowledgements that do not come any more.
            let lost = WireFault::drop_event(FaultTrigger::on_send("session.updated"));
            (if sim.chance(50) { lost.repeated() } else { lost }, false)
        }
        _ => (WireFault::reject_event("conversation.item.create", "server_error"), false),
    }
}

async fn collect_events(mut events: RealtimeEvents) -> Vec<RealtimeEvent> {
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    seen
}
