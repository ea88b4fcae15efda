//! `windlass tools`: lists the tools of an agent.

use serde_json::json;
use windlass::core::tool::ApprovalPolicy;
use windlass::{core::tool::ToolEffect, tool::Tool};

use super::find_agent;
use crate::agent_file::AgentFile;
use crate::args::{CliArgs, ToolsArgs};
use crate::cli_error::{CliError, CommandExit};
use crate::terminal::{OutputFormat, StyledText, Terminal, TextStyle, paint, styled};
use windlass_text::SafeText;

pub(crate) async fn run(args: &CliArgs, asked: &ToolsArgs, term: &Terminal) -> Result<CommandExit, CliError> {
    let named = find_agent(args, asked.agent.as_deref())?;
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
            for (prompt, description) in &served.prompts {
                term.print_json(&json!({ "prompt": prompt, "description": description }));
            }
        }
        OutputFormat::Text if tools.is_empty() && served.tools.is_empty() => {
            term.eprint_line(format!("agent `{}` has no tools", file.name()));
            term.eprint_hint("write `tools = [\"files\"]` in the agent file; docs/guide/command.md lists the built-in tools");
        }
        OutputFormat::Text => {
            for tool in &tools {
                term.print_line(tool_line(tool, term.width()));
            }
            let prompts = served.prompts.iter().map(|(prompt, about)| (format!("prompt {prompt}"), about));
            for (tool, description) in
                served.tools.iter().map(|(tool, about)| (tool.clone(), about)).chain(prompts)
            {
                let tool = SafeText::from_words(&tool);
                let about = SafeText::from_words(description);
                let about = about.truncate(term.width().saturating_sub(tool.width() + 3));
                term.print_line(styled![paint(TextStyle::Title, tool), "  ", about]);
            }
        }
    }
    if term.output_format() == OutputFormat::Text {
        served.unreachable.iter().for_each(|line| term.eprint_line(format!("! {line}")));
    }
    Ok(CommandExit::Success)
}

/// Formats a tool on one line.
pub(crate) fn tool_line(tool: &Tool, width: usize) -> StyledText {
    let name = SafeText::from_words(&tool.key().to_string()).truncate(24).pad(16);
    let facts = SafeText::from_line(&format!("{}, {}", effect_name(tool), approval_name(tool))).pad(24);
    let used = name.width() + facts.width() + 7;
    let about = SafeText::from_words(tool.description()).truncate(width.saturating_sub(used));
    styled![paint(TextStyle::Title, name), "  ", paint(TextStyle::Faint, facts), "  ", about]
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
