//! A budget of model requests: at its end the run fails, or the model gives one last answer without tools.

use windlass::core::budget::SpendingBudget;
use windlass::prelude::*;

/// Looks around.
#[tool(effect = pure)]
async fn look() -> String {
    "fog".into()
}

fn lookout() -> Agent {
    let model = ScriptedModel::from_fn(|request| match request.tools.is_empty() {
        true => ScriptedResponse::text("Fog, as far as I looked."),
        false => ScriptedResponse::call(&format!("c{}", request.input_text().len()), "look", json!({})),
    });
    Agent::new("lookout").model(model).tool(look)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let failed = lookout().run("What do you see?").budget(SpendingBudget::new().requests(3)).await;
    println!("{}", failed.as_ref().err().map(ToString::to_string).unwrap_or_default());
    assert!(failed.is_err());

    let budget = SpendingBudget::new().requests(3).finish();
    let result = lookout().run("What do you see?").budget(budget).await?;
    println!("{}", result.output_text()?);
    assert_eq!(result.output_text()?, "Fog, as far as I looked.");
    assert_eq!(result.record().usage().requests, 3);
    Ok(())
}
