//! Conditional tools: a tool is offered only to runs whose context allows it.

use windlass::prelude::*;

struct User {
    is_captain: bool,
}

/// Reads the log.
#[tool(effect = pure, context = User)]
async fn read_log() -> String {
    "calm sea".into()
}

/// Changes the course.
#[tool(enabled = |ctx| ctx.is_captain)]
async fn set_course(_ctx: &ToolContext<User>, degrees: u16) -> String {
    format!("course {degrees}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (is_captain, offered) in [(false, vec!["read_log"]), (true, vec!["read_log", "set_course"])] {
        let model = ScriptedModel::new([ScriptedResponse::text("Aye.")]);
        let agent: Agent<User> = Agent::new("helm").model(model.clone()).tools((read_log, set_course));
        agent.run_with_context("Steer north.", User { is_captain }).await?;
        println!("captain: {is_captain}, tools: {:?}", model.requests()[0].tools);
        assert_eq!(model.requests()[0].tools, offered);
    }
    Ok(())
}
