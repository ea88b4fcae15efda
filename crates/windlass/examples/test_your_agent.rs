//! A test of your own agent: script the model, run the agent, and compare the requests that the model received.

use windlass::core::usage::Usage;
use windlass::model::{ModelError, RetryAdvice};
use windlass::prelude::*;
use windlass::run::ModelRetryPolicy;

/// Looks a guest up.
#[tool(effect = pure, on_failure = show_error)]
async fn guest(room: u16) -> Result<String, std::num::TryFromIntError> {
    let floor = u8::try_from(room / 100)?;
    Ok(format!("room {room}, floor {floor}"))
}

/// Builds the agent as the program does. A test passes a scripted model.
fn concierge_agent(model: ScriptedModel) -> Agent {
    Agent::new("concierge").instructions("Be brief.").model(model).tool(guest)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::error(ModelError::new("overloaded").with_retry_advice(RetryAdvice::Safe)),
        ScriptedResponse::text("Let me look.").and_call("c1", "guest", json!({ "room": 412 })),
        ScriptedResponse::text("On the fourth floor.").usage(Some(Usage::of_tokens(120, 8))),
    ]);
    let quick =
        ModelRetryPolicy { base_delay: std::time::Duration::from_millis(1), ..ModelRetryPolicy::default() };

    let outcome = concierge_agent(model.clone()).run("Where is room 412?").model_retry(quick).await?;

    assert_eq!(outcome.output_text()?, "On the fourth floor.");
    assert_eq!(model.remaining(), 0, "all of the script was used");
    let last = &model.requests()[2];
    assert_eq!(last.instructions.as_deref(), Some("Be brief."));
    assert_eq!(last.tools, ["guest"]);
    assert_eq!(
        last.input_text(),
        [
            "user: Where is room 412?",
            "assistant: Let me look.",
            r#"call c1 guest {"room":412}"#,
            "output c1 room 412, floor 4",
        ]
    );
    let usage = outcome.record().usage();
    assert_eq!((usage.requests, usage.unknown_requests, usage.input_tokens), (3, 1, 130));
    println!("{}\n{:?}", last.input_text().join("\n"), usage);
    Ok(())
}
