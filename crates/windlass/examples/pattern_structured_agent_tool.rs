//! An agent as a tool with typed arguments and a typed answer, in place of one text.

use schemars::JsonSchema;
use serde::Deserialize;
use windlass::prelude::*;

/// The arguments that the outer model gives.
#[derive(Deserialize, JsonSchema)]
struct Translation {
    text: String,
    language: String,
}

/// The answer of the nested agent.
#[derive(Deserialize, JsonSchema)]
struct Translated {
    text: String,
    confidence: u8,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let inner = ScriptedModel::new([ScriptedResponse::text(r#"{ "text": "guter Wind", "confidence": 90 }"#)]);
    let translator = Agent::new("translator").model(inner.clone()).output_type::<Translated>();
    let translate = translator
        .as_tool("translate", "Translates a text.")
        .agent_input(|wanted: &Translation| format!("Into {}: {}", wanted.language, wanted.text))
        .agent_output(|result| {
            result
                .parse_output::<Translated>()
                .map(|answer| format!("{} ({} %)", answer.text, answer.confidence))
        });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "translate", json!({ "text": "good wind", "language": "German" })),
        ScriptedResponse::text("Guter Wind!"),
    ]);
    let editor = Agent::new("editor").model(model.clone()).tool(translate);

    let result = editor.run("How do I wish good wind in German?").await?;

    println!("{}", result.output_text()?);
    assert_eq!(inner.requests()[0].input_text(), ["user: Into German: good wind"]);
    assert_eq!(model.requests()[1].input_text()[2], "output c1 guter Wind (90 %)");
    Ok(())
}
