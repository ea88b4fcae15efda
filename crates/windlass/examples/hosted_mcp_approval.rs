//! A provider that calls an MCP server itself asks for approval first. A rule answers most requests, a person
//! the rest.

use windlass::core::item::{CallKind, Item, ToolCall};
use windlass::prelude::*;
use windlass::tool::{HostedCallVerdict, HostedMcpServer};

/// Returns the provider's approval request, as a model adapter decodes it.
fn approval_request(id: &str, tool: &str, path: &str) -> Item {
    Item::Call(ToolCall {
        id: id.into(),
        name: tool.to_owned(),
        namespace: Some("files".to_owned()),
        arguments: json!({ "path": path }).to_string(),
        item_id: None,
        kind: CallKind::HostedMcp,
        provider_data: None,
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = HostedMcpServer::from_url("files", "https://files.example/mcp").on_approval_request(
        |_, tool, arguments| match arguments["path"].as_str() {
            Some(path) if path.starts_with("/etc/") => {
                HostedCallVerdict::Reject("not the system's files".into())
            }
            Some(path) if tool == "read" && path.starts_with("/work/") => HostedCallVerdict::Approve,
            _ => HostedCallVerdict::AskPerson,
        },
    );
    let model = ScriptedModel::new([
        ScriptedResponse::items([
            approval_request("r1", "read", "/work/plan.md"),
            approval_request("r2", "read", "/etc/shadow"),
            approval_request("r3", "write", "/work/plan.md"),
        ]),
        ScriptedResponse::text("The plan is up to date."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tool(files);
    let mut paused =
        agent.run("Bring the plan up to date.").await?.into_paused().ok_or("a person is asked")?;
    let waiting: Vec<_> = paused.pending_calls().iter().map(|call| call.tool.to_string()).collect();
    assert_eq!(waiting, ["mcp:files/write"], "the rule has answered the others");

    paused.decide_as("ada");
    paused.approve("r3")?;
    println!("{}", agent.resume(paused).await?.output_text()?);
    for told in &model.requests()[1].input_text()[4..] {
        println!("the provider is told: {told}");
    }
    Ok(())
}
