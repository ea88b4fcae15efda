//! Tools: a name, a description, a schema, a body, and the policies for its execution.

mod approval;
mod call_report;
mod context;
mod definition;
mod error;
mod evidence;
mod execution;
mod hosted;
mod into_tools;
mod options;
mod output;
mod prepared_call;
mod progress;
mod provider_defined;
mod result_text;
mod shared_limit;
mod source;

pub use context::{RunContext, ToolContext};
pub use error::ToolError;
pub use evidence::{CallEvidence, fetch_evidence};
pub use hosted::{HostedCallVerdict, HostedMcpServer};
pub use into_tools::{IntoTool, IntoTools};
pub use options::{
    FailureMessageFunction, OnFailure, OnTimeout, ReceiptPolicy, ReceiptScope, ReconcileOutcome,
    TimeoutMessageFunction, ToolRetryPolicy, ToolTimeout,
};
pub use output::{FilePart, ImagePart, OutputPart, TextPart};
pub use provider_defined::{
    CustomInputFormat, PatchOperation, ShellAction, ShellCommandOutput, ShellOutcome,
};
pub use shared_limit::SharedLimit;
pub use source::{SourcedTools, ToolSource, ToolSourceRequest};

pub(crate) use approval::{ApprovalRule, StandingApprovals};
pub(crate) use call_report::{EndedAgent, EndedBody};
pub(crate) use context::{CallDetails, RawArguments, TurnContext};
pub(crate) use hosted::hosted_server_key;
pub(crate) use options::{ConflictOrder, EnabledRule};
pub(crate) use output::to_output_content;
pub(crate) use prepared_call::{
    BodyPlacement, BodyResult, BodyStart, PreparedBody, PreparedCall, PreparedCalls, ToolFunction,
    canonicalize_arguments, parse_arguments, parse_value, read_arguments, to_body_result,
};
pub(crate) use progress::ProgressQueue;
pub(crate) use result_text::{
    failure_text, invalid_arguments_result, result_for_error, result_for_timeout, tool_timeout_failure,
    with_edit_note,
};

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::{
    canonical::Digest,
    id::AgentName,
    idempotency::operation_digest,
    provenance::{ContentSource, ContentSources},
    schema,
    tool::{ToolEffect, ToolKey},
};

use crate::agent::AgentTool;
use crate::error::ConfigError;
use crate::guardrail::{ToolInputGuardrail, ToolOutputGuardrail};
use crate::model::{ToolDefinition, ToolKind};
use crate::receipts::BodyLimit;
use crate::redaction::OutputVisibility;
use crate::tasks::PollMonitor;

/// Default maximum size of an output that the model sees, in bytes.
pub const DEFAULT_MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// A tool: its definition for the model, its body, and the policies for its execution.
///
/// Most tools are functions with `#[tool]`. The attribute creates this type; tools that are known only at run
/// time are built with it directly.
pub struct Tool<C = ()> {
    key: ToolKey,
    /// Name for the model, if it differs from the last part of the key.
    model_name: Option<Arc<str>>,
    description: Arc<str>,
    schema: Arc<Value>,
    strictness: SchemaStrictness,
    /// The definition for the model, made on first use.
    definition: OnceLock<MadeDefinition>,
    kind: ToolKind,
    pub(crate) body: ToolBody<C>,
    pub(crate) poll_monitor: Arc<PollMonitor>,
    pub(crate) placement: BodyPlacement,
    pub(crate) effect: ToolEffect,
    effect_rule: Option<EffectRule>,
    pub(crate) approval: ApprovalRule<C>,
    /// Rule for calls that a standing approval does not cover.
    pub(crate) each_time_approval: ApprovalRule<C>,
    /// The treatment of standing approvals of the calls that `approval` asks about.
    pub(crate) standing_approvals: StandingApprovals,
    pub(crate) enabled: EnabledRule<C>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) on_timeout: OnTimeout<C>,
    pub(crate) on_failure: OnFailure<C>,
    pub(crate) retry: Option<ToolRetryPolicy>,
    pub(crate) receipt_policy: ReceiptPolicy,
    pub(crate) body_limit: Option<Arc<BodyLimit>>,
    pub(crate) shared_limits: Vec<SharedLimit>,
    pub(crate) conflict_rule: Option<ConflictRule>,
    pub(crate) conflict_order: ConflictOrder,
    pub(crate) default_max_turns: Option<u32>,
    pub(crate) reconcile: Option<options::ReconcileFunction<C>>,
    pub(crate) hold_function: Option<evidence::HoldFunction<C>>,
    pub(crate) input_guardrails: Vec<ToolInputGuardrail<C>>,
    pub(crate) output_guardrails: Vec<ToolOutputGuardrail<C>>,
    pub(crate) max_output_bytes: usize,
    pub(crate) secret_arguments: Vec<Arc<str>>,
    pub(crate) output_visibility: OutputVisibility,
    content_sources: ContentSources,
    output_schema: Option<Arc<Value>>,
    /// True if the model is not offered the tool until the run has loaded it.
    pub(crate) is_deferred: bool,
    /// Names of the deferred tools that a successful call loads.
    pub(crate) loaded_tools: Arc<[Arc<str>]>,
}

