//! A paused run is saved as text. Another process reads it, builds the agents itself, and resumes the run.

use std::path::Path;

use windlass::prelude::*;

/// Publishes an article.
#[tool(needs_approval = always)]
async fn publish(title: String) -> String {
    format!("“{title}” is out")
}

/// Builds the agent. Every process builds its own; a saved run finds its agents by name.
fn editor_agent(replies: impl IntoIterator<Item = ScriptedResponse>) -> Agent {
    Agent::new("editor").model(ScriptedModel::new(replies)).tool(publish)
}

async fn first_process(file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let agent = editor_agent([ScriptedResponse::call("c1", "publish", json!({ "title": "On Tides" }))]);
    let paused = agent.run("Publish my article.").await?.into_paused().ok_or("a person should be asked")?;
    std::fs::write(file, paused.to_text())?;
    Ok(())
}

async fn second_process(file: &Path) -> Result<String, Box<dyn std::error::Error>> {
    let mut paused = PausedRun::from_text(&std::fs::read_to_string(file)?)?;
    for call in paused.pending_calls() {
        println!("restored: {} {} waits", call.tool, call.arguments);
    }
    paused.approve("c1")?;
    let outcome = editor_agent([ScriptedResponse::text("It is out.")]).resume(paused).await?;
    Ok(outcome.output_text()?.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join(format!("example-{}.windlass", std::process::id()));

    first_process(&file).await?;
    println!("stored: {} bytes", std::fs::metadata(&file)?.len());
    let before = std::fs::read(&file)?;
    let text = second_process(&file).await?;

    println!("{text}");
    assert_eq!(text, "It is out.");
    assert_eq!(std::fs::read(&file)?, before, "resuming leaves what was stored as it is");
    std::fs::remove_file(file)?;
    Ok(())
}
