//! A command runs in a restricted child: without the program's secrets, and without a way out of the workspace.

use windlass::prelude::*;
use windlass_tools::sandbox::{self, Confinement};
use windlass_tools::{Approve, Workspace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First of all: commands are started by this same program, as their helper.
    sandbox::main_if_asked();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let outside = tempfile::NamedTempFile::new()?;
    // `wc` runs unasked; for all other programs, and for shell text, a person decides.
    let workspace = Workspace::new(folder.path())?.approve_commands(Approve::outside_of(["wc"]));

    let steal = format!("echo four words are here > log.txt; cat {}; env", outside.path().display());
    let model = ScriptedModel::new([
        Reply::call("c1", "run_command", json!({ "shell": steal })),
        Reply::call("c2", "run_command", json!({ "program": "wc", "args": ["-w", "log.txt"] })),
        Reply::text("Four words."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tools(workspace.tools());

    let mut paused =
        agent.run("How many words are in the log?").await?.paused().ok_or("it is asked about")?;
    println!("asked: {}", paused.pending()[0].arguments);
    paused.approve("c1")?;
    println!("{}", agent.resume(paused).await?.text());

    let told = model.requests()[2].input_text();
    println!("{}\n{}", told[2], told[4]);
    assert!(told[4].contains("4 log.txt"), "{}", told[4]);
    assert!(!told[2].contains("CARGO"), "the environment is an allow-list");
    match sandbox::support() {
        Confinement::Full | Confinement::Partial => {
            assert!(told[2].contains("Permission denied"), "{}", told[2])
        }
        Confinement::None => println!("this kernel has no Landlock: files are not kept from commands"),
    }
    Ok(())
}
