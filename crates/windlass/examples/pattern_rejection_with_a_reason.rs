//! A rejection with a text of one's own: the person's reason goes to the model, and the call never runs.

use windlass::prelude::*;

/// Publishes an announcement.
#[tool(needs_approval = always)]
async fn publish(title: String) -> Result<String, ToolError> {
    Err(ToolError::hidden(format!("{title} must not be published")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (reason, told) in [
        (Some("The date is wrong; ask for it."), "output c1 The date is wrong; ask for it."),
        (None, "output c1 Tool execution was not approved."),
    ] {
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "publish", json!({ "title": "Open on Monday" })),
            ScriptedResponse::text("Which date is right?"),
        ]);
        let agent = Agent::new("press").model(model.clone()).tool(publish);
        let mut paused = agent.run("Announce it.").await?.into_paused().ok_or("the call should wait")?;
        match reason {
            Some(reason) => paused.reject_because("c1", reason)?,
            None => paused.reject("c1")?,
        }
        let result = agent.resume(paused).await?;
        println!("{}", model.requests()[1].input_text()[2]);
        assert_eq!(model.requests()[1].input_text()[2], told);
        assert_eq!(result.output_text()?, "Which date is right?");
    }
    Ok(())
}
