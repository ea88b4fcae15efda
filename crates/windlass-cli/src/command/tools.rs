//! `windlass tools`: lists the tools of an agent.

use serde_json::json;
use windlass::core::tool::ApprovalPolicy;
use windlass::{core::tool::ToolEffect, tool::Tool};

use super::default_agent;
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, ToolsArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::terminal::{
    ColourMode, OutputFormat, Terminal, TextStyle, pad_to_width, to_one_line, truncate_to_width,
};

pub(crate) async fn run(args: &CliArgs, asked: &ToolsArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let named = match &asked.agent {
        Some(named) => named.clone(),
        None => default_agent(args)?,
    };
    let file = AgentFile::read(&named)?;
    let tools = file.load_tools().await?;
    let served = file.list_mcp_tools().await?;
    match term.output_format() {
        OutputFormat::Json => {
            for tool in &tools {
                term.print_json(&json!({
                    "tool": tool.key().to_string(),
                    "effect": effect_name(tool),
                    "approval_policy": tool.approval_policy(),
                    "description": tool.description(),
                    "schema": tool.arguments_schema(),
                }));
            }
            for (tool, description) in &served.tools {
                term.print_json(&json!({ "tool": tool, "description": description }));
            }
        }
        OutputFormat::Text if tools.is_empty() && served.tools.is_empty() => {
            term.eprint_line(format!("agent `{}` has no tools", file.name()));
            term.eprint_line("hint: write `tools = [\"files\"]` in the agent file; docs/guide/command.md lists the built-in tools");
        }
        OutputFormat::Text => {
            for tool in &tools {
                term.print_line(tool_line(tool, term.stdout_colour(), term.width()));
            }
            for (tool, description) in &served.tools {
                let room = term.width().saturating_sub(tool.chars().count() + 3);
                let about = truncate_to_width(&to_one_line(description), room);
                term.print_line(format!("{}  {about}", term.stdout_colour().paint(TextStyle::Title, tool)));
            }
        }
    }
    if term.output_format() == OutputFormat::Text {
        served.unreachable.iter().for_each(|line| term.eprint_line(format!("! {line}")));
    }
    Ok(CommandExit::Success)
}

/// Formats a tool on one line.
pub(crate) fn tool_line(tool: &Tool, paint: ColourMode, width: usize) -> String {
    let name = tool.key().to_string();
    let name = pad_to_width(&truncate_to_width(&name, 24), 16);
    let facts = pad_to_width(&format!("{}, {}", effect_name(tool), approval_name(tool)), 24);
    let used = name.chars().count() + facts.chars().count() + 7;
    let about = truncate_to_width(&to_one_line(tool.description()), width.saturating_sub(used));
    format!("{}  {}  {about}", paint.paint(TextStyle::Title, &name), paint.paint(TextStyle::Faint, &facts))
}

fn effect_name(tool: &Tool) -> &'static str {
    match tool.declared_effect() {
        ToolEffect::Pure => "pure",
        ToolEffect::Idempotent => "idempotent",
        ToolEffect::Once => "once",
    }
}

fn approval_name(tool: &Tool) -> &'static str {
    match tool.approval_policy() {
        ApprovalPolicy::NotRequired => "no approval",
        ApprovalPolicy::Required => "approval required",
        ApprovalPolicy::ByRule | ApprovalPolicy::ByRuleEachTime => "approval by rule",
        ApprovalPolicy::RequiredEachTime => "approval each time",
    }
}
