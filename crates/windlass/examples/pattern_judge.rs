//! A judge: one agent writes, another accepts the draft or says what is missing, a bounded number of times.

use windlass::prelude::*;

const MAX_DRAFTS: usize = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let writing =
        ScriptedModel::new([ScriptedResponse::text("A rope."), ScriptedResponse::text("A rope that holds.")]);
    let judging =
        ScriptedModel::new([ScriptedResponse::text("say what it does"), ScriptedResponse::text("accepted")]);
    let writer = Agent::new("writer").model(writing.clone());
    let judge = Agent::new("judge").instructions("Accept, or say what is missing.").model(judging);

    let mut request = "Describe the rope.".to_owned();
    let mut accepted = None;
    for _ in 0..MAX_DRAFTS {
        let draft = writer.run(request.clone()).await?.output_text()?.to_owned();
        let verdict = judge.run(draft.clone()).await?.output_text()?.to_owned();
        println!("{draft} → {verdict}");
        if verdict == "accepted" {
            accepted = Some(draft);
            break;
        }
        request.push_str(&format!("\nYour draft: {draft}\nThe judge: {verdict}"));
    }

    assert_eq!(accepted.as_deref(), Some("A rope that holds."));
    assert!(writing.requests()[1].input_text()[0].ends_with("The judge: say what it does"));
    Ok(())
}
