//! The type-erased boundary of tools: a body of any kind is prepared with arguments and started.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::item::OutputContent;
use windlass_core::schema::CompiledSchema;

use super::{ToolContext, ToolError, arguments, to_output_content};

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
    Arc::new(ParsedFunction::new(schema, arguments::parse_arguments::<A>, AsyncFunction(run)))
}

pub(crate) fn typed_blocking<C, A, F, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn ToolFunction<C>>
where
    C: Send + Sync + 'static,
    A: DeserializeOwned + Send + Sync + 'static,
    F: Fn(ToolContext<C>, A) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(ParsedFunction::new(schema, arguments::parse_arguments::<A>, BlockingFunction(run)))
}

pub(crate) fn dynamic_async<C, F, Fut, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn ToolFunction<C>>
where
    C: Send + Sync + 'static,
    F: Fn(ToolContext<C>, Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(ParsedFunction::new(schema, arguments::parse_value, AsyncFunction(run)))
}

pub(crate) fn dynamic_blocking<C, F, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn ToolFunction<C>>
where
    C: Send + Sync + 'static,
    F: Fn(ToolContext<C>, Value) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(ParsedFunction::new(schema, arguments::parse_value, BlockingFunction(run)))
}
