//! Calls with their tool and their arguments in the form that the body takes: the model's arguments are converted to
//! canonical JSON and parsed, or to a message that lists the problems, and a body of any kind is prepared with them and
//! started.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::{
    canonical::{Digest, with_canonical_text},
    id::{AgentName, CallId},
    idempotency::CallKey,
    item::OutputContent,
    plan::{BodyKind, InvalidArguments, ResolvedTool},
    run::{ApprovalRequirement, CallFeatures, ReconcileReport, Run},
    schema::{CompiledSchema, describe_violations},
    tool::ToolEffect,
};

use super::{
    CallDetails, ConflictOrder, RawArguments, ReconcileOutcome, Tool, ToolBody, ToolContext, ToolError,
    to_output_content,
};
use crate::lost_secrets::is_secret_answer;
use crate::redaction;

/// Maximum size of the arguments in bytes.
const MAX_ARGUMENT_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of unknown fields that a message lists.
const MAX_LISTED_FIELDS: usize = 8;
/// Output for the model if arguments are invalid and contain secrets.
const PROBLEMS_WITHHELD: &str =
    "`arguments` do not fit the tool's schema; what is wrong is not shown, because some are secret";

/// A call with its tool and its arguments.
pub(crate) struct PreparedCall<C> {
    pub(crate) tool: Arc<Tool<C>>,
    /// Canonical arguments, or the model's text if it is not JSON.
    pub(crate) arguments: Arc<str>,
    pub(crate) raw_arguments: RawArguments,
    /// Body with its arguments; absent for nested agents and for invalid arguments.
    pub(crate) prepared_body: Option<Box<dyn PreparedBody<C>>>,
    /// Arguments of a nested agent.
    pub(crate) agent_arguments: Option<Box<dyn Any + Send + Sync>>,
    /// Arguments that a person edited, without secrets.
    pub(crate) edited_arguments: Option<Arc<str>>,
    /// Digest of the receipt that answers identical calls, if the tool has receipts.
    pub(crate) receipt_digest: Option<Digest>,
    /// Conflict key, by which calls keep their order.
    pub(crate) conflict_key: Option<Arc<str>>,
    /// True if the secret arguments were lost, and the body asks a person for them.
    pub(crate) lacks_secrets: bool,
}

/// The prepared calls of a model response.
pub(crate) struct PreparedCalls<C>(VecDeque<(CallId, PreparedCall<C>)>);

impl<C> Default for PreparedCalls<C> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<C> PreparedCalls<C> {
    pub(crate) fn with_capacity(calls: usize) -> Self {
        Self(VecDeque::with_capacity(calls))
    }

    pub(crate) fn push(&mut self, call: CallId, prepared: PreparedCall<C>) {
        self.0.push_back((call, prepared));
    }

    /// Removes and returns a call. Calls are mostly taken in the order in which they were prepared.
    pub(crate) fn take(&mut self, call: &CallId) -> Option<PreparedCall<C>> {
        let place = self.0.iter().position(|(one, _)| one == call)?;
        self.0.remove(place).map(|(_, prepared)| prepared)
    }
}

impl<C> PreparedCall<C> {
    /// Returns the details of the call for its context. A call that has started keeps its recorded identity.
    pub(crate) fn call_details(&self, run: &Run, call: &CallId) -> CallDetails<C> {
        let recorded = run.call_key(call);
        CallDetails {
            tool: self.tool.clone(),
            arguments: self.arguments.clone(),
            raw_arguments: self.raw_arguments.clone(),
            // The body has its arguments, and did not ask for them.
            answered_questions: run
                .answered_questions(call)
                .iter()
                .filter(|answered| !is_secret_answer(&answered.answer))
                .cloned()
                .collect(),
            receipt_digest: recorded.map_or(self.receipt_digest, |recorded| recorded.receipt_digest),
            recorded_key: recorded.map(|recorded| recorded.idempotency_key.clone()),
            context_sources: run.call_sources(call),
        }
    }

