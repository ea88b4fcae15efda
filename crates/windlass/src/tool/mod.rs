//! Tools: a name, a description, a schema, a body, and how it may be run.

mod approval;
mod arguments;
mod body;
mod context;
mod error;
mod hosted;
mod options;
mod output;
mod set;
mod settings;
mod source;

pub use context::{RunContext, ToolContext};
pub use error::ToolError;
pub use hosted::{HostedMcp, HostedVerdict};
pub use options::{OnFailure, OnTimeout, Receipts, Reconciled, Retry, Say, Scope};
pub use output::{File, Image, Part, Text};
pub use set::{IntoTool, IntoTools};
pub use source::{SourceRequest, SourcedTools, ToolSource};

pub(crate) use approval::Approval;
pub(crate) use arguments::{checked_value, freeze};
pub(crate) use body::{Body, BodyResult, Prepared, Start};
pub(crate) use context::{Around, CallFacts, RawArguments};
pub(crate) use hosted::hosted_server;
pub(crate) use options::{Enabled, Order};
pub(crate) use output::content_of;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;
use windlass_core::{Digest, Effect, ToolKey, canonical, schema};

use crate::agent::AgentTool;
use crate::drive::{Pace, Visibility};
use crate::error::ConfigError;
use crate::guardrail::{ToolInputGuardrail, ToolOutputGuardrail};
use crate::model::{OfferedKind, OfferedTool};

/// How much of a tool's output the model is shown, in bytes, unless the tool says otherwise.
pub const DEFAULT_OUTPUT_BUDGET: usize = 256 * 1024;

/// A tool: what the model is told of it, what runs when it is called, and under which conditions.
///
/// Most tools are functions with `#[tool]` on them. This is what they become, and what tools that are known
/// only at run time are built with.
pub struct Tool<C = ()> {
    key: ToolKey,
    /// What the model calls it by, where that is not the last part of its identity.
    alias: Option<Arc<str>>,
    description: Arc<str>,
    schema: Arc<Value>,
    strictness: Strictness,
    kind: OfferedKind,
    pub(crate) body: ToolBody<C>,
    pub(crate) pace: Arc<Pace>,
    pub(crate) effect: Effect,
    effect_rule: Option<EffectRule>,
    pub(crate) approval: Approval<C>,
    /// What approvals for good do not answer.
    pub(crate) each: Approval<C>,
    pub(crate) enabled: Enabled<C>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) on_timeout: OnTimeout,
    pub(crate) on_failure: OnFailure<C>,
    pub(crate) retry: Option<Retry>,
    pub(crate) receipts: Receipts,
    pub(crate) permits: Option<Arc<Semaphore>>,
    pub(crate) conflict: Option<ConflictRule>,
    pub(crate) order: Order,
    pub(crate) reconcile: Option<options::Reconcile<C>>,
    pub(crate) input_guardrails: Vec<ToolInputGuardrail<C>>,
    pub(crate) output_guardrails: Vec<ToolOutputGuardrail<C>>,
    pub(crate) output_budget: usize,
    pub(crate) secret_arguments: Vec<Arc<str>>,
    pub(crate) output_visibility: Visibility,
}

/// The schemas of a tool whose arguments are known only at run time.
#[derive(Clone, Debug)]
pub struct Schemas {
    /// What the model is shown.
    pub offered: Arc<Value>,
    /// What arguments are checked against; `true` fits everything.
    pub checked: Arc<Value>,
}

/// What runs when a tool is called.
pub(crate) enum ToolBody<C> {
    Function(Arc<dyn Body<C>>),
    Agent(AgentTool<C>),
}

/// Says which calls must keep the model's order, by their arguments.
pub(crate) type ConflictRule = Arc<dyn Fn(&dyn Any) -> Option<String> + Send + Sync>;

