//! A server of one's own that speaks Chat Completions (Ollama, llama.cpp, vLLM, LM Studio), under a name of its own,
//! and what is said when it is not there.

use windlass::model::ModelErrorKind;
use windlass::prelude::*;
use windlass::run::ModelRetry;
use windlass_models::Providers;
use windlass_models::testing::{FakeProvider, FakeReply};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = FakeProvider::start([FakeReply::text("Hello from next door.")]).await?;
    let providers = Providers::from_env().named("lab", &server.base_url());
    let agent = Agent::new("host").model(providers.model("lab:qwen3")?);
    let outcome = agent.run("Who is there?").await?;
    println!("{}", outcome.text());
    assert_eq!(outcome.text(), "Hello from next door.");

    // Nobody listens on port 1.
    let nobody = Providers::from_env().named("lab", "http://127.0.0.1:1/v1").model("lab:qwen3")?;
    let once = ModelRetry { attempts: 1, ..ModelRetry::default() };
    let error = Agent::new("host").model(nobody).run("Who is there?").model_retry(once).await;
    let Err(windlass::RunError::Failed(failed)) = error else { return Err("nobody answered".into()) };
    println!("{}", failed.failure);
    assert_eq!(failed.model_error.map(|error| error.kind()), Some(ModelErrorKind::Unreachable));
    Ok(())
}
