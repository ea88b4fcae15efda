//! The tool `ask_person`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass::core::decision::PersonQuestion;
use windlass::{
    core::tool::ToolEffect,
    tool::{Tool, ToolContext, ToolError},
};

/// What `ask_person` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskPerson {
    /// The question, with all that is needed to answer it.
    question: String,
    /// Answers to choose from. Without it the answer is free text.
    choices: Option<Vec<String>>,
}

/// Creates the tool `ask_person`, which asks a person a question and returns the answer. The run pauses until
/// then.
pub fn ask_person<C: Send + Sync + 'static>() -> Tool<C> {
    Tool::function(
        "ask_person",
        "Asks the person a question and gives the answer. Use it where only the person can know, and not for what \
         the tools can find out.",
        |ctx: ToolContext<C>, arguments: AskPerson| std::future::ready(answer_or_ask(&ctx, arguments)),
    )
    // The question is journalled, so repeating the call has no effect.
    .effect(ToolEffect::Pure)
}

fn answer_or_ask<C>(ctx: &ToolContext<C>, arguments: AskPerson) -> Result<Value, ToolError> {
    if arguments.question.trim().is_empty() {
        return Err(ToolError::visible("`question` is empty: say what is to be known"));
    }
    let schema = match arguments.choices {
        Some(choices) if !choices.is_empty() => json!({ "type": "string", "enum": choices }),
        Some(_) | None => json!({ "type": "string" }),
    };
    let question = PersonQuestion::new(arguments.question).with_schema(schema);
    match ctx.answer_to(&question) {
        Some(answer) => Ok(answer.clone()),
        None => Err(ToolError::ask_person(question)),
    }
}