/// Says what one call does to the world, by its arguments.
type EffectRule = Arc<dyn Fn(&dyn Any) -> Option<Effect> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strictness {
    Strict,
    Loose,
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// A tool whose body is an async function of typed arguments.
    pub fn function<A, F, Fut, T, E>(name: &str, description: &str, body: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + Sync + 'static,
        F: Fn(ToolContext<C>, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(schema_of::<A>());
        let body = body::typed(schema.clone(), body);
        Self::new(name, description, schema, ToolBody::Function(body))
    }

    /// A tool whose body blocks its thread: it gets one of its own.
    pub fn blocking<A, F, T, E>(name: &str, description: &str, body: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + Sync + 'static,
        F: Fn(ToolContext<C>, A) -> Result<T, E> + Send + Sync + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(schema_of::<A>());
        let body = body::typed_blocking(schema.clone(), body);
        Self::new(name, description, schema, ToolBody::Function(body))
    }

    /// A tool that is known only at run time: its arguments are checked against a JSON Schema and reach the
    /// body as a value.
    pub fn dynamic<F, Fut, T, E>(name: &str, description: &str, schema: Value, body: F) -> Self
    where
        F: Fn(ToolContext<C>, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(schema);
        Self::dynamic_with(name, description, Schemas { offered: schema.clone(), checked: schema }, body)
    }

    /// As [`Tool::dynamic`], with a schema that the model is shown and one that arguments are checked against: for
    /// schemas of others, which may have rules that cannot be checked here.
    pub fn dynamic_with<F, Fut, T, E>(name: &str, description: &str, schemas: Schemas, body: F) -> Self
    where
        F: Fn(ToolContext<C>, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let body = body::dynamic(schemas.checked, body);
        Self::new(name, description, schemas.offered, ToolBody::Function(body))
    }

    /// As [`Tool::dynamic`], for a body that blocks its thread.
    pub fn dynamic_blocking<F, T, E>(name: &str, description: &str, schema: Value, body: F) -> Self
    where
        F: Fn(ToolContext<C>, Value) -> Result<T, E> + Send + Sync + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(schema);
        let body = body::dynamic_blocking(schema.clone(), body);
        Self::new(name, description, schema, ToolBody::Function(body))
    }

    pub(crate) fn new(name: &str, description: &str, schema: Arc<Value>, body: ToolBody<C>) -> Self {
        Self {
            key: ToolKey::bare(name),
            alias: None,
            description: description.into(),
            schema,
            strictness: Strictness::Strict,
            kind: OfferedKind::Function,
            body,
            pace: Arc::default(),
            effect: Effect::default(),
            effect_rule: None,
            approval: Approval::Never,
            each: Approval::Never,
            enabled: Enabled::Always,
            timeout: None,
            on_timeout: OnTimeout::Tell,
            on_failure: OnFailure::Hide,
            retry: None,
            receipts: Receipts::default(),
            permits: None,
            conflict: None,
            order: Order::Apart,
            reconcile: None,
            input_guardrails: Vec::new(),
            output_guardrails: Vec::new(),
            output_budget: DEFAULT_OUTPUT_BUDGET,
            secret_arguments: Vec::new(),
            output_visibility: Visibility::Open,
        }
    }

    /// What running it does to the world. Without this, it must not happen twice.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self.effect_rule = None;
        self
    }

    /// What running it does to the world, said for each call by its arguments, when the answer is planned. A rule
    /// that panics, or is given another type than the tool's arguments, means that the call must not happen twice.
    /// Calls that it says are idempotent share no receipts.
    #[must_use]
    pub fn effect_by<A: 'static>(mut self, rule: impl Fn(&A) -> Effect + Send + Sync + 'static) -> Self {
        self.effect = Effect::Once;
        self.effect_rule = Some(Arc::new(move |arguments| arguments.downcast_ref::<A>().map(&rule)));
        self
    }

    /// Whether the tool is there at all.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = if enabled { Enabled::Always } else { Enabled::Never };
        self
    }

    /// Whether the tool is there, asked anew for every turn.
    #[must_use]
    pub fn enabled_if(mut self, rule: impl Fn(&RunContext<C>) -> bool + Send + Sync + 'static) -> Self {
        self.enabled = Enabled::If(Arc::new(move |ctx| std::future::ready(rule(&ctx)).boxed()));
        self
    }

    /// As [`Tool::enabled_if`], with an async rule.
    #[must_use]
    pub fn enabled_when<Fut>(mut self, rule: impl Fn(RunContext<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.enabled = Enabled::If(Arc::new(move |ctx| rule(ctx).boxed()));
        self
    }

    /// Checks every call right before the body.
    #[must_use]
    pub fn input_guardrail(mut self, guardrail: ToolInputGuardrail<C>) -> Self {
        self.input_guardrails.push(guardrail);
        self
    }

    /// Checks every output before anybody sees it.
    #[must_use]
    pub fn output_guardrail(mut self, guardrail: ToolOutputGuardrail<C>) -> Self {
        self.output_guardrails.push(guardrail);
        self
    }

    /// How much of an output the model is shown, in bytes.
    #[must_use]
    pub fn output_budget(mut self, bytes: usize) -> Self {
        self.output_budget = bytes;
        self
    }

    /// Arguments that are written down nowhere: not in the journal, not in a session, not in an error. The model
    /// and the body see them. A run that is restored from what was written does not have them any more, so a
    /// call that still waits for a person then has to be made again. `card.number` names a field inside another, and
    /// inside everything that a list holds.
    #[must_use]
    pub fn secret_arguments<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.secret_arguments.extend(names.into_iter().map(Arc::from));
        self
    }

    /// An output that is written down nowhere. The model sees it, in the process that made it.
    #[must_use]
    pub fn secret_output(mut self) -> Self {
        self.output_visibility = Visibility::Secret;
        self
    }

    /// Offers the schema as it is, for arguments that the strict form cannot express, such as maps.
    #[must_use]
    pub fn non_strict(mut self) -> Self {
        self.strictness = Strictness::Loose;
        self
    }

    /// Puts the tool into a namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.key = ToolKey::Namespaced { namespace: namespace.into(), name: self.key.name().into() };
        self
    }

    /// Says what kind of tool it is to the provider, where it is no function.
    #[must_use]
    pub fn offered_as(mut self, kind: OfferedKind) -> Self {
        self.kind = kind;
        self
    }

    /// The tool is `name` of an MCP server. Decisions and receipts belong to that identity, whatever the model calls
    /// it by: that stays the name it was made with.
    #[must_use]
    pub fn of_mcp_server(mut self, server: &str, name: &str) -> Self {
        self.alias = Some(self.name().into());
        self.key = ToolKey::Mcp { server: server.into(), name: name.into() };
        self
    }

    /// The tool's identity.
    pub fn key(&self) -> &ToolKey {
        &self.key
    }

    /// Its name, as the model writes it.
    pub fn name(&self) -> &str {
        self.alias.as_deref().unwrap_or_else(|| self.key.name())
    }

    /// What the model is told of it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// What running it does to the world.
    pub fn declared_effect(&self) -> Effect {
        self.effect
    }

    /// The schema of its arguments, before it was made strict.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// The tool as a model is offered it.
    pub fn offer(&self) -> Result<OfferedTool, ConfigError> {
        let namespace = match &self.key {
            ToolKey::Namespaced { namespace, .. } => Some(namespace.clone()),
            ToolKey::Bare(_) | ToolKey::Deferred(_) | ToolKey::Mcp { .. } => None,
        };
        let (parameters, strict) = match self.strictness {
            Strictness::Loose => (self.schema.clone(), false),
            Strictness::Strict => {
                let strict = schema::strict((*self.schema).clone())
                    .map_err(|why| ConfigError::NotStrict { tool: self.name().to_owned(), why })?;
                (Arc::new(strict), true)
            }
        };
        Ok(OfferedTool {
            name: self.name().into(),
            namespace,
            description: self.description.clone(),
            parameters,
            strict,
            kind: self.kind.clone(),
        })
    }

    pub(crate) fn is_function(&self) -> bool {
        matches!(self.kind, OfferedKind::Function)
    }

    /// Whether a call under this key is a call of this tool.
    pub(crate) fn answers_to(&self, key: &ToolKey) -> bool {
        match key {
            ToolKey::Mcp { server, .. } => self.key == *key || self.key == hosted_server(server),
            ToolKey::Bare(_) | ToolKey::Namespaced { .. } | ToolKey::Deferred(_) => self.key == *key,
        }
    }

    /// The same tool, known by the key of a call.
    pub(crate) fn as_called(&self, key: &ToolKey) -> Self {
        Self { key: key.clone(), ..self.clone() }
    }

    /// What a call with these arguments does to the world.
    pub(crate) fn effect_of(&self, arguments: Option<&(dyn Any + Send + Sync)>) -> Effect {
        match (&self.effect_rule, arguments) {
            (None, _) => self.effect,
            (Some(_), None) => Effect::Once,
            (Some(rule), Some(arguments)) => {
                let said = std::panic::catch_unwind(AssertUnwindSafe(|| rule(arguments)));
                said.ok().flatten().unwrap_or(Effect::Once)
            }
        }
    }
}

