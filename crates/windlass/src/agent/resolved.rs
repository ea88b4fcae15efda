//! Agents whose instructions, tools and handoffs are resolved once per conversation. They serve callers that
//! run the conversation with the model themselves, such as a realtime session: the calls that the model makes
//! are executed here, by the same driver as in any run.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use windlass_core::{
    id::{AgentName, RunId},
    item::{Item, ToolCall},
};

use super::{Agent, AgentGraph, ResolvedToolset, ToolsetEntry};
use crate::error::ConfigError;
use crate::guardrail::{GuardrailError, GuardrailVerdict, OutputGuardrail, panic_message};
use crate::model::{ModelResponse, ModelSettings, ToolDefinition};
use crate::receipts::ReceiptCache;
use crate::redaction::{OutputVisibility, is_redacted, redact_arguments};
use crate::run::{GivenResponse, PausedRun, RunBuilder};
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

/// Receipts of idempotent calls, shared by the runs of one conversation.
#[derive(Clone, Default)]
pub struct SharedReceipts {
    cache: Arc<ReceiptCache>,
    conversation: Option<RunId>,
}

impl SharedReceipts {
    /// Creates the receipts of a conversation. Its runs share idempotency keys as the calls of one run do, and the
    /// conversation is their session.
    pub fn for_conversation(conversation: RunId) -> Self {
        Self { cache: Arc::default(), conversation: Some(conversation) }
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

    /// Checks a text concurrently with the agent's output guardrails and those in `also`. Duplicates run once.
    pub async fn check_output(
        &self,
        conversation: &RunId,
        also: &[OutputGuardrail<C>],
        text: Arc<str>,
    ) -> Vec<GuardrailResult> {
        let ResolvedAgentInner { agent, app, .. } = &*self.inner;
        let ctx = RunContext::new(app.clone(), conversation.clone(), agent.name().clone(), [].into());
        let mut guardrails: Vec<&OutputGuardrail<C>> = Vec::new();
        for guardrail in agent.inner.output_guardrails.iter().chain(also) {
            if !guardrails.iter().any(|other| other.is_same_guardrail(guardrail)) {
                guardrails.push(guardrail);
            }
        }
        let checks = guardrails.into_iter().map(|guardrail| {
            let check = guardrail.check(ctx.clone(), text.clone());
            async { GuardrailResult { guardrail: guardrail.name.clone(), verdict: check.await } }
        });
        join_all(checks).await
    }

    /// Returns the redaction of a call whose tool has secret arguments or a secret output: see
    /// [`Tool::secret_arguments`]. It is empty for other tools.
    pub fn call_redaction(&self, call: &ToolCall) -> CallRedaction {
        let ToolsetEntry::Tool(tool) = self.inner.tools.find_entry(call) else {
            return CallRedaction::default();
        };
        let fields = tool.secret_arguments.as_slice();
        if fields.is_empty() && tool.output_visibility == OutputVisibility::Public {
            return CallRedaction::default();
        }
        let has_fields = !fields.is_empty();
        CallRedaction {
            redacted_arguments: has_fields.then(|| redact_arguments(&call.arguments, fields)).flatten(),
            is_already_redacted: has_fields && is_redacted(&call.arguments, fields),
            is_output_secret: tool.output_visibility == OutputVisibility::Secret,
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
        receipts: &SharedReceipts,
    ) -> RunBuilder<C> {
        RunBuilder::from_input(self.inner.agent.clone(), input, self.inner.app.clone())
            .with_given_response(self.build_run(Some(answer), receipts))
            .known_agents(self.inner.known_agents.iter().cloned())
    }

    /// Builds the continuation of a paused run of [`ResolvedAgent::execute_calls`].
    pub fn resume_calls(&self, paused: PausedRun, receipts: &SharedReceipts) -> RunBuilder<C> {
        RunBuilder::from_paused(self.inner.agent.clone(), paused, self.inner.app.clone())
            .with_given_response(self.build_run(None, receipts))
            .known_agents(self.inner.known_agents.iter().cloned())
    }

    /// Builds the continuation of a stored run of [`ResolvedAgent::execute_calls`]. `answer` is used only if
    /// the journal does not contain the response yet.
    pub fn recover_calls(
        &self,
        run: impl Into<RunId>,
        store: Arc<dyn Store>,
        answer: ModelResponse,
        receipts: &SharedReceipts,
    ) -> RunBuilder<C> {
        RunBuilder::from_store(self.inner.agent.clone(), run.into(), store, self.inner.app.clone())
            .with_given_response(self.build_run(Some(answer), receipts))
            .known_agents(self.inner.known_agents.iter().cloned())
    }

    fn build_run(&self, answer: Option<ModelResponse>, receipts: &SharedReceipts) -> GivenResponse<C> {
        GivenResponse {
            response: answer,
            tools: self.inner.tools.clone(),
            receipt_cache: receipts.cache.clone(),
            conversation: receipts.conversation.clone(),
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

impl fmt::Debug for SharedReceipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedReceipts")
    }
}