    /// Returns the checks of this call: those of its run and those of its tool. `recorded_key` is the identity of a call
    /// that has started.
    pub(crate) fn call_features(&self, of_run: CallFeatures, recorded_key: Option<&CallKey>) -> CallFeatures
    where
        C: Send + Sync + 'static,
    {
        let tool = &self.tool;
        CallFeatures {
            // They check the whole arguments, when a person has given them.
            has_input_guardrails: !tool.input_guardrails.is_empty() && !self.lacks_secrets,
            has_output_guardrails: !tool.output_guardrails.is_empty(),
            has_enabled_rule: tool.enabled.static_value() != Some(true),
            has_permits: of_run.has_permits
                || tool.body_limit.is_some()
                || self.conflict_key.is_some()
                || !tool.shared_limits.is_empty(),
            has_receipts: match recorded_key {
                Some(recorded) => recorded.receipt_digest.is_some(),
                None => self.receipt_digest.is_some(),
            },
            follows_success_only: tool.conflict_order != ConflictOrder::Independent
                && tool.effect_of_call(self.rule_arguments()) != ToolEffect::Pure,
            approval_policy: tool.approval_policy(),
            max_output_bytes: tool.max_output_bytes,
            ..of_run
        }
    }

    /// Evaluates the approval rules of the tool. A standing approval stands for the one that the ordinary rule requires;
    /// a call that a rule rejects ends.
    pub(crate) async fn evaluate_approval(
        &self,
        ctx: &ToolContext<C>,
        has_standing_approval: bool,
    ) -> ApprovalRequirement
    where
        C: Send + Sync + 'static,
    {
        let Some(arguments) = self.rule_arguments() else { return ApprovalRequirement::Required };
        match self.tool.each_time_approval.evaluate(ctx.clone(), arguments).await {
            ApprovalRequirement::NotRequired => {}
            requirement => return requirement,
        }
        let is_covered = has_standing_approval && self.tool.has_standing_approvals();
        match self.tool.approval.evaluate(ctx.clone(), arguments).await {
            ApprovalRequirement::Required if is_covered => ApprovalRequirement::NotRequired,
            requirement => requirement,
        }
    }

    /// Runs the tool's function for a call that is about to wait for approval. One that panics shows nothing.
    pub(crate) async fn prepare_hold(&self, ctx: &ToolContext<C>) {
        let (Some(function), Some(arguments)) = (&self.tool.hold_function, self.rule_arguments()) else {
            return;
        };
        let shown = AssertUnwindSafe(async {
            if let Some(showing) = function(ctx.clone(), arguments) {
                showing.await;
            }
        });
        if shown.catch_unwind().await.is_err() {
            tracing::warn!(tool = %self.tool.key, "the function for a call that waits for approval panicked");
        }
    }

    /// Asks the tool's reconcile function whether an interrupted call was executed. A function that panics does not know.
    pub(crate) async fn reconcile(&self, ctx: &ToolContext<C>) -> ReconcileReport {
        let Some(reconcile) = &self.tool.reconcile else { return ReconcileReport::Unknown };
        let asked = AssertUnwindSafe(async { reconcile(ctx.clone()).await }).catch_unwind().await;
        match asked {
            Ok(ReconcileOutcome::Executed(output)) => ReconcileReport::Executed(output),
            Ok(ReconcileOutcome::NotExecuted) => ReconcileReport::NotExecuted,
            Ok(ReconcileOutcome::Unknown) | Err(_) => ReconcileReport::Unknown,
        }
    }

    /// Returns the parsed arguments for approval and effect rules.
    pub(crate) fn rule_arguments(&self) -> Option<&(dyn Any + Send + Sync)> {
        match (&self.prepared_body, &self.agent_arguments) {
            (Some(prepared), _) => Some(prepared.arguments()),
            (None, Some(value)) => Some(&**value),
            (None, None) => None,
        }
    }
}

