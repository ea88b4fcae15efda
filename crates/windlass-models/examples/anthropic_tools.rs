//! Two parallel tool calls with Anthropic's Messages API, one of which fails, and prompt caching.

use windlass::prelude::*;
use windlass_models::testing::{FakeProvider, FakeReply};

/// Current weather for a city.
#[tool(effect = pure)]
async fn weather(city: String) -> Result<String, ToolError> {
    if city == "Atlantis" { Err(ToolError::visible("no such city")) } else { Ok(format!("rain in {city}")) }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = FakeProvider::start([
        FakeReply::text("I look.").and_call("toolu_1", "weather", r#"{"city":"Oslo"}"#).and_call(
            "toolu_2",
            "weather",
            r#"{"city":"Atlantis"}"#,
        ),
        FakeReply::text("Oslo is wet, and Atlantis wetter.").usage(900, 800, 12, 0),
    ])
    .await?;
    let model = provider.anthropic().messages("claude-opus-4-5")?;
    let agent = Agent::new("guide").instructions("Be brief.").model(model).tool(weather);
    let outcome = agent.run("Oslo or Atlantis?").await?;
    println!("{}", outcome.output_text()?);

    let results = provider.requests()[1].body["messages"][2]["content"].clone();
    assert_eq!(results[0]["content"], "rain in Oslo");
    assert_eq!(results[1]["is_error"], true, "the provider is told which call failed");
    assert_eq!(outcome.record().usage().cached_tokens, 800);
    Ok(())
}
