//! Budgets of a session: reserved before each response, shared with the agents inside calls, and kept over a resume.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::budget::{BudgetResource, BudgetScope, ReachedBudget, SpendingBudget};
use windlass::core::decision::{Decision, DecisionScope, HoldReason};
use windlass::core::id::RunId;
use windlass::prelude::*;
use windlass::price::PriceList;
use windlass::store::{MemoryStore, load_paused, post_decision};
use windlass_realtime::audio::AudioFormat;
use windlass_realtime::testing::{LoopbackReply, LoopbackServer, tone};
use windlass_realtime::{
    CloseReason, MemoryJournal, RealtimeEntry, RealtimeEvent, RealtimeEvents, RealtimeJournal,
    RealtimeSessionBuilder, SessionStartError,
};

use crate::support::{counting_tool, events_until, loopback_server, run_count, start_session, turn_events};

fn guide_agent() -> Agent {
    Agent::new("guide")
}

fn replies(count: usize) -> LoopbackServer {
    loopback_server((0..count).map(|_| LoopbackReply::message("Yes.")))
}

fn realtime(agent: Agent, server: &LoopbackServer, budget: SpendingBudget) -> RealtimeSessionBuilder {
    RealtimeSessionBuilder::new(agent, server.client_model()).session_id("talk").budget(budget)
}

fn request_count(server: &LoopbackServer) -> usize {
    server.client_events(Some("response.create")).len()
}

fn reached_of(reason: &CloseReason) -> ReachedBudget {
    let CloseReason::BudgetReached(reached) = reason else { panic!("{reason:?}") };
    reached.clone()
}

/// Waits for the question about the budget, and returns its run.
async fn held_question(events: &mut RealtimeEvents) -> (RunId, windlass::core::decision::PendingCall) {
    let seen = events_until(events, |event| matches!(event, RealtimeEvent::CallHeld { .. })).await;
    let Some(RealtimeEvent::CallHeld { run, pending }) = seen.last() else { panic!("{seen:?}") };
    (run.clone(), (**pending).clone())
}

