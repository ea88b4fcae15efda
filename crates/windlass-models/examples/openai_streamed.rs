//! A model by the Responses API, watched as it thinks, speaks and calls. It runs against a fake provider; with a key,
//! `windlass_models::model("openai:gpt-5.2")?` in place of it is all that changes.

use windlass::EventKind;
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
    let agent = Agent::new("guide").model(model).tools((weather,));

    let mut stream = agent.run("What should I pack for Oslo?").stream();
    let (mut text, mut thought) = (String::new(), String::new());
    while let Some(event) = stream.next().await {
        match event.kind {
            EventKind::TextDelta { delta } => text.push_str(&delta),
            EventKind::ReasoningDelta { delta } => thought.push_str(&delta),
            EventKind::CallStarted { tool, .. } => println!("calls {tool}"),
            _ => {}
        }
    }
    let outcome = stream.outcome().await?;
    println!("thought: {thought}\nsaid: {text}");
    assert_eq!(
        (outcome.text(), text.as_str(), thought.as_str()),
        ("Take an umbrella.", "Take an umbrella.", "I should look.")
    );

    // What only the provider can read goes back to it with the next request.
    let second = &provider.requests()[1].body["input"];
    assert_eq!(second[1]["encrypted_content"], "sealed rs_1");
    Ok(())
}
