//! Several calls wait: one is approved, one is rejected with a reason, one has its arguments changed.

use windlass::prelude::*;

/// Sends a letter.
#[tool(approve = always)]
async fn send(to: String, text: String) -> String {
    format!("sent to {to}: {text}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        Reply::call("c1", "send", json!({ "to": "Ada", "text": "Your ship is in." }))
            .and_call("c2", "send", json!({ "to": "the press", "text": "Our ship is late." }))
            .and_call("c3", "send", json!({ "to": "Bo", "text": "Pay now!!!" })),
        Reply::text("Two letters are out."),
    ]);
    let agent = Agent::new("office").model(model.clone()).tools((send,));
    let mut paused = agent.run("Answer the mail.").await?.paused().ok_or("a person should be asked")?;

    // In any order. What is not decided stays pending.
    paused.approve_edited("c3", r#"{ "to": "Bo", "text": "Please pay." }"#)?;
    paused.reject_because("c2", "Nobody speaks to the press but Ada.")?;
    let mut paused = agent.resume(paused).await?.paused().ok_or("one call still waits")?;

    // A decision counts once: the same again changes nothing, another is refused.
    paused.approve("c1")?;
    paused.approve("c1")?;
    let Err(refused) = paused.reject("c1") else { return Err("c1 was approved".into()) };
    println!("{refused}");

    let outcome = agent.resume(paused).await?;
    println!("{}", outcome.text());
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
