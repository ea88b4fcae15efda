//! Agents whose instructions, tools and handoffs are resolved once per conversation. They serve callers that
//! run the conversation with the model themselves, such as a realtime session: the calls that the model makes
//! are executed here, by the same driver as in any run.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use windlass_core::{
    id::{AgentName, RunId},
    item::{Item, ToolCall},
    tool::{ApprovalPolicy, ToolKey},
};

use super::{Agent, AgentGraph, ResolvedToolset, ToolsetEntry};
use crate::error::ConfigError;
use crate::guardrail::{GuardrailError, GuardrailVerdict, OutputGuardrail, panic_message};
use crate::model::{ModelResponse, ModelSettings, ToolDefinition};
use crate::receipts::{LateConflictKeys, ReceiptCache};
use crate::redaction::{OutputVisibility, is_redacted, redact_arguments};
use crate::run::{GivenResponse, PausedRun, RunBuilder};
use crate::secret_mask::SecretMask;
use crate::store::Store;
use crate::tool::RunContext;
#[cfg(doc)]
use crate::tool::Tool;

/// An agent whose instructions, tools and handoffs have been resolved once. Clones are cheap and share the same
/// agent.
pub struct ResolvedAgent<C = ()> {
    inner: Arc<ResolvedAgentInner<C>>,
}

struct ResolvedAgentInner<C> {
    agent: Agent<C>,
    app: Arc<C>,
    known_agents: Vec<Agent<C>>,
    graph: AgentGraph<C>,
    instructions: Option<Arc<str>>,
    tools: Arc<ResolvedToolset<C>>,
}

/// The state that the runs of one conversation share: the receipts of idempotent calls, and the values of secret
/// arguments, which are masked in every later text. Clones share it.
#[derive(Clone, Default)]
pub struct SharedConversation {
    cache: Arc<ReceiptCache>,
    late_keys: Arc<LateConflictKeys>,
    mask: SecretMask,
    conversation: Option<RunId>,
}

impl SharedConversation {
    /// Creates the state of a conversation with an id. Its runs share idempotency keys as the calls of one run do, and
    /// the conversation is their session.
    pub fn with_id(conversation: RunId) -> Self {
        Self { conversation: Some(conversation), ..Self::default() }
    }

    /// Returns a text in which the values of secret arguments of the conversation are masked.
    pub fn mask_text(&self, text: String) -> String {
        self.mask.mask_text(text)
    }

    /// Returns a JSON value in which the values of secret arguments of the conversation are masked.
    pub fn mask_json(&self, value: Value) -> Value {
        self.mask.mask_json(value)
    }

    /// Returns true if [`mask_text`](Self::mask_text) may change a text.
    pub fn has_secrets(&self) -> bool {
        self.mask.has_values()
    }
}

/// The redaction of a call for the journal: the arguments to record in place of the real ones, and the visibility of the
/// output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallRedaction {
    /// The arguments with secret values replaced; absent if none were replaced.
    pub redacted_arguments: Option<String>,
    /// True if the arguments are already redacted; the call cannot be executed from them.
    pub is_already_redacted: bool,
    /// True if the output is secret.
    pub is_output_secret: bool,
}

/// The result of one guardrail.
#[derive(Debug)]
pub struct GuardrailResult {
    /// Name of the guardrail.
    pub guardrail: Arc<str>,
    /// The verdict, or the error if the guardrail could not check.
    pub verdict: Result<GuardrailVerdict, GuardrailError>,
}

impl<C: Send + Sync + 'static> Agent<C> {
    /// Resolves the agent's instructions, tools and handoffs once. `known` are agents that handoffs may refer
    /// to by name; `conversation` is the run id that the agent's functions see in their context.
    ///
    /// # Errors
    ///
    /// Returns an error if two tools share a name, an agent is unknown, or a function of the agent panics.
    pub async fn resolve_with_context(
        &self,
        conversation: &RunId,
        context: impl Into<Arc<C>>,
        known: &[Self],
    ) -> Result<ResolvedAgent<C>, ConfigError> {
        let app = context.into();
        let graph = AgentGraph::new(self, known)?;
        let ctx = RunContext::new(app.clone(), conversation.clone(), self.name().clone(), [].into());
        let failed = |panic: Box<dyn std::any::Any + Send>| ConfigError::ResolveFailed {
            agent: self.name().clone(),
            reason: format!("it panicked: {}", panic_message(&*panic)),
        };
        let tools =
            AssertUnwindSafe(self.resolve_toolset(&ctx, &graph)).catch_unwind().await.map_err(failed)??;
        let instructions = AssertUnwindSafe(self.inner.instructions.resolve_text(&ctx)).catch_unwind().await;
        let instructions = instructions.map_err(failed)?;
        let known = known.to_vec();
        Ok(ResolvedAgent {
            inner: Arc::new(ResolvedAgentInner {
                agent: self.clone(),
                app,
                known_agents: known,
                graph,
                instructions,
                tools,
            }),
        })
    }
}

