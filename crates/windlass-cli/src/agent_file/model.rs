//! Resolution of model names.

use std::path::Path;

use windlass::model::SharedModel;

use super::scripted_model::ScriptFileModel;
use crate::cli_error::CliError;

/// Prefix of a model that replies from a script file.
pub(super) const SCRIPTED_PREFIX: &str = "scripted:";
/// Prefix of a model that runs in this process.
const LOCAL_PREFIX: &str = "local:";

/// The `[providers]` of an agent file.
#[cfg(feature = "models")]
pub(crate) type ProviderSpecs = std::collections::BTreeMap<String, windlass_models::ProviderSettings>;
/// The `[providers]` of an agent file, which this build cannot use.
#[cfg(not(feature = "models"))]
pub(crate) type ProviderSpecs = std::collections::BTreeMap<String, toml::Value>;

/// Resolves a model name: `provider:name`, `local:FILE`, or `scripted:FILE` relative to the agent file. `providers` are
/// the servers of the file.
pub(super) fn resolve_model(
    named: &str,
    folder: &Path,
    providers: &ProviderSpecs,
) -> Result<SharedModel, CliError> {
    if let Some(file) = named.strip_prefix(SCRIPTED_PREFIX) {
        return Ok(ScriptFileModel::read(&folder.join(file))?.into());
    }
    match named.strip_prefix(LOCAL_PREFIX) {
        Some(weights) => local_model(weights, folder),
        None => network_model(named, providers),
    }
}

#[cfg(feature = "models")]
pub(crate) fn network_model(named: &str, providers: &ProviderSpecs) -> Result<SharedModel, CliError> {
    registry_with(providers).model(named).map_err(|error| {
        let text = error.to_string();
        // The library's hint is for programmers, so only the message before it is used.
        let message = text.split("; hint:").next().unwrap_or(&text).to_owned();
        CliError::new(message).with_hint(setup_hint(&error))
    })
}

/// Returns the known providers and those of an agent file.
#[cfg(feature = "models")]
pub(crate) fn registry_with(providers: &ProviderSpecs) -> windlass_models::ProviderRegistry {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let registry = windlass_models::ProviderRegistry::from_env();
    providers.iter().fold(registry, |registry, (name, settings)| {
        let (provider, settings) = (name.clone(), settings.clone());
        registry.with_provider(name, move |model| settings.model(&provider, model, variable))
    })
}

#[cfg(feature = "models")]
fn setup_hint(error: &windlass_models::SetupError) -> String {
    use windlass_models::SetupError;
    match error {
        SetupError::MissingKey { provider, .. } if needs_aws_signatures(provider) => {
            "AWS credentials need a build with `--features bedrock`; this one needs AWS_BEARER_TOKEN_BEDROCK"
                .to_owned()
        }
        SetupError::MissingKey { variable, .. } => {
            format!("set {variable} in the environment; `windlass demo` needs no key")
        }
        SetupError::MissingVariable { variable, .. } => format!("set {variable} in the environment"),
        SetupError::InvalidKey { variable, .. } => format!("remove line breaks and quotes from {variable}"),
        SetupError::InvalidModelSpec { .. } => {
            "write `provider:model`, such as `openai:gpt-5-mini`, `ollama:llama3.2` or `scripted:answers.toml`"
                .to_owned()
        }
        _ => "`windlass doctor` checks the setup".to_owned(),
    }
}

/// True if this build lacks the signatures by which Bedrock would accept the AWS credentials that are set.
#[cfg(feature = "models")]
pub(crate) fn needs_aws_signatures(provider: &str) -> bool {
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
    cfg!(not(feature = "bedrock"))
        && provider.starts_with("bedrock")
        && is_set("AWS_ACCESS_KEY_ID")
        && (is_set("AWS_REGION") || is_set("AWS_DEFAULT_REGION"))
}

#[cfg(not(feature = "models"))]
fn network_model(named: &str, _: &ProviderSpecs) -> Result<SharedModel, CliError> {
    Err(CliError::new(format!(
        "model `{named}` cannot be used: this windlass was built without network models"
    ))
    .with_hint("build it with `--features models`, or write `model = \"scripted:FILE\"`"))
}

#[cfg(feature = "local")]
fn local_model(weights: &str, folder: &Path) -> Result<SharedModel, CliError> {
    let path = folder.join(weights);
    let weights = if path.is_file() { path.to_string_lossy().into_owned() } else { weights.to_owned() };
    let hint = "docs/guide/local-models.md lists the supported weights and where to put them";
    let found = windlass_local::Weights::find(&weights, &mut crate::terminal::print_download_progress);
    let found = found.map_err(|error| CliError::new(error.to_string()).with_hint(hint))?;
    let model = windlass_local::LocalModel::load(&found);
    Ok(model.map_err(|error| CliError::new(error.to_string()).with_hint(hint))?.into())
}

#[cfg(not(feature = "local"))]
fn local_model(weights: &str, _folder: &Path) -> Result<SharedModel, CliError> {
    Err(CliError::new(format!(
        "`local:{weights}` cannot be used: this windlass was built without the local engine"
    ))
    .with_hint("build it with `--features local`"))
}
