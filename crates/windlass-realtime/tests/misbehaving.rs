//! Sessions with servers that misbehave as a seed decides. Whatever the server does: each call gets one output, one
//! response is active at a time, every response has the configuration of the agent that it is attributed to, requests
//! and connections are bounded, and the session ends.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use windlass::prelude::*;
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::model::{ResponseOptions, ResponseScope};
use windlass_realtime::settings::{RealtimeSettings, ServerVad, TurnDetection};
use windlass_realtime::testing::{
    LoopbackReply, LoopbackServer, Misbehaviour, WireRecord, WireSender, count_unacknowledged_connections,
    find_wire_violations, tone,
};
use windlass_realtime::{
    CloseReason, CloseReport, RealtimeEvent, RealtimeItemKind, RealtimeSession, RealtimeSessionBuilder,
    ReconnectPolicy, SessionStartError,
};
use windlass_sim::Sim;

/// Number of seeds in an ordinary run; `WINDLASS_SEEDS` sets another.
const SEEDS: u64 = 40;

/// Number of steps of a conversation.
const STEPS: u64 = 10;

/// A server whose messages begin with the instructions that it has, so that the configuration of each response shows.
/// Each second response makes a call; call ids restart in each response.
fn echoing_server(misbehaviour: &Misbehaviour) -> LoopbackServer {
    let count = AtomicU64::new(0);
    let server = LoopbackServer::with_reply_function(move |said| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let instructions = said.session["instructions"].as_str().unwrap_or_default();
        let reply = LoopbackReply::message(format!("{instructions} Answer {number}."));
        match number % 4 {
            0 => reply.and_call("call_1", "look", "{}"),
            2 => reply.and_call("call_1", "slow", "{}").and_call("call_2", "transfer_to_other", "{}"),
            _ => reply,
        }
    });
    misbehaviour.apply_to(server)
}

fn agents(runs: &Arc<AtomicU64>) -> Agent {
    let tool = |name: &'static str, takes: u64| {
        let runs = runs.clone();
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        Tool::dynamic(name, "Looks.", schema, move |_, _| {
            let runs = runs.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(takes)).await;
                runs.fetch_add(1, Ordering::Relaxed);
                Ok::<_, ToolError>("done")
            }
        })
    };
    let other = Agent::new("other").instructions("I am other.").tools((tool("look", 0), tool("slow", 900)));
    Agent::new("guide")
        .instructions("I am guide.")
        .tools((tool("look", 0), tool("slow", 900)))
        .handoff(&other)
}

