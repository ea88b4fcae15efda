//! Tools that the provider runs, and its questions before it calls an MCP server.

use serde_json::Value;
use windlass::core::{Call, CallKind, Carried, Item, ToolKey};
use windlass::model::{Answer, Deltas, Model, ModelError, ModelRequest, OfferedKind};
use windlass::prelude::*;
use windlass::tool::{HostedMcp, HostedVerdict};
use windlass::{ConfigError, RunError};

/// What a provider asks before it calls a tool of a server.
fn asks(id: &str, server: &str, tool: &str, arguments: Value) -> Item {
    Item::Call(Call {
        id: id.into(),
        name: tool.to_owned(),
        namespace: Some(server.to_owned()),
        arguments: arguments.to_string(),
        item_id: None,
        kind: CallKind::HostedMcp,
    })
}

fn files() -> HostedMcp {
    HostedMcp::at("files", "https://files.example/mcp")
}

fn agent(model: &ScriptedModel, files: HostedMcp) -> Agent {
    Agent::new("clerk").model(model.clone()).tool(files)
}

fn paused(outcome: Outcome) -> Paused {
    match outcome {
        Outcome::Paused(paused) => paused,
        other => panic!("{other:?} does not wait"),
    }
}

#[tokio::test]
async fn a_question_of_the_provider_is_answered_by_a_person() {
    let write = asks("r1", "files", "write", json!({ "path": "/a" }));
    let read = asks("r2", "files", "read", json!({ "path": "/b" }));
    let model = ScriptedModel::new([Reply::items([write, read]), Reply::text("Done.")]);
    let agent = agent(&model, files());
    let waits = paused(agent.run("go").await.expect("it waits"));
    let keys: Vec<_> = waits.pending().iter().map(|pending| pending.tool.to_string()).collect();
    assert_eq!(keys, ["mcp:files/write", "mcp:files/read"]);

    // Decided by another process, from what was written.
    let mut waits = Paused::from_text(&waits.to_text()).expect("it opens");
    waits.approve("r1").expect("it waits");
    waits.reject_because("r2", "not that one").expect("it waits");
    let outcome = agent.resume(waits).await.expect("it ends");
    assert_eq!(outcome.text(), "Done.");
    let told = model.requests()[1].input_text();
    assert_eq!(told[3..], ["output r1 approved", "output r2 not that one"]);
}

#[tokio::test]
async fn an_approval_for_good_covers_one_tool_of_the_server() {
    let turn = |id: &str, tool: &str| Reply::items([asks(id, "files", tool, json!({ "path": "/a" }))]);
    let model = ScriptedModel::new([
        turn("r1", "write"),
        turn("r2", "write"),
        turn("r3", "delete"),
        Reply::text("Done."),
    ]);
    let agent = agent(&model, files());
    let mut waits = paused(agent.run("go").await.expect("it waits"));
    waits.approve_always("r1").expect("it waits");
    let waits = paused(agent.resume(waits).await.expect("it waits again"));
    let pending = waits.pending();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].tool, ToolKey::Mcp { server: "files".into(), name: "delete".into() });
}

#[tokio::test]
async fn a_function_decides_in_a_persons_place() {
    let call = |id: &str, path: &str| asks(id, "files", "write", json!({ "path": path }));
    let model = ScriptedModel::new([
        Reply::items([call("r1", "/scratch/a"), call("r2", "/etc/x"), call("r3", "/home/b")]),
        Reply::text("Done."),
    ]);
    let files = files().decide(|_, tool, arguments| match arguments["path"].as_str() {
        Some(path) if tool == "write" && path.starts_with("/scratch/") => HostedVerdict::Approve,
        Some(path) if path.starts_with("/etc/") => HostedVerdict::Reject("that is not yours".to_owned()),
        _ => HostedVerdict::Ask,
    });
    let agent = agent(&model, files);
    let mut waits = paused(agent.run("go").await.expect("it waits"));
    assert_eq!(waits.pending().len(), 1, "only the third is for a person");
    waits.approve("r3").expect("it waits");
    agent.resume(waits).await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert_eq!(told[4..], ["output r1 approved", "output r2 that is not yours", "output r3 approved"]);
}

