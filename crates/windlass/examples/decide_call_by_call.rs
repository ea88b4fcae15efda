//! Several calls wait for approval: one is approved, one is rejected with a reason, one runs with edited
//! arguments.

use windlass::prelude::*;

/// Sends a letter.
#[tool(needs_approval = always)]
async fn send(to: String, text: String) -> String {
    format!("sent to {to}: {text}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "send", json!({ "to": "Ada", "text": "Your ship is in." }))
            .and_call("c2", "send", json!({ "to": "the press", "text": "Our ship is late." }))
            .and_call("c3", "send", json!({ "to": "Bo", "text": "Pay now!!!" })),
        ScriptedResponse::text("Two letters are out."),
    ]);
    let agent = Agent::new("office").model(model.clone()).tool(send);
    let mut paused = agent.run("Answer the mail.").await?.into_paused().ok_or("a person should be asked")?;

    // Decisions may come in any order. Undecided calls stay pending.
    paused.approve_edited("c3", r#"{ "to": "Bo", "text": "Please pay." }"#)?;
    paused.reject_because("c2", "Nobody speaks to the press but Ada.")?;
    let mut paused = agent.resume(paused).await?.into_paused().ok_or("one call still waits")?;

    // A repeated decision changes nothing. A different one corrects it, until the call starts.
    paused.approve("c1")?;
    paused.approve("c1")?;
    paused.reject("c1")?;
    paused.approve("c1")?;

    let outcome = agent.resume(paused).await?;
    println!("{}", outcome.output_text()?);
    let told = model.requests()[1].input_text();
    println!("{}", told[4..].join("\n"));
    assert_eq!(told[4], "output c1 sent to Ada: Your ship is in.");
    assert_eq!(told[5], "output c2 Nobody speaks to the press but Ada.");
    assert!(
        told[6].starts_with("output c3 [A person changed the arguments")
            && told[6].ends_with("sent to Bo: Please pay.")
    );
    Ok(())
}
