//! The final answer is a type of yours: the model is told its shape, and what does not fit fails the run.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::Failure;
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
        Reply::text(
            r#"{ "days": [{ "place": "Oslo", "plan": "the fjord" }, { "place": "Bergen", "plan": null }], "cost": 42000 }"#,
        ),
        Reply::text(r#"{ "days": [{ "place": 7 }], "cost": 0 }"#),
    ]);
    let agent = Agent::new("planner").model(model).output::<Itinerary>();

    let plan: Itinerary = agent.run("Two days in Norway.").await?.output()?;
    println!("{plan:#?}");
    assert_eq!(plan.days[1], Day { place: "Bergen".into(), plan: None });
    assert_eq!(plan.cost, 42_000);

    let Err(error) = agent.run("Two days in Norway.").await else { return Err("7 is not a place".into()) };
    println!("{error}");
    assert!(
        matches!(error.failure(), Some(Failure::InvalidOutput { message }) if message.contains("days[0].place"))
    );
    Ok(())
}
