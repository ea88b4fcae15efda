//! Deferred tools: hundreds of tools of which the model is offered those that it has searched for.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::BoxFuture;
use windlass::agent::{Agent, DeferredSource, SEARCH_TOOL};
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

#[tokio::test]
async fn an_agent_without_deferred_tools_has_no_search() {
    let model = ScriptedModel::new([ScriptedResponse::text("Done.")]);
    let requests = model.clone();
    Agent::new("desk").model(model).tool(tool("greet", "Greets.")).run("Hello").await.expect("it ends");
    assert_eq!(requests.requests()[0].tools, ["greet"]);
}
