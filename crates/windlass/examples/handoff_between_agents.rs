//! Handoff: one agent passes control to another, which sees the whole conversation.

use windlass::agent::{Handoff, HandoffInput};
use windlass::prelude::*;

/// When the next ship leaves.
#[tool(effect = pure)]
async fn departures(harbour: String) -> String {
    format!("the next ship leaves {harbour} at noon")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pilot = Agent::new("pilot").handoff_description("Knows when ships leave.").tool(departures).model(
        ScriptedModel::new([
            ScriptedResponse::call("c2", "departures", json!({ "harbour": "Bergen" })),
            ScriptedResponse::text("At noon."),
        ]),
    );
    let model =
        ScriptedModel::new([ScriptedResponse::call("c1", "transfer_to_pilot", json!({ "why": "ships" }))]);
    let to_pilot = Handoff::to(&pilot)
        .parameters(
            json!({ "type": "object", "properties": { "why": { "type": "string" } }, "required": ["why"] }),
        )
        .on_handoff(async |input: HandoffInput| {
            println!("{} hands over to {}: {}", input.ctx.agent(), input.to, input.arguments["why"]);
            Ok(())
        });
    let front = Agent::new("front").instructions("Send people on.").model(model.clone()).handoff(to_pilot);

    let outcome = front.run("When does the next ship leave Bergen?").await?;

    println!("{}: {}", outcome.record().last_agent(), outcome.output_text()?);
    assert_eq!(*outcome.record().last_agent(), "pilot");
    assert_eq!(outcome.output_text()?, "At noon.");
    assert_eq!(model.requests()[0].handoffs, ["transfer_to_pilot"]);
    Ok(())
}
