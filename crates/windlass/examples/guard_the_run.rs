//! Guardrails of a run: one checks the input, one checks the final output.

use windlass::core::failure::RunFailure;
use windlass::guardrail::{GuardrailVerdict, InputGuardrail, OutputGuardrail};
use windlass::model::describe_item;
use windlass::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `.first()` runs the guardrail before the model. Otherwise it runs concurrently with the model, which adds
    // no latency; no tool starts before the guardrail has settled.
    let on_topic = InputGuardrail::new("on_topic", |_, input| async move {
        let is_about_ships = input.iter().any(|item| describe_item(item).contains("ship"));
        Ok(if is_about_ships { GuardrailVerdict::Pass } else { GuardrailVerdict::Tripwire })
    });
    let no_promises = OutputGuardrail::new("no_promises", |_, output| async move {
        Ok(if output.contains("guarantee") { GuardrailVerdict::Tripwire } else { GuardrailVerdict::Pass })
    });
    let model = ScriptedModel::new([
        ScriptedResponse::text("It sails on Monday."),
        ScriptedResponse::text("I guarantee that it sails on Monday."),
    ]);
    let agent = Agent::new("harbour")
        .model(model.clone())
        .input_guardrail(on_topic.blocking())
        .output_guardrail(no_promises);

    println!("{}", agent.run("When does my ship sail?").await?.output_text()?);

    let Err(error) = agent.run("Write me a poem.").await else { return Err("poems are off topic".into()) };
    println!("{error}");
    assert_eq!(error.failure(), Some(&RunFailure::InputGuardrailTripped { guardrail: "on_topic".into() }));
    assert_eq!(model.requests().len(), 1, "the model was not asked");

    let Err(error) = agent.run("Is the ship sure to sail?").await else { return Err("no promises".into()) };
    println!("{error}");
    assert_eq!(
        error.failure(),
        Some(&RunFailure::OutputGuardrailTripped { guardrail: "no_promises".into() })
    );
    Ok(())
}
