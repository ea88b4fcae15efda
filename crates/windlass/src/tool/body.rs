//! The one erased boundary of tools: whatever a body is made of, it is prepared with arguments and started.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::OutputContent;
use windlass_core::schema::Shape;

use super::{ToolContext, ToolError, arguments, content_of};

/// A function that a tool runs.
pub(crate) trait Body<C>: Send + Sync {
    /// Reads canonical arguments, or lists what is wrong with them. Nothing runs.
    fn prepare(&self, text: &str) -> Result<Box<dyn Prepared<C>>, String>;
}

/// A body with its arguments, ready to start.
pub(crate) trait Prepared<C>: Send + Sync {
    /// The arguments, for rules to look at.
    fn arguments(&self) -> &(dyn Any + Send + Sync);

    /// Starts.
    fn start(self: Box<Self>, ctx: ToolContext<C>) -> Start;
}

pub(crate) type BodyResult = Result<OutputContent, ToolError>;

/// How a body runs.
pub(crate) enum Start {
    /// On the runtime; it can be dropped.
    Async(BoxFuture<'static, BodyResult>),
    /// On a thread of its own; it cannot.
    Blocking(Box<dyn FnOnce() -> BodyResult + Send>),
}

/// How arguments become what the function takes.
type Read<A> = fn(&str, &Shape) -> Result<A, String>;

struct Function<A, F> {
    shape: Shape,
    read: Read<A>,
    run: Arc<F>,
}

impl<A, F> Function<A, F> {
    fn new(schema: Arc<Value>, read: Read<A>, run: F) -> Self {
        Self { shape: Shape::new(schema), read, run: Arc::new(run) }
    }
}

struct Ready<A, F> {
    arguments: A,
    run: Arc<F>,
}

/// Tells the two kinds of function apart, which no trait bound could.
struct Asynchronous<F>(F);
struct Blocking<F>(F);

impl<C, A, F> Body<C> for Function<A, F>
where
    A: Send + Sync + 'static,
    F: Send + Sync + 'static,
    Ready<A, F>: Prepared<C> + 'static,
{
    fn prepare(&self, text: &str) -> Result<Box<dyn Prepared<C>>, String> {
        let arguments = (self.read)(text, &self.shape)?;
        Ok(Box::new(Ready { arguments, run: self.run.clone() }))
    }
}

impl<C, A, F, Fut, T, E> Prepared<C> for Ready<A, Asynchronous<F>>
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

    fn start(self: Box<Self>, ctx: ToolContext<C>) -> Start {
        let Self { arguments, run } = *self;
        // The function itself is called inside the future, so that what it does before its first await is
        // the body's doing too.
        Start::Async(async move { told((run.0)(ctx, arguments).await) }.boxed())
    }
}

impl<C, A, F, T, E> Prepared<C> for Ready<A, Blocking<F>>
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

    fn start(self: Box<Self>, ctx: ToolContext<C>) -> Start {
        let Self { arguments, run } = *self;
        Start::Blocking(Box::new(move || told((run.0)(ctx, arguments))))
    }
}

fn told<T: Serialize, E: fmt::Display + 'static>(result: Result<T, E>) -> BodyResult {
    match result {
        Ok(value) => content_of(&value)
            .map_err(|error| ToolError::hidden(format!("the result cannot be written as JSON: {error}"))),
        Err(error) => Err(ToolError::of(error)),
    }
}

pub(crate) fn typed<C, A, F, Fut, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn Body<C>>
where
    C: Send + Sync + 'static,
    A: DeserializeOwned + Send + Sync + 'static,
    F: Fn(ToolContext<C>, A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(Function::new(schema, arguments::read::<A>, Asynchronous(run)))
}

pub(crate) fn typed_blocking<C, A, F, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn Body<C>>
where
    C: Send + Sync + 'static,
    A: DeserializeOwned + Send + Sync + 'static,
    F: Fn(ToolContext<C>, A) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(Function::new(schema, arguments::read::<A>, Blocking(run)))
}

pub(crate) fn dynamic<C, F, Fut, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn Body<C>>
where
    C: Send + Sync + 'static,
    F: Fn(ToolContext<C>, Value) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(Function::new(schema, arguments::checked_value, Asynchronous(run)))
}

pub(crate) fn dynamic_blocking<C, F, T, E>(schema: Arc<Value>, run: F) -> Arc<dyn Body<C>>
where
    C: Send + Sync + 'static,
    F: Fn(ToolContext<C>, Value) -> Result<T, E> + Send + Sync + 'static,
    T: Serialize,
    E: fmt::Display + Send + Sync + 'static,
{
    Arc::new(Function::new(schema, arguments::checked_value, Blocking(run)))
}
