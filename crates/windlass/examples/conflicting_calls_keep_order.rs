//! Calls with the same conflict key keep the model's order; all other calls overlap.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass::prelude::*;

/// A shelf of books that logs every write.
#[derive(Default)]
struct BookShelf {
    log: Mutex<Vec<String>>,
}

/// Writes a page of a book.
#[tool(conflict_key = |args| args.book.clone())]
async fn write(ctx: &ToolContext<BookShelf>, book: String, page: u32) -> Result<&'static str, ToolError> {
    let log = |what: &str| {
        ctx.log
            .lock()
            .map(|mut log| log.push(format!("{what} {book}{page}")))
            .map_err(|_| ToolError::hidden("poisoned"))
    };
    log("begin")?;
    // The first page takes longest: without the conflict rule the second would overtake it.
    tokio::time::sleep(Duration::from_millis(if page == 1 { 40 } else { 5 })).await;
    log("end")?;
    Ok("written")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "write", json!({ "book": "A", "page": 1 }))
            .and_call("c2", "write", json!({ "book": "A", "page": 2 }))
            .and_call("c3", "write", json!({ "book": "B", "page": 1 })),
        ScriptedResponse::text("Three pages are written."),
    ]);
    let agent = Agent::new("scribe").model(model).tool(write);
    let shelf = Arc::new(BookShelf::default());

    println!("{}", agent.run_with_context("Write.", shelf.clone()).await?.output_text()?);

    let log = shelf.log.lock().map_err(|_| "a call panicked")?.clone();
    println!("{}", log.join(", "));
    let at = |what: &str| log.iter().position(|line| line == what);
    assert!(at("end A1") < at("begin A2"), "one book, one writer at a time");
    assert!(at("begin B1") < at("end A1"), "another book is not waited for");
    Ok(())
}