async fn send_tone(session: &RealtimeSession, silence_ms: usize) {
    let mut speech = tone(300);
    speech.extend(vec![0; 24 * silence_ms]);
    for chunk in speech.chunks(2400) {
        let _ = session.send_audio(AudioFormat::Pcm24k.encode(chunk));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Holds a conversation that the seed determines.
async fn converse(sim: &Sim, session: &RealtimeSession, runs: &Arc<AtomicU64>) {
    for step in 0..STEPS {
        let done = match sim.draw(|rng| rng.below(12)) {
            // Whole speech.
            0 | 1 => {
                send_tone(session, 700).await;
                Ok(())
            }
            // Speech that is muted or cleared in the middle of a word.
            2 => {
                send_tone(session, 0).await;
                session.send_text(format!("muted {step}")).await.map(drop).map_err(|_| ())
            }
            3 => {
                send_tone(session, 0).await;
                session.clear_audio().await.map_err(|_| ())
            }
            4 | 5 => {
                let agent = match sim.draw(|rng| rng.below(3)) {
                    0 => Agent::new("third").instructions("I am third."),
                    1 => Agent::new("fourth").instructions("I am fourth."),
                    _ => agents(runs),
                };
                session.update_agent(agent).await.map_err(|_| ())
            }
            6 => session.interrupt().await.map_err(|_| ()),
            7 => {
                let options =
                    ResponseOptions { scope: ResponseScope::OutOfBand, ..ResponseOptions::default() };
                let _ = session.request_response_with(options).await;
                Ok(())
            }
            _ => session.send_text(format!("step {step}")).await.map(drop).map_err(|_| ()),
        };
        if done.is_err() && session.is_closed() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(sim.draw(|rng| rng.below(4000)))).await;
    }
    tokio::time::sleep(Duration::from_secs(180)).await;
}

/// Checks that each call has exactly one output, unless the session ended with calls in progress.
fn check_outputs(report: &CloseReport) {
    let mut outputs: BTreeMap<String, u32> = BTreeMap::new();
    let mut calls = BTreeSet::new();
    for item in report.history.items() {
        match &item.kind {
            RealtimeItemKind::Call { call, .. } => {
                assert!(calls.insert(call.to_string()), "two calls with the id `{call}`");
            }
            RealtimeItemKind::Output { call, .. } => *outputs.entry(call.to_string()).or_default() += 1,
            _ => {}
        }
    }
    let stopped: BTreeSet<String> = report
        .stopped
        .iter()
        .chain(&report.in_doubt)
        .chain(&report.draining)
        .map(ToString::to_string)
        .collect();
    let is_whole = matches!(report.reason, CloseReason::Closed);
    for call in &calls {
        let count = outputs.get(call).copied().unwrap_or_default();
        assert!(
            count == 1 || (count == 0 && (stopped.contains(call) || !is_whole)),
            "`{call}`: {count} outputs"
        );
    }
    assert!(outputs.keys().all(|call| calls.contains(call)), "an output without a call");
}

/// Checks that the provider has one output for each call on the last connection, if the session did not end before it
/// was closed and the provider refused no item.
fn check_told_outputs(server: &LoopbackServer, misbehaviour: &Misbehaviour, report: &CloseReport) {
    let is_refusal = |fault: &str| fault.contains("Reject") && fault.contains("conversation.item.create");
    let is_refusing = misbehaviour.faults.iter().any(|fault| is_refusal(&format!("{fault:?}")));
    if report.reason != CloseReason::Closed || is_refusing {
        return;
    }
    // A server whose ids restart gives a new call the id of one that was told to it: the sender is part of the key.
    let mut calls: BTreeMap<(WireSender, String), String> = BTreeMap::new();
    let mut missing: BTreeMap<String, i64> = BTreeMap::new();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    // A start may be lost, or late.
    let is_side = |seen: &&WireRecord| {
        seen.connection == server.connection_count()
            && seen.event["response"].get("conversation_id").is_some_and(serde_json::Value::is_null)
    };
    let log = server.wire_log();
    let side: BTreeSet<String> =
        log.iter().filter(is_side).map(|seen| text(&seen.event["response"]["id"])).collect();
    for WireRecord { connection, sender, event, .. } in log {
        if connection != server.connection_count() {
            continue;
        }
        let item = &event["item"];
        match (sender, event["type"].as_str().unwrap_or_default(), item["type"].as_str().unwrap_or_default())
        {
            (WireSender::Server, "response.output_item.done", "function_call")
                if !side.contains(&text(&event["response_id"]))
                    && calls.insert((sender, text(&item["id"])), text(&item["call_id"])).is_none() =>
            {
                *missing.entry(text(&item["call_id"])).or_default() += 1;
            }
            // A call whose own event was lost is known from the end of its response.
            (WireSender::Server, "response.done", _) if !side.contains(&text(&event["response"]["id"])) => {
                for item in event["response"]["output"].as_array().into_iter().flatten() {
                    let is_call = item["type"] == "function_call";
                    if is_call && calls.insert((sender, text(&item["id"])), text(&item["call_id"])).is_none()
                    {
                        *missing.entry(text(&item["call_id"])).or_default() += 1;
                    }
                }
            }
            (WireSender::Server, "conversation.item.deleted", _) => {
                let of = |sender| (sender, text(&event["item_id"]));
                let removed = calls.remove(&of(WireSender::Server));
                if let Some(call) = removed.or_else(|| calls.remove(&of(WireSender::Client))) {
                    *missing.entry(call).or_default() -= 1;
                }
            }
            (WireSender::Client, "conversation.item.create", "function_call")
                if calls.insert((sender, text(&item["id"])), text(&item["call_id"])).is_none() =>
            {
                *missing.entry(text(&item["call_id"])).or_default() += 1;
            }
            (WireSender::Client, "conversation.item.create", "function_call_output") => {
                *missing.entry(text(&item["call_id"])).or_default() -= 1;
            }
            _ => {}
        }
    }
    missing.retain(|_, count| *count != 0);
    assert!(missing.is_empty(), "calls without an output at the provider: {missing:?}");
}

/// Checks that each message has the instructions of the agent that it is attributed to, whoever requested the response.
/// If starts of responses are late, one may arrive after the acknowledgement of a later configuration: then requested
/// responses are checked.
fn check_configuration(server: &LoopbackServer, misbehaviour: &Misbehaviour, report: &CloseReport) {
    let log = server.wire_log();
    let mut unrequested = BTreeSet::new();
    let is_start =
        |seen: &&WireRecord| seen.sender == WireSender::Server && seen.event["type"] == "response.created";
    for seen in log.iter().filter(is_start) {
        let response = &seen.event["response"];
        if response["metadata"].is_null() {
            unrequested.insert(response["id"].as_str().unwrap_or_default().to_owned());
        }
    }
    for item in report.history.items() {
        let (Some(agent), Some(response)) = (&item.agent, &item.response) else { continue };
        let wire_id = response.as_str().split('.').next().unwrap_or_default();
        let is_exempt = misbehaviour.hides_responses && unrequested.contains(wire_id);
        let said = item.text();
        if !is_exempt && said.len() > 20 {
            assert!(said.starts_with(&format!("I am {agent}.")), "`{agent}` said: {said}");
        }
    }
}

fn play(seed: u64) {
    let misbehaviour = Misbehaviour::from_seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let runs = Arc::new(AtomicU64::new(0));
        let server = echoing_server(&misbehaviour);
        let settings = RealtimeSettings {
            turn_detection: TurnDetection::ServerVad(ServerVad::default()),
            ..RealtimeSettings::default()
        };
        let connected = RealtimeSessionBuilder::new(agents(&runs), server.client_model())
            .settings(settings)
            .connect()
            .await;
        let session = match connected {
            Ok(session) => session,
            // The fault was the first configuration's.
            Err(SessionStartError::ConfigurationRejected(_) | SessionStartError::ConnectFailed(_)) => return,
            Err(error) => panic!("{error}"),
        };
        let mut events = session.events();
        converse(&Sim::new(seed), &session, &runs).await;
        let report = session.close().await;
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            seen.push(event);
        }
        assert!(matches!(seen.last(), Some(RealtimeEvent::Closed(_))), "the last event is the end");
        let count = |name: &str| seen.iter().filter(|event| format!("{event:?}").starts_with(name)).count();
        // At most six connections in each minute of the conversation, and three requests for each demand.
        let connections = server.connection_count();
        let limit = u64::from(ReconnectPolicy::default().max_attempts) * 5 + 1;
        assert!(connections <= limit, "{connections} connections");
        let unacknowledged = count_unacknowledged_connections(&server.wire_log());
        let limit = u64::from(ReconnectPolicy::default().max_attempts);
        assert!(unacknowledged <= limit, "{unacknowledged} connections in a row without a configuration");
        let outputs = report.history.items().iter();
        let outputs = outputs.filter(|item| matches!(item.kind, RealtimeItemKind::Output { .. })).count();
        let demands = usize::try_from(STEPS).unwrap_or(usize::MAX)
            + 4 * outputs
            + usize::try_from(connections).unwrap_or(usize::MAX);
        let requests = server.client_events(Some("response.create")).len();
        assert!(requests <= 3 * demands, "{requests} requests for {demands} demands");
        assert!(count("TurnStarted") >= count("TurnEnded"));
        assert_eq!(find_wire_violations(&server.wire_log()), Vec::<String>::new());
        check_outputs(&report);
        check_told_outputs(&server, &misbehaviour, &report);
        check_configuration(&server, &misbehaviour, &report);
        drop(session);
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "tasks are left");
    });
}

#[test]
fn whatever_a_server_does_the_session_keeps_its_rules() {
    let seeds = std::env::var("WINDLASS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let first = std::env::var("WINDLASS_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + seeds {
        let played = std::panic::catch_unwind(|| play(seed));
        assert!(played.is_ok(), "seed {seed}: {:#?}", Misbehaviour::from_seed(seed));
    }
}

#[test]
fn a_seed_decides_the_misbehaviour() {
    assert_eq!(Misbehaviour::from_seed(7), Misbehaviour::from_seed(7));
    let plans: Vec<Misbehaviour> = (0..200).map(Misbehaviour::from_seed).collect();
    assert!(
        plans.iter().any(|plan| plan.has_restarting_ids) && plans.iter().any(|plan| plan.hides_responses)
    );
}
