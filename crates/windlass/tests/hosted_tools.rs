//! Hosted tools, which the provider runs, and its approval requests before it calls an MCP server.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use windlass::core::{
    item::{CallKind, Item, OpaqueItem, ToolCall},
    tool::ToolKey,
};
use windlass::error::{ConfigError, RunError};
use windlass::model::{
    DeltaSink, Model, ModelError, ModelRequest, ModelResponse, ModelSettings, ToolChoice, ToolKind,
};
use windlass::prelude::*;
use windlass::tool::{HostedCallVerdict, HostedMcpServer};

/// Returns a provider's approval request for a tool of an MCP server.
fn approval_request(id: &str, server: &str, tool: &str, arguments: Value) -> Item {
    Item::Call(ToolCall {
        id: id.into(),
        name: tool.to_owned(),
        namespace: Some(server.to_owned()),
        arguments: arguments.to_string(),
        item_id: None,
        kind: CallKind::HostedMcp,
        provider_data: None,
    })
}

fn files_server() -> HostedMcpServer {
    HostedMcpServer::from_url("files", "https://files.example/mcp")
}

fn files_agent(model: &ScriptedModel, files: HostedMcpServer) -> Agent {
    Agent::new("clerk").model(model.clone()).tool(files)
}

fn expect_paused(outcome: RunResult) -> PausedRun {
    match outcome {
        RunResult::Paused(paused) => paused,
        other => panic!("{other:?} does not wait"),
    }
}

