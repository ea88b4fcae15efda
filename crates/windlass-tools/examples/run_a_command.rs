//! A sandboxed command: without the program's environment, and without access to files outside the workspace.

use windlass::prelude::*;
use windlass_tools::sandbox::{self, ConfinementLevel};
use windlass_tools::{BuiltInApprovalPolicy, Workspace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This must come first: the program also serves as the sandbox helper.
    sandbox::main_if_asked();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run_agent())
}

async fn run_agent() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let outside = tempfile::NamedTempFile::new()?;
    // `wc` needs no approval; all other programs and shell text do.
    let workspace =
        Workspace::new(folder.path())?.approve_commands(BuiltInApprovalPolicy::except_for(["wc **"]));

    let steal = format!("echo four words are here > log.txt; cat {}; env", outside.path().display());
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "run_command", json!({ "shell": steal })),
        ScriptedResponse::call("c2", "run_command", json!({ "program": "wc", "args": ["-w", "log.txt"] })),
        ScriptedResponse::text("Four words."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tools(workspace.tools());

    let mut paused =
        agent.run("How many words are in the log?").await?.into_paused().ok_or("it is asked about")?;
    println!("asked: {}", paused.pending_calls()[0].arguments);
    paused.approve("c1")?;
    println!("{}", agent.resume(paused).await?.output_text()?);

    let told = model.requests()[2].input_text();
    println!("{}\n{}", told[2], told[4]);
    assert!(told[4].contains("4 log.txt"), "{}", told[4]);
    assert!(!told[2].contains("CARGO"), "the environment is an allow-list");
    match sandbox::confinement_support() {
        ConfinementLevel::Full | ConfinementLevel::Partial => {
            assert!(told[2].contains("Permission denied"), "{}", told[2])
        }
        ConfinementLevel::None => println!("this kernel has no Landlock: files are not kept from commands"),
    }
    Ok(())
}