/// The schemas of a dynamic tool.
#[derive(Clone, Debug)]
pub struct DynamicToolSchemas {
    /// The schema that the model sees.
    pub model_schema: Arc<Value>,
    /// The schema that arguments are validated against; `true` accepts everything.
    pub validation_schema: Arc<Value>,
}

/// The definition of a tool for the model, with a warning for the operator.
#[derive(Clone)]
struct MadeDefinition {
    definition: Result<ToolDefinition, ConfigError>,
    warning: Option<String>,
}

/// The body of a tool.
pub(crate) enum ToolBody<C> {
    Function(Arc<dyn ToolFunction<C>>),
    Agent(AgentTool<C>),
}

/// A function that returns the conflict key of a call, by its arguments.
pub(crate) type ConflictRule = Arc<dyn Fn(&dyn Any) -> Option<String> + Send + Sync>;

/// A function that returns the effect of a call, by its arguments.
type EffectRule = Arc<dyn Fn(&dyn Any) -> Option<ToolEffect> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchemaStrictness {
    Strict,
    Unmodified,
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// Creates a tool whose body is an async function of typed arguments.
    pub fn function<A, F, Fut, T, E>(name: &str, description: &str, body: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + Sync + 'static,
        F: Fn(ToolContext<C>, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(generate_schema::<A>());
        let body = prepared_call::typed_async(schema.clone(), body);
        Self::new(name, description, schema, ToolBody::Function(body))
    }

    /// Creates a tool whose body blocks its thread and runs on one of its own.
    pub fn blocking<A, F, T, E>(name: &str, description: &str, body: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + Sync + 'static,
        F: Fn(ToolContext<C>, A) -> Result<T, E> + Send + Sync + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(generate_schema::<A>());
        let body = prepared_call::typed_blocking(schema.clone(), body);
        Self::new(name, description, schema, ToolBody::Function(body))
    }

    /// Creates a tool whose schema is known only at run time: its arguments are validated against a JSON Schema
    /// and passed to the body as a value.
    pub fn dynamic<F, Fut, T, E>(name: &str, description: &str, schema: Value, body: F) -> Self
    where
        F: Fn(ToolContext<C>, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(schema);
        Self::dynamic_with_schemas(
            name,
            description,
            DynamicToolSchemas { model_schema: schema.clone(), validation_schema: schema },
            body,
        )
    }

    /// Creates a tool as [`Tool::dynamic`] does, with separate schemas for the model and for validation. For
    /// schemas of third parties, which may have rules that cannot be validated here.
    pub fn dynamic_with_schemas<F, Fut, T, E>(
        name: &str,
        description: &str,
        schemas: DynamicToolSchemas,
        body: F,
    ) -> Self
    where
        F: Fn(ToolContext<C>, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let body = prepared_call::dynamic_async(schemas.validation_schema, body);
        Self::new(name, description, schemas.model_schema, ToolBody::Function(body))
    }

    /// Creates a tool as [`Tool::dynamic`] does, with a body that blocks its thread.
    pub fn dynamic_blocking<F, T, E>(name: &str, description: &str, schema: Value, body: F) -> Self
    where
        F: Fn(ToolContext<C>, Value) -> Result<T, E> + Send + Sync + 'static,
        T: Serialize,
        E: fmt::Display + Send + Sync + 'static,
    {
        let schema = Arc::new(schema);
        let body = prepared_call::dynamic_blocking(schema.clone(), body);
        Self::new(name, description, schema, ToolBody::Function(body))
    }

    pub(crate) fn new(name: &str, description: &str, schema: Arc<Value>, body: ToolBody<C>) -> Self {
        Self {
            key: ToolKey::bare(name),
            model_name: None,
            description: description.into(),
            schema,
            strictness: SchemaStrictness::Strict,
            definition: OnceLock::new(),
            kind: ToolKind::Function,
            body,
            poll_monitor: Arc::default(),
            placement: BodyPlacement::OwnTask,
            effect: ToolEffect::default(),
            effect_rule: None,
            approval: ApprovalRule::Never,
            each_time_approval: ApprovalRule::Never,
            standing_approvals: StandingApprovals::Honoured,
            enabled: EnabledRule::Always,
            timeout: None,
            on_timeout: OnTimeout::TellModel,
            on_failure: OnFailure::HideError,
            retry: None,
            receipt_policy: ReceiptPolicy::default(),
            body_limit: None,
            shared_limits: Vec::new(),
            conflict_rule: None,
            conflict_order: ConflictOrder::Independent,
            default_max_turns: None,
            reconcile: None,
            hold_function: None,
            input_guardrails: Vec::new(),
            output_guardrails: Vec::new(),
            max_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            secret_arguments: Vec::new(),
            output_visibility: OutputVisibility::Public,
            content_sources: ContentSources::NONE,
            output_schema: None,
            is_deferred: false,
            loaded_tools: Arc::new([]),
        }
    }

    /// Sets the effect of the tool. The default is at-most-once execution
    /// ([`ToolEffect::Once`]).
    #[must_use]
    pub fn effect(mut self, effect: ToolEffect) -> Self {
        self.effect = effect;
        self.effect_rule = None;
        self
    }

    /// Sets a rule that returns the effect of each call by its arguments, when the response is planned. If the
    /// rule panics or gets another type than the tool's arguments, the call executes at most once. Calls with
    /// the effect idempotent from a rule share no receipts.
    #[must_use]
    pub fn effect_by_arguments<A: 'static>(
        mut self,
        rule: impl Fn(&A) -> ToolEffect + Send + Sync + 'static,
    ) -> Self {
        self.effect = ToolEffect::Once;
        self.effect_rule = Some(Arc::new(move |arguments| arguments.downcast_ref::<A>().map(&rule)));
        self
    }

    /// Defers the tool: the model is not offered it until a call of
    /// [`SEARCH_TOOL`](crate::agent::SEARCH_TOOL) has found it. Agents with deferred tools have that tool. Hundreds of
    /// tools cost no more tokens than those that a run needs. The loaded tools follow from the journal, so that a
    /// resumed run has them, too. In a live session all tools are offered.
    ///
    /// [`ToolSearchPlace::Provider`](crate::model::ToolSearchPlace::Provider) leaves the search to the provider. A tool
    /// that another one [loads](Tool::loads) is not searched.
    #[must_use]
    pub fn deferred(mut self) -> Self {
        self.is_deferred = true;
        self
    }

    /// Loads these deferred tools when a call has succeeded, so that the model is offered them from the next turn on. They
    /// are not found by a search. Like the result of a search, they follow from the journal.
    #[must_use]
    pub fn loads<'a>(mut self, tools: impl IntoIterator<Item = &'a str>) -> Self {
        self.loaded_tools = tools.into_iter().map(Arc::from).collect();
        self
    }

    /// Enables or disables the tool.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = if enabled { EnabledRule::Always } else { EnabledRule::Never };
        self
    }

    /// Enables the tool only if the rule returns true. The rule runs before every turn.
    #[must_use]
    pub fn enabled_if(mut self, rule: impl Fn(&RunContext<C>) -> bool + Send + Sync + 'static) -> Self {
        self.enabled = EnabledRule::ByFunction(Arc::new(move |ctx| std::future::ready(rule(&ctx)).boxed()));
        self
    }

    /// Enables the tool as [`Tool::enabled_if`] does, with an async rule.
    #[must_use]
    pub fn enabled_if_async<Fut>(
        mut self,
        rule: impl Fn(RunContext<C>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.enabled = EnabledRule::ByFunction(Arc::new(move |ctx| rule(ctx).boxed()));
        self
    }

    /// Adds a guardrail that checks every call immediately before the body.
    #[must_use]
    pub fn input_guardrail(mut self, guardrail: ToolInputGuardrail<C>) -> Self {
        self.input_guardrails.push(guardrail);
        self
    }

    /// Adds a guardrail that checks every output before the model, the journal or a watcher sees it.
    #[must_use]
    pub fn output_guardrail(mut self, guardrail: ToolOutputGuardrail<C>) -> Self {
        self.output_guardrails.push(guardrail);
        self
    }

    /// Sets the maximum size of an output's text that the model sees, in bytes. A longer one is truncated; the text of
    /// all parts of an output counts.
    #[must_use]
    pub fn max_output_bytes(mut self, bytes: usize) -> Self {
        self.max_output_bytes = bytes;
        self
    }

    /// Marks arguments as secret: they are never stored in a journal, a session or an error. The model and the
    /// body see them. A run that is restored from its journal no longer has them, so that the model has to
    /// repeat a call that still waits for a person. `card.number` names a nested field, also in every element
    /// of a list.
    #[must_use]
    pub fn secret_arguments<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.secret_arguments.extend(names.into_iter().map(Arc::from));
        self
    }

    /// Marks the output as secret: it is never stored. The model sees it, in the process that created it. An identical
    /// idempotent call elsewhere is answered by a receipt that says that the call was executed.
    #[must_use]
    pub fn secret_output(mut self) -> Self {
        self.output_visibility = OutputVisibility::Secret;
        self
    }

    /// Declares a source outside the conversation from which the tool's outputs have text. Calls that the model proposes
    /// after it has read such an output are marked with the source, for approvers and for policies.
    #[must_use]
    pub fn content_source(mut self, source: ContentSource) -> Self {
        self.content_sources.add(source);
        self
    }

    /// Returns the sources of the text of the tool's outputs. A tool of an MCP server has its server as a source.
    pub fn content_sources(&self) -> ContentSources {
        match self.key {
            ToolKey::Mcp { .. } => self.content_sources.with(ContentSource::Mcp),
            ToolKey::Bare(_) | ToolKey::Namespaced { .. } | ToolKey::Deferred(_) => self.content_sources,
        }
    }

    /// Uses the schema unmodified, for arguments that the strict form cannot express, such as maps. A tool with a map
    /// is offered unmodified in any case, with a warning.
    #[must_use]
    pub fn non_strict(mut self) -> Self {
        self.strictness = SchemaStrictness::Unmodified;
        self.definition = OnceLock::new();
        self
    }

    /// Sets the namespace of the tool.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.key = ToolKey::Namespaced { namespace: namespace.into(), name: self.key.name().into() };
        self.definition = OnceLock::new();
        self
    }

    /// Sets the kind of tool that the provider sees, if it is not a function.
    #[must_use]
    pub fn provider_kind(mut self, kind: ToolKind) -> Self {
        self.kind = kind;
        self.definition = OnceLock::new();
        self
    }

    /// Sets the identity of the tool to the tool `name` of an MCP server. Decisions and receipts belong to that
    /// identity, and standing decisions to the definition as it is now. The name for the model does not change.
    #[must_use]
    pub fn mcp_identity(mut self, server: &str, name: &str) -> Self {
        let definition = definition::mcp_definition(server, name, &self.description, &self.schema);
        self.model_name = Some(self.name().into());
        self.key = ToolKey::Mcp { server: server.into(), name: name.into(), definition: Some(definition) };
        self
    }

    /// Makes the annotations of an MCP server's tool a part of its definition, in any text form. A tool without an
    /// MCP identity is unchanged.
    #[must_use]
    pub fn mcp_annotations(mut self, annotations: &str) -> Self {
        if let ToolKey::Mcp { definition: Some(definition), .. } = &mut self.key {
            *definition = Digest::of_parts(&["annotated", &definition.to_string(), annotations]);
        }
        self
    }

    /// Sets the schema of the arguments.
    pub(crate) fn set_schema(&mut self, schema: Arc<Value>) {
        self.schema = schema;
        self.definition = OnceLock::new();
    }

    /// Returns the key of the tool: its identity.
    pub fn key(&self) -> &ToolKey {
        &self.key
    }

    /// Returns the name of the tool for the model.
    pub fn name(&self) -> &str {
        self.model_name.as_deref().unwrap_or_else(|| self.key.name())
    }

    /// Returns the description of the tool for the model.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the effect of a call of the tool. The effect of an agent is that of its tools: pure if it can reach
    /// only pure tools, and at most once otherwise.
    pub fn declared_effect(&self) -> ToolEffect {
        match (&self.body, self.effect) {
            (ToolBody::Agent(agent), ToolEffect::Pure) => agent.run_effect(),
            (ToolBody::Agent(_) | ToolBody::Function(_), effect) => effect,
        }
    }

    /// Declares the JSON Schema of the tool's results. Clients of a served tool see it; the model does not.
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Some(Arc::new(schema));
        self
    }

    /// Returns the declared schema of the results, if there is one.
    pub fn declared_output_schema(&self) -> Option<&Value> {
        self.output_schema.as_deref()
    }

    /// Returns the schema of the arguments, before the conversion to the strict form.
    pub fn arguments_schema(&self) -> &Value {
        &self.schema
    }

    /// Returns the definition of the tool for the model. The schema is converted to its strict form; a schema with maps
    /// has none and stays as it is.
    ///
    /// # Errors
    ///
    /// Returns an error that names the tool and the place in its schema if the schema has no strict form for another
    /// reason. [`Agent::check`](crate::agent::Agent::check) finds the same.
    pub fn to_definition(&self) -> Result<ToolDefinition, ConfigError> {
        self.made_definition().definition.clone()
    }

    /// Returns a warning about the definition, for the operator.
    pub(crate) fn definition_warning(&self) -> Option<&str> {
        self.made_definition().warning.as_deref()
    }

    fn made_definition(&self) -> &MadeDefinition {
        self.definition.get_or_init(|| {
            let mut warning = None;
            let definition = self.make_definition(&mut warning);
            MadeDefinition { definition, warning }
        })
    }

    fn make_definition(&self, warning: &mut Option<String>) -> Result<ToolDefinition, ConfigError> {
        let namespace = match &self.key {
            ToolKey::Namespaced { namespace, .. } => Some(namespace.clone()),
            ToolKey::Bare(_) | ToolKey::Deferred(_) | ToolKey::Mcp { .. } => None,
        };
        let (parameters, strict) = match self.strictness {
            SchemaStrictness::Unmodified => (self.schema.clone(), false),
            SchemaStrictness::Strict => {
                let offered = offer_schema(&self.schema).map_err(|why| ConfigError::ToolNotStrict {
                    tool: self.name().to_owned(),
                    reason: why,
                })?;
                if let OfferedSchema::WithMaps { places, .. } = &offered {
                    *warning = Some(format!(
                        "tool `{}` is offered without a strict schema, because it has a map at {places}; hint: \
                         `.non_strict()` or `strict = false` says that this is intended",
                        self.name()
                    ));
                }
                offered.into_parts()
            }
        };
        Ok(ToolDefinition {
            name: self.name().into(),
            namespace,
            description: self.description.clone(),
            parameters,
            is_strict: strict,
            kind: self.kind.clone(),
        })
    }

    pub(crate) fn is_function(&self) -> bool {
        matches!(self.kind, ToolKind::Function)
    }

    /// True if a call with this key is a call of this tool.
    pub(crate) fn matches_key(&self, key: &ToolKey) -> bool {
        match key {
            ToolKey::Mcp { server, .. } => self.key == *key || self.key == hosted_server_key(server),
            ToolKey::Bare(_) | ToolKey::Namespaced { .. } | ToolKey::Deferred(_) => self.key == *key,
        }
    }

    /// Returns the same tool with the key of a call.
    pub(crate) fn with_call_key(&self, key: &ToolKey) -> Self {
        Self { key: key.clone(), ..self.clone() }
    }

    /// Returns the effect of a call with these arguments.
    pub(crate) fn effect_of_call(&self, arguments: Option<&(dyn Any + Send + Sync)>) -> ToolEffect {
        match (&self.effect_rule, arguments) {
            (None, _) => self.effect,
            (Some(_), None) => ToolEffect::Once,
            (Some(rule), Some(arguments)) => {
                let said = std::panic::catch_unwind(AssertUnwindSafe(|| rule(arguments)));
                said.ok().flatten().unwrap_or(ToolEffect::Once)
            }
        }
    }
}

