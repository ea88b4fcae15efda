//! An agent as one conversation sees it: its instructions, tools and handoffs asked for once, and kept. For whoever
//! holds the conversation with the model elsewhere, such as a live session: what the model asks for is carried out
//! here, by the same driver as in any run.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use windlass_core::{AgentName, Call, Item, RunId};

use super::{Agent, Found, Graph, Toolset};
use crate::drive::{Given, Ledger, Visibility, is_without, without};
use crate::error::ConfigError;
use crate::guardrail::{GuardrailError, OutputGuardrail, Verdict, panic_text};
use crate::model::{Answer, ModelSettings, OfferedTool};
use crate::run::{Paused, RunBuilder};
use crate::store::Store;
use crate::tool::RunContext;
#[cfg(doc)]
use crate::tool::Tool;

/// An agent with its instructions, tools and handoffs asked for once. Copies are cheap and stand for the same one.
pub struct Resolved<C = ()> {
    inner: Arc<Inner<C>>,
}

struct Inner<C> {
    agent: Agent<C>,
    app: Arc<C>,
    known: Vec<Agent<C>>,
    graph: Graph<C>,
    instructions: Option<Arc<str>>,
    tools: Arc<Toolset<C>>,
}

/// The results of idempotent calls that several runs of one conversation share.
#[derive(Clone, Default)]
pub struct SharedReceipts(pub(crate) Arc<Ledger>);

/// What may be written down of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretsOf {
    /// The arguments without their secrets, where they have any.
    pub open_arguments: Option<String>,
    /// Whether these are arguments whose secrets were left out already, so that the call cannot be made with them.
    pub are_gone: bool,
    /// Whether its output is a secret.
    pub is_output_secret: bool,
}

/// What one guardrail said.
#[derive(Debug)]
pub struct Checked {
    /// Its name.
    pub guardrail: Arc<str>,
    /// What it said, or why it could not say anything.
    pub verdict: Result<Verdict, GuardrailError>,
}

impl<C: Send + Sync + 'static> Agent<C> {
    /// Asks for the agent's instructions, tools and handoffs, once. `known` are agents that handoffs may name;
    /// `conversation` is what their functions are told as the run.
    pub async fn resolve_with(
        &self,
        conversation: &RunId,
        context: impl Into<Arc<C>>,
        known: &[Self],
    ) -> Result<Resolved<C>, ConfigError> {
        let app = context.into();
        let graph = Graph::new(self, known)?;
        let ctx = RunContext::new(app.clone(), conversation.clone(), self.name().clone());
        let failed = |panic: Box<dyn std::any::Any + Send>| ConfigError::Unresolved {
            agent: self.name().clone(),
            why: format!("it panicked: {}", panic_text(&*panic)),
        };
        let tools = AssertUnwindSafe(self.toolset(&ctx, &graph)).catch_unwind().await.map_err(failed)??;
        let instructions = AssertUnwindSafe(self.inner.instructions.text(&ctx)).catch_unwind().await;
        let instructions = instructions.map_err(failed)?;
        let known = known.to_vec();
        Ok(Resolved {
            inner: Arc::new(Inner { agent: self.clone(), app, known, graph, instructions, tools }),
        })
    }
}

