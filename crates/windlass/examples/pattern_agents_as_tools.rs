//! Agents as tools: an agent asks two translators at once and goes on with their answers.

use windlass::prelude::*;

fn translator(language: &str, answer: &str) -> Agent {
    Agent::new(format!("{language}_translator"))
        .instructions(format!("Translate into {language}."))
        .model(ScriptedModel::new([ScriptedResponse::text(answer)]))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "to_spanish", json!({ "input": "good wind" })).and_call(
            "c2",
            "to_german",
            json!({ "input": "good wind" }),
        ),
        ScriptedResponse::text("buen viento, guter Wind"),
    ]);
    let editor = Agent::new("editor")
        .model(model.clone())
        .tool(translator("spanish", "buen viento").as_tool("to_spanish", "Translates into Spanish."))
        .tool(translator("german", "guter Wind").as_tool("to_german", "Translates into German."));

    let result = editor.run("How do I wish good wind?").await?;

    println!("{}", result.output_text()?);
    assert_eq!(
        model.requests()[1].input_text()[3..],
        ["output c1 buen viento".to_owned(), "output c2 guter Wind".to_owned()]
    );
    Ok(())
}
