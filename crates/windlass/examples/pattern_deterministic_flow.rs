//! A deterministic flow: an outline, a check of the outline, a story. The program decides after each step, and every
//! step is a stored run of its own, so that a crash repeats none that was finished.

use std::sync::Arc;

use windlass::prelude::*;
use windlass::store::MemoryStore;

fn agent(name: &str, answer: &str) -> Agent {
    Agent::new(name).model(ScriptedModel::new([ScriptedResponse::text(answer)]))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(MemoryStore::default());
    let step = |agent: Agent, id: &'static str, input: String| {
        let store = store.clone();
        async move {
            agent
                .run(input)
                .run_id(id)
                .store(store)
                .await?
                .output_text()
                .map(str::to_owned)
                .map_err(Box::<dyn std::error::Error>::from)
        }
    };

    let outline =
        step(agent("outliner", "A rope, a storm, a rescue."), "outline", "A story at sea.".into()).await?;
    let verdict = step(agent("checker", "good"), "check", outline.clone()).await?;
    if verdict != "good" {
        println!("the outline was refused: {verdict}");
        return Ok(());
    }
    let story = step(agent("writer", "The rope held."), "story", outline).await?;

    println!("{story}");
    assert_eq!(story, "The rope held.");
    Ok(())
}
