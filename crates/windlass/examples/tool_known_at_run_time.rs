//! Tools defined at run time: each has a name, a schema and a closure.

use std::sync::Arc;

use windlass::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Such a catalogue may come from a file, a database or another server.
    let catalogue = json!([
        { "name": "lamp", "does": "Switches a lamp.", "arguments": {
            "type": "object",
            "properties": { "room": { "type": "string" }, "on": { "type": "boolean" } },
            "required": ["room", "on"],
        } },
        { "name": "blinds", "does": "Moves the blinds.", "arguments": {
            "type": "object",
            "properties": { "percent": { "type": "integer", "minimum": 0, "maximum": 100 } },
            "required": ["percent"],
        } },
    ]);
    let mut tools: Vec<Tool> = Vec::new();
    for entry in catalogue.as_array().into_iter().flatten() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default();
        let device: Arc<str> = text("name").into();
        tools.push(Tool::dynamic(
            text("name"),
            text("does"),
            entry["arguments"].clone(),
            move |_, arguments| {
                let device = device.clone();
                async move { Ok::<_, ToolError>(format!("{device}: done, with {arguments}")) }
            },
        ));
    }
    // `tool_fn!` creates a tool from a closure and its captured values.
    let home = "12 Quay Street";
    tools.push(tool_fn! {
        /// Where the house is.
        name = "address",
        effect = pure,
        async || { home }
    });

    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "lamp", json!({ "room": "hall", "on": true }))
            .and_call("c2", "blinds", json!({ "percent": 300 }))
            .and_call("c3", "address", json!({})),
        ScriptedResponse::text("The hall is lit."),
    ]);
    let agent = Agent::new("house").model(model.clone()).tools(tools);
    println!("{}", agent.run("Light the hall.").await?.output_text()?);

    let told = model.requests()[1].input_text();
    println!("{}\n{}\n{}", told[4], told[5], told[6]);
    assert_eq!(told[4], r#"output c1 lamp: done, with {"on":true,"room":"hall"}"#);
    assert!(told[5].contains("`percent` must be at most 100"), "{}", told[5]);
    assert_eq!(told[6], "output c3 12 Quay Street");
    Ok(())
}
