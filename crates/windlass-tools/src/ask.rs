//! `ask_person`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass::core::Question;
use windlass::{Effect, Tool, ToolContext, ToolError};

/// What `ask_person` takes.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AskPerson {
    /// The question, with all that is needed to answer it.
    question: String,
    /// Answers to choose from. Without it the answer is free text.
    choices: Option<Vec<String>>,
}

/// A tool that asks the person a question and gives the answer. The run pauses until there is one.
pub fn ask_person<C: Send + Sync + 'static>() -> Tool<C> {
    Tool::function(
        "ask_person",
        "Asks the person a question and gives the answer. Use it where only the person can know, and not for what \
         the tools can find out.",
        |ctx: ToolContext<C>, arguments: AskPerson| std::future::ready(ask(&ctx, arguments)),
    )
    // Asking changes nothing: the question stands in the journal.
    .effect(Effect::Pure)
}

fn ask<C>(ctx: &ToolContext<C>, arguments: AskPerson) -> Result<Value, ToolError> {
    if arguments.question.trim().is_empty() {
        return Err(ToolError::tell("`question` is empty: say what is to be known"));
    }
    let schema = match arguments.choices {
        Some(choices) if !choices.is_empty() => json!({ "type": "string", "enum": choices }),
        Some(_) | None => json!({ "type": "string" }),
    };
    let question = Question::new(arguments.question).schema(schema);
    match ctx.reply(&question) {
        Some(answer) => Ok(answer.clone()),
        None => Err(ToolError::ask(question)),
    }
}
