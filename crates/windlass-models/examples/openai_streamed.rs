//! Streaming of text, reasoning and tool calls with the Responses API. The example uses a fake provider; with an
//! API key, replace the model with `windlass_models::model("openai:gpt-5.2")?`.

use windlass::event::RunEventKind;
use windlass::prelude::*;
use windlass_models::testing::{FakeProvider, FakeReply};

/// Current weather for a city.
#[tool(effect = pure)]
async fn weather(city: String) -> String {
    format!("rain in {city}")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = FakeProvider::start([
        FakeReply::reasoning("rs_1", "I should look.").and_call("c1", "weather", r#"{"city":"Oslo"}"#),
        FakeReply::text("Take an umbrella."),
    ])
    .await?;
    let model = provider.openai().responses("gpt-5.2")?;
    let agent = Agent::new("guide").model(model).tool(weather);

    let mut stream = agent.run("What should I pack for Oslo?").stream();
    let (mut text, mut thought) = (String::new(), String::new());
    while let Some(event) = stream.next().await {
        match event.kind {
            RunEventKind::TextDelta { delta } => text.push_str(&delta),
            RunEventKind::ReasoningDelta { delta } => thought.push_str(&delta),
            RunEventKind::CallStarted { tool, .. } => println!("calls {tool}"),
            _ => {}
        }
    }
    let outcome = stream.result().await?;
    println!("thought: {thought}\nsaid: {text}");
    assert_eq!(
        (outcome.output_text()?, text.as_str(), thought.as_str()),
        ("Take an umbrella.", "Take an umbrella.", "I should look.")
    );

    // Encrypted reasoning is sent back to the provider with the next request.
    let second = &provider.requests()[1].body["input"];
    assert_eq!(second[1]["encrypted_content"], "sealed rs_1");
    Ok(())
}
