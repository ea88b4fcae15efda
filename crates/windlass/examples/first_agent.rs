//! The smallest agent that acts: one tool, one question, one answer.

use windlass::prelude::*;

/// Current weather for a city.
#[tool(effect = pure)]
async fn weather(city: String) -> String {
    format!("12 degrees and rain in {city}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A scripted model stands in for a real one, so that this runs without a key.
    let model = ScriptedModel::new([
        Reply::call("c1", "weather", json!({ "city": "Oslo" })),
        Reply::text("Take an umbrella."),
    ]);
    let agent = Agent::new("guide").instructions("Help the traveller.").model(model).tools((weather,));

    let outcome = agent.run("What should I pack for Oslo?").await?;

    println!("{}", outcome.text());
    assert_eq!(outcome.text(), "Take an umbrella.");
    Ok(())
}
