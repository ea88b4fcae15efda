//! Human in the loop with streaming: the events show which call waits, a person decides, and the resumed run is
//! streamed too.

use windlass::prelude::*;

/// Sends the weekly letter.
#[tool(needs_approval = always)]
async fn send_letter(to: String) -> String {
    format!("sent to {to}")
}

/// Prints what a run says, and returns the names of the tools whose calls wait for a person.
async fn watch(stream: &mut windlass::run::RunStream) -> Vec<String> {
    let mut waiting = Vec::new();
    while let Some(event) = stream.next().await {
        match event.kind {
            RunEventKind::TextDelta { delta } => print!("{delta}"),
            RunEventKind::CallHeld(call) => waiting.push(call.tool.to_string()),
            _ => {}
        }
    }
    println!();
    waiting
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::text("I send it now.").and_call("c1", "send_letter", json!({ "to": "all guests" })),
        ScriptedResponse::text("The letter is out."),
    ]);
    let agent = Agent::new("clerk").model(model).tool(send_letter);

    let mut stream = agent.run("Send the letter.").stream();
    assert_eq!(watch(&mut stream).await, ["send_letter"]);
    let mut paused = stream.result().await?.into_paused().ok_or("the call should wait")?;

    paused.approve("c1")?;
    let mut stream = agent.resume(paused).stream();
    assert_eq!(watch(&mut stream).await, [""; 0]);
    assert_eq!(stream.result().await?.output_text()?, "The letter is out.");
    Ok(())
}
