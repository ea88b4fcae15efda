//! Instructions that a function writes for each turn, from the context of the run.

use windlass::prelude::*;

struct Guest {
    name: String,
    is_member: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (name, is_member, written) in
        [("Ada", true, "Greet Ada as a member."), ("Bo", false, "Greet Bo and offer a membership.")]
    {
        let model = ScriptedModel::new([ScriptedResponse::text("Welcome!")]);
        let agent: Agent<Guest> = Agent::new("desk").model(model.clone()).dynamic_instructions(
            |ctx: RunContext<Guest>| async move {
                match ctx.is_member {
                    true => format!("Greet {} as a member.", ctx.name),
                    false => format!("Greet {} and offer a membership.", ctx.name),
                }
            },
        );
        agent.run_with_context("Hello.", Guest { name: name.to_owned(), is_member }).await?;
        let told = model.requests()[0].instructions.clone();
        println!("{told:?}");
        assert_eq!(told.as_deref(), Some(written));
    }
    Ok(())
}
