//! A toolbox: methods of one value become tools that share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::prelude::*;

/// A lighthouse that counts its flashes.
struct Lighthouse {
    keeper: String,
    flashes: AtomicU32,
}

#[toolbox]
impl Lighthouse {
    /// Flashes the light.
    #[tool]
    async fn flash(&self, times: u32) -> String {
        let all = self.flashes.fetch_add(times, Ordering::Relaxed) + times;
        format!("{} has flashed {all} times", self.keeper)
    }

    /// Who keeps the light.
    #[tool(effect = pure)]
    fn keeper(&self) -> String {
        self.keeper.clone()
    }

    fn total(&self) -> u32 {
        self.flashes.load(Ordering::Relaxed)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "flash", json!({ "times": 2 })).and_call("c2", "keeper", json!({})),
        ScriptedResponse::text("Done."),
    ]);
    let light = Arc::new(Lighthouse { keeper: "Ida".into(), flashes: AtomicU32::new(5) });
    let agent = Agent::new("coast").model(model.clone()).tools(light.tools());

    println!("{}", agent.run("Two flashes, please.").await?.output_text()?);

    let told = model.requests()[1].input_text();
    println!("{}\n{}", told[3], told[4]);
    assert_eq!(told[3..], ["output c1 Ida has flashed 7 times", "output c2 Ida"]);
    assert_eq!(light.total(), 7);
    Ok(())
}
