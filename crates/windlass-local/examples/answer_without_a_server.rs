//! An agent whose model runs in this process, without a server or a key. The first argument names the weights: a
//! path, or a name such as `smollm2-135m`, which is fetched once.

use windlass::prelude::*;
use windlass_local::{LocalModel, Weights};

/// The weather in a city.
#[tool]
async fn weather(
    /// The city.
    city: String,
) -> String {
    format!("It rains in {city}.")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "smollm2-135m".to_owned());
    let weights =
        Weights::find(&name, &mut |there, all| eprint!("\rfetching {:3} %", there * 100 / all.max(1)))?;
    let model = LocalModel::load(&weights)?;
    let agent = Agent::new("guide").instructions("You help travellers.").model(model).tool(weather);
    let outcome = agent.run("What is the weather in Oslo?").max_turns(4).await?;
    for produced in outcome.record().run_items() {
        println!("{}", windlass::model::describe_item(&produced.item));
    }
    Ok(())
}
