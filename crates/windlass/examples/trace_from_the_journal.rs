//! The journal is the trace of a run: every request, call and result, in order, with its time.

use windlass::core::journal::JournalEntry;
use windlass::prelude::*;

/// Reads the barometer.
#[tool(effect = pure)]
async fn barometer() -> u32 {
    1_013
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "barometer", json!({})),
        ScriptedResponse::text("The weather holds."),
    ]);
    let result = Agent::new("mate").model(model).tool(barometer).run("Will the weather hold?").await?;

    let records = result.record().journal();
    for record in records {
        println!("{:3} {:?} {:?}", record.seq, record.at, record.entry);
    }
    let find = |wanted: fn(&JournalEntry) -> bool| records.iter().position(|record| wanted(&record.entry));
    let started = find(|entry| matches!(entry, JournalEntry::CallStarted { .. }));
    let settled = find(|entry| matches!(entry, JournalEntry::CallSettled { .. }));
    assert!(started.is_some() && started < settled, "the start of a call is recorded before its end");
    Ok(())
}
