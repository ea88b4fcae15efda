//! Checks of a whole run: of what it is given, and of what it would end with.

use windlass::Failure;
use windlass::guardrail::{InputGuardrail, OutputGuardrail, Verdict};
use windlass::model::item_line;
use windlass::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `.first()` comes before anything else. Without it, a check runs beside the model: that costs no time,
    // and still no tool starts before it has settled.
    let on_topic = InputGuardrail::new("on_topic", |_, input| async move {
        let is_about_ships = input.iter().any(|item| item_line(item).contains("ship"));
        Ok(if is_about_ships { Verdict::Pass } else { Verdict::Trip })
    });
    let no_promises = OutputGuardrail::new("no_promises", |_, output| async move {
        Ok(if output.contains("guarantee") { Verdict::Trip } else { Verdict::Pass })
    });
    let model = ScriptedModel::new([
        Reply::text("It sails on Monday."),
        Reply::text("I guarantee that it sails on Monday."),
    ]);
    let agent = Agent::new("harbour")
        .model(model.clone())
        .input_guardrail(on_topic.first())
        .output_guardrail(no_promises);

    println!("{}", agent.run("When does my ship sail?").await?.text());

    let Err(error) = agent.run("Write me a poem.").await else { return Err("poems are off topic".into()) };
    println!("{error}");
    assert_eq!(error.failure(), Some(&Failure::InputGuardrail { guardrail: "on_topic".into() }));
    assert_eq!(model.requests().len(), 1, "the model was not asked");

    let Err(error) = agent.run("Is the ship sure to sail?").await else { return Err("no promises".into()) };
    println!("{error}");
    assert_eq!(error.failure(), Some(&Failure::OutputGuardrail { guardrail: "no_promises".into() }));
    Ok(())
}
