//! What these tests share: a call made by a scripted model, and what the model was told.

#![allow(dead_code, reason = "each test uses a part of it")]

use serde_json::Value;
use windlass::prelude::*;
use windlass_tools::{Approve, Sandbox, Workspace};

/// A workspace in which nobody is asked.
pub(crate) fn open(folder: &std::path::Path) -> Workspace {
    Workspace::new(folder)
        .expect("the folder is there")
        .approve_writes(Approve::Never)
        .approve_commands(Approve::Never)
        .sandbox(Sandbox::default().helper(env!("CARGO_BIN_EXE_windlass-sandbox")))
}

/// Makes one call and gives what the model was told.
pub(crate) async fn call(workspace: &Workspace, tool: &str, arguments: Value) -> String {
    let model = ScriptedModel::new([Reply::call("c1", tool, arguments), Reply::text("done")]);
    let agent = Agent::new("clerk").model(model.clone()).tools(workspace.tools());
    let outcome = agent.run("Go.").await.expect("the run ends well");
    assert_eq!(outcome.text(), "done");
    let told = model.requests()[1].input_text();
    let output = told.last().expect("there is an output");
    output.strip_prefix("output c1 ").unwrap_or(output).to_owned()
}

/// The version in what `read_file` told.
pub(crate) fn version(told: &str) -> String {
    let (_, rest) = told.split_once("version ").expect("a version is told");
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}
