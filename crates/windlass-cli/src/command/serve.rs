//! `windlass serve`: agents over HTTP, the inbox and the inspector.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use windlass::price::PriceList;
use windlass_server::{
    AccessPolicy, AccessRole, AgentServer, CallPreview, ServerLimits, TokenDigest, new_access_token,
};

use super::work::{deploy_agents, read_agents};
use crate::agent_file::{AgentFile, PreviewStatus};
use crate::args::{CliArgs, ServeArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::log_lines::print_warnings;
use crate::project::CliProject;
use crate::run_driver::{SignalCounter, current_user};
use crate::terminal::{OutputFormat, Terminal};

pub(crate) async fn run(args: &CliArgs, serve: &ServeArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    if let Some(person) = &serve.new_token {
        return print_token(term, person);
    }
    let files = read_agents(args, &serve.agents)?;
    let Some(first) = files.first() else { return Err(CliError::usage("no agent is named")) };
    let project = CliProject::of_agent_file(args, first.path(), term)?;
    print_warnings(term);
    let store = project.open_or_create().await?;
    let registry = deploy_agents(&project, &files, &store).await?;
    // Every process of this machine reaches the loopback interface, the commands of an agent included. So the one local
    // user has a token, too, which only this terminal shows.
    let (access, token) = match &serve.access {
        Some(path) => (read_access(path)?, None),
        None => {
            let token = new_token()?;
            let digest = TokenDigest::of_token(&token);
            let access =
                AccessPolicy::default().with_person(current_user(), digest, [("*", AccessRole::Administer)]);
            (access, Some(token))
        }
    };
    let prices = report_prices(&files)?;
    let limits = ServerLimits { concurrent_runs: serve.workers, ..ServerLimits::default() };
    let mut server = AgentServer::new(registry)
        .store(store)
        .address(serve.listen.clone())
        .access(access)
        .limits(limits)
        .prices(prices)
        .preview(Arc::new(move |_, call| preview(&files, call)));
    if let Some(folder) = project.live_journals() {
        server = server.live_journals(folder);
    }
    for name in &serve.name {
        server = server.host(name.clone());
    }
    let stop = server.stop_handle();
    let listener = server.listen().await.map_err(|error| CliError::new(error.to_string()))?;
    let local = listener.local_addr()?;
    if serve.access.is_none() && !local.ip().is_loopback() {
        let message = format!("others reach {local}, and one token for everybody is not enough there");
        return Err(
            CliError::usage(message).with_hint("name the people with `--access`, see docs/guide/server.md")
        );
    }
    let address = format!("http://{local}");
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(&json!({ "type": "serving", "url": address, "token": token }));
        }
        OutputFormat::Text => {
            term.print_line(format!("serving on {address}"));
            if let Some(token) = &token {
                term.print_line(format!("token of this server, shown once: {token}"));
            }
        }
    }
    let mut signals = SignalCounter::install()?;
    let mut serving = std::pin::pin!(server.serve_on(listener));
    let served = tokio::select! {
        served = &mut serving => served,
        _ = signals.next() => {
            stop.stop();
            serving.await
        }
    };
    served.map_err(|error| {
        CliError::new(error.to_string()).with_hint("`windlass serve --help` shows how people are named")
    })?;
    Ok(CommandExit::Success)
}

/// Returns the prices for requests without a recorded cost: those of the first agent that names a file, or else the shipped
/// ones. A run records its costs by the prices of its own agent.
///
/// # Errors
///
/// Fails if the prices of two agents are in different currencies: a report adds up the costs of all agents.
fn report_prices(files: &[Arc<AgentFile>]) -> Result<Arc<PriceList>, CliError> {
    let shipped = PriceList::shipped();
    let lists = || files.iter().map(|file| (file, file.prices().unwrap_or(&shipped)));
    if let Some((first, list)) = lists().next()
        && let Some((other, other_list)) = lists().find(|(_, other)| other.currency != list.currency)
    {
        return Err(CliError::usage(format!(
            "the prices of the agent `{}` are in {}, and those of `{}` in {}",
            first.name(),
            list.currency,
            other.name(),
            other_list.currency
        ))
        .with_hint("name files in one currency with `prices_file`, or serve the agents by two servers"));
    }
    Ok(files.iter().find_map(|file| file.prices()).unwrap_or(&shipped).clone())
}

fn preview(files: &[Arc<AgentFile>], call: &windlass::core::decision::PendingCall) -> Option<CallPreview> {
    let file = files.iter().find(|file| file.name() == call.agent.as_str())?;
    let preview = file.preview_change(&call.tool, &call.arguments)?;
    let is_refused = matches!(preview.status, PreviewStatus::Refused);
    Some(CallPreview { title: preview.title, is_refused, lines: preview.lines })
}

fn read_access(path: &Path) -> Result<AccessPolicy, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::not_found(format!("`{shown}` cannot be read: {error}")))?;
    toml::from_str(&text).map_err(|error| {
        CliError::new(format!("`{shown}` is not a valid access file:\n{}", error.to_string().trim_end()))
            .with_hint("docs/guide/server.md has an example")
    })
}

/// Makes a random token.
fn new_token() -> Result<String, CliError> {
    new_access_token().map_err(|error| CliError::new(format!("no token can be made: {error}")))
}

/// Prints a new token, which is stored nowhere, and the lines that let its person in.
fn print_token(term: &Terminal, person: &str) -> Result<CommandExit, CliError> {
    let token = new_token()?;
    let digest = TokenDigest::of_token(&token).to_string();
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(
                &json!({ "type": "token", "person": person, "token": token, "token_sha256": digest }),
            );
        }
        OutputFormat::Text => {
            term.print_line(format!("token of {person}, shown once: {token}"));
            term.print_line("");
            for line in [
                "[[person]]".to_owned(),
                format!("name = {}", serde_json::Value::from(person)),
                format!("token_sha256 = \"{digest}\""),
                "roles = { \"*\" = [\"view\"] }".to_owned(),
            ] {
                term.print_line(line);
            }
        }
    }
    Ok(CommandExit::Success)
}
