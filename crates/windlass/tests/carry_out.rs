//! An answer that came from elsewhere is carried out by the same driver as one that was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::agent::SharedReceipts;
use windlass::core::RunId;
use windlass::model::Answer;
use windlass::prelude::*;
use windlass::{Effect, Item, Outcome};

fn counted(name: &str, runs: &Arc<AtomicU32>) -> Tool {
    let runs = runs.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic(name, "Counts.", schema, move |_, _| {
        let runs = runs.clone();
        async move { Ok::<_, ToolError>(format!("run {}", runs.fetch_add(1, Ordering::Relaxed) + 1)) }
    })
}

fn answer(calls: &[(&str, &str)]) -> Answer {
    let items = calls.iter().map(|(id, name)| Arc::new(Item::call(*id, *name, "{}"))).collect();
    Answer { items, ..Answer::default() }
}

fn outputs(outcome: &Outcome) -> Vec<(String, String)> {
    let items = outcome.record().items();
    let output = |item: &Item| match item {
        Item::Output(output) => Some((output.call.to_string(), output.content.text().into_owned())),
        Item::Handoff(handoff) => Some((handoff.call.to_string(), handoff.text())),
        _ => None,
    };
    items.iter().filter_map(|produced| output(&produced.item)).collect()
}

fn said(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(call, text)| ((*call).to_owned(), (*text).to_owned())).collect()
}

#[tokio::test]
async fn calls_are_carried_out_once_and_receipts_are_shared() {
    let runs = Arc::new(AtomicU32::new(0));
    let agent = Agent::new("desk").tools(counted("look", &runs).effect(Effect::Idempotent));
    let resolved = agent.resolve_with(&RunId::from("talk"), (), &[]).await.expect("resolves");
    let receipts = SharedReceipts::default();
    for call in ["a", "b"] {
        let outcome =
            resolved.carry_out(Vec::new(), answer(&[(call, "look")]), &receipts).await.expect("ends");
        assert!(matches!(outcome, Outcome::Finished(_)));
        assert_eq!(outputs(&outcome), said(&[(call, "run 1")]));
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_call_that_waits_for_a_person_is_gone_on_with() {
    let runs = Arc::new(AtomicU32::new(0));
    let agent = Agent::new("desk").tools((counted("free", &runs), counted("gated", &runs).approve_always()));
    let resolved = agent.resolve_with(&RunId::from("talk"), (), &[]).await.expect("resolves");
    let receipts = SharedReceipts::default();
    let both = answer(&[("a", "free"), ("b", "gated")]);
    let outcome = resolved.carry_out(Vec::new(), both, &receipts).await.expect("pauses");
    assert_eq!(outputs(&outcome), said(&[("a", "run 1")]));
    let mut paused = outcome.paused().expect("waits");
    paused.approve("b").expect("is pending");
    let outcome = resolved.go_on(paused, &receipts).await.expect("ends");
    assert_eq!(outputs(&outcome), said(&[("a", "run 1"), ("b", "run 2")]));
}

#[tokio::test]
async fn tools_are_asked_for_once_and_a_handoff_ends_with_the_other_agent() {
    let asked = Arc::new(AtomicU32::new(0));
    let counting = asked.clone();
    let other = Agent::new("other");
    let agent = Agent::new("desk")
        .instructions_from(move |_| {
            let turn = counting.fetch_add(1, Ordering::Relaxed);
            async move { format!("asked {turn}") }
        })
        .handoff(&other);
    let resolved = agent.resolve_with(&RunId::from("talk"), (), &[]).await.expect("resolves");
    assert_eq!(resolved.instructions(), Some("asked 0"));
    let receipts = SharedReceipts::default();
    let passed = resolved.carry_out(Vec::new(), answer(&[("h", "transfer_to_other")]), &receipts);
    let outcome = passed.await.expect("ends");
    assert_eq!(outcome.record().last_agent().as_str(), "other");
    assert_eq!(outputs(&outcome), said(&[("h", "{\"assistant\": \"other\"}")]));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}
