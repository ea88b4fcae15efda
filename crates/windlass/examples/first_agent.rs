//! The smallest agent with a tool: one question, one tool call, one answer.

use windlass::prelude::*;

/// Current weather for a city.
#[tool(effect = pure)]
async fn weather(city: String) -> String {
    format!("12 degrees and rain in {city}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A scripted model replaces a real one, so that the example runs without an API key.
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "weather", json!({ "city": "Oslo" })),
        ScriptedResponse::text("Take an umbrella."),
    ]);
    let agent = Agent::new("guide").instructions("Help the traveller.").model(model).tool(weather);

    let outcome = agent.run("What should I pack for Oslo?").await?;

    println!("{}", outcome.output_text()?);
    assert_eq!(outcome.output_text()?, "Take an umbrella.");
    Ok(())
}
