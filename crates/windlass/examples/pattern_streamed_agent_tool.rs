//! An agent as a tool, streamed: the watcher of the outer run also sees what the nested agent says and calls.

use windlass::prelude::*;

/// Finds the price of a cabin, in cents.
#[tool(effect = pure)]
async fn cabin_price(deck: u8) -> u64 {
    if deck > 5 { 90_000 } else { 40_000 }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let billing = Agent::new("billing").tool(cabin_price).model(ScriptedModel::new([
        ScriptedResponse::call("b1", "cabin_price", json!({ "deck": 7 })),
        ScriptedResponse::text("900 a night.").in_chunks_of(6),
    ]));
    let desk = Agent::new("desk").tool(billing.as_tool("billing", "Answers questions about prices.")).model(
        ScriptedModel::new([
            ScriptedResponse::call("c1", "billing", json!({ "input": "a cabin on deck 7" })),
            ScriptedResponse::text("A cabin on deck 7 costs 900 a night."),
        ]),
    );

    let mut stream = desk.run("What does deck 7 cost?").stream();
    let (mut inner_text, mut inner_calls) = (String::new(), Vec::new());
    while let Some(event) = stream.next().await {
        // Events of a nested agent have the path of the call that runs it.
        if event.path != ["c1"] {
            continue;
        }
        match event.kind {
            RunEventKind::TextDelta { delta } => inner_text.push_str(&delta),
            RunEventKind::CallStarted { tool, .. } => inner_calls.push(tool.to_string()),
            _ => {}
        }
    }
    let result = stream.result().await?;

    println!("billing called {inner_calls:?} and said {inner_text:?}");
    assert_eq!((inner_text.as_str(), inner_calls), ("900 a night.", vec!["cabin_price".to_owned()]));
    assert_eq!(result.output_text()?, "A cabin on deck 7 costs 900 a night.");
    Ok(())
}
