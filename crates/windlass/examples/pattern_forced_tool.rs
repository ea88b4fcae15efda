//! Forced tool use: the model must call a tool, and the output of the call is the result of the run.

use windlass::agent::ToolUsePolicy;
use windlass::model::{ModelSettings, ToolChoice};
use windlass::prelude::*;

/// Returns the height of the tide, in centimetres.
#[tool(effect = pure)]
async fn tide(harbour: String) -> u32 {
    if harbour == "Bergen" { 142 } else { 0 }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([ScriptedResponse::call("c1", "tide", json!({ "harbour": "Bergen" }))]);
    let settings = ModelSettings { tool_choice: Some(ToolChoice::from("tide")), ..ModelSettings::default() };
    let agent = Agent::new("gauge")
        .model(model.clone())
        .model_settings(settings)
        .tool(tide)
        .tool_use_policy(ToolUsePolicy::StopOnFirstTool);

    let result = agent.run("How high is the water in Bergen?").await?;

    println!("{}", result.output_text()?);
    assert_eq!(result.output_text()?, "142");
    assert_eq!(model.remaining(), 0, "there was no second request");
    Ok(())
}
