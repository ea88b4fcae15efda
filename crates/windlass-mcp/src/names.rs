//! What a model calls tools by: names that providers take, one for each tool, whatever order they came in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass::core::Digest;

/// The longest name that every provider takes.
const LONGEST: usize = 64;
/// How much of a digest tells two names apart.
const SUFFIX: usize = 8;

/// How tools of servers are named to models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// By their own names. Those that two servers share, or that the agent has itself, are told apart by their
    /// server's name, and a warning says so.
    #[default]
    Plain,
    /// Always with their server's name: `mcp_SERVER__TOOL`.
    Prefixed,
}

/// A tool to be named: its server and its name there.
pub(crate) type Identity<'a> = (&'a str, &'a str);

/// The names of the tools, in their order. None for one that no name is left for.
pub(crate) fn assign(
    tools: &[Identity<'_>],
    taken: &BTreeSet<Arc<str>>,
    naming: Naming,
) -> (Vec<Option<String>>, Vec<String>) {
    let mut warnings = Vec::new();
    let mut names: Vec<String> = tools
        .iter()
        .map(|tool| match naming {
            Naming::Plain => cut(&safe(tool.1), *tool),
            Naming::Prefixed => prefixed(*tool),
        })
        .collect();
    if naming == Naming::Plain {
        for at in shared(&names, taken) {
            let other = prefixed(tools[at]);
            warnings.push(format!(
                "tool `{}` of MCP server `{}` shares its name and is offered as `{other}`",
                tools[at].1, tools[at].0
            ));
            names[at] = other;
        }
    }
    for at in shared(&names, taken) {
        names[at] = with_suffix(&names[at], tools[at]);
    }
    let lost: BTreeSet<usize> = shared(&names, taken).into_iter().collect();
    let names = names.into_iter().enumerate().map(|(at, name)| {
        if lost.contains(&at) {
            warnings.push(format!("tool `{}` of MCP server `{}` has no name left", tools[at].1, tools[at].0));
        }
        (!lost.contains(&at)).then_some(name)
    });
    (names.collect(), warnings)
}

/// Those whose name is not theirs alone: all of them, so that it does not matter who came first.
fn shared(names: &[String], taken: &BTreeSet<Arc<str>>) -> Vec<usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    (0..names.len())
        .filter(|&at| counts[names[at].as_str()] > 1 || taken.contains(names[at].as_str()))
        .collect()
}

fn prefixed(tool: Identity<'_>) -> String {
    cut(&format!("mcp_{}__{}", safe(tool.0), safe(tool.1)), tool)
}

/// The characters that every provider takes.
fn safe(name: &str) -> String {
    let safe = |one: char| if one.is_ascii_alphanumeric() || one == '_' || one == '-' { one } else { '_' };
    name.chars().map(safe).collect()
}

fn cut(name: &str, tool: Identity<'_>) -> String {
    if name.len() <= LONGEST { name.to_owned() } else { with_suffix(name, tool) }
}

/// The name, made this tool's own by what its identity adds up to: the same on every machine and in every run.
fn with_suffix(name: &str, tool: Identity<'_>) -> String {
    let digest = Digest::of_parts(&[tool.0, tool.1]).to_string();
    let kept = name.floor_char_boundary(LONGEST - SUFFIX - 1);
    format!("{}_{}", &name[..kept.min(name.len())], &digest[..SUFFIX])
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
