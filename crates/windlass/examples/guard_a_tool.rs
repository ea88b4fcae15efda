//! Guardrails of one tool. The input guardrail runs before the body and can reject the call; the output
//! guardrail runs after the body and can replace the output before anybody sees it.

use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail, ToolOutputGuardrail};
use windlass::prelude::*;

/// Reads a file of the house.
#[tool(effect = pure, input_guardrails = [inside_the_house()], output_guardrails = [no_passwords()])]
async fn read(path: String) -> String {
    format!("{path} says: the password is swordfish")
}

fn inside_the_house<C>() -> ToolInputGuardrail<C> {
    ToolInputGuardrail::new("inside_the_house", |ctx: ToolContext<C>| {
        let is_outside = ctx.arguments().contains("..");
        async move {
            Ok(if is_outside {
                ToolGuardrailVerdict::RejectCall("That path leads outside.".into())
            } else {
                ToolGuardrailVerdict::Allow
            })
        }
    })
}

fn no_passwords<C>() -> ToolOutputGuardrail<C> {
    ToolOutputGuardrail::new("no_passwords", |_: ToolContext<C>, output| async move {
        Ok(ToolGuardrailVerdict::ReplaceOutput(output.text().replace("swordfish", "(removed)").into()))
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "read", json!({ "path": "notes" })).and_call(
            "c2",
            "read",
            json!({ "path": "../safe" }),
        ),
        ScriptedResponse::text("There is a password in the notes, which I was not shown."),
    ]);
    let agent = Agent::new("butler").model(model.clone()).tool(read);

    println!("{}", agent.run("What is in my notes?").await?.output_text()?);

    let told = model.requests()[1].input_text();
    println!("{}\n{}", told[3], told[4]);
    assert_eq!(told[3], "output c1 notes says: the password is (removed)");
    assert_eq!(told[4], "output c2 That path leads outside.");
    Ok(())
}