#[tokio::test(start_paused = true)]
async fn no_response_is_requested_beyond_the_limit() {
    let server = replies(3);
    let (session, mut events) =
        start_session(realtime(guide_agent(), &server, SpendingBudget::new().requests(2))).await;
    for _ in 0..2 {
        session.send_text("Go on?").await.expect("is there");
        turn_events(&mut events).await;
    }
    session.send_text("And?").await.expect("is there");
    let report = session.wait_closed().await;
    let reached = ReachedBudget {
        scope: BudgetScope::Session,
        resource: BudgetResource::Requests,
        limit: 2,
        spent: 2,
        unpriced_requests: 0,
    };
    assert_eq!(reached_of(&report.reason), reached);
    assert_eq!(request_count(&server), 2);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_finishes_keeps_room_for_a_last_answer_without_tools() {
    let runs = Arc::default();
    let server = loopback_server([
        LoopbackReply::call("a", "count", "{}"),
        LoopbackReply::message("Counted."),
        // The model does not obey.
        LoopbackReply::call("b", "count", "{}").and_message("Goodbye."),
    ]);
    let agent = guide_agent().tool(counting_tool("count", &runs));
    let (session, mut events) =
        start_session(realtime(agent, &server, SpendingBudget::new().requests(3).finish())).await;
    session.send_text("Count.").await.expect("is there");
    turn_events(&mut events).await;
    turn_events(&mut events).await;
    session.send_text("Again.").await.expect("is there");
    let last = turn_events(&mut events).await;
    assert!(last.iter().any(|event| matches!(event, RealtimeEvent::BudgetReached { .. })), "{last:?}");
    assert_eq!(reached_of(&session.wait_closed().await.reason).limit, 3);
    let requests = server.client_events(Some("response.create"));
    let choices: Vec<_> = requests.iter().map(|one| one["response"]["tool_choice"] == "none").collect();
    assert_eq!(choices, [false, false, true]);
    assert_eq!(run_count(&runs), 1, "the last answer makes no calls");
}

#[tokio::test(start_paused = true)]
async fn a_person_grants_more_or_ends_the_session() {
    let server = replies(3);
    let budget = SpendingBudget::new().requests(1).ask_person();
    let (session, mut events) = start_session(realtime(guide_agent(), &server, budget)).await;
    session.send_text("One?").await.expect("is there");
    turn_events(&mut events).await;
    session.send_text("Two?").await.expect("is there");
    let (_, pending) = held_question(&mut events).await;
    let HoldReason::Question(question) = &pending.reason else { panic!("{pending:?}") };
    assert_eq!(
        question.text,
        "the budget of the session is reached: 1 of 1 requests. How many more requests may be spent? 0 ends the session."
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(request_count(&server), 1, "nothing is requested while a person is asked");
    let answer = |amount: u64| Decision::Answer { value: amount.into() };
    let by = || Some("ana".to_owned());
    session.decide(pending.path, answer(1), DecisionScope::ThisCall, by()).await.expect("is accepted");
    turn_events(&mut events).await;
    assert_eq!(request_count(&server), 2);
    session.send_text("Three?").await.expect("is there");
    let (_, pending) = held_question(&mut events).await;
    session.decide(pending.path, answer(0), DecisionScope::ThisCall, by()).await.expect("is accepted");
    let reached = reached_of(&session.wait_closed().await.reason);
    assert_eq!((reached.limit, reached.spent, request_count(&server)), (2, 2, 2));
}

/// The question is a run in the store: an approver sees it there, and a resumed session finds the answer.
#[tokio::test(start_paused = true)]
async fn another_process_answers_the_question_after_the_session_was_left() {
    let (store, journal) = (Arc::new(MemoryStore::default()), MemoryJournal::default());
    let budget = || SpendingBudget::new().requests(1).ask_person();
    let build = |server: &LoopbackServer| {
        realtime(guide_agent(), server, budget()).store(store.clone()).journal(journal.clone())
    };
    let first = replies(2);
    let (session, mut events) = start_session(build(&first)).await;
    session.send_text("One?").await.expect("is there");
    turn_events(&mut events).await;
    session.send_text("Two?").await.expect("is there");
    let (run, _) = held_question(&mut events).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    session.detach().await;
    let paused = load_paused(&*store, &run).await.expect("is stored");
    let path = paused.pending_calls()[0].path.clone();
    let answer = Decision::Answer { value: 2.into() };
    post_decision(&*store, &run, path, answer, DecisionScope::ThisCall, "ben").await.expect("is posted");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let second = replies(2);
    let session = build(&second).resume().await.expect("resumes");
    let mut events = session.events();
    turn_events(&mut events).await;
    assert_eq!(request_count(&second), 1);
    session.close().await;
    let granted = journal.load(&"talk".into()).await.expect("is there");
    let amounts: Vec<u64> = granted
        .iter()
        .filter_map(|entry| match entry {
            RealtimeEntry::BudgetGranted { amount, .. } => Some(*amount),
            _ => None,
        })
        .collect();
    assert_eq!(amounts, [2]);
}

/// The process dies between the reservation and the end of the response: nobody knows what it cost, so it counts.
#[tokio::test(start_paused = true)]
async fn a_response_that_was_under_way_when_the_process_died_counts() {
    let journal = MemoryJournal::default();
    let build = |server: &LoopbackServer, limit: u64| {
        realtime(guide_agent(), server, SpendingBudget::new().requests(limit)).journal(journal.clone())
    };
    let first = loopback_server([LoopbackReply::stalled()]);
    let (session, mut events) = start_session(build(&first, 1)).await;
    session.send_text("One?").await.expect("is there");
    events_until(&mut events, |event| matches!(event, RealtimeEvent::TurnStarted { .. })).await;
    let written = journal.load(&"talk".into()).await.expect("is there");
    // A process that is killed writes nothing more.
    let left_behind = MemoryJournal::default();
    left_behind.append(&"talk".into(), 0, written.clone()).await.expect("is kept");
    let is_reserved = |entry: &RealtimeEntry| matches!(entry, RealtimeEntry::BudgetReserved { .. });
    assert_eq!(written.iter().filter(|entry| is_reserved(entry)).count(), 1);
    drop(session);
    let resume = |server: &LoopbackServer, limit: u64| {
        realtime(guide_agent(), server, SpendingBudget::new().requests(limit)).journal(left_behind.clone())
    };
    let second = replies(1);
    let refused = resume(&second, 1).resume().await.err();
    let Some(SessionStartError::BudgetReached(reached)) = refused else { panic!("{refused:?}") };
    assert_eq!((reached.spent, request_count(&second)), (1, 0));
    let third = replies(1);
    let session = resume(&third, 2).resume().await.expect("resumes with a larger budget");
    turn_events(&mut session.events()).await;
    assert_eq!(request_count(&third), 1);
}

#[tokio::test(start_paused = true)]
async fn money_and_tokens_are_limited() {
    let prices = r#"{ "as_of": "2026-11-01", "source": "test", "currency": "USD",
        "models": [{ "model": "loopback", "input": 1000.0, "output": 100000.0 }] }"#;
    let prices = PriceList::parse(prices).expect("a price list");
    // Each response has 10 tokens of output: a unit of money, and a little for its input.
    for (budget, resource) in [
        (SpendingBudget::new().cost(2.5), BudgetResource::Cost),
        (SpendingBudget::new().tokens(25), BudgetResource::Tokens),
    ] {
        let server = replies(4);
        let build = realtime(guide_agent(), &server, budget).prices(prices.clone());
        let (session, mut events) = start_session(build).await;
        session.send_text("One?").await.expect("is there");
        let turn = turn_events(&mut events).await;
        let Some(RealtimeEvent::TurnEnded { usage: Some(usage), .. }) = turn.last() else {
            panic!("{turn:?}")
        };
        assert!(usage.total.cost_nanos >= 1_000_000_000 && usage.total.priced_requests == 1, "{usage:?}");
        session.send_text("Two?").await.expect("is there");
        turn_events(&mut events).await;
        session.send_text("Three?").await.expect("is there");
        assert_eq!(reached_of(&session.wait_closed().await.reason).resource, resource);
        assert_eq!(request_count(&server), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_without_a_price_reaches_a_limit_on_money() {
    let server = replies(2);
    let build = realtime(guide_agent(), &server, SpendingBudget::new().cost(1.0));
    let (session, mut events) = start_session(build).await;
    session.send_text("One?").await.expect("is there");
    turn_events(&mut events).await;
    session.send_text("Two?").await.expect("is there");
    let reached = reached_of(&session.wait_closed().await.reason);
    assert_eq!((reached.unpriced_requests, request_count(&server)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_an_open_session_is_limited_and_kept_over_a_resume() {
    let journal = MemoryJournal::default();
    let build = |server: &LoopbackServer| {
        let budget = SpendingBudget::new().time(Duration::from_secs(60));
        realtime(guide_agent(), server, budget).journal(journal.clone())
    };
    let server = replies(1);
    let (session, mut events) = start_session(build(&server)).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    session.send_text("Still there?").await.expect("is there");
    turn_events(&mut events).await;
    session.detach().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let session = build(&server).resume().await.expect("resumes");
    let began = tokio::time::Instant::now();
    let reached = reached_of(&session.wait_closed().await.reason);
    assert_eq!((reached.resource, reached.limit), (BudgetResource::Time, 60_000));
    let open = began.elapsed();
    assert!(open > Duration::from_secs(15) && open < Duration::from_secs(25), "{open:?}");
}

/// The agents inside calls share the budget of the session.
#[tokio::test(start_paused = true)]
async fn an_agent_inside_a_call_shares_the_budget() {
    let inner_model = ScriptedModel::new([
        ScriptedResponse::call("i1", "count", json!({})),
        ScriptedResponse::text("never asked for"),
    ]);
    let runs = Arc::default();
    let inner = Agent::new("clerk").model(inner_model.clone()).tool(counting_tool("count", &runs));
    let agent = guide_agent().tool(inner.as_tool("ask_clerk", "Asks the clerk."));
    let server = loopback_server([
        LoopbackReply::call("a", "ask_clerk", r#"{"input":"Count."}"#),
        LoopbackReply::message("?"),
    ]);
    let (session, mut events) =
        start_session(realtime(agent, &server, SpendingBudget::new().requests(2))).await;
    session.send_text("Ask the clerk.").await.expect("is there");
    let seen = events_until(&mut events, |event| matches!(event, RealtimeEvent::CallSettled { .. })).await;
    let Some(RealtimeEvent::CallSettled { output, .. }) = seen.last() else { panic!("{seen:?}") };
    assert!(output.text().contains("An error occurred"), "{output:?}");
    let reached = reached_of(&session.wait_closed().await.reason);
    assert_eq!((reached.spent, inner_model.remaining(), run_count(&runs)), (2, 1, 1));
    assert_eq!(request_count(&server), 1);
}

/// The provider would answer speech by itself, before anything is reserved.
#[tokio::test(start_paused = true)]
async fn a_response_to_speech_is_reserved_before_it_is_requested() {
    let server = replies(2);
    let journal = MemoryJournal::default();
    let build = realtime(guide_agent(), &server, SpendingBudget::new().requests(1)).journal(journal.clone());
    let (session, mut events) = start_session(build).await;
    let speak = || {
        let speech: Vec<i16> = tone(600).into_iter().chain(std::iter::repeat_n(0, 24_000)).collect();
        for piece in speech.chunks(2_400) {
            session.send_audio(AudioFormat::Pcm24k.encode(piece)).expect("is there");
        }
    };
    speak();
    turn_events(&mut events).await;
    let sent = server.client_events(Some("session.update"));
    let turns = &sent[0]["session"]["audio"]["input"]["turn_detection"];
    assert_eq!((&turns["create_response"], &turns["interrupt_response"]), (&json!(false), &json!(true)));
    assert_eq!(request_count(&server), 1);
    let written = journal.load(&"talk".into()).await.expect("is there");
    assert!(written.iter().any(|entry| matches!(entry, RealtimeEntry::BudgetSpent { .. })), "{written:?}");
    speak();
    assert_eq!(reached_of(&session.wait_closed().await.reason).spent, 1);
    assert_eq!(request_count(&server), 1);
}

/// An agent may have a budget of its own, which another agent does not share.
#[tokio::test(start_paused = true)]
async fn the_budget_of_an_agent_covers_its_responses_only() {
    let server = replies(4);
    let thrifty = Agent::new("thrifty").budget(SpendingBudget::new().requests(1));
    let (session, mut events) =
        start_session(RealtimeSessionBuilder::new(thrifty.clone(), server.client_model())).await;
    session.send_text("One?").await.expect("is there");
    turn_events(&mut events).await;
    session.update_agent(guide_agent()).await.expect("becomes current");
    for _ in 0..2 {
        session.send_text("More?").await.expect("is there");
        turn_events(&mut events).await;
    }
    session.update_agent(thrifty).await.expect("becomes current");
    session.send_text("Last?").await.expect("is there");
    let reached = reached_of(&session.wait_closed().await.reason);
    assert_eq!(reached.scope, BudgetScope::Agent("thrifty".into()));
    assert_eq!(request_count(&server), 3);
}
