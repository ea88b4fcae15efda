//! Deferred tools: hundreds of tools of which the model is offered those that it has searched for.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::BoxFuture;
use windlass::agent::{Agent, DeferredSource, SEARCH_TOOL};
use windlass::context::ContextPolicy;
use windlass::core::journal::JournalEntry;
use windlass::core::tool::ToolEffect;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::run::RunResult;
use windlass::store::MemoryStore;
use windlass::tool::{SourcedTools, Tool, ToolContext, ToolSource, ToolSourceRequest};

fn tool(name: &str, description: &str) -> Tool {
    let said = format!("{name} done");
    let body = move |_: ToolContext, _: Value| {
        let said = said.clone();
        async move { Ok::<_, String>(said) }
    };
    let schema = json!({ "type": "object", "properties": { "invoice": { "type": "string" } } });
    Tool::dynamic(name, description, schema, body).non_strict().effect(ToolEffect::Pure)
}

/// An agent with one plain tool and 300 deferred ones.
fn agent(model: ScriptedModel) -> Agent {
    let kinds = ["customer", "order", "ticket", "parcel", "shelf"];
    let fillers = (0..298).map(|number| {
        let kind = kinds[number % kinds.len()];
        tool(&format!("get_{kind}_{number}"), &format!("Returns field {number} of a {kind}.")).deferred()
    });
    Agent::new("desk")
        .model(model)
        .tool(tool("greet", "Greets."))
        .tools(fillers.collect::<Vec<_>>())
        .tool(tool("refund_payment", "Pays money back to a customer.").deferred())
        .tool(tool("sendReminder", "Reminds of an unpaid bill by mail.").deferred())
}

fn search(id: &str, query: &str) -> ScriptedResponse {
    ScriptedResponse::call(id, SEARCH_TOOL, json!({ "query": query, "limit": 2 }))
}

#[tokio::test]
async fn the_model_is_offered_what_it_searched_for() {
    let model = ScriptedModel::new([
        search("s1", "refund a payment"),
        ScriptedResponse::call("c1", "refund_payment", json!({})),
        search("s2", "reminder"),
        ScriptedResponse::text("Done."),
    ]);
    let requests = model.clone();
    let RunResult::Finished(done) = agent(model).run("Refund it.").await.expect("it ends") else {
        panic!("it finishes")
    };
    assert_eq!(done.output, "Done.");
    let offered: Vec<Vec<String>> = requests.requests().iter().map(|request| request.tools.clone()).collect();
    assert_eq!(offered[0], ["greet", SEARCH_TOOL], "300 tools cost nothing");
    assert_eq!(offered[1][..3], ["greet", SEARCH_TOOL, "refund_payment"], "the best match comes first");
    assert_eq!(offered[2], offered[1], "what is loaded stays");
    assert_eq!(
        offered[3][..offered[1].len()],
        offered[1][..],
        "new tools follow, so that the prompt's beginning stays"
    );
    assert!(offered[3].contains(&"sendReminder".to_owned()), "{:?}", offered[3]);
    assert!(offered[3].len() <= 6, "{:?}", offered[3]);
}

#[tokio::test]
async fn a_recovered_run_has_the_tools_that_it_had_loaded() {
    let store = Arc::new(MemoryStore::default());
    let gated = |model: ScriptedModel| {
        Agent::new("desk")
            .model(model)
            .tool(tool("refund_payment", "Pays money back.").needs_approval().deferred())
            .tool(tool("get_shelf", "Returns a shelf.").deferred())
    };
    let first = ScriptedModel::new([
        search("s1", "pay back"),
        ScriptedResponse::call("c1", "refund_payment", json!({})),
    ]);
    let paused =
        gated(first).run("Refund it.").run_id("run-1").store(store.clone()).await.expect("it pauses");
    assert!(paused.is_paused());
    drop(paused);
    let second = ScriptedModel::new([ScriptedResponse::text("Done.")]);
    let requests = second.clone();
    windlass::store::post_decision(
        &*store,
        &"run-1".into(),
        "c1",
        windlass::core::decision::Decision::Approve,
        windlass::core::decision::DecisionScope::ThisCall,
        "dee",
    )
    .await
    .expect("posted");
    gated(second).recover("run-1", store).await.expect("it ends").output_text().expect("text");
    assert_eq!(
        requests.requests()[0].tools,
        [SEARCH_TOOL, "refund_payment"],
        "another process, the same tools"
    );
}

