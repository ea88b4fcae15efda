//! Names of MCP tools for the model.
//!
//! **Invariant:** every name is unique, valid for all providers, and independent of the order of the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass::core::canonical::Digest;

/// Maximum length of a tool name that all providers accept.
const MAX_NAME_LENGTH: usize = 64;
/// Number of digest characters appended to make a name unique.
const DIGEST_SUFFIX_LENGTH: usize = 8;

/// The naming scheme of MCP tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolNaming {
    /// The tool's own name. A name that two servers share, or that the agent's own tools use, is prefixed with the
    /// server's name, with a warning.
    #[default]
    Plain,
    /// The tool's name prefixed with the server's name: `mcp_SERVER__TOOL`.
    Prefixed,
}

/// The identity of a tool: its server, and its name at the server.
pub(crate) type McpToolIdentity<'a> = (&'a str, &'a str);

/// Assigns a name to each tool, in order; `None` if no unique name is left. Also returns warnings.
pub(crate) fn assign_names(
    tools: &[McpToolIdentity<'_>],
    taken: &BTreeSet<Arc<str>>,
    naming: ToolNaming,
) -> (Vec<Option<String>>, Vec<String>) {
    let mut warnings = Vec::new();
    let mut names: Vec<String> = tools
        .iter()
        .map(|tool| match naming {
            ToolNaming::Plain => shorten_name(&sanitise_name(tool.1), *tool),
            ToolNaming::Prefixed => prefixed_name(*tool),
        })
        .collect();
    if naming == ToolNaming::Plain {
        for at in colliding_indices(&names, taken) {
            let other = prefixed_name(tools[at]);
            warnings.push(format!(
                "tool `{}` of MCP server `{}` shares its name and is offered as `{other}`",
                tools[at].1, tools[at].0
            ));
            names[at] = other;
        }
    }
    for at in colliding_indices(&names, taken) {
        names[at] = with_suffix(&names[at], tools[at]);
    }
    let lost: BTreeSet<usize> = colliding_indices(&names, taken).into_iter().collect();
    let names = names.into_iter().enumerate().map(|(at, name)| {
        if lost.contains(&at) {
            warnings.push(format!("tool `{}` of MCP server `{}` has no name left", tools[at].1, tools[at].0));
        }
        (!lost.contains(&at)).then_some(name)
    });
    (names.collect(), warnings)
}

/// Returns the indices of all names that collide with another name or a taken one. All parties of a collision are
/// returned, so that the result does not depend on the order.
fn colliding_indices(names: &[String], taken: &BTreeSet<Arc<str>>) -> Vec<usize> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    (0..names.len())
        .filter(|&at| counts[names[at].as_str()] > 1 || taken.contains(names[at].as_str()))
        .collect()
}

fn prefixed_name(tool: McpToolIdentity<'_>) -> String {
    shorten_name(&format!("mcp_{}__{}", sanitise_name(tool.0), sanitise_name(tool.1)), tool)
}

/// Replaces characters that not all providers accept by `_`.
fn sanitise_name(name: &str) -> String {
    let safe = |one: char| if one.is_ascii_alphanumeric() || one == '_' || one == '-' { one } else { '_' };
    name.chars().map(safe).collect()
}

fn shorten_name(name: &str, tool: McpToolIdentity<'_>) -> String {
    if name.len() <= MAX_NAME_LENGTH { name.to_owned() } else { with_suffix(name, tool) }
}

/// Appends a digest of the tool's identity to its name, which is the same on every machine and in every run.
fn with_suffix(name: &str, tool: McpToolIdentity<'_>) -> String {
    let digest = Digest::of_parts(&[tool.0, tool.1]).to_string();
    let kept = name.floor_char_boundary(MAX_NAME_LENGTH - DIGEST_SUFFIX_LENGTH - 1);
    format!("{}_{}", &name[..kept.min(name.len())], &digest[..DIGEST_SUFFIX_LENGTH])
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
