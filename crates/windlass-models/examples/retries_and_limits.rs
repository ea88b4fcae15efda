//! Retries and rate limits: a client-side limit, a 429 with `retry-after`, a server error, and their journal
//! entries.

use windlass::core::journal::JournalEntry;
use windlass::prelude::*;
use windlass_models::RateLimit;
use windlass_models::testing::{FakeProvider, FakeReply};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let provider = FakeProvider::start([
        FakeReply::status(429).header("retry-after-ms", "20"),
        FakeReply::status(500).header("retry-after-ms", "10"),
        FakeReply::text("At last."),
    ])
    .await?;
    let limit = RateLimit::new().requests_per_minute(600).tokens_per_minute(200_000);
    let model = provider.openai().rate_limit(limit).responses("gpt-5.2")?;
    let outcome = Agent::new("host").model(model).run("Are you there?").await?;

    for record in outcome.record().journal() {
        if let JournalEntry::ModelRequestFailed(failed) = &record.entry {
            println!("failed: {}; asked again after {:?} ms", failed.error, failed.retry_after_ms);
        }
    }
    println!("{}", outcome.output_text()?);
    let usage = outcome.record().usage();
    assert_eq!((usage.requests, usage.unknown_requests), (3, 2));
    Ok(())
}
