//! A typed final output: the model receives the type's schema. It is asked to correct an output that does not match, and
//! then the run fails.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::core::failure::RunFailure;
use windlass::prelude::*;

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Itinerary {
    days: Vec<Day>,
    /// In cents.
    cost: u64,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Day {
    place: String,
    plan: Option<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::text(
            r#"{ "days": [{ "place": "Oslo", "plan": "the fjord" }, { "place": "Bergen", "plan": null }], "cost": 42000 }"#,
        ),
        ScriptedResponse::text("Gladly: one day in Oslo."),
        ScriptedResponse::text(r#"{ "days": [{ "place": "Oslo" }], "cost": 9000 }"#),
        ScriptedResponse::text(r#"{ "days": [{ "place": 7 }], "cost": 0 }"#),
        ScriptedResponse::text(r#"{ "days": [{ "place": 8 }], "cost": 0 }"#),
    ]);
    let agent = Agent::new("planner").model(model).output_type::<Itinerary>().max_output_corrections(1);

    let plan: Itinerary = agent.run("Two days in Norway.").await?.output_as()?;
    println!("{plan:#?}");
    assert_eq!(plan.days[1], Day { place: "Bergen".into(), plan: None });
    assert_eq!(plan.cost, 42_000);

    // The first answer is prose; the model is told so, and answers again.
    let plan: Itinerary = agent.run("One day in Norway.").await?.output_as()?;
    assert_eq!(plan.cost, 9_000);

    let Err(error) = agent.run("Two days in Norway.").await else { return Err("7 is not a place".into()) };
    println!("{error}");
    assert!(
        matches!(error.failure(), Some(RunFailure::InvalidOutput { message }) if message.contains("days[0].place"))
    );
    Ok(())
}