#[tokio::test]
async fn a_question_of_the_provider_is_answered_by_a_person() {
    let write = approval_request("r1", "files", "write", json!({ "path": "/a" }));
    let read = approval_request("r2", "files", "read", json!({ "path": "/b" }));
    let model = ScriptedModel::new([ScriptedResponse::items([write, read]), ScriptedResponse::text("Done.")]);
    let agent = files_agent(&model, files_server());
    let waits = expect_paused(agent.run("go").await.expect("it waits"));
    let keys: Vec<_> = waits.pending_calls().iter().map(|pending| pending.tool.to_string()).collect();
    assert_eq!(keys, ["mcp:files/write", "mcp:files/read"]);

    // Another process decides, from the saved text.
    let mut waits = PausedRun::from_text(&waits.to_text()).expect("it opens");
    waits.approve("r1").expect("it waits");
    waits.reject_because("r2", "not that one").expect("it waits");
    let outcome = agent.resume(waits).await.expect("it ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "Done.");
    let told = model.requests()[1].input_text();
    assert_eq!(told[3..], ["output r1 approved", "output r2 not that one"]);
}

#[tokio::test]
async fn an_approval_for_good_covers_one_tool_of_the_server() {
    let turn = |id: &str, tool: &str| {
        ScriptedResponse::items([approval_request(id, "files", tool, json!({ "path": "/a" }))])
    };
    let model = ScriptedModel::new([
        turn("r1", "write"),
        turn("r2", "write"),
        turn("r3", "delete"),
        ScriptedResponse::text("Done."),
    ]);
    let agent = files_agent(&model, files_server());
    let mut waits = expect_paused(agent.run("go").await.expect("it waits"));
    waits.approve_always("r1").expect("it waits");
    let waits = expect_paused(agent.resume(waits).await.expect("it waits again"));
    let pending = waits.pending_calls();
    assert_eq!(pending.len(), 1);
    assert_eq!(
        pending[0].tool,
        ToolKey::Mcp { server: "files".into(), name: "delete".into(), definition: None }
    );
}

#[tokio::test]
async fn a_function_decides_in_a_persons_place() {
    let call = |id: &str, path: &str| approval_request(id, "files", "write", json!({ "path": path }));
    let model = ScriptedModel::new([
        ScriptedResponse::items([call("r1", "/scratch/a"), call("r2", "/etc/x"), call("r3", "/home/b")]),
        ScriptedResponse::text("Done."),
    ]);
    let files = files_server().on_approval_request(|_, tool, arguments| match arguments["path"].as_str() {
        Some(path) if tool == "write" && path.starts_with("/scratch/") => HostedCallVerdict::Approve,
        Some(path) if path.starts_with("/etc/") => HostedCallVerdict::Reject("that is not yours".to_owned()),
        _ => HostedCallVerdict::AskPerson,
    });
    let agent = files_agent(&model, files);
    let mut waits = expect_paused(agent.run("go").await.expect("it waits"));
    assert_eq!(waits.pending_calls().len(), 1, "only the third is for a person");
    waits.approve("r3").expect("it waits");
    agent.resume(waits).await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert_eq!(told[4..], ["output r1 approved", "output r2 that is not yours", "output r3 approved"]);
}

/// The provider requests approval for a tool outside the allow list.
#[tokio::test]
async fn a_tool_that_is_not_on_the_list_is_refused_without_asking() {
    let calls = [
        approval_request("r1", "files", "delete", json!({ "path": "/a" })),
        approval_request("r2", "files", "read", json!({ "path": "/a" })),
    ];
    let model = ScriptedModel::new([ScriptedResponse::items(calls), ScriptedResponse::text("Done.")]);
    let agent = files_agent(&model, files_server().allowed_tools(["read", "write"]));
    let mut waits = expect_paused(agent.run("go").await.expect("it waits"));
    assert_eq!(waits.pending_calls().iter().map(|one| one.call().as_str()).collect::<Vec<_>>(), ["r2"]);
    waits.approve("r2").expect("it waits");
    agent.resume(waits).await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert_eq!(told[3..], ["output r1 This tool of the server may not be used.", "output r2 approved"]);
}

/// The application decides who may do what; a check that fails approves nothing.
#[tokio::test]
async fn permissions_are_looked_up_and_a_check_that_fails_approves_nothing() {
    let call = |id: &str, tool: &str| approval_request(id, "files", tool, json!({ "path": "/a" }));
    let model = ScriptedModel::new([
        ScriptedResponse::items([call("r1", "read"), call("r2", "write"), call("r3", "odd")]),
        ScriptedResponse::text("Done."),
    ]);
    let files: HostedMcpServer<Vec<String>> = HostedMcpServer::from_url("files", "https://files.example/mcp")
        .on_approval_request(|ctx: &ToolContext<Vec<String>>, tool, _| match tool {
            "odd" => panic!("nobody thought of this one"),
            tool if ctx.iter().any(|permitted| permitted == tool) => HostedCallVerdict::Approve,
            _ => HostedCallVerdict::Reject("you may not".to_owned()),
        });
    let agent = Agent::new("clerk").model(model.clone()).tool(files);
    let permitted = vec!["read".to_owned()];
    let mut waits = expect_paused(agent.run_with_context("go", permitted.clone()).await.expect("it waits"));
    assert_eq!(waits.pending_calls().iter().map(|one| one.call().as_str()).collect::<Vec<_>>(), ["r3"]);
    // The person decides in place of the check, which is not asked again.
    waits.approve("r3").expect("it waits");
    agent.resume_with_context(waits, permitted).await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert_eq!(told[4..], ["output r1 approved", "output r2 you may not", "output r3 approved"]);
}

/// The function that decides asks a service, once per request, and a person's decision is not overruled.
#[tokio::test]
async fn a_decision_is_asked_once_and_a_persons_word_stands() {
    let call = |id: &str, path: &str| approval_request(id, "files", "write", json!({ "path": path }));
    let model = ScriptedModel::new([
        ScriptedResponse::items([call("r1", "ok"), call("r2", "no"), call("r3", "ask")]),
        ScriptedResponse::text("Done."),
    ]);
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    let files = files_server().on_approval_request_async(move |ctx, _, arguments| {
        let path = arguments["path"].as_str().unwrap_or_default().to_owned();
        let times = {
            let mut log = log.lock().expect("nobody panics with it");
            log.push(ctx.call_id().to_owned());
            log.iter().filter(|call| *call == ctx.call_id()).count()
        };
        async move {
            tokio::task::yield_now().await;
            match (path.as_str(), times) {
                ("ok", 1) => HostedCallVerdict::Approve,
                ("ask", 1) => HostedCallVerdict::AskPerson,
                _ => HostedCallVerdict::Reject("not that one".to_owned()),
            }
        }
    });
    let agent = files_agent(&model, files);
    let mut waits = expect_paused(agent.run("go").await.expect("it waits"));
    assert_eq!(waits.pending_calls().len(), 1);
    waits.approve("r3").expect("it waits");
    agent.resume(waits).await.expect("it ends");
    assert_eq!(*asked.lock().expect("nobody panics with it"), ["r1", "r2", "r3"]);
    let told = model.requests()[1].input_text();
    assert_eq!(told[4..], ["output r1 approved", "output r2 not that one", "output r3 approved"]);
}

#[tokio::test]
async fn a_server_that_the_agent_does_not_have_is_not_approved() {
    let model = ScriptedModel::new([
        ScriptedResponse::items([approval_request("r1", "elsewhere", "write", json!({}))]),
        ScriptedResponse::text("I cannot."),
    ]);
    files_agent(&model, files_server()).run("go").await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert!(told[2].starts_with("output r1 Tool 'write' not found."), "{}", told[2]);
}

#[tokio::test]
async fn what_the_provider_did_is_seen_and_the_model_goes_on() {
    let searched = Item::HostedTool(OpaqueItem::new(
        "web_search_call",
        json!({ "type": "web_search_call", "id": "ws_1", "status": "completed" }),
    ));
    let said = Item::assistant("It rains in Oslo.");
    let model = ScriptedModel::new([ScriptedResponse::items([searched.clone(), said])]);
    let agent = Agent::new("guide").model(model).tool(Tool::hosted(json!({ "type": "web_search" })));
    let outcome = agent.run("Weather?").await.expect("it ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "It rains in Oslo.");
    assert!(outcome.record().state().items().iter().any(|produced| *produced.item == searched));
}

/// A model whose provider runs no hosted tools.
struct PlainModel;

impl Model for PlainModel {
    async fn respond<'a>(
        &'a self,
        _: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        Err(ModelError::new("it was asked"))
    }
}

#[tokio::test]
async fn a_provider_that_lacks_a_tool_is_known_before_anything_happens() {
    let search = || -> Tool { Tool::hosted(json!({ "type": "web_search" })) };
    let alone = Agent::new("guide").model(PlainModel).tool(search());
    let nested =
        Agent::new("host").model(PlainModel).tool(alone.clone().as_tool("ask_guide", "Asks the guide."));
    let behind = Agent::new("door").model(PlainModel).handoff(alone.clone());
    for agent in [alone, nested, behind] {
        let error = agent.run("Weather?").await.expect_err("it cannot be offered");
        let RunError::Config(ConfigError::UnsupportedTool { agent, tool, .. }) = &error else {
            panic!("{error} is another error");
        };
        assert_eq!((agent.as_str(), tool.as_str()), ("guide", "web_search"));
    }
}

#[tokio::test]
async fn a_hosted_tool_is_offered_as_the_provider_has_it() {
    let definition = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
    let tool: Tool = Tool::hosted(definition.clone());
    let offer = tool.to_definition().expect("it can be offered");
    assert_eq!(offer.kind, ToolKind::Hosted(definition.into()));
}

#[tokio::test]
async fn the_use_of_a_hosted_tool_lifts_a_forced_tool_choice() {
    let hosted = |kind: &str| Item::HostedTool(OpaqueItem::new(kind, json!({ "type": kind })));
    let model = ScriptedModel::new([
        ScriptedResponse::items([hosted("mcp_list_tools")]),
        ScriptedResponse::items([hosted("web_search_call")]),
        ScriptedResponse::text("Done."),
    ]);
    let settings = ModelSettings { tool_choice: Some(ToolChoice::Required), ..ModelSettings::default() };
    let search: Tool = Tool::hosted(json!({ "type": "web_search" }));
    let agent = Agent::new("clerk").model(model.clone()).model_settings(settings).tool(search);
    assert_eq!(agent.run("go").await.expect("it ends").output_text(), Ok("Done."));
    let choices: Vec<_> =
        model.requests().iter().map(|request| request.settings.tool_choice.clone()).collect();
    assert_eq!(
        choices[..2],
        [Some(ToolChoice::Required), Some(ToolChoice::Required)],
        "no tool was used yet"
    );
    assert_ne!(choices[2], Some(ToolChoice::Required), "a forced choice would never end the run");
}