/// A provider that asks about a tool that it was not to offer.
#[tokio::test]
async fn a_tool_that_is_not_on_the_list_is_refused_without_asking() {
    let calls = [
        asks("r1", "files", "delete", json!({ "path": "/a" })),
        asks("r2", "files", "read", json!({ "path": "/a" })),
    ];
    let model = ScriptedModel::new([Reply::items(calls), Reply::text("Done.")]);
    let agent = agent(&model, files().allowed_tools(["read", "write"]));
    let mut waits = paused(agent.run("go").await.expect("it waits"));
    assert_eq!(waits.pending().iter().map(|one| one.call().as_str()).collect::<Vec<_>>(), ["r2"]);
    waits.approve("r2").expect("it waits");
    agent.resume(waits).await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert_eq!(told[3..], ["output r1 This tool of the server may not be used.", "output r2 approved"]);
}

/// Who may what is the application's to know, and a check that fails allows nothing.
#[tokio::test]
async fn permissions_are_looked_up_and_a_check_that_fails_approves_nothing() {
    let call = |id: &str, tool: &str| asks(id, "files", tool, json!({ "path": "/a" }));
    let model = ScriptedModel::new([
        Reply::items([call("r1", "read"), call("r2", "write"), call("r3", "odd")]),
        Reply::text("Done."),
    ]);
    let files: HostedMcp<Vec<String>> = HostedMcp::at("files", "https://files.example/mcp").decide(
        |ctx: &ToolContext<Vec<String>>, tool, _| match tool {
            "odd" => panic!("nobody thought of this one"),
            tool if ctx.iter().any(|permitted| permitted == tool) => HostedVerdict::Approve,
            _ => HostedVerdict::Reject("you may not".to_owned()),
        },
    );
    let agent = Agent::new("clerk").model(model.clone()).tool(files);
    let permitted = vec!["read".to_owned()];
    let mut waits = paused(agent.run_with("go", permitted.clone()).await.expect("it waits"));
    assert_eq!(waits.pending().iter().map(|one| one.call().as_str()).collect::<Vec<_>>(), ["r3"]);
    // Even a person's yes does not get past a check that cannot be made.
    waits.approve("r3").expect("it waits");
    agent.resume_with(waits, permitted).await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert_eq!(told[4..6], ["output r1 approved", "output r2 you may not"]);
    assert!(!told[6].contains("approved"), "{}", told[6]);
}

#[tokio::test]
async fn a_server_that_the_agent_does_not_have_is_not_approved() {
    let model = ScriptedModel::new([
        Reply::items([asks("r1", "elsewhere", "write", json!({}))]),
        Reply::text("I cannot."),
    ]);
    agent(&model, files()).run("go").await.expect("it ends");
    let told = model.requests()[1].input_text();
    assert!(told[2].starts_with("output r1 Tool 'write' not found."), "{}", told[2]);
}

#[tokio::test]
async fn what_the_provider_did_is_seen_and_the_model_goes_on() {
    let searched = Item::Hosted(Carried {
        kind: "web_search_call".to_owned(),
        raw: json!({ "type": "web_search_call", "id": "ws_1", "status": "completed" }),
    });
    let said = Item::assistant("It rains in Oslo.");
    let model = ScriptedModel::new([Reply::items([searched.clone(), said])]);
    let agent = Agent::new("guide").model(model).tool(Tool::hosted(json!({ "type": "web_search" })));
    let outcome = agent.run("Weather?").await.expect("it ends");
    assert_eq!(outcome.text(), "It rains in Oslo.");
    assert!(outcome.record().state().produced().iter().any(|produced| *produced.item == searched));
}

/// A model of a provider that runs no tools.
struct Plain;

impl Model for Plain {
    async fn answer<'a>(&'a self, _: ModelRequest<'a>, _: &'a Deltas) -> Result<Answer, ModelError> {
        Err(ModelError::new("it was asked"))
    }
}

#[tokio::test]
async fn a_provider_that_lacks_a_tool_is_known_before_anything_happens() {
    let search = || -> Tool { Tool::hosted(json!({ "type": "web_search" })) };
    let alone = Agent::new("guide").model(Plain).tool(search());
    let nested = Agent::new("host").model(Plain).tool(alone.clone().as_tool("ask_guide", "Asks the guide."));
    let behind = Agent::new("door").model(Plain).handoff(alone.clone());
    for agent in [alone, nested, behind] {
        let error = agent.run("Weather?").await.expect_err("it cannot be offered");
        let RunError::Config(ConfigError::NotSupported { agent, tool, .. }) = &error else {
            panic!("{error} is another error");
        };
        assert_eq!((agent.as_str(), tool.as_str()), ("guide", "web_search"));
    }
}

#[tokio::test]
async fn a_hosted_tool_is_offered_as_the_provider_has_it() {
    let definition = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
    let tool: Tool = Tool::hosted(definition.clone());
    let offer = tool.offer().expect("it can be offered");
    assert_eq!(offer.kind, OfferedKind::Hosted(definition.into()));
}
