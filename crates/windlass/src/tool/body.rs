//! The type-erased boundary of tools: the model's arguments are converted to canonical JSON and parsed, or to a message
//! that lists the problems, and a body of any kind is prepared with them and started.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::canonical::with_canonical_text;
use windlass_core::item::OutputContent;
use windlass_core::schema::{CompiledSchema, describe_violations};

use super::{Tool, ToolBody, ToolContext, ToolError, to_output_content};

/// Maximum size of the arguments in bytes.
const MAX_ARGUMENT_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of unknown fields that a message lists.
const MAX_LISTED_FIELDS: usize = 8;

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
    let read = std::panic::catch_unwind(AssertUnwindSafe(|| {
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