impl<C> Tool<C> {
    /// True if identical calls of the tool share their result.
    pub(crate) fn shares_receipts(&self) -> bool {
        self.effect == ToolEffect::Idempotent && self.receipt_policy.scope != ReceiptScope::Call
    }

    /// Returns the digest of a call of this tool by an agent. Optional parameters that are null do not count.
    pub(crate) fn operation_digest(&self, agent: &AgentName, arguments: &str) -> Digest {
        operation_digest(agent, &self.key, &self.without_null_parameters(arguments))
    }

    /// Returns canonical arguments without the optional parameters that are null.
    pub(crate) fn without_null_parameters<'a>(&self, arguments: &'a str) -> Cow<'a, str> {
        schema::without_null_parameters(arguments, &self.schema)
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
            model_name: self.model_name.clone(),
            description: self.description.clone(),
            schema: self.schema.clone(),
            strictness: self.strictness,
            // A clone may get another key.
            definition: OnceLock::new(),
            kind: self.kind.clone(),
            body: self.body.clone(),
            poll_monitor: self.poll_monitor.clone(),
            placement: self.placement,
            effect: self.effect,
            effect_rule: self.effect_rule.clone(),
            approval: self.approval.clone(),
            each_time_approval: self.each_time_approval.clone(),
            standing_approvals: self.standing_approvals,
            enabled: self.enabled.clone(),
            timeout: self.timeout,
            on_timeout: self.on_timeout.clone(),
            on_failure: self.on_failure.clone(),
            retry: self.retry,
            receipt_policy: self.receipt_policy,
            body_limit: self.body_limit.clone(),
            shared_limits: self.shared_limits.clone(),
            conflict_rule: self.conflict_rule.clone(),
            conflict_order: self.conflict_order,
            default_max_turns: self.default_max_turns,
            reconcile: self.reconcile.clone(),
            hold_function: self.hold_function.clone(),
            input_guardrails: self.input_guardrails.clone(),
            output_guardrails: self.output_guardrails.clone(),
            max_output_bytes: self.max_output_bytes,
            secret_arguments: self.secret_arguments.clone(),
            output_visibility: self.output_visibility,
            content_sources: self.content_sources,
            output_schema: self.output_schema.clone(),
            is_deferred: self.is_deferred,
            loaded_tools: self.loaded_tools.clone(),
        }
    }
}

