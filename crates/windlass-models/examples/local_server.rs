//! A self-hosted server with the Chat Completions API (Ollama, llama.cpp, vLLM, LM Studio) under its own provider
//! name, and the error if it is not reachable.

use windlass::model::ModelErrorKind;
use windlass::prelude::*;
use windlass::run::ModelRetryPolicy;
use windlass_models::ProviderRegistry;
use windlass_models::testing::{FakeProvider, FakeReply};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = FakeProvider::start([FakeReply::text("Hello from next door.")]).await?;
    let providers = ProviderRegistry::from_env().with_server_at("lab", &server.base_url());
    let agent = Agent::new("host").model(providers.model("lab:qwen3")?);
    let outcome = agent.run("Who is there?").await?;
    println!("{}", outcome.output_text()?);
    assert_eq!(outcome.output_text()?, "Hello from next door.");

    // No server listens on port 1.
    let nobody =
        ProviderRegistry::from_env().with_server_at("lab", "http://127.0.0.1:1/v1").model("lab:qwen3")?;
    let once = ModelRetryPolicy { max_attempts: 1, ..ModelRetryPolicy::default() };
    let error = Agent::new("host").model(nobody).run("Who is there?").model_retry(once).await;
    let Err(windlass::error::RunError::Failed(failed)) = error else { return Err("nobody answered".into()) };
    println!("{}", failed.failure);
    assert_eq!(failed.model_error.map(|error| error.kind()), Some(ModelErrorKind::Unreachable));
    Ok(())
}
