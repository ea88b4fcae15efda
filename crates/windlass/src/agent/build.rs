//! The digest of an agent's build: of what a stored run depends on.

use windlass_core::canonical::{Digest, canonical_json};

use super::{Agent, AgentTool, HandoffTarget};
use crate::tool::ToolBody;

/// Returns the digest of an agent and of every agent that it can reach.
pub(super) fn agent_digest<C: Send + Sync + 'static>(agent: &Agent<C>) -> Digest {
    let mut parts = Vec::new();
    describe_agent(agent, &mut Vec::new(), &mut parts);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Digest::of_parts(&parts)
}

/// Appends the description of an agent and of those that it reaches; `visited` has the agents that were described.
fn describe_agent<C: Send + Sync + 'static>(
    agent: &Agent<C>,
    visited: &mut Vec<String>,
    parts: &mut Vec<String>,
) {
    let name = agent.name().as_str().to_owned();
    if visited.contains(&name) {
        return;
    }
    visited.push(name.clone());
    parts.push(format!("agent {name}"));
    let mut tools: Vec<String> =
        agent.inner.tools.iter().map(|tool| format!("tool {}", tool.definition_digest())).collect();
    tools.sort();
    parts.append(&mut tools);
    if let Some(Ok(output)) = agent.inner.output_type.as_ref().map(|output| &output.schema) {
        parts.push(format!("output {}", canonical_json(&output.schema)));
    }
    let mut handoffs: Vec<String> =
        agent.inner.handoffs.iter().map(|handoff| format!("handoff {}", handoff.target.name())).collect();
    handoffs.sort();
    parts.append(&mut handoffs);
    for handoff in &agent.inner.handoffs {
        if let HandoffTarget::Agent(target) = &handoff.target {
            describe_agent(target, visited, parts);
        }
    }
    for tool in &agent.inner.tools {
        if let ToolBody::Agent(AgentTool { target: HandoffTarget::Agent(target), .. }) = &tool.body {
            describe_agent(target, visited, parts);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tool::{Tool, ToolContext, ToolError};

    fn desk(property: &str, description: &str) -> Agent {
        let schema = json!({ "type": "object", "properties": { property: { "type": "string", "description": description } },
            "required": [property], "additionalProperties": false });
        let tool = Tool::dynamic("order", description, schema, |_: ToolContext, _: Value| async {
            Ok::<_, ToolError>("ordered")
        });
        Agent::new("desk").instructions(description).tools(tool)
    }

    #[test]
    fn other_words_are_the_same_build_and_another_schema_is_not() {
        let build = agent_digest(&desk("what", "Orders."));
        assert_eq!(agent_digest(&desk("what", "Orders something.")), build);
        assert_ne!(agent_digest(&desk("thing", "Orders.")), build);
        let reaching = Agent::new("front").handoff(desk("what", "Orders."));
        let changed = Agent::new("front").handoff(desk("thing", "Orders."));
        assert_ne!(agent_digest(&reaching), agent_digest(&changed));
    }
}
