//! An agent as a tool of another agent. A pending call inside it is decided outside, by its path.

use windlass::prelude::*;

/// Pays an invoice.
#[tool(needs_approval = always)]
async fn pay(invoice: String) -> String {
    format!("invoice {invoice} is paid")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clerk = Agent::new("clerk").instructions("Pay what is right.").tool(pay).model(ScriptedModel::new([
        ScriptedResponse::call("p1", "pay", json!({ "invoice": "9" })),
        ScriptedResponse::text("Invoice 9 is settled."),
    ]));
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "books", json!({ "input": "Settle invoice 9." })),
        ScriptedResponse::text("All is settled."),
    ]);
    let office =
        Agent::new("office").model(model.clone()).tools((clerk.as_tool("books", "Keeps the books."),));

    let mut paused =
        office.run("Is anything open?").await?.into_paused().ok_or("a person should be asked")?;
    let waiting = paused.pending_calls();
    println!("{} of agent {} waits at {}", waiting[0].tool, waiting[0].agent, waiting[0].path);
    assert_eq!(waiting[0].path.to_string(), "c1/p1");

    // One text holds the whole tree of agents.
    paused = PausedRun::from_text(&paused.to_text())?;
    paused.approve("c1/p1")?;
    let outcome = office.resume(paused).await?;

    println!("{}", outcome.output_text()?);
    let told = model.requests()[1].input_text();
    assert_eq!(
        told,
        [
            "user: Is anything open?",
            r#"call c1 books {"input":"Settle invoice 9."}"#,
            "output c1 Invoice 9 is settled."
        ]
    );
    assert_eq!(outcome.record().usage().requests, 4, "nested requests are counted too");
    Ok(())
}
