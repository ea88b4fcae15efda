//! A provider that calls an MCP server itself asks first. A rule answers what it can, and a person the rest.

use windlass::core::{Call, CallKind, Item};
use windlass::prelude::*;
use windlass::tool::{HostedMcp, HostedVerdict};

/// The provider's question, as a model adapter makes it from the wire.
fn asks(id: &str, tool: &str, path: &str) -> Item {
    Item::Call(Call {
        id: id.into(),
        name: tool.to_owned(),
        namespace: Some("files".to_owned()),
        arguments: json!({ "path": path }).to_string(),
        item_id: None,
        kind: CallKind::HostedMcp,
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = HostedMcp::at("files", "https://files.example/mcp").decide(|_, tool, arguments| {
        match arguments["path"].as_str() {
            Some(path) if path.starts_with("/etc/") => HostedVerdict::Reject("not the system's files".into()),
            Some(path) if tool == "read" && path.starts_with("/work/") => HostedVerdict::Approve,
            _ => HostedVerdict::Ask,
        }
    });
    let model = ScriptedModel::new([
        Reply::items([
            asks("r1", "read", "/work/plan.md"),
            asks("r2", "read", "/etc/shadow"),
            asks("r3", "write", "/work/plan.md"),
        ]),
        Reply::text("The plan is up to date."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tool(files);
    let mut paused = agent.run("Bring the plan up to date.").await?.paused().ok_or("a person is asked")?;
    let waiting: Vec<_> = paused.pending().iter().map(|call| call.tool.to_string()).collect();
    assert_eq!(waiting, ["mcp:files/write"], "the rule has answered the others");

    paused.decide_as("ada");
    paused.approve("r3")?;
    println!("{}", agent.resume(paused).await?.text());
    for told in &model.requests()[1].input_text()[4..] {
        println!("the provider is told: {told}");
    }
    Ok(())
}
