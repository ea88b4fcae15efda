//! A tool that lacks a detail asks a person, and goes on with the answer. The question outlives the process.

use windlass::core::{HoldReason, Question};
use windlass::prelude::*;

/// Books a table.
#[tool]
async fn book(ctx: &ToolContext<()>, guests: u32) -> Result<String, ToolError> {
    let place = Question::new("Inside or outside?").schema(json!({ "enum": ["inside", "outside"] }));
    let Some(at) = ctx.reply(&place) else { return Err(ToolError::ask(place)) };
    Ok(format!("a table for {guests}, {}", at.as_str().unwrap_or_default()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        Reply::call("c1", "book", json!({ "guests": 2 })),
        Reply::text("Your table outside is booked."),
    ]);
    let agent = Agent::new("host").model(model).tool(book);
    let paused = agent.run("A table for two, please.").await?.paused().ok_or("it should ask")?;

    // Whoever answers may do so in another process, from the text alone.
    let mut paused = Paused::from_text(&paused.to_text())?;
    for call in paused.pending() {
        if let HoldReason::Question(question) = &call.reason {
            println!("{} asks: {}", call.tool, question.text);
        }
    }
    assert!(paused.answer("c1", "upstairs").is_err(), "the question says what fits");
    paused.answer("c1", "outside")?;
    let outcome = agent.resume(paused).await?;
    println!("{}", outcome.text());
    assert_eq!(outcome.text(), "Your table outside is booked.");
    Ok(())
}
