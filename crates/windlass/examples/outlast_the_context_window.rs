//! A run that is longer than the window of its model: old outputs and turns leave the requests, the input stays, and the
//! journal has all of it.

use windlass::context::ContextPolicy;
use windlass::core::journal::JournalEntry;
use windlass::prelude::*;

/// Reads a page of the log.
#[tool(effect = pure)]
async fn read_page(number: u32) -> String {
    format!("page {number}: {}", "all quiet; ".repeat(100))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The model reads forty pages, one in each turn, and then says so.
    let pages = (1..=40).map(|number| {
        // A server that does not count tokens: the driver estimates them.
        ScriptedResponse::call(&format!("c{number}"), "read_page", json!({ "number": number })).usage(None)
    });
    let model = ScriptedModel::new(pages.chain([ScriptedResponse::text("Nothing happened.")]));
    let summariser = ScriptedModel::from_fn(|_| ScriptedResponse::text("The pages so far: all quiet."));
    let policy = ContextPolicy::with_window(1_500).summarise_with(summariser).keep_newest(4);

    let agent = Agent::new("reader").model(model.clone()).tool(read_page);
    let outcome = agent.run("What happened last night?").max_turns(50).context_policy(policy).await?;

    println!("{}", outcome.output_text()?);
    let last = model.requests().pop().ok_or("the model was asked")?.input_text();
    println!("the last request had {} items, and began with", last.len());
    last.iter().take(2).for_each(|item| println!("  {item}"));
    assert_eq!(last[0], "user: What happened last night?");
    assert!(last[1].contains("all quiet"), "a summary stands for what was removed: {}", last[1]);
    assert!(last.len() < 40, "{}", last.len());

    let journal = outcome.record().journal();
    let compactions =
        journal.iter().filter(|record| matches!(record.entry, JournalEntry::HistoryCompacted(_))).count();
    let outputs: Vec<String> = journal
        .iter()
        .filter_map(|record| match &record.entry {
            JournalEntry::CallSettled(settled) => Some(settled.output.text().into_owned()),
            _ => None,
        })
        .collect();
    println!("{compactions} compactions; the journal has {} outputs", outputs.len());
    assert!(compactions > 0);
    assert!(outputs.len() == 40 && outputs[0].contains("page 1: all quiet"), "{}", outputs[0]);
    Ok(())
}
