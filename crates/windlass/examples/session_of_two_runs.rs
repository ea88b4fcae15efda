//! A session stores the history: the second run sees the messages and calls of the first.

use windlass::model::describe_item;
use windlass::prelude::*;

/// Books a table.
#[tool]
async fn book(people: u8) -> String {
    format!("table 4, for {people}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "book", json!({ "people": 3 })),
        ScriptedResponse::text("You have table 4."),
        ScriptedResponse::text("Table 4, as I said."),
    ]);
    let agent = Agent::new("waiter").model(model.clone()).tool(book);
    let session = Session::in_memory("guest-17");

    agent.run("A table for three, please.").session(&session).await?;
    let outcome = agent.run("Which table was it?").session(&session).await?;

    println!("{}", outcome.output_text()?);
    for item in session.items().await? {
        println!("  {}", describe_item(&item));
    }
    assert_eq!(
        model.requests()[2].input_text(),
        [
            "user: A table for three, please.",
            r#"call c1 book {"people":3}"#,
            "output c1 table 4, for 3",
            "assistant: You have table 4.",
            "user: Which table was it?",
        ]
    );
    assert_eq!(session.items().await?.len(), 6);
    Ok(())
}
