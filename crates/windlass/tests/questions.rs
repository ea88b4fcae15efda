//! A tool body asks a person: the call waits, and continues with the answer in any process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use windlass::core::{
    decision::{HoldReason, PersonQuestion},
    journal::JournalRecord,
};
use windlass::hook::Hook;
use windlass::prelude::*;
use windlass::{
    error::DecisionError,
    store::{MemoryStore, Store},
};

fn place_question() -> PersonQuestion {
    PersonQuestion::new("Inside or outside?").with_schema(json!({ "enum": ["inside", "outside"] }))
}

/// Creates a tool that asks for a place and for a name, and counts its bookings.
fn booking_tool(booked: &Arc<AtomicU32>) -> Tool {
    let booked = booked.clone();
    let schema = json!({ "type": "object", "properties": { "guests": { "type": "integer" } } });
    Tool::dynamic("book", "Books a table.", schema, move |ctx: ToolContext, arguments: Value| {
        let booked = booked.clone();
        async move {
            let (place, name) = (place_question(), PersonQuestion::new("In whose name?"));
            let Some(at) = ctx.answer_to(&place).cloned() else { return Err(ToolError::ask_person(place)) };
            let Some(who) = ctx.answer_to(&name).cloned() else { return Err(ToolError::ask_person(name)) };
            booked.fetch_add(1, Ordering::SeqCst);
            Ok(json!({ "guests": arguments["guests"], "at": at, "who": who }))
        }
    })
    .non_strict()
}

fn expect_paused(outcome: RunResult) -> PausedRun {
    match outcome {
        RunResult::Paused(paused) => paused,
        other => panic!("{other:?} does not wait"),
    }
}

fn question_texts(paused: &PausedRun) -> Vec<String> {
    let text = |reason: &HoldReason| match reason {
        HoldReason::Question(question) => question.text.clone(),
        other => format!("{other:?}"),
    };
    paused.pending_calls().iter().map(|pending| text(&pending.reason)).collect()
}

fn booking_script() -> ScriptedModel {
    ScriptedModel::new([
        ScriptedResponse::call("c1", "book", json!({ "guests": 2 })).and_call("c2", "now", json!({})),
        ScriptedResponse::text("Booked."),
    ])
}

fn clock_tool() -> Tool {
    Tool::dynamic("now", "The time.", json!({ "type": "object" }), |_: ToolContext, _: Value| async {
        Ok::<_, String>("noon")
    })
    .non_strict()
}

#[tokio::test]
async fn a_body_asks_twice_and_goes_on_once() {
    let booked = Arc::default();
    let (model, told) = (booking_script(), Arc::new(AtomicU32::new(0)));
    let counted = told.clone();
    let hook = Hook::new(move |moment| {
        let counted = counted.clone();
        let is_start = moment.name() == "call_started";
        async move {
            counted.fetch_add(u32::from(is_start), Ordering::SeqCst);
            Ok(())
        }
    });
    let agent =
        Agent::new("host").model(model.clone()).tools((booking_tool(&booked), clock_tool())).hook(hook);
    let mut waits = expect_paused(agent.run("A table").await.expect("it waits"));
    assert_eq!(question_texts(&waits), ["Inside or outside?"]);
    let wrong = waits.answer_question("c1", "upstairs").expect_err("it does not fit");
    assert!(
        matches!(wrong, DecisionError::NotApplicable(windlass::core::run::ApplyError::InvalidAnswer { .. })),
        "{wrong}"
    );
    let wrong = waits.approve("c1").expect_err("it asks something else");
    assert!(wrong.to_string().contains("for an answer to its question"), "{wrong}");

    // Each answer is given in another process.
    let mut waits = PausedRun::from_text(&waits.to_text()).expect("it opens");
    waits.answer_question("c1", "outside").expect("it fits");
    let waits = expect_paused(agent.resume(waits).await.expect("it waits again"));
    assert_eq!(question_texts(&waits), ["In whose name?"]);
    let mut waits = PausedRun::from_text(&waits.to_text()).expect("it opens");
    waits.answer_question("c1", "Bea").expect("any answer fits");
    let outcome = agent.resume(waits).await.expect("it ends");

    assert_eq!(
        (outcome.output_text().expect("the run finished"), booked.load(Ordering::SeqCst)),
        ("Booked.", 1)
    );
    assert_eq!(told.load(Ordering::SeqCst), 2, "each call is told to have started once");
    let input = model.requests()[1].input_text();
    assert_eq!(input[3..], [r#"output c1 {"at":"outside","guests":2,"who":"Bea"}"#, "output c2 noon"]);
}

#[tokio::test]
async fn a_question_can_be_declined() {
    let booked = Arc::default();
    let model = booking_script();
    let agent = Agent::new("host").model(model.clone()).tools((booking_tool(&booked), clock_tool()));
    let mut waits = expect_paused(agent.run("A table").await.expect("it waits"));
    waits.reject_because("c1", "never mind").expect("it waits");
    agent.resume(waits).await.expect("it ends");
    assert_eq!(booked.load(Ordering::SeqCst), 0);
    assert_eq!(model.requests()[1].input_text()[3], "output c1 never mind");
}

#[tokio::test]
async fn an_answer_is_posted_from_elsewhere() {
    let booked = Arc::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let agent = Agent::new("host").model(booking_script()).tools((booking_tool(&booked), clock_tool()));
    let waits = agent.run("A table").run_id("r").store(store.clone()).await.expect("it waits");
    drop(waits);
    for answer in ["inside", "Cem"] {
        use windlass::core::decision::{Decision, DecisionScope};
        let decision = Decision::Answer { value: answer.into() };
        let run = "r".into();
        windlass::store::post_decision(&*store, &run, "c1", decision, DecisionScope::ThisCall, "bea")
            .await
            .expect("it is posted");
        drop(agent.recover("r", store.clone()).await.expect("it goes on"));
    }
    assert_eq!(booked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_cancelled_question_has_an_output_and_is_not_in_doubt() {
    let booked = Arc::default();
    let agent = Agent::new("host").model(booking_script()).tools((booking_tool(&booked), clock_tool()));
    let waits = expect_paused(agent.run("A table").await.expect("it waits"));
    let run = agent.resume(waits);
    run.cancel_handle().cancel();
    let RunResult::Cancelled(cancelled) = run.await.expect("it settles") else { panic!("it was cancelled") };
    assert!(cancelled.settlement.in_doubt.is_empty(), "{:?}", cancelled.settlement);
    let records: &[JournalRecord] = cancelled.record.journal();
    windlass::core::run::Run::replay(records).expect("it adds up");
}
