//! Application of a policy to tools.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use windlass::core::provenance::ContentSources;
use windlass::core::run::ApprovalRequirement;
use windlass::core::tool::ToolKey;
use windlass::guardrail::{ToolGuardrailVerdict, ToolInputGuardrail};
use windlass::tool::{Tool, ToolContext};

use super::{PolicyCall, PolicyDecision, PolicyVerdict, ToolPolicy};

impl ToolPolicy {
    /// Puts a tool under the policy: it decides about approvals in place of the tool's own rule, and refuses denied
    /// calls. Approvals that a tool requires each time stay required.
    pub fn apply_to<C: Send + Sync + 'static>(&self, tool: Tool<C>) -> Tool<C> {
        let (asking, denying) = (self.clone(), self.clone());
        let tool = if self.asks_each_time() {
            let asking = self.clone();
            tool.also_needs_approval_each_time_if(move |ctx: &ToolContext<C>| {
                asking.decide_now(ctx).verdict == PolicyVerdict::AskEachTime
            })
        } else {
            tool
        };
        tool.needs_approval_unless(move |ctx: &ToolContext<C>| {
            let decision = asking.decide_now(ctx);
            match decision.verdict {
                PolicyVerdict::Allow => Some(ApprovalRequirement::NotRequired),
                PolicyVerdict::Ask | PolicyVerdict::AskEachTime => Some(ApprovalRequirement::Required),
                // The verdict may be another one when the call has waited for its turn, so it ends here.
                PolicyVerdict::Deny => Some(ApprovalRequirement::Rejected(denial_text(&decision))),
                PolicyVerdict::Tool => None,
            }
        })
        // For calls that need no rule: those that a person has decided about or edited, and those that a receipt answers.
        .input_guardrail(ToolInputGuardrail::new("policy", move |ctx: ToolContext<C>| {
            let decision = denying.decide_now(&ctx);
            std::future::ready(Ok(match decision.verdict {
                PolicyVerdict::Deny => ToolGuardrailVerdict::RejectCall(denial_text(&decision)),
                PolicyVerdict::Allow
                | PolicyVerdict::Tool
                | PolicyVerdict::Ask
                | PolicyVerdict::AskEachTime => ToolGuardrailVerdict::Allow,
            }))
        }))
    }

    /// Puts all tools of a list under the policy.
    pub fn apply_to_all<C: Send + Sync + 'static>(&self, tools: Vec<Tool<C>>) -> Vec<Tool<C>> {
        tools.into_iter().map(|tool| self.apply_to(tool)).collect()
    }

    /// Decides about the call of a context, at the present time.
    pub fn decide_now<C>(&self, ctx: &ToolContext<C>) -> PolicyDecision {
        self.decide_for(ctx.agent().as_str(), ctx.tool_key(), ctx.arguments(), ctx.context_sources())
    }

    /// Decides about a call with these arguments, as JSON, at the present time. `context_sources` are those of the text
    /// that the model could read when it proposed the call.
    pub fn decide_for(
        &self,
        agent: &str,
        tool: &ToolKey,
        arguments: &str,
        context_sources: ContentSources,
    ) -> PolicyDecision {
        // The arguments of a call are JSON; a policy that cannot read them matches nothing that allows.
        let arguments: Value = serde_json::from_str(arguments).unwrap_or(Value::Null);
        let (name, origin) = tool_name(tool);
        self.decide(&PolicyCall {
            agent,
            tool: &name,
            origin: origin.as_deref(),
            arguments: &arguments,
            context_sources,
            minute_of_day: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .ok()
                .and_then(|now| u32::try_from(now.as_secs() / 60 % (24 * 60)).ok()),
        })
    }
}

/// Returns the text for the model about a call that a policy denies.
fn denial_text(decision: &PolicyDecision) -> String {
    format!("this call is {decision}")
}

/// Returns the name of a tool in rules, and its MCP server.
pub(super) fn tool_name(tool: &ToolKey) -> (Arc<str>, Option<Arc<str>>) {
    match tool {
        ToolKey::Bare(name) | ToolKey::Deferred(name) => (name.clone(), None),
        ToolKey::Namespaced { namespace, name } => (format!("{namespace}.{name}").into(), None),
        ToolKey::Mcp { server, name, .. } => (name.clone(), Some(server.clone())),
    }
}
