//! A tool from a function: its name, description, schema and validation come from the signature.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass::prelude::*;

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Cabin {
    Inside,
    Balcony,
}

#[derive(Serialize)]
struct FareQuote {
    cents: u64,
    nights: u8,
}

/// What a passage costs.
#[tool(effect = pure)]
async fn fare(
    /// The harbour to leave from, in English.
    from: String,
    cabin: Option<Cabin>,
    #[default = 7] nights: u8,
) -> Result<FareQuote, String> {
    let a_night = match (from.as_str(), cabin) {
        ("Bergen", None | Some(Cabin::Inside)) => 9_000,
        ("Bergen", Some(Cabin::Balcony)) => 15_000,
        // The model sees an error of type `String`. Only the operator sees errors of other types.
        (other, _) => return Err(format!("no ship leaves from {other}")),
    };
    Ok(FareQuote { cents: a_night * u64::from(nights), nights })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let offer = Tool::<()>::to_definition(&fare())?;
    println!("{}: {}\n{:#}", offer.name, offer.description, offer.parameters);

    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "fare", json!({ "from": "Bergen", "cabin": "balcony" }))
            .and_call("c2", "fare", json!({ "from": "Bern" }))
            .and_call("c3", "fare", json!({ "from": "Bergen", "nights": "two", "pets": true })),
        ScriptedResponse::text("A week with a balcony is 1050 euros."),
    ]);
    let agent = Agent::new("purser").model(model.clone()).tool(fare);
    agent.run("What is a week from Bergen, with a balcony?").await?;

    let told = model.requests()[1].input_text();
    for line in &told {
        println!("{line}");
    }
    assert_eq!(told[4], r#"output c1 {"cents":105000,"nights":7}"#);
    assert!(told[5].contains("no ship leaves from Bern"));
    assert!(
        told[6].contains(r#"`nights` must be an integer, is the string "two""#) && told[6].contains("`pets`")
    );

    // The original function is still available, for tests and for other code.
    assert_eq!(fare::call("Bergen".into(), None, 2).await?.cents, 18_000);
    Ok(())
}
