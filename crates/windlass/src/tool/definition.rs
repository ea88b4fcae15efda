//! The digest of a tool's definition, to which standing decisions are bound.

use serde_json::{Map, Value};
use windlass_core::canonical::{Digest, canonical_json};
use windlass_core::tool::{ToolEffect, ToolKey};

use super::Tool;

/// Keywords of a schema that describe and do not constrain.
const DESCRIPTIVE_KEYWORDS: [&str; 4] = ["$comment", "description", "examples", "title"];
/// Keywords of a schema whose values are maps from names to schemas.
const NAMED_SCHEMAS: [&str; 5] =
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords of a schema whose values are data.
const DATA_KEYWORDS: [&str; 4] = ["const", "default", "enum", "required"];

impl<C> Tool<C> {
    /// Returns the digest of the tool's definition. A standing decision covers one definition.
    ///
    /// For a tool of the application it covers the identity, the effect and the schema without its descriptions: a
    /// reworded comment changes nothing. For a tool of an MCP server, whose definition somebody else writes, it covers
    /// the server, the name, the description, the schema and the annotations, all of them as the server gave them.
    pub fn definition_digest(&self) -> Digest {
        match &self.key {
            ToolKey::Mcp { definition: Some(definition), .. } => *definition,
            ToolKey::Mcp { server, name, definition: None } => {
                mcp_definition(server, name, &self.description, &self.schema)
            }
            ToolKey::Bare(_) | ToolKey::Namespaced { .. } | ToolKey::Deferred(_) => {
                let effect = match self.effect {
                    ToolEffect::Pure => "pure",
                    ToolEffect::Idempotent => "idempotent",
                    ToolEffect::Once => "once",
                };
                let schema = canonical_json(&without_descriptions(&self.schema));
                Digest::of_parts(&["tool", &self.key.to_text(), effect, &schema])
            }
        }
    }
}

/// Returns the digest of a definition that an MCP server gave.
pub(super) fn mcp_definition(server: &str, name: &str, description: &str, schema: &Value) -> Digest {
    Digest::of_parts(&["mcp tool", server, name, description, &canonical_json(schema)])
}

/// Removes descriptions from a schema. A property may have the name of a keyword, so names are kept.
fn without_descriptions(schema: &Value) -> Value {
    match schema {
        Value::Object(rules) => {
            let mut kept = Map::new();
            for (keyword, value) in rules {
                let value = match (keyword.as_str(), value) {
                    (keyword, _) if DESCRIPTIVE_KEYWORDS.contains(&keyword) => continue,
                    (keyword, Value::Object(named)) if NAMED_SCHEMAS.contains(&keyword) => {
                        let named = named.iter();
                        named.map(|(name, schema)| (name.clone(), without_descriptions(schema))).collect()
                    }
                    (keyword, value) if DATA_KEYWORDS.contains(&keyword) => value.clone(),
                    (_, value) => without_descriptions(value),
                };
                kept.insert(keyword.clone(), value);
            }
            Value::Object(kept)
        }
        Value::Array(schemas) => schemas.iter().map(without_descriptions).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
#[path = "definition_tests.rs"]
mod tests;
