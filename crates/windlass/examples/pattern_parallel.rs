//! Parallel runs: three drafts at the same time, and an agent that picks the best.

use windlass::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let writer =
        |draft: &str| Agent::new("writer").model(ScriptedModel::new([ScriptedResponse::text(draft)]));
    let (short, exact, long) =
        (writer("A winch."), writer("A winch with a pawl."), writer("A machine, then."));

    // One task: the three requests are under way at the same time.
    let (short, exact, long) = tokio::try_join!(
        short.run("Define a windlass."),
        exact.run("Define a windlass."),
        long.run("Define a windlass.")
    )?;
    let drafts = [short.output_text()?, exact.output_text()?, long.output_text()?].join("\n");

    let model = ScriptedModel::new([ScriptedResponse::text("A winch with a pawl.")]);
    let best = Agent::new("picker").model(model.clone()).run(format!("Pick the best:\n{drafts}")).await?;

    println!("{}", best.output_text()?);
    assert_eq!(best.output_text()?, "A winch with a pawl.");
    assert!(
        model.requests()[0].input_text()[0].ends_with("A winch.\nA winch with a pawl.\nA machine, then.")
    );
    Ok(())
}
