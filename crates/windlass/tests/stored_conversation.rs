//! Runs that continue a conversation which their provider stores.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::{Arc, Mutex};

use serde_json::json;
use windlass::agent::Handoff;
use windlass::core::{
    item::Item,
    journal::JournalEntry,
    run::{ParsedSegments, Run, RunOutline},
};
use windlass::error::{ConfigError, RunError};
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::prelude::*;
use windlass::session::{MemorySessionStore, Session};
use windlass::store::MemoryStore;

/// The ids that a request names: that of the last response, and that in the settings, which makes an adapter refer to a
/// stored conversation.
type RequestedIds = (Option<String>, Option<String>);

/// A model whose responses have ids, except one without a text or call. It notes the ids of its requests.
#[derive(Clone, Default)]
struct StoringModel {
    responses: Arc<Mutex<Vec<(Option<&'static str>, Item)>>>,
    requested: Arc<Mutex<Vec<RequestedIds>>>,
}

impl StoringModel {
    fn new(responses: impl IntoIterator<Item = (Option<&'static str>, Item)>) -> Self {
        let mut responses: Vec<_> = responses.into_iter().collect();
        responses.reverse();
        Self { responses: Arc::new(Mutex::new(responses)), ..Self::default() }
    }

    fn requested(&self) -> Vec<RequestedIds> {
        self.requested.lock().expect("no panic").clone()
    }
}

impl Model for StoringModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let ids =
            (request.previous_response_id.map(str::to_owned), request.settings.previous_response_id.clone());
        self.requested.lock().expect("no panic").push(ids);
        let (id, item) = self.responses.lock().expect("no panic").pop().expect("a response is left");
        Ok(ModelResponse {
            items: vec![Arc::new(item)],
            response_id: id.map(str::to_owned),
            ..ModelResponse::default()
        })
    }
}

fn look() -> Tool {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Tool::dynamic("look", "Looks.", schema, |_: ToolContext, _| async { Ok::<_, ToolError>("seen") })
}

fn chain(ids: &[&str]) -> Vec<RequestedIds> {
    let given = ids.first().map(|id| (*id).to_owned());
    ids.iter().map(|id| (Some((*id).to_owned()), given.clone())).collect()
}

#[tokio::test]
async fn each_request_continues_the_last_response() {
    let model = StoringModel::new([
        (Some("resp_1"), Item::call("c1", "look", "{}")),
        // A response without an id does not break the chain.
        (None, Item::call("c2", "look", "{}")),
        (Some("resp_3"), Item::call("c3", "look", "{}")),
        (Some("resp_4"), Item::assistant("Done.")),
    ]);
    let agent = Agent::new("desk").model(model.clone()).tool(look());
    let result = agent.run("go").previous_response_id("resp_0").await.expect("it finishes");
    assert_eq!(model.requested(), chain(&["resp_0", "resp_1", "resp_1", "resp_3"]));
    let JournalEntry::RunStarted(started) = &result.record().journal()[0].entry else { panic!("a start") };
    assert_eq!(started.previous_response_id.as_deref(), Some("resp_0"));

    // Without it, a request names the run's own last response only.
    let model = StoringModel::new([
        (Some("resp_1"), Item::call("c1", "look", "{}")),
        (None, Item::assistant("Done.")),
    ]);
    let agent = Agent::new("desk").model(model.clone()).tool(look());
    agent.run("go").await.expect("it finishes");
    assert_eq!(model.requested(), [(None, None), (Some("resp_1".to_owned()), None)]);
}

#[tokio::test]
async fn a_resumed_and_a_recovered_run_continue_the_same_conversation() {
    let responses = || {
        StoringModel::new([
            (None, Item::call("c1", "look", "{}")),
            (Some("resp_2"), Item::assistant("Done.")),
        ])
    };
    let model = responses();
    let agent = Agent::new("desk").model(model.clone()).tool(look().needs_approval());
    let result = agent.run("go").previous_response_id("resp_0").await.expect("it pauses");
    let RunResult::Paused(paused) = result else { panic!("it pauses") };
    let mut restored = PausedRun::from_text(&paused.to_text()).expect("it is a saved run");
    restored.approve("c1").expect("it waits");
    agent.resume(restored).await.expect("it finishes");
    assert_eq!(model.requested(), chain(&["resp_0", "resp_0"]));

    let (model, store) = (responses(), Arc::new(MemoryStore::default()));
    let agent = Agent::new("desk").model(model.clone()).tool(look().needs_approval());
    let run = agent.run("go").run_id("r").previous_response_id("resp_0").store(store.clone());
    assert!(run.await.expect("it pauses").is_paused());
    let by = "ann";
    windlass::store::post_decision(
        &*store,
        &"r".into(),
        "c1",
        windlass::core::decision::Decision::Approve,
        windlass::core::decision::DecisionScope::ThisCall,
        by,
    )
    .await
    .expect("it waits");
    agent.recover("r", store).await.expect("it finishes");
    assert_eq!(model.requested(), chain(&["resp_0", "resp_0"]));
}

