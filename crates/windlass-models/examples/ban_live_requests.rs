//! A ban on live requests, for tests: no client of this process reaches a server that is not on this machine.

use windlass::prelude::*;
use windlass_models::OpenAi;
use windlass_models::net::{NetworkBan, ban_network};
use windlass_models::testing::{FAKE_KEY, FakeProvider, FakeReply};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ban_network(NetworkBan::ExceptLoopback);

    // A test that forgot to replace its model fails at once, and costs nothing.
    let model = OpenAi::new(FAKE_KEY).base_url("https://api.openai.com/v1").responses("gpt-5-mini")?;
    let failed = Agent::new("forgetful").model(model).run("Hello.").await;
    let said = failed.err().map(|error| error.to_string()).unwrap_or_default();
    println!("{said}");
    assert!(said.contains("live requests are banned in this process"), "{said}");

    // Servers on this machine are excepted.
    let provider = FakeProvider::start([FakeReply::text("Hello from here.")]).await?;
    let model = OpenAi::new(FAKE_KEY).base_url(&provider.base_url()).responses("any")?;
    let result = Agent::new("local").model(model).run("Hello.").await?;
    assert_eq!(result.output_text()?, "Hello from here.");
    Ok(())
}
