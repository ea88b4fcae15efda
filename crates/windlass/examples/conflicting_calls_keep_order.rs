//! Calls that touch the same thing keep the model's order; all others overlap.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass::prelude::*;

#[derive(Default)]
struct Shelf {
    log: Mutex<Vec<String>>,
}

/// Writes a page of a book.
#[tool(conflict = |args| args.book.clone())]
async fn write(ctx: &ToolContext<Shelf>, book: String, page: u32) -> Result<&'static str, ToolError> {
    let log = |what: &str| {
        ctx.log
            .lock()
            .map(|mut log| log.push(format!("{what} {book}{page}")))
            .map_err(|_| ToolError::hidden("poisoned"))
    };
    log("begin")?;
    // The first page takes longest, so without the rule the second would overtake it.
    tokio::time::sleep(Duration::from_millis(if page == 1 { 40 } else { 5 })).await;
    log("end")?;
    Ok("written")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        Reply::call("c1", "write", json!({ "book": "A", "page": 1 }))
            .and_call("c2", "write", json!({ "book": "A", "page": 2 }))
            .and_call("c3", "write", json!({ "book": "B", "page": 1 })),
        Reply::text("Three pages are written."),
    ]);
    let agent = Agent::new("scribe").model(model).tools((write,));
    let shelf = Arc::new(Shelf::default());

    println!("{}", agent.run_with("Write.", shelf.clone()).await?.text());

    let log = shelf.log.lock().map_err(|_| "a call panicked")?.clone();
    println!("{}", log.join(", "));
    let at = |what: &str| log.iter().position(|line| line == what);
    assert!(at("end A1") < at("begin A2"), "one book, one writer at a time");
    assert!(at("begin B1") < at("end A1"), "another book is not waited for");
    Ok(())
}
