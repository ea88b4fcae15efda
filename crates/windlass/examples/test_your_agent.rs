//! How to test an agent of your own: script the model, run, and compare what the model was shown.

use windlass::Usage;
use windlass::model::{ModelError, RetryAdvice};
use windlass::prelude::*;
use windlass::run::ModelRetry;

/// Looks a guest up.
#[tool(effect = pure, on_failure = show)]
async fn guest(room: u16) -> Result<String, std::num::TryFromIntError> {
    let floor = u8::try_from(room / 100)?;
    Ok(format!("room {room}, floor {floor}"))
}

/// What the program would use. A test gives it another model.
fn concierge(model: ScriptedModel) -> Agent {
    Agent::new("concierge").instructions("Be brief.").model(model).tools((guest,))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        Reply::error(ModelError::new("overloaded").retry(RetryAdvice::Safe)),
        Reply::text("Let me look.").and_call("c1", "guest", json!({ "room": 412 })),
        Reply::text("On the fourth floor.").usage(Some(Usage::tokens(120, 8))),
    ]);
    let quick = ModelRetry { base: std::time::Duration::from_millis(1), ..ModelRetry::default() };

    let outcome = concierge(model.clone()).run("Where is room 412?").model_retry(quick).await?;

    assert_eq!(outcome.text(), "On the fourth floor.");
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
    assert_eq!((usage.requests, usage.unknown, usage.input_tokens), (3, 1, 130));
    println!("{}\n{:?}", last.input_text().join("\n"), usage);
    Ok(())
}
