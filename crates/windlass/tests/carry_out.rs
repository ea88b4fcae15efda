//! A model response from an external source is executed by the same driver as a requested one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::agent::SharedConversation;
use windlass::core::id::RunId;
use windlass::model::ModelResponse;
use windlass::prelude::*;
use windlass::{core::item::Item, core::tool::ToolEffect, run::RunResult};

fn counting_tool(name: &str, runs: &Arc<AtomicU32>) -> Tool {
    let runs = runs.clone();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic(name, "Counts.", schema, move |_, _| {
        let runs = runs.clone();
        async move { Ok::<_, ToolError>(format!("run {}", runs.fetch_add(1, Ordering::Relaxed) + 1)) }
    })
}

fn answer_with_calls(calls: &[(&str, &str)]) -> ModelResponse {
    let items = calls.iter().map(|(id, name)| Arc::new(Item::call(*id, *name, "{}"))).collect();
    ModelResponse { items, ..ModelResponse::default() }
}

fn call_outputs(outcome: &RunResult) -> Vec<(String, String)> {
    let items = outcome.record().run_items();
    let output = |item: &Item| match item {
        Item::Output(output) => Some((output.call.to_string(), output.content.text().into_owned())),
        Item::Handoff(handoff) => Some((handoff.call.to_string(), handoff.output_text())),
        _ => None,
    };
    items.iter().filter_map(|produced| output(&produced.item)).collect()
}

fn owned_pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(call, text)| ((*call).to_owned(), (*text).to_owned())).collect()
}

#[tokio::test]
async fn calls_are_carried_out_once_and_receipts_are_shared() {
    let runs = Arc::new(AtomicU32::new(0));
    let agent = Agent::new("desk").tools(counting_tool("look", &runs).effect(ToolEffect::Idempotent));
    let resolved = agent.resolve_with_context(&RunId::from("talk"), (), &[]).await.expect("resolves");
    let conversation = SharedConversation::default();
    for call in ["a", "b"] {
        let outcome = resolved
            .execute_calls(Vec::new(), answer_with_calls(&[(call, "look")]), &conversation)
            .await
            .expect("ends");
        assert!(matches!(outcome, RunResult::Finished(_)));
        assert_eq!(call_outputs(&outcome), owned_pairs(&[(call, "run 1")]));
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_call_that_waits_for_a_person_is_gone_on_with() {
    let runs = Arc::new(AtomicU32::new(0));
    let agent = Agent::new("desk")
        .tools((counting_tool("free", &runs), counting_tool("gated", &runs).needs_approval()));
    let resolved = agent.resolve_with_context(&RunId::from("talk"), (), &[]).await.expect("resolves");
    let conversation = SharedConversation::default();
    let both = answer_with_calls(&[("a", "free"), ("b", "gated")]);
    let outcome = resolved.execute_calls(Vec::new(), both, &conversation).await.expect("pauses");
    assert_eq!(call_outputs(&outcome), owned_pairs(&[("a", "run 1")]));
    let mut paused = outcome.into_paused().expect("waits");
    paused.approve("b").expect("is pending");
    let outcome = resolved.resume_calls(paused, &conversation).await.expect("ends");
    assert_eq!(call_outputs(&outcome), owned_pairs(&[("a", "run 1"), ("b", "run 2")]));
}

#[tokio::test]
async fn tools_are_asked_for_once_and_a_handoff_ends_with_the_other_agent() {
    let asked = Arc::new(AtomicU32::new(0));
    let counting = asked.clone();
    let other = Agent::new("other");
    let agent = Agent::new("desk")
        .dynamic_instructions(move |_| {
            let turn = counting.fetch_add(1, Ordering::Relaxed);
            async move { format!("asked {turn}") }
        })
        .handoff(&other);
    let resolved = agent.resolve_with_context(&RunId::from("talk"), (), &[]).await.expect("resolves");
    assert_eq!(resolved.instructions(), Some("asked 0"));
    let conversation = SharedConversation::default();
    let passed =
        resolved.execute_calls(Vec::new(), answer_with_calls(&[("h", "transfer_to_other")]), &conversation);
    let outcome = passed.await.expect("ends");
    assert_eq!(outcome.record().last_agent().as_str(), "other");
    assert_eq!(call_outputs(&outcome), owned_pairs(&[("h", "{\"assistant\": \"other\"}")]));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}
