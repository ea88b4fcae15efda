//! A skill: the model sees its name and description, loads the instructions when it needs them, and runs its script in the
//! sandbox after an approval.

use windlass::prelude::*;
use windlass_tools::sandbox::{self, ConfinementLevel};
use windlass_tools::{Skills, Workspace};

const SKILL: &str =
    "---\nname: knots\ndescription: Names the knot for a rope.\n---\nRun `scripts/knot.sh` with the use.\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // This must come first: the program also serves as the sandbox helper.
    sandbox::main_if_asked();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run_agent())
}

async fn run_agent() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (skills, work) = (folder.path().join("skills"), folder.path().join("work"));
    std::fs::create_dir_all(skills.join("knots/scripts"))?;
    std::fs::create_dir(&work)?;
    std::fs::write(skills.join("knots/SKILL.md"), SKILL)?;
    std::fs::write(skills.join("knots/scripts/knot.sh"), "echo \"for a $1: a bowline\"\n")?;

    let script = json!({ "skill": "knots", "script": "scripts/knot.sh", "args": ["loop"] });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "load_skill", json!({ "name": "knots" })),
        ScriptedResponse::call("c2", "run_skill_script", script),
        ScriptedResponse::text("Tie a bowline."),
    ]);
    let workspace = Workspace::new(&work)?.skills(Skills::open(&skills)?);
    let agent = Agent::new("deckhand").model(model.clone()).tools(workspace.skill_tools());

    let run = agent.run("Which knot makes a loop?").await?;
    let mut paused = run.into_paused().ok_or("a script is asked about")?;
    println!("asked: {}", paused.pending_calls()[0].arguments);
    paused.approve("c2")?;
    println!("{}", agent.resume(paused).await?.output_text()?);

    let requests = model.requests();
    assert_eq!(requests[0].tools, ["load_skill"], "one tool for all skills");
    let instructions = &requests[1].input_text()[2];
    assert!(instructions.contains("Run `scripts/knot.sh`"), "{instructions}");
    let output = requests[2].input_text().pop().ok_or("the script has an output")?;
    println!("{output}");
    assert!(output.contains("for a loop: a bowline"), "{output}");
    if sandbox::confinement_support() == ConfinementLevel::None {
        println!("this kernel has no Landlock: files are not kept from scripts");
    }
    Ok(())
}
