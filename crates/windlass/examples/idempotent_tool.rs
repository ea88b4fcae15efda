//! An idempotent tool runs once for the same arguments, regardless of repetition and spelling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::core::journal::JournalEntry;
use windlass::prelude::*;

/// A printer that counts its labels.
#[derive(Default)]
struct LabelPrinter(AtomicU32);

/// Prints the label of a parcel.
#[tool(effect = idempotent)]
async fn label(ctx: &ToolContext<LabelPrinter>, parcel: String, copies: f64) -> String {
    ctx.0.fetch_add(1, Ordering::Relaxed);
    format!("{copies} of {parcel}, printed as {}", ctx.idempotency_key())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        // The same call twice in one response and once more in the next, in three spellings.
        ScriptedResponse::call("c1", "label", json!({ "parcel": "P1", "copies": 100 })).and_raw_call(
            "c2",
            "label",
            r#"{ "copies": 1e2,   "parcel": "P1" }"#,
        ),
        ScriptedResponse::call("c3", "label", json!({ "copies": 100.0, "parcel": "P1" })),
        ScriptedResponse::call("c4", "label", json!({ "parcel": "P2", "copies": 1 })),
        ScriptedResponse::text("Both labels are there."),
    ]);
    let agent = Agent::new("packer").model(model).tool(label);
    let printer = Arc::new(LabelPrinter::default());

    let outcome = agent.run_with_context("Print the labels.", printer.clone()).await?;

    let mut hows = Vec::new();
    for record in outcome.record().journal() {
        if let JournalEntry::CallSettled(settled) = &record.entry {
            println!("{} {:?}: {}", settled.call, settled.status, settled.output.text());
            hows.push(format!("{:?}", settled.status));
        }
    }
    assert_eq!(hows, ["Succeeded", "Deduplicated", "Deduplicated", "Succeeded"]);
    assert_eq!(printer.0.load(Ordering::Relaxed), 2);
    Ok(())
}
