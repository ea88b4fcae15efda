//! An agent reads a file and proposes a change. The approver sees the diff before the file is changed.

use windlass::prelude::*;
use windlass_tools::Workspace;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("harbour.toml"), "berths = 4\nlights = \"red\"\n")?;
    let workspace = Workspace::new(folder.path())?;

    // A real model takes the version from the output of `read_file`; the scripted one knows it beforehand.
    let change = json!({
        "path": "harbour.toml",
        "version": "7e920b67019ef4c1",
        "edits": [{ "old": "berths = 4", "new": "berths = 6" }],
    });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "read_file", json!({ "path": "harbour.toml" })),
        ScriptedResponse::call("c2", "patch_file", change),
        ScriptedResponse::text("There are six berths now."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tools(workspace.file_tools());

    let mut paused = agent.run("Two more berths, please.").await?.into_paused().ok_or("a person is asked")?;
    println!("{}", model.requests()[1].input_text()[2]);
    for call in paused.pending_calls() {
        let diff = workspace.preview(call.tool.name(), &call.arguments).ok_or("it changes a file")?;
        println!("{}: {} added, {} removed\n{}", diff.path, diff.added, diff.removed, diff.text);
        assert!(diff.text.contains("-berths = 4\n+berths = 6\n"), "{diff:?}");
    }
    assert!(std::fs::read_to_string(folder.path().join("harbour.toml"))?.starts_with("berths = 4"));

    paused.approve("c2")?;
    println!("{}", agent.resume(paused).await?.output_text()?);
    assert!(std::fs::read_to_string(folder.path().join("harbour.toml"))?.starts_with("berths = 6"));
    Ok(())
}