/// Parses and validates a call's arguments for its tool.
pub(crate) fn read_arguments<C: Send + Sync + 'static>(
    tool: &Arc<Tool<C>>,
    agent: &AgentName,
    written: &str,
    raw: RawArguments,
) -> (ResolvedTool, PreparedCall<C>) {
    let frozen = canonicalize_arguments(written, |frozen| Arc::<str>::from(frozen));
    let text: Arc<str> = match &frozen {
        Ok(frozen) => frozen.clone(),
        Err(_) => written.into(),
    };
    // Some providers write nothing for nothing, which is not the same call as `{}`.
    let is_frozen = frozen.is_ok() && !written.trim().is_empty();
    let mut value = None;
    let prepared = frozen.and_then(|frozen| match &tool.body {
        ToolBody::Function(body) => body.prepare(&frozen).map(Some),
        ToolBody::Agent(agent) => {
            value = Some(agent.parse_arguments(&frozen)?);
            Ok(None)
        }
    });
    let shown = match (&prepared, &value) {
        (Ok(Some(prepared)), _) => Some(prepared.arguments()),
        (_, Some(value)) => Some(&**value),
        (_, None) => None,
    };
    let conflict = match (&tool.conflict_rule, shown) {
        // Where the rule fails, calls of its tool keep their order, for they may well conflict.
        (Some(key), Some(arguments)) => {
            let asked = catch_unwind(AssertUnwindSafe(|| key(arguments)));
            asked.unwrap_or_else(|_| Some(tool.key().to_string()))
        }
        _ => None,
    };
    let conflict_key = conflict.as_deref().map(Arc::from);
    let effect = tool.effect_of_call(shown);
    let (arguments, prepared) = match prepared {
        // What a decision is bound to is written down, so it is of what may be.
        Ok(prepared) => {
            let open = match tool.secret_arguments.as_slice() {
                [] => None,
                fields => redaction::redact_arguments(&text, fields).map(Into::into),
            };
            (Ok(open.unwrap_or_else(|| text.clone())), prepared)
        }
        Err(problems) => {
            // What is wrong with arguments quotes them, which secrets must not be.
            let is_open = tool.secret_arguments.is_empty();
            let problems = if is_open { problems } else { PROBLEMS_WITHHELD.to_owned() };
            let shown = redaction::redact_arguments(&text, &tool.secret_arguments).filter(|_| !is_open);
            let canonical_arguments = is_frozen.then(|| shown.map_or_else(|| text.clone(), Into::into));
            (Err(InvalidArguments { problems, canonical_arguments }), None)
        }
    };
    let has_receipt = arguments.is_ok() && tool.shares_receipts();
    let receipt_digest = has_receipt.then(|| tool.operation_digest(agent, &text));
    let found = ResolvedTool {
        key: tool.key().clone(),
        body: match &tool.body {
            ToolBody::Function(_) => BodyKind::Function,
            ToolBody::Agent(_) => BodyKind::Agent,
        },
        effect,
        approval_policy: tool.approval_policy(),
        conflict_key: conflict,
        sources: tool.content_sources(),
        arguments,
    };
    let ready = PreparedCall {
        tool: tool.clone(),
        arguments: text,
        raw_arguments: raw,
        prepared_body: prepared,
        agent_arguments: value,
        edited_arguments: None,
        receipt_digest,
        conflict_key,
        lacks_secrets: false,
    };
    (found, ready)
}

/// The function that a tool runs.
pub(crate) trait ToolFunction<C>: Send + Sync {
    /// Parses canonical arguments, or returns a list of their problems. Nothing runs.
    fn prepare(&self, text: &str) -> Result<Box<dyn PreparedBody<C>>, String>;
}

/// A body with its parsed arguments, ready to start.
pub(crate) trait PreparedBody<C>: Send + Sync {
    /// Returns the arguments, for rules.
    fn arguments(&self) -> &(dyn Any + Send + Sync);

    /// Starts the body.
    fn start(self: Box<Self>, ctx: ToolContext<C>) -> BodyStart;
}

pub(crate) type BodyResult = Result<OutputContent, ToolError>;

/// The place where the async bodies of a tool are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyPlacement {
    /// In a task of their own.
    OwnTask,
    /// In the task of their run.
    Inline,
}

