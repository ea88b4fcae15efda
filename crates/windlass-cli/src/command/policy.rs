//! `windlass policy`: tests a policy on the calls of recorded runs.

use crate::args::{CliArgs, PolicyArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::terminal::Terminal;

#[cfg(unix)]
pub(crate) async fn run(
    args: &CliArgs,
    asked: &PolicyArgs,
    term: &Terminal,
) -> Result<CommandExit, CliError> {
    use serde_json::json;
    use windlass::store::{RunQuery, list_all_runs, load_paused};
    use windlass_tools::ToolPolicy;
    use windlass_tools::tool_policy::RecordedHandling;

    use super::find_agent;
    use crate::agent_file::AgentFile;
    use crate::args::PolicyAction;
    use crate::project::CliProject;
    use crate::terminal::OutputFormat;

    let PolicyAction::Test { agent, file } = &asked.action;
    let project = CliProject::from_args(args)?;
    let agent_file = AgentFile::read(&find_agent(args, agent.as_deref())?)?;
    let policy = match file {
        Some(path) => ToolPolicy::read(path).map_err(|error| {
            CliError::new(error.to_string()).with_hint("docs/guide/policy.md describes the rules")
        })?,
        None => agent_file.policy().rules().cloned().ok_or_else(|| {
            CliError::not_found(format!("`{}` has no policy", agent_file.path().display()))
                .with_hint("write [[policy.rule]] sections in it, or pass --file")
        })?,
    };
    let store = project.open_existing().await?;
    let (mut calls, mut changed) = (0usize, 0usize);
    for stored in list_all_runs(&*store, RunQuery::default()).await? {
        let known = load_paused(&*store, &stored.run).await?;
        for call in policy.replay(known.record().journal()) {
            calls += 1;
            if !call.is_changed() {
                continue;
            }
            changed += 1;
            let recorded = match call.recorded {
                RecordedHandling::Ran => "ran without approval",
                RecordedHandling::Asked => "was asked about",
                RecordedHandling::Refused => "was refused",
            };
            match term.output_format() {
                OutputFormat::Json => term.print_json(&json!({
                    "type": "policy_change", "run": stored.run, "call": call.path, "agent": call.agent,
                    "tool": call.tool, "arguments": call.arguments, "recorded": recorded,
                    "verdict": call.decision.verdict, "rule": call.decision.rule, "place": call.decision.place,
                })),
                // Names and arguments are text of a model, so they are printed as JSON strings.
                OutputFormat::Text => term.print_line(format!(
                    "{} {}: {} {} {recorded}; now it is {}",
                    json!(stored.run), json!(call.path.to_string()), json!(call.tool), json!(call.arguments), call.decision
                )),
            }
        }
    }
    match term.output_format() {
        OutputFormat::Json => {
            term.print_json(&json!({ "type": "policy_test", "calls": calls, "changed": changed }))
        }
        OutputFormat::Text => term.print_line(format!("{calls} calls, {changed} of them handled otherwise")),
    }
    Ok(CommandExit::Success)
}

#[cfg(not(unix))]
pub(crate) async fn run(_: &CliArgs, _: &PolicyArgs, _: &Terminal) -> Result<CommandExit, CliError> {
    Err(CliError::new("policies need a Unix system"))
}
