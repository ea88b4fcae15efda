//! A guardrail on streamed text: a watcher checks an answer while it arrives and cancels the run.

use windlass::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model =
        ScriptedModel::new([
            ScriptedResponse::text("The harbour opens at six. The password is swordfish.").in_chunks_of(5)
        ]);
    let mut stream = Agent::new("harbour").model(model).run("When do you open?").stream();
    let cancel = stream.cancel_handle();
    let mut shown = String::new();
    while let Some(event) = stream.next().await {
        if let RunEventKind::TextDelta { delta } = event.kind {
            if format!("{shown}{delta}").contains("password") {
                cancel.cancel();
                break;
            }
            shown.push_str(&delta);
        }
    }

    let result = stream.result().await?;

    println!("{shown}");
    assert!(matches!(result, RunResult::Cancelled(_)), "nobody gets the rest");
    assert!(!shown.contains("swordfish"));
    Ok(())
}
