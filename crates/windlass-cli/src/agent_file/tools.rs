//! The tools that an agent's file names.

use std::path::Path;

use windlass::Tool;

use crate::demo;
use crate::problem::Problem;

/// The tools that the names stand for, working in `folder`.
pub(super) fn find(names: &[String], folder: &Path) -> Result<Vec<Tool>, Problem> {
    let known = all(folder);
    let mut found: Vec<Tool> = Vec::new();
    for name in names {
        let Some((_, tool)) = known.iter().find(|(of, tool)| is_named(of, tool, name)) else {
            let names: Vec<String> = known.iter().map(|(of, tool)| full_name(of, tool)).collect();
            return Err(Problem::new(format!("there is no built-in tool `{name}`"))
                .hint(format!("there are {}", names.join(", "))));
        };
        found.push(tool.clone());
    }
    Ok(found)
}

/// Every tool that there is, and the set it belongs to.
fn all(folder: &Path) -> Vec<(&'static str, Tool)> {
    demo::tools(folder).into_iter().map(|tool| ("demo.", tool)).collect()
}

fn is_named(of: &str, tool: &Tool, name: &str) -> bool {
    name.strip_prefix(of) == Some(tool.name())
}

fn full_name(of: &str, tool: &Tool) -> String {
    format!("{of}{}", tool.name())
}