/// A server with two tools.
struct Server(SourcedTools<()>);

impl ToolSource<()> for Server {
    fn list_tools<'a>(
        &'a self,
        _: ToolSourceRequest<'a, ()>,
    ) -> BoxFuture<'a, Result<SourcedTools<()>, String>> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}

#[tokio::test]
async fn the_tools_of_a_source_can_be_deferred() {
    let tools = [tool("read_mail", "Reads a mail."), tool("send_mail", "Sends a mail.")].map(Arc::new);
    let source = DeferredSource::new(Server(SourcedTools { tools: Arc::new(tools), warnings: Arc::new([]) }));
    let model = ScriptedModel::new([search("s1", "send_mail"), ScriptedResponse::text("Done.")]);
    let requests = model.clone();
    let agent = Agent::new("desk").model(model).tool(tool("greet", "Greets.").deferred()).tool_source(source);
    agent.run("Send it.").await.expect("it ends");
    let offered: Vec<Vec<String>> = requests.requests().iter().map(|request| request.tools.clone()).collect();
    assert_eq!(offered[0], [SEARCH_TOOL]);
    assert_eq!(offered[1], [SEARCH_TOOL, "send_mail", "read_mail"]);
}

/// A tool whose calls load two others, and one that a search finds.
fn workshop(model: ScriptedModel) -> Agent {
    let failing = |_: ToolContext, arguments: Value| async move {
        if arguments["key"] == "wrong" { Err("The key does not fit.".to_owned()) } else { Ok("Open.") }
    };
    let schema = json!({ "type": "object", "properties": { "key": { "type": "string" } } });
    let open = Tool::dynamic("open_workshop", "Opens the workshop.", schema, failing)
        .non_strict()
        .effect(ToolEffect::Pure)
        .loads(["saw_wood", "drill_hole"]);
    Agent::new("carpenter")
        .model(model)
        .tool(open)
        .tool(tool("saw_wood", "Saws wood.").deferred())
        .tool(tool("drill_hole", "Drills a hole in wood.").needs_approval().deferred())
}

#[tokio::test]
async fn a_successful_call_loads_the_tools_that_it_names() {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "open_workshop", json!({ "key": "wrong" })),
        ScriptedResponse::call("c2", "open_workshop", json!({ "key": "right" })),
        ScriptedResponse::text("Done."),
    ]);
    workshop(model.clone()).run("Saw it.").await.expect("it ends");
    let offered: Vec<Vec<String>> = model.requests().iter().map(|request| request.tools.clone()).collect();
    assert_eq!(offered[0], ["open_workshop"], "what a tool loads is not searched");
    assert_eq!(offered[1], offered[0], "a call that failed loads nothing");
    assert_eq!(offered[2], ["open_workshop", "saw_wood", "drill_hole"]);

    // Other deferred tools are searched, and these are not found by it.
    let model = ScriptedModel::new([search("s1", "wood"), ScriptedResponse::text("Done.")]);
    workshop(model.clone())
        .tool(tool("buy_wood", "Buys wood.").deferred())
        .run("Go.")
        .await
        .expect("it ends");
    assert_eq!(model.requests()[1].tools, ["open_workshop", SEARCH_TOOL, "buy_wood"]);
}

