//! A tool that lacks a detail asks a person and continues with the answer. The question survives the process.

use windlass::core::decision::{HoldReason, PersonQuestion};
use windlass::prelude::*;

/// Books a table.
#[tool]
async fn book(ctx: &ToolContext<()>, guests: u32) -> Result<String, ToolError> {
    let place =
        PersonQuestion::new("Inside or outside?").with_schema(json!({ "enum": ["inside", "outside"] }));
    let Some(at) = ctx.answer_to(&place) else { return Err(ToolError::ask_person(place)) };
    Ok(format!("a table for {guests}, {}", at.as_str().unwrap_or_default()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "book", json!({ "guests": 2 })),
        ScriptedResponse::text("Your table outside is booked."),
    ]);
    let agent = Agent::new("host").model(model).tool(book);
    let paused = agent.run("A table for two, please.").await?.into_paused().ok_or("it should ask")?;

    // The answer may come in another process, which needs only the saved text.
    let mut paused = PausedRun::from_text(&paused.to_text())?;
    for call in paused.pending_calls() {
        if let HoldReason::Question(question) = &call.reason {
            println!("{} asks: {}", call.tool, question.text);
        }
    }
    assert!(paused.answer_question("c1", "upstairs").is_err(), "the question says what fits");
    paused.answer_question("c1", "outside")?;
    let outcome = agent.resume(paused).await?;
    println!("{}", outcome.output_text()?);
    assert_eq!(outcome.output_text()?, "Your table outside is booked.");
    Ok(())
}