impl<C> Tool<C> {
    /// Under which digest a result is kept, where the tool is idempotent.
    pub(crate) fn receipt(&self, arguments: &str) -> Option<Digest> {
        // The schema is part of it, so that two tools that merely share a name do not share results.
        (self.effect == Effect::Idempotent && self.receipts.scope != Scope::Call)
            .then(|| Digest::of_parts(&[&self.key.text(), &canonical(&self.schema), arguments]))
    }
}

impl<C> Clone for ToolBody<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Function(body) => Self::Function(body.clone()),
            Self::Agent(agent) => Self::Agent(agent.clone()),
        }
    }
}

impl<C> Clone for Tool<C> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            alias: self.alias.clone(),
            description: self.description.clone(),
            schema: self.schema.clone(),
            strictness: self.strictness,
            kind: self.kind.clone(),
            body: self.body.clone(),
            pace: self.pace.clone(),
            effect: self.effect,
            effect_rule: self.effect_rule.clone(),
            approval: self.approval.clone(),
            each: self.each.clone(),
            enabled: self.enabled.clone(),
            timeout: self.timeout,
            on_timeout: self.on_timeout,
            on_failure: self.on_failure.clone(),
            retry: self.retry,
            receipts: self.receipts,
            permits: self.permits.clone(),
            conflict: self.conflict.clone(),
            order: self.order,
            reconcile: self.reconcile.clone(),
            input_guardrails: self.input_guardrails.clone(),
            output_guardrails: self.output_guardrails.clone(),
            output_budget: self.output_budget,
            secret_arguments: self.secret_arguments.clone(),
            output_visibility: self.output_visibility,
        }
    }
}

impl<C> fmt::Debug for Tool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("key", &self.key).field("effect", &self.effect).finish_non_exhaustive()
    }
}

fn schema_of<A: JsonSchema>() -> Value {
    schemars::schema_for!(A).to_value()
}
