//! Routing: a triage agent passes each question to the specialist for it.

use windlass::prelude::*;

fn specialist(name: &str, about: &str, answer: &str) -> Agent {
    Agent::new(name).handoff_description(about).model(ScriptedModel::new([ScriptedResponse::text(answer)]))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (question, specialist_name, answer) in [
        ("Where is my parcel?", "parcels", "It is in Bergen."),
        ("I want my money back.", "refunds", "You get it."),
    ] {
        let transfer = ScriptedResponse::call("c1", &format!("transfer_to_{specialist_name}"), json!({}));
        let triage = Agent::new("triage")
            .instructions("Pass every question to a specialist.")
            .model(ScriptedModel::new([transfer]))
            .handoff(specialist("parcels", "Knows where parcels are.", "It is in Bergen."))
            .handoff(specialist("refunds", "Pays money back.", "You get it."));
        let result = triage.run(question).await?;
        println!("{question} → {}: {}", result.record().last_agent(), result.output_text()?);
        assert_eq!(*result.record().last_agent(), specialist_name);
        assert_eq!(result.output_text()?, answer);
    }
    Ok(())
}