/// A started body.
pub(crate) enum BodyStart {
    /// A future on the runtime; it can be dropped.
    Async(BoxFuture<'static, BodyResult>),
    /// A function on a thread of its own; it cannot be dropped.
    Blocking(Box<dyn FnOnce() -> BodyResult + Send>),
}

/// A function that parses canonical arguments.
type ArgumentParser<A> = fn(&str, &CompiledSchema) -> Result<A, String>;

struct ParsedFunction<A, F> {
    schema: CompiledSchema,
    parse: ArgumentParser<A>,
    function: Arc<F>,
}

impl<A, F> ParsedFunction<A, F> {
    fn new(schema: Arc<Value>, read: ArgumentParser<A>, run: F) -> Self {
        Self { schema: CompiledSchema::new(schema), parse: read, function: Arc::new(run) }
    }
}

struct BoundFunction<A, F> {
    arguments: A,
    function: Arc<F>,
}

/// Marks async functions, so that the two kinds can implement one trait.
struct AsyncFunction<F>(F);
struct BlockingFunction<F>(F);

impl<C, A, F> ToolFunction<C> for ParsedFunction<A, F>
where
    A: Send + Sync + 'static,
    F: Send + Sync + 'static,
    BoundFunction<A, F>: PreparedBody<C> + 'static,
{
    fn prepare(&self, text: &str) -> Result<Box<dyn PreparedBody<C>>, String> {
        let arguments = (self.parse)(text, &self.schema)?;
        Ok(Box::new(BoundFunction { arguments, function: self.function.clone() }))
    }
}

impl<C, A, F, Fut, T, E> PreparedBody<C> for BoundFunction<A, AsyncFunction<F>>
where
    C: Send + Sync + 'static,
    A: Send + Sync + 'static,
    F: Fn(ToolContext<C>, A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    fn arguments(&self) -> &(dyn Any + Send + Sync) {
        &self.arguments
    }

    fn start(self: Box<Self>, ctx: ToolContext<C>) -> BodyStart {
        let Self { arguments, function: run } = *self;
        // The function is called inside the future, so that its code before the first await is part of the
        // body too.
        BodyStart::Async(async move { to_body_result((run.0)(ctx, arguments).await) }.boxed())
    }
}

impl<C, A, F, T, E> PreparedBody<C> for BoundFunction<A, BlockingFunction<F>>
where
    C: Send + Sync + 'static,
    A: Send + Sync + 'static,
    F: Fn(ToolContext<C>, A) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    fn arguments(&self) -> &(dyn Any + Send + Sync) {
        &self.arguments
    }

    fn start(self: Box<Self>, ctx: ToolContext<C>) -> BodyStart {
        let Self { arguments, function: run } = *self;
        BodyStart::Blocking(Box::new(move || to_body_result((run.0)(ctx, arguments))))
    }
}

pub(crate) fn to_body_result<T: Serialize, E: fmt::Display + 'static>(result: Result<T, E>) -> BodyResult {
    match result {
        Ok(value) => to_output_content(&value)
            .map_err(|error| ToolError::hidden(format!("the result cannot be written as JSON: {error}"))),
        Err(error) => Err(ToolError::from_body_error(error)),
    }
}

pub(crate) fn typed_async<C, A, F, Fut, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn ToolFunction<C>>
where
    C: Send + Sync + 'static,
    A: DeserializeOwned + Send + Sync + 'static,
    F: Fn(ToolContext<C>, A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(ParsedFunction::new(schema, parse_arguments::<A>, AsyncFunction(run)))
}

pub(crate) fn typed_blocking<C, A, F, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn ToolFunction<C>>
where
    C: Send + Sync + 'static,
    A: DeserializeOwned + Send + Sync + 'static,
    F: Fn(ToolContext<C>, A) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(ParsedFunction::new(schema, parse_arguments::<A>, BlockingFunction(run)))
}

pub(crate) fn dynamic_async<C, F, Fut, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn ToolFunction<C>>
where
    C: Send + Sync + 'static,
    F: Fn(ToolContext<C>, Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(ParsedFunction::new(schema, parse_value, AsyncFunction(run)))
}

pub(crate) fn dynamic_blocking<C, F, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn ToolFunction<C>>
where
    C: Send + Sync + 'static,
    F: Fn(ToolContext<C>, Value) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(ParsedFunction::new(schema, parse_value, BlockingFunction(run)))
}

impl<C: Send + Sync + 'static> Tool<C> {
    /// Checks that a call could run with these arguments.
    ///
    /// # Errors
    ///
    /// Returns the message that the model would get.
    pub fn check_arguments(&self, arguments: &str) -> Result<(), String> {
        canonicalize_arguments(arguments, |frozen| match &self.body {
            ToolBody::Function(body) => body.prepare(frozen).map(drop),
            ToolBody::Agent(agent) => agent.parse_arguments(frozen).map(drop),
        })?
    }
}

