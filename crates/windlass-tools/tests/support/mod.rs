//! Shared helpers of the tests: a workspace, and a call made by a scripted model.

#![allow(dead_code, reason = "each test uses a part of it")]

use serde_json::Value;
use windlass::prelude::*;
use windlass_tools::sandbox::SandboxRequirement;
use windlass_tools::{BuiltInApprovalPolicy, Sandbox, Workspace};

/// Opens a workspace in which no call requires approval.
pub(crate) fn open_workspace(folder: &std::path::Path) -> Workspace {
    Workspace::new(folder)
        .expect("the folder is there")
        .approve_writes(BuiltInApprovalPolicy::Never)
        .approve_commands(BuiltInApprovalPolicy::Never)
        .sandbox(
            Sandbox::default()
                .helper(env!("CARGO_BIN_EXE_windlass-sandbox"))
                .requirement(SandboxRequirement::BestEffort),
        )
}

/// Makes one call and returns the output that the model received.
pub(crate) async fn call_tool(workspace: &Workspace, tool: &str, arguments: Value) -> String {
    let model =
        ScriptedModel::new([ScriptedResponse::call("c1", tool, arguments), ScriptedResponse::text("done")]);
    let agent = Agent::new("clerk").model(model.clone()).tools(workspace.tools());
    let outcome = agent.run("Go.").await.expect("the run ends well");
    assert_eq!(outcome.output_text().expect("the run finished"), "done");
    let told = model.requests()[1].input_text();
    let output = told.last().expect("there is an output");
    output.strip_prefix("output c1 ").unwrap_or(output).to_owned()
}

/// Parses the version in an output of `read_file` or `write_file`.
pub(crate) fn parse_version(told: &str) -> String {
    let (_, rest) = told.split_once("version ").expect("a version is told");
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}