impl<C> fmt::Debug for Tool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("key", &self.key).field("effect", &self.effect).finish_non_exhaustive()
    }
}

/// The schema of arguments as it is offered to the model.
pub(crate) enum OfferedSchema {
    /// The strict form.
    Strict(Arc<Value>),
    /// The schema as it is, because it has maps at these places, which have no strict form.
    WithMaps { schema: Arc<Value>, places: String },
}

impl OfferedSchema {
    /// Returns the schema, and true if it is strict.
    pub(crate) fn into_parts(self) -> (Arc<Value>, bool) {
        match self {
            Self::Strict(schema) => (schema, true),
            Self::WithMaps { schema, .. } => (schema, false),
        }
    }
}

/// Converts a schema to the form in which it is offered to the model.
///
/// # Errors
///
/// Returns an error if the schema has no strict form, and not only because of maps.
pub(crate) fn offer_schema(schema: &Arc<Value>) -> Result<OfferedSchema, schema::StrictSchemaError> {
    match schema::to_strict((**schema).clone()) {
        Ok(strict) => Ok(OfferedSchema::Strict(Arc::new(strict))),
        Err(error) if error.has_only_maps() => {
            let places: Vec<String> = error.map_places.iter().map(|place| format!("`{place}`")).collect();
            Ok(OfferedSchema::WithMaps { schema: schema.clone(), places: places.join(", ") })
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn generate_schema<A: JsonSchema>() -> Value {
    schemars::schema_for!(A).to_value()
}