#[tokio::test]
async fn a_recovered_run_and_the_next_of_its_session_have_the_tools_that_a_call_loaded() {
    let store = Arc::new(MemoryStore::default());
    let session = windlass::session::Session::in_memory("s1");
    let first = ScriptedModel::new([
        ScriptedResponse::call("c1", "open_workshop", json!({ "key": "right" })),
        ScriptedResponse::call("c2", "drill_hole", json!({})),
    ]);
    let run = workshop(first).run("Drill it.").run_id("run-1").store(store.clone()).session(&session);
    assert!(run.await.expect("it pauses").is_paused());
    let (approve, once) =
        (windlass::core::decision::Decision::Approve, windlass::core::decision::DecisionScope::ThisCall);
    windlass::store::post_decision(&*store, &"run-1".into(), "c2", approve, once, "dee")
        .await
        .expect("posted");
    let second = ScriptedModel::new([ScriptedResponse::text("Done.")]);
    workshop(second.clone()).recover("run-1", store.clone()).session(&session).await.expect("it ends");
    let third = ScriptedModel::new([ScriptedResponse::text("Sawn.")]);
    workshop(third.clone()).run("Now saw it.").store(store).session(&session).await.expect("it ends");
    for (model, place) in [(second, "another process"), (third, "the next run of the session")] {
        assert_eq!(model.requests()[0].tools, ["open_workshop", "saw_wood", "drill_hole"], "{place}");
    }
}

#[tokio::test]
async fn a_provider_that_searches_gets_the_definitions_instead_of_the_search() {
    let model = ScriptedModel::new([search("s1", "refund"), ScriptedResponse::text("Done.")]);
    let settings = windlass::model::ModelSettings {
        tool_search: Some(windlass::model::ToolSearchPlace::Provider),
        ..Default::default()
    };
    let agent = agent(model.clone()).model_settings(settings);
    agent.run("Refund it.").await.expect("it ends");
    let requests = model.requests();
    assert_eq!(requests[0].tools, ["greet"]);
    assert_eq!(requests[0].deferred_tools.len(), 300);
    // What a call has loaded is offered. It was not offered this one, so a model only calls it from an earlier request.
    assert!(requests[1].tools.contains(&"refund_payment".to_owned()), "{:?}", requests[1].tools);
    assert!(!requests[1].deferred_tools.contains(&"refund_payment".to_owned()));
}

#[tokio::test]
async fn an_agent_without_deferred_tools_has_no_search() {
    let model = ScriptedModel::new([ScriptedResponse::text("Done.")]);
    let requests = model.clone();
    Agent::new("desk").model(model).tool(tool("greet", "Greets.")).run("Hello").await.expect("it ends");
    assert_eq!(requests.requests()[0].tools, ["greet"]);
}

/// A recovered run reads the conversation as it was compacted.
#[tokio::test]
async fn tools_that_an_earlier_run_of_the_session_loaded_survive_a_compaction() {
    let store = Arc::new(MemoryStore::default());
    let session = windlass::session::Session::in_memory("s1");
    let first = ScriptedModel::new([
        ScriptedResponse::call("c1", "open_workshop", json!({ "key": "right" })),
        // Everything before this answer is removed first.
        ScriptedResponse::text("It is open. ".repeat(700)),
    ]);
    workshop(first).run("Open it.").session(&session).await.expect("it ends");
    let policy = || ContextPolicy::with_window(1_500).keep_newest(1);
    let second = ScriptedModel::new([ScriptedResponse::call("c2", "drill_hole", json!({}))]);
    let run = workshop(second).run("Drill it.").run_id("run-2").store(store.clone()).session(&session);
    let paused = run.context_policy(policy()).await.expect("it pauses");
    assert!(paused.is_paused());
    let is_compaction = |entry: &JournalEntry| matches!(entry, JournalEntry::HistoryCompacted(_));
    assert!(paused.record().journal().iter().any(|record| is_compaction(&record.entry)), "it is compacted");
    windlass::store::post_decision(
        &*store,
        &"run-2".into(),
        "c2",
        windlass::core::decision::Decision::Approve,
        windlass::core::decision::DecisionScope::ThisCall,
        "dee",
    )
    .await
    .expect("posted");
    let third = ScriptedModel::new([ScriptedResponse::text("Done.")]);
    let run = workshop(third.clone()).recover("run-2", store).session(&session);
    run.context_policy(policy()).await.expect("it ends");
    assert_eq!(third.requests()[0].tools, ["open_workshop", "saw_wood", "drill_hole"]);
}
