//! Fallback to another model if the first one is overloaded.

use windlass::event::RunEventKind;
use windlass::model::ModelErrorKind;
use windlass::prelude::*;
use windlass_models::FallbackModel;
use windlass_models::testing::{FakeProvider, FakeReply};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let busy = FakeProvider::start([FakeReply::status(529)]).await?;
    let idle = FakeProvider::start([FakeReply::text("I have time.")]).await?;
    let model = FallbackModel::new(busy.anthropic().messages("claude-opus-4-5")?)
        .then(idle.openai().responses("gpt-5.2")?)
        .on_errors([ModelErrorKind::Overloaded, ModelErrorKind::Unreachable]);

    let mut stream = Agent::new("host").model(model).run("Have you a moment?").stream();
    let mut warnings = Vec::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::Warning { message } = event.kind {
            println!("warning: {message}");
            warnings.push(message);
        }
    }
    let outcome = stream.result().await?;
    println!("{}", outcome.output_text()?);
    assert_eq!((outcome.output_text()?, warnings.len()), ("I have time.", 1));
    assert_eq!(outcome.record().usage().requests, 2, "what failed is counted");
    Ok(())
}