/// Parses canonical arguments to a value after validation against the schema.
pub(crate) fn parse_value(frozen: &str, shape: &CompiledSchema) -> Result<Value, String> {
    let problems = shape.validate_text(frozen);
    if problems.is_empty() { parse_arguments(frozen, shape) } else { Err(describe_violations(&problems)) }
}

/// Converts the model's arguments to canonical JSON. The body never sees another form, so that the arguments
/// that were shown, decided, recorded and executed are identical. Empty text stands for no arguments, as some
/// providers write it.
pub(crate) fn canonicalize_arguments<T>(raw: &str, then: impl FnOnce(&str) -> T) -> Result<T, String> {
    if raw.len() > MAX_ARGUMENT_BYTES {
        return Err(format!(
            "`arguments` must be at most {MAX_ARGUMENT_BYTES} bytes long, is {} bytes long",
            raw.len()
        ));
    }
    let written = if raw.trim().is_empty() { "{}" } else { raw };
    let frozen = with_canonical_text(written, |frozen| match json_kind(frozen) {
        None => Ok(then(frozen)),
        Some(kind) => Err(format!("`arguments` must be a JSON object, is {kind}")),
    });
    frozen.map_err(|error| format!("`arguments` must be JSON: {error}"))?
}

/// Parses canonical arguments as `A`. A field that the type would ignore is a problem too: an approver would read
/// it, and the body would not.
///
/// # Errors
///
/// Returns a list of all problems, by path.
pub(crate) fn parse_arguments<A: DeserializeOwned>(text: &str, shape: &CompiledSchema) -> Result<A, String> {
    let mut unknown = Vec::new();
    // The implementation of `Deserialize` may panic.
    let read = catch_unwind(AssertUnwindSafe(|| {
        let mut reader = serde_json::Deserializer::from_str(text);
        serde_ignored::deserialize(&mut reader, |path| unknown.push(field_path(&path)))
    }));
    match read {
        Ok(Ok(arguments)) if unknown.is_empty() => Ok(arguments),
        Ok(Ok(_)) => {
            let listed = unknown.iter().take(MAX_LISTED_FIELDS);
            let mut problems: Vec<String> =
                listed.map(|path| format!("`{path}` is not a known field; leave it out")).collect();
            if let Some(more @ 1..) = unknown.len().checked_sub(MAX_LISTED_FIELDS) {
                problems.push(format!("{more} more fields are not known"));
            }
            Err(problems.join("; "))
        }
        Ok(Err(error)) => Err(list_problems::<A>(text, shape, &error)),
        Err(_) => Err("`arguments` cannot be read".to_owned()),
    }
}

/// Formats the path of a field: `edits[0].find`.
#[cold]
fn field_path(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", field_path(parent)),
        Path::Map { parent, key } => match field_path(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            field_path(parent)
        }
    }
}

/// Lists all problems of the arguments. Only invalid arguments pay for this.
#[cold]
fn list_problems<A: DeserializeOwned>(
    text: &str,
    shape: &CompiledSchema,
    error: &serde_json::Error,
) -> String {
    let found = shape.validate_text(text);
    if !found.is_empty() {
        return describe_violations(&found);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, A>(&mut reader) {
        Err(placed) => match placed.path().to_string().as_str() {
            "." => format!("`arguments` {}", strip_position(placed.inner())),
            path => format!("`{path}` {}", strip_position(placed.inner())),
        },
        Ok(_) => error.to_string(),
    }
}

/// Returns the text of an error without line and column: they refer to the canonical text, which the model did
/// not write.
fn strip_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// Returns the JSON type of canonical text that is not an object.
fn json_kind(text: &str) -> Option<&'static str> {
    match text.as_bytes().first() {
        Some(b'{') => None,
        Some(b'n') => Some("null"),
        Some(b't' | b'f') => Some("a boolean"),
        Some(b'"') => Some("a string"),
        Some(b'[') => Some("a list"),
        Some(_) | None => Some("a number"),
    }
}
