//! The model that a name stands for.

use std::path::Path;

use windlass::model::SharedModel;

use super::script::Script;
use crate::problem::Problem;

/// The prefix of a model that answers from a file.
const SCRIPTED: &str = "scripted:";
/// The prefix of a model that runs in the process.
const LOCAL: &str = "local:";

/// The model that is called `named`: `provider:name`, `local:FILE`, or `scripted:FILE` beside the agent.
pub(super) fn find(named: &str, folder: &Path) -> Result<SharedModel, Problem> {
    if let Some(file) = named.strip_prefix(SCRIPTED) {
        return Ok(Script::read(&folder.join(file))?.into());
    }
    match named.strip_prefix(LOCAL) {
        Some(weights) => local(weights, folder),
        None => by_network(named),
    }
}

#[cfg(feature = "models")]
fn by_network(named: &str) -> Result<SharedModel, Problem> {
    windlass_models::model(named).map_err(|error| {
        let text = error.to_string();
        // Its hint speaks to programmers of a library; the first part is for everybody.
        let message = text.split("; hint:").next().unwrap_or(&text).to_owned();
        Problem::new(message).hint(hint(&error))
    })
}

#[cfg(feature = "models")]
fn hint(error: &windlass_models::SetupError) -> String {
    use windlass_models::SetupError;
    match error {
        SetupError::MissingKey { variable, .. } => {
            format!("set {variable} in the environment; `windlass demo` needs no key")
        }
        SetupError::UnusableKey { variable, .. } => format!("look for line ends or quotes in {variable}"),
        SetupError::NotAModel { .. } => {
            "write `provider:model`, such as `openai:gpt-5-mini`, `ollama:llama3.2` or `scripted:answers.toml`"
                .to_owned()
        }
        _ => "`windlass doctor` says what is set up".to_owned(),
    }
}

#[cfg(not(feature = "models"))]
fn by_network(named: &str) -> Result<SharedModel, Problem> {
    Err(Problem::new(format!("model `{named}` cannot be reached: this windlass was built without models"))
        .hint("build it with `--features models`, or write `model = \"scripted:FILE\"`"))
}

#[cfg(feature = "local")]
fn local(weights: &str, folder: &Path) -> Result<SharedModel, Problem> {
    let path = folder.join(weights);
    let weights = if path.is_file() { path.to_string_lossy().into_owned() } else { weights.to_owned() };
    let hint = "docs/guide/local-models.md says which weights there are, and where they belong";
    let found = windlass_local::Weights::find(&weights, &mut fetched);
    let found = found.map_err(|error| Problem::new(error.to_string()).hint(hint))?;
    let model = windlass_local::LocalModel::load(&found);
    Ok(model.map_err(|error| Problem::new(error.to_string()).hint(hint))?.into())
}

/// How far fetching weights has come, on one line that is written again.
#[cfg(feature = "local")]
fn fetched(there: u64, all: u64) {
    use std::io::{IsTerminal, Write};
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        let end = if there >= all { "\n" } else { "" };
        let percent = there.saturating_mul(100).checked_div(all).unwrap_or(100);
        let _written = write!(err, "\rfetching weights: {percent} %{end}").and_then(|()| err.flush());
    }
}

#[cfg(not(feature = "local"))]
fn local(weights: &str, _folder: &Path) -> Result<SharedModel, Problem> {
    Err(Problem::new(format!("`local:{weights}` cannot be run: this windlass was built without the engine"))
        .hint("build it with `--features local`"))
}