impl<C: Send + Sync + 'static> ResolvedAgent<C> {
    /// Returns true if a standing approval can cover the calls of a tool: no rule of it asks about its calls each time.
    /// `agent` made the call: this agent, or one inside a call. False for a tool that is not found.
    pub fn has_standing_approvals(&self, agent: &AgentName, tool: &ToolKey) -> bool {
        let can_cover = |known: &crate::tool::Tool<C>| {
            let policy = known.approval_policy();
            let is_each_time =
                matches!(policy, ApprovalPolicy::RequiredEachTime | ApprovalPolicy::ByRuleEachTime);
            known.has_standing_approvals() && !is_each_time
        };
        let mut found = Vec::new();
        if agent == self.agent().name() {
            let own = self.inner.tools.tools().filter(|known| known.key() == tool);
            found.extend(own.map(|known| can_cover(known)));
        }
        let roots = self.inner.known_agents.iter().chain([&self.inner.agent]);
        for nested in roots.flat_map(|root| root.reachable_agents()).filter(|one| one.name() == agent) {
            found.extend(nested.tool_list().filter(|known| known.key() == tool).map(can_cover));
        }
        !found.is_empty() && !found.contains(&false)
    }

    /// Returns the agent.
    pub fn agent(&self) -> &Agent<C> {
        &self.inner.agent
    }

    /// Returns the resolved instructions.
    pub fn instructions(&self) -> Option<&str> {
        self.inner.instructions.as_deref()
    }

    /// Returns the definitions of the tools that the model sees.
    pub fn tools(&self) -> &[ToolDefinition] {
        &self.inner.tools.definitions
    }

    /// Returns the definitions of the handoffs that the model sees.
    pub fn handoffs(&self) -> &[ToolDefinition] {
        &self.inner.tools.handoff_definitions
    }

    /// Returns the model settings.
    pub fn model_settings(&self) -> &ModelSettings {
        &self.inner.agent.inner.model_settings
    }

    /// Returns an agent that this one can hand off to, or one of the known agents.
    pub fn reachable_agent(&self, name: &AgentName) -> Option<&Agent<C>> {
        self.inner.graph.find_agent(name).ok()
    }

    /// True if the agent has output guardrails.
    pub fn has_output_guardrails(&self) -> bool {
        !self.inner.agent.inner.output_guardrails.is_empty()
    }

    /// Checks a text concurrently with the agent's output guardrails and those in `also`. Duplicates run once. A
    /// guardrail fails after `timeout`; the first one that trips ends the check, and nobody waits for the others.
    pub async fn check_output(
        &self,
        conversation: &RunId,
        also: &[OutputGuardrail<C>],
        text: Arc<str>,
        timeout: Duration,
    ) -> Vec<GuardrailResult> {
        let ResolvedAgentInner { agent, app, .. } = &*self.inner;
        let ctx = RunContext::new(app.clone(), conversation.clone(), agent.name().clone(), [].into());
        let mut guardrails: Vec<&OutputGuardrail<C>> = Vec::new();
        for guardrail in agent.inner.output_guardrails.iter().chain(also) {
            if !guardrails.iter().any(|other| other.is_same_guardrail(guardrail)) {
                guardrails.push(guardrail);
            }
        }
        let checks = guardrails.into_iter().enumerate().map(|(place, guardrail)| {
            let check = tokio::time::timeout(timeout, guardrail.check(ctx.clone(), text.clone()));
            async move {
                let late = |_| Err(format!("it took longer than {timeout:?}").into());
                let verdict = check.await.unwrap_or_else(late);
                (place, GuardrailResult { guardrail: guardrail.name.clone(), verdict })
            }
        });
        let mut checks: FuturesUnordered<_> = checks.collect();
        let mut results = Vec::new();
        let mut is_tripped = false;
        while let Some((place, result)) = match is_tripped {
            true => checks.next().now_or_never().flatten(),
            false => checks.next().await,
        } {
            is_tripped |= matches!(result.verdict, Ok(GuardrailVerdict::Tripwire));
            results.push((place, result));
        }
        results.sort_by_key(|(place, _)| *place);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Returns the redaction of a call whose tool has secret arguments or a secret output: see
    /// [`Tool::secret_arguments`]. It is empty for other tools. The model may have misspelt the name of a tool with
    /// secrets, so the secret fields of all tools count for an unknown one. The values of secret arguments are masked in
    /// every text of the conversation from now on.
    pub fn redact_call(&self, call: &ToolCall, conversation: &SharedConversation) -> CallRedaction {
        let (fields, output_visibility) = match self.inner.tools.find_entry(call) {
            ToolsetEntry::Tool(tool) => (tool.secret_arguments.clone(), tool.output_visibility),
            ToolsetEntry::Handoff(_) => return CallRedaction::default(),
            ToolsetEntry::NotFound => {
                let tools = self.inner.tools.tools();
                let fields = tools.flat_map(|tool| tool.secret_arguments.clone()).collect();
                (fields, OutputVisibility::Public)
            }
        };
        let has_fields = !fields.is_empty();
        if has_fields {
            conversation.mask.add_values(&call.arguments, &fields);
        }
        CallRedaction {
            redacted_arguments: has_fields.then(|| redact_arguments(&call.arguments, &fields)).flatten(),
            is_already_redacted: has_fields && is_redacted(&call.arguments, &fields),
            is_output_secret: output_visibility == OutputVisibility::Secret,
        }
    }

    /// True if the order of calls matters to one of the tools: calls with a common conflict key run in the model's order.
    pub fn has_ordered_tools(&self) -> bool {
        self.inner.tools.has_ordered_tools()
    }

    /// Builds a run that executes the calls of a model response that was received elsewhere, and ends when they
    /// have settled. The run makes no model request. The caller is responsible for the agent's input and output
    /// guardrails; everything else works as in any run.
    pub fn execute_calls(
        &self,
        input: Vec<Arc<Item>>,
        answer: ModelResponse,
        conversation: &SharedConversation,
    ) -> RunBuilder<C> {
        RunBuilder::from_input(self.inner.agent.clone(), input, self.inner.app.clone())
            .with_given_response(self.build_run(Some(answer), conversation))
            .known_agents(self.inner.known_agents.iter().cloned())
    }

    /// Builds the continuation of a paused run of [`ResolvedAgent::execute_calls`].
    pub fn resume_calls(&self, paused: PausedRun, conversation: &SharedConversation) -> RunBuilder<C> {
        RunBuilder::from_paused(self.inner.agent.clone(), paused, self.inner.app.clone())
            .with_given_response(self.build_run(None, conversation))
            .known_agents(self.inner.known_agents.iter().cloned())
    }

    /// Builds the continuation of a stored run of [`ResolvedAgent::execute_calls`]. `answer` is used only if
    /// the journal does not contain the response yet.
    pub fn recover_calls(
        &self,
        run: impl Into<RunId>,
        store: Arc<dyn Store>,
        answer: ModelResponse,
        conversation: &SharedConversation,
    ) -> RunBuilder<C> {
        RunBuilder::from_store(self.inner.agent.clone(), run.into(), store, self.inner.app.clone())
            .with_given_response(self.build_run(Some(answer), conversation))
            .known_agents(self.inner.known_agents.iter().cloned())
    }

    fn build_run(&self, answer: Option<ModelResponse>, shared: &SharedConversation) -> GivenResponse<C> {
        GivenResponse {
            response: answer,
            tools: self.inner.tools.clone(),
            receipt_cache: shared.cache.clone(),
            late_keys: shared.late_keys.clone(),
            mask: shared.mask.clone(),
            conversation: shared.conversation.clone(),
        }
    }
}

impl<C> Clone for ResolvedAgent<C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<C> fmt::Debug for ResolvedAgent<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResolvedAgent({})", self.inner.agent.inner.name)
    }
}

impl fmt::Debug for SharedConversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedConversation")
    }
}
