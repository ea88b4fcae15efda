//! `windlass models`: lists the providers of models and what is missing to use them.

use super::find_agent;
use crate::agent_file::{AgentFile, ProviderSpecs};
use crate::args::{CliArgs, ModelsArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::terminal::Terminal;

pub(crate) fn run(args: &CliArgs, asked: &ModelsArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let named = find_agent(args, asked.agent.as_deref())?;
    let file = match AgentFile::read(&named) {
        Ok(file) => Some(file),
        // Without an agent, the known providers are listed.
        Err(error) if error.exit() == CommandExit::NotFound && asked.agent.is_none() => None,
        Err(error) => return Err(error),
    };
    let model = file.as_ref().and_then(AgentFile::model_name).map(str::to_owned);
    let providers = file.as_ref().map(AgentFile::providers).cloned().unwrap_or_default();
    list_providers(model.as_deref(), &providers, term)
}

#[cfg(feature = "models")]
fn list_providers(
    model: Option<&str>,
    providers: &ProviderSpecs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    use crate::agent_file::model::{needs_aws_signatures, registry_with};
    use crate::terminal::{OutputFormat, TextStyle, paint, styled};
    use serde_json::json;
    use windlass_text::SafeText;

    let registry = registry_with(providers);
    let default = model.map(str::to_owned).or_else(|| registry.default_spec());
    for provider in registry.providers() {
        let of_file = providers.get(&provider.name);
        let base_url = of_file.map(|settings| settings.base_url.clone()).or(provider.base_url);
        let base_url = base_url.as_deref().map(windlass_models::net::display_url);
        let missing = match of_file.and_then(|settings| settings.key_variable.as_deref()) {
            Some(variable) if std::env::var_os(variable).is_none() => vec![variable],
            _ => provider.missing_variables,
        };
        let is_configured = provider.is_configured && missing.is_empty();
        let is_default = default
            .as_deref()
            .and_then(|spec| spec.split_once(':'))
            .is_some_and(|spec| spec.0 == provider.name);
        if term.output_format() == OutputFormat::Json {
            term.print_json(&json!({
                "provider": provider.name,
                "api": provider.api,
                "base_url": base_url,
                "is_configured": is_configured,
                "missing_variables": missing,
                "model": default.as_deref().filter(|_| is_default),
            }));
            continue;
        }
        let state = match is_configured {
            // No server was asked, and one on this machine may not run.
            true if base_url.as_deref().is_some_and(is_on_this_machine) => {
                paint(TextStyle::Faint, "ready if its server runs")
            }
            true => paint(TextStyle::Success, "ready"),
            false if needs_aws_signatures(&provider.name) => {
                let words = "needs a build with `--features bedrock`, or AWS_BEARER_TOKEN_BEDROCK";
                paint(TextStyle::Faint, words)
            }
            false => paint(TextStyle::Faint, format!("needs {}", missing.join(" and "))),
        };
        let name = SafeText::from_line(&format!("{:<18}", provider.name));
        let address = SafeText::from_words(&base_url.unwrap_or_default());
        let mut line = styled![paint(TextStyle::Title, name), state, "  ", address];
        if let (true, Some(spec)) = (is_default, &default) {
            line = styled![line, "  default: ", SafeText::from_words(spec)];
        }
        term.print_line(line);
    }
    Ok(CommandExit::Success)
}

#[cfg(not(feature = "models"))]
fn list_providers(_: Option<&str>, _: &ProviderSpecs, _: &Terminal) -> Result<CommandExit, CliError> {
    Err(CliError::new("this windlass was built without network models")
        .with_hint("build it with `--features models`"))
}

#[cfg(feature = "models")]
fn is_on_this_machine(base_url: &str) -> bool {
    ["://127.0.0.1", "://localhost", "://[::1]"].iter().any(|host| base_url.contains(host))
}
