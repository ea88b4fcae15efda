//! An agent reads a file and proposes a change. The person sees the diff before the file is touched.

use windlass::prelude::*;
use windlass_tools::Workspace;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("harbour.toml"), "berths = 4\nlights = \"red\"\n")?;
    let workspace = Workspace::new(folder.path())?;

    // The model reads, learns the file's version, and gives it with the change. The script knows it beforehand.
    let change = json!({
        "path": "harbour.toml",
        "version": "7e920b67019ef4c1",
        "edits": [{ "old": "berths = 4", "new": "berths = 6" }],
    });
    let model = ScriptedModel::new([
        Reply::call("c1", "read_file", json!({ "path": "harbour.toml" })),
        Reply::call("c2", "patch_file", change),
        Reply::text("There are six berths now."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tools(workspace.file_tools());

    let mut paused = agent.run("Two more berths, please.").await?.paused().ok_or("a person is asked")?;
    println!("{}", model.requests()[1].input_text()[2]);
    for call in paused.pending() {
        let diff = workspace.preview(call.tool.name(), &call.arguments).ok_or("it changes a file")?;
        println!("{}: {} added, {} removed\n{}", diff.path, diff.added, diff.removed, diff.text);
        assert!(diff.text.contains("-berths = 4\n+berths = 6\n"), "{diff:?}");
    }
    assert!(std::fs::read_to_string(folder.path().join("harbour.toml"))?.starts_with("berths = 4"));

    paused.approve("c2")?;
    println!("{}", agent.resume(paused).await?.text());
    assert!(std::fs::read_to_string(folder.path().join("harbour.toml"))?.starts_with("berths = 6"));
    Ok(())
}
