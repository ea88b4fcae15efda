//! Handoffs that are switched off are not taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use windlass::agent::Handoff;
use windlass::core::failure::RunFailure;
use windlass::event::RunEventKind;
use windlass::prelude::*;
use windlass::run::OnUnknownTool;

fn billing(model: &ScriptedModel) -> Agent {
    Agent::new("billing").model(model.clone())
}

fn handing_model(beside: Option<&str>) -> ScriptedModel {
    let handoff = ScriptedResponse::call("h1", "transfer_to_billing", json!({}));
    let reply = match beside {
        Some(tool) => handoff.and_call("c1", tool, json!({})),
        None => handoff,
    };
    ScriptedModel::new([reply, ScriptedResponse::text("I stay.")])
}

#[tokio::test]
async fn a_handoff_that_was_switched_off_while_the_model_thought_is_answered() {
    let (asked, model) = (Arc::new(AtomicUsize::new(0)), handing_model(None));
    let counted = asked.clone();
    let handoff = Handoff::to(billing(&model)).enabled_if_async(move |_| {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move { is_first }
    });
    let result = Agent::new("desk").model(model.clone()).handoff(handoff).run("go").await.expect("it ends");
    assert_eq!(result.record().state().agent().as_str(), "desk");
    let told = model.requests()[1].input_text();
    assert_eq!(
        told.last().map(String::as_str),
        Some("output h1 Tool 'transfer_to_billing' not found. The tools are: none.")
    );
}

/// Creates an agent whose tool switches its handoff off.
fn desk(model: &ScriptedModel) -> (Agent, Arc<AtomicUsize>) {
    let (is_open, handed) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (rule, counted) = (is_open.clone(), handed.clone());
    let handoff =
        Handoff::to(billing(model)).enabled_if(move |_| rule.load(Ordering::SeqCst)).on_handoff(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        });
    let close = Tool::dynamic("close", "Closes.", json!({ "type": "object" }), move |_: ToolContext, _| {
        is_open.store(false, Ordering::SeqCst);
        async { Ok::<_, String>("closed") }
    });
    (Agent::new("desk").model(model.clone()).tool(close).handoff(handoff), handed)
}

#[tokio::test]
async fn a_handoff_that_a_sibling_switched_off_is_not_taken() {
    let model = handing_model(Some("close"));
    let (agent, handed) = desk(&model);
    let session = Session::in_memory("s");
    let mut stream = agent.run("go").session(&session).stream();
    let mut outputs = 0;
    while let Some(event) = stream.next().await {
        let is_output =
            |item: &windlass::core::run::RunItem| item.kind == windlass::core::run::RunItemKind::CallOutput;
        outputs += usize::from(matches!(&event.kind, RunEventKind::Item(item) if is_output(item)));
    }
    let result = stream.result().await.expect("it ends");
    assert_eq!((handed.load(Ordering::SeqCst), outputs), (0, 2), "no callback, and both outputs are shown");
    assert_eq!(result.record().state().agent().as_str(), "desk");
    let told = model.requests()[1].input_text();
    let declined = "output h1 Tool 'transfer_to_billing' not found. The tools are: close.";
    assert_eq!(told[told.len() - 2..], [declined, "output c1 closed"]);
    let stored = session.items().await.expect("memory can be read");
    assert!(windlass::session::repair_transcript(stored).was_valid());
}

#[tokio::test]
async fn where_unknown_tools_fail_the_run_so_does_such_a_handoff() {
    let (agent, handed) = desk(&handing_model(Some("close")));
    let run = agent.run("go").on_unknown_tool(OnUnknownTool::FailRun);
    let error = run.await.expect_err("the handoff is not there");
    assert!(matches!(error.failure(), Some(RunFailure::ModelProtocolError(_))), "{error}");
    assert_eq!(handed.load(Ordering::SeqCst), 0);
}