impl<C: Send + Sync + 'static> Resolved<C> {
    /// The agent.
    pub fn agent(&self) -> &Agent<C> {
        &self.inner.agent
    }

    /// What it is told to do.
    pub fn instructions(&self) -> Option<&str> {
        self.inner.instructions.as_deref()
    }

    /// The tools that are offered.
    pub fn tools(&self) -> &[OfferedTool] {
        &self.inner.tools.offered
    }

    /// The handoffs that are offered.
    pub fn handoffs(&self) -> &[OfferedTool] {
        &self.inner.tools.offered_handoffs
    }

    /// How its model should answer.
    pub fn settings(&self) -> &ModelSettings {
        &self.inner.agent.inner.settings
    }

    /// An agent that it can hand over to, or that is known beside it.
    pub fn reachable(&self, name: &AgentName) -> Option<&Agent<C>> {
        self.inner.graph.agent(name).ok()
    }

    /// Whether anything checks what it says.
    pub fn is_checked(&self) -> bool {
        !self.inner.agent.inner.output_guardrails.is_empty()
    }

    /// Checks a text with the agent's output guardrails and others, side by side. One that is there twice is asked
    /// once.
    pub async fn check_output(
        &self,
        conversation: &RunId,
        also: &[OutputGuardrail<C>],
        text: Arc<str>,
    ) -> Vec<Checked> {
        let Inner { agent, app, .. } = &*self.inner;
        let ctx = RunContext::new(app.clone(), conversation.clone(), agent.name().clone());
        let mut guardrails: Vec<&OutputGuardrail<C>> = Vec::new();
        for guardrail in agent.inner.output_guardrails.iter().chain(also) {
            if !guardrails.iter().any(|other| other.is_same(guardrail)) {
                guardrails.push(guardrail);
            }
        }
        let checks = guardrails.into_iter().map(|guardrail| {
            let check = guardrail.check(ctx.clone(), text.clone());
            async { Checked { guardrail: guardrail.name.clone(), verdict: check.await } }
        });
        join_all(checks).await
    }

    /// What may be written down of a call, where not all of it may: see [`Tool::secret_arguments`].
    pub fn secrets_of(&self, call: &Call) -> SecretsOf {
        let Found::Tool(tool) = self.inner.tools.find(call) else { return SecretsOf::default() };
        let fields = tool.secret_arguments.as_slice();
        if fields.is_empty() && tool.output_visibility == Visibility::Open {
            return SecretsOf::default();
        }
        let has_fields = !fields.is_empty();
        SecretsOf {
            open_arguments: has_fields.then(|| without(&call.arguments, fields)).flatten(),
            are_gone: has_fields && is_without(&call.arguments, fields),
            is_output_secret: tool.output_visibility == Visibility::Secret,
        }
    }

    /// A run that carries out the calls of an answer which is there already, and ends when they have settled. No
    /// model is asked, and the guardrails of the agent's input and output are left to whoever holds the
    /// conversation; all else is as in any run.
    pub fn carry_out(
        &self,
        input: Vec<Arc<Item>>,
        answer: Answer,
        receipts: &SharedReceipts,
    ) -> RunBuilder<C> {
        RunBuilder::fresh(self.inner.agent.clone(), input, self.inner.app.clone())
            .given(self.given(Some(answer), receipts))
            .agents(self.inner.known.iter().cloned())
    }

    /// Goes on with a run of [`Resolved::carry_out`] that waited for a person.
    pub fn go_on(&self, paused: Paused, receipts: &SharedReceipts) -> RunBuilder<C> {
        RunBuilder::resumed(self.inner.agent.clone(), paused, self.inner.app.clone())
            .given(self.given(None, receipts))
            .agents(self.inner.known.iter().cloned())
    }

    /// Goes on with a run of [`Resolved::carry_out`] that a store has. The answer is used where the run had not come
    /// to take it in.
    pub fn recover(
        &self,
        run: impl Into<RunId>,
        store: Arc<dyn Store>,
        answer: Answer,
        receipts: &SharedReceipts,
    ) -> RunBuilder<C> {
        RunBuilder::stored(self.inner.agent.clone(), run.into(), store, self.inner.app.clone())
            .given(self.given(Some(answer), receipts))
            .agents(self.inner.known.iter().cloned())
    }

    fn given(&self, answer: Option<Answer>, receipts: &SharedReceipts) -> Given<C> {
        Given { answer, tools: self.inner.tools.clone(), ledger: receipts.0.clone() }
    }
}

impl<C> Clone for Resolved<C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<C> fmt::Debug for Resolved<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resolved({})", self.inner.agent.inner.name)
    }
}

impl fmt::Debug for SharedReceipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedReceipts")
    }
}