#[tokio::test]
async fn a_snapshot_has_the_conversation() {
    let model = StoringModel::new([
        (Some("resp_1"), Item::call("c1", "look", "{}")),
        (None, Item::assistant("Done.")),
    ]);
    let agent = Agent::new("desk").model(model).tool(look());
    let result = agent.run("go").previous_response_id("resp_0").await.expect("it finishes");
    let records = result.record().journal();
    let between = Run::replay(&records[..records.len() - 2]).expect("it replays");
    let snapshot = between.to_snapshot(None).expect("it is between two turns");
    let parsed = ParsedSegments::parse(&snapshot.position, &[snapshot.segment]).expect("they can be read");
    let past = parsed.resolve(Vec::new()).expect("the segment is whole");
    let restored = RunOutline::parse(&snapshot.head).and_then(|outline| outline.complete(past));
    let restored = restored.expect("it can be restored");
    assert_eq!(restored, between);
    assert_eq!(restored.run.previous_response_id(), Some("resp_0"));
}

#[tokio::test]
async fn a_filtered_handoff_begins_another_conversation() {
    let model = StoringModel::new([
        (Some("resp_1"), Item::call("c1", "transfer_to_clerk", "{}")),
        (Some("resp_2"), Item::call("c2", "look", "{}")),
        (Some("resp_3"), Item::assistant("Done.")),
    ]);
    let clerk = Agent::new("clerk").model(model.clone()).tool(look());
    let handoff = Handoff::to(&clerk).filter_history(|items| items.into_iter().take(1).collect());
    let agent = Agent::new("desk").model(model.clone()).handoff(handoff);
    agent.run("go").previous_response_id("resp_0").await.expect("it finishes");
    let given = || Some("resp_0".to_owned());
    // What the provider stores is not what the new agent sees, so its first request has everything.
    let expected = [(given(), given()), (None, None), (Some("resp_2".to_owned()), given())];
    assert_eq!(model.requested(), expected);
}

#[tokio::test]
async fn a_nested_agent_begins_its_own_conversation() {
    let inner = StoringModel::new([(Some("resp_n"), Item::assistant("Seen."))]);
    let outer = StoringModel::new([
        (Some("resp_1"), Item::call("c1", "ask", "{\"input\":\"look\"}")),
        (Some("resp_2"), Item::assistant("Done.")),
    ]);
    let helper = Agent::new("helper").model(inner.clone());
    let agent = Agent::new("desk").model(outer.clone()).tool(helper.as_tool("ask", "Asks."));
    agent.run("go").previous_response_id("resp_0").await.expect("it finishes");
    assert_eq!(inner.requested(), [(None, None)]);
    assert_eq!(outer.requested(), chain(&["resp_0", "resp_1"]));
}

#[tokio::test]
async fn a_stored_conversation_excludes_a_session_and_output_guardrails() {
    let model = StoringModel::default();
    let agent = Agent::new("desk").model(model.clone());
    let session = Session::new("ann", Arc::new(MemorySessionStore::default()));
    let refused = agent.run("go").previous_response_id("resp_0").session(&session).await;
    assert!(is_refused(&refused, "a session"), "{refused:?}");
    let guardrail = || OutputGuardrail::new("never", |_, _| async { Ok(GuardrailVerdict::Pass) });
    let refused = agent.run("go").previous_response_id("resp_0").output_guardrail(guardrail()).await;
    assert!(is_refused(&refused, "output guardrails"), "{refused:?}");
    let guarded = agent.output_guardrail(guardrail());
    let refused = guarded.run("go").previous_response_id("resp_0").await;
    assert!(is_refused(&refused, "output guardrails"), "{refused:?}");
    assert_eq!(model.requested(), [], "nothing was requested");
}

fn is_refused(result: &Result<RunResult, RunError>, part: &str) -> bool {
    matches!(result, Err(RunError::Config(ConfigError::StoredConversation { other })) if *other == part)
}
