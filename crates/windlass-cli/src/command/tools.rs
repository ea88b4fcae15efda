//! `windlass tools`: what an agent can use.

use serde_json::json;
use windlass::core::Gate;
use windlass::{Effect, Tool};

use super::agent_here;
use crate::agent_file::AgentFile;
use crate::args::{Args, ToolsArgs};
use crate::problem::{Exit, Problem};
use crate::term::{Form, Paint, Style, Term, clip, one_line, pad};

pub(crate) async fn run(args: &Args, asked: &ToolsArgs, term: &Term) -> Result<Exit, Problem> {
    let named = match &asked.agent {
        Some(named) => named.clone(),
        None => agent_here(args)?,
    };
    let file = AgentFile::read(&named)?;
    let tools = file.tools().await?;
    let served = file.mcp_tools().await?;
    match term.form() {
        Form::Json => {
            for tool in &tools {
                term.say_json(&json!({
                    "tool": tool.key().to_string(),
                    "effect": effect(tool),
                    "asks": asks(tool),
                    "description": tool.description(),
                    "schema": tool.schema(),
                }));
            }
            for (tool, description) in &served.tools {
                term.say_json(&json!({ "tool": tool, "description": description }));
            }
        }
        Form::Human if tools.is_empty() && served.tools.is_empty() => {
            term.note(format!("agent `{}` has no tools", file.name()));
            term.note("hint: write `tools = [\"files\"]` in its file; docs/guide/command.md lists the built-in ones");
        }
        Form::Human => {
            for tool in &tools {
                term.say(tool_line(tool, term.paint_out(), term.width()));
            }
            for (tool, description) in &served.tools {
                let room = term.width().saturating_sub(tool.chars().count() + 3);
                let about = clip(&one_line(description), room);
                term.say(format!("{}  {about}", term.paint_out().of(Paint::Title, tool)));
            }
        }
    }
    if term.form() == Form::Human {
        served.missing.iter().for_each(|line| term.note(format!("! {line}")));
    }
    Ok(Exit::Done)
}

/// A tool on one line.
pub(crate) fn tool_line(tool: &Tool, paint: Style, width: usize) -> String {
    let name = tool.key().to_string();
    let name = pad(&clip(&name, 24), 16);
    let facts = pad(&format!("{}, {}", effect(tool), asks(tool)), 24);
    let used = name.chars().count() + facts.chars().count() + 7;
    let about = clip(&one_line(tool.description()), width.saturating_sub(used));
    format!("{}  {}  {about}", paint.of(Paint::Title, &name), paint.of(Paint::Faint, &facts))
}

fn effect(tool: &Tool) -> &'static str {
    match tool.declared_effect() {
        Effect::Pure => "pure",
        Effect::Idempotent => "idempotent",
        Effect::Once => "once",
    }
}

fn asks(tool: &Tool) -> &'static str {
    match tool.gate() {
        Gate::Open => "unasked",
        Gate::Closed => "always asks",
        Gate::Ask | Gate::AskEach => "may ask",
        Gate::Each => "asks each time",
    }
}
