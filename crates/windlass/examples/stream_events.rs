//! A streamed run: its events arrive while it runs, and its outcome is the same as without streaming.

use std::io::Write;

use windlass::prelude::*;

/// Counts the crates on a ship.
#[tool(effect = pure)]
async fn count(ctx: &ToolContext<_>, ship: String) -> u32 {
    ctx.report_progress(json!({ "looking_at": ship }));
    17
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "count", json!({ "ship": "Fram" })),
        ScriptedResponse::text("There are seventeen crates on the Fram.").in_chunks_of(8),
    ]);
    let agent = Agent::new("tally").model(model).tool(count);

    let mut stream = agent.run("What is on the Fram?").stream();
    let mut text = String::new();
    let mut moments = Vec::new();
    while let Some(event) = stream.next().await {
        match event.kind {
            RunEventKind::TextDelta { delta } => {
                print!("{delta}|");
                std::io::stdout().flush()?;
                text.push_str(&delta);
            }
            RunEventKind::CallStarted { call, tool } => {
                println!("[{}] {call} starts: {tool}", event.seq);
                moments.push("started");
            }
            RunEventKind::CallProgress { progress, .. } => {
                println!("[{}] {progress}", event.seq);
                moments.push("progress");
            }
            RunEventKind::CallSettled { call, output, .. } => {
                println!("[{}] {call} gave {}", event.seq, output.text());
                moments.push("settled");
            }
            _ => {}
        }
    }
    println!();
    let outcome = stream.result().await?;
    assert_eq!(outcome.output_text()?, text);
    assert_eq!(moments, ["started", "progress", "settled"]);
    Ok(())
}
