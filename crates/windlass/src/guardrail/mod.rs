//! Guardrails: checks of a run's input and output and of tool calls. A guardrail that fails or panics blocks.

mod concurrent;
mod tool_checks;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::item::{Item, OutputContent};

pub(crate) use self::concurrent::{ConcurrentGuardrails, RunInputGuardrails, check_final_output};
pub(crate) use self::tool_checks::{GuardrailChecks, check_call_input, check_call_output};
use crate::tool::{RunContext, ToolContext};

/// An error that prevents a guardrail from checking.
pub type GuardrailError = Box<dyn std::error::Error + Send + Sync>;

/// The verdict of a guardrail of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardrailVerdict {
    /// The run continues.
    Pass,
    /// The tripwire is triggered: the run fails.
    Tripwire,
}

/// The verdict of a guardrail of a tool.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolGuardrailVerdict {
    /// The call continues.
    Allow,
    /// The call continues with this output in place of its own. From an input guardrail it means
    /// [`ToolGuardrailVerdict::RejectCall`].
    ReplaceOutput(OutputContent),
    /// The call gets this text as its output, and the run continues.
    RejectCall(String),
    /// The run fails.
    FailRun,
}

/// The time at which an input guardrail of a run executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardrailTiming {
    /// Concurrently with the model. No tool call starts before the guardrail has finished.
    #[default]
    Concurrent,
    /// Before the first model request.
    Blocking,
}

type GuardrailFunction<I, V> = Arc<dyn Fn(I) -> BoxFuture<'static, Result<V, GuardrailError>> + Send + Sync>;

/// A check of a run's input.
pub struct InputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    pub(crate) timing: GuardrailTiming,
    check: GuardrailFunction<(RunContext<C>, Arc<[Arc<Item>]>), GuardrailVerdict>,
}

impl<C> InputGuardrail<C> {
    /// Creates a guardrail for the run's input that executes concurrently with the model.
    pub fn new<Fut>(
        name: &str,
        check: impl Fn(RunContext<C>, Arc<[Arc<Item>]>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<GuardrailVerdict, GuardrailError>> + Send + 'static,
    {
        let check: GuardrailFunction<_, _> = Arc::new(move |(ctx, input)| check(ctx, input).boxed());
        Self { name: name.into(), timing: GuardrailTiming::Concurrent, check }
    }

    /// Executes the guardrail before the first model request.
    #[must_use]
    pub fn blocking(mut self) -> Self {
        self.timing = GuardrailTiming::Blocking;
        self
    }

    pub(crate) async fn check(
        &self,
        ctx: RunContext<C>,
        input: Arc<[Arc<Item>]>,
    ) -> Result<GuardrailVerdict, GuardrailError> {
        catch_panic(&self.check, (ctx, input)).await
    }
}

/// A check of a run's final output.
pub struct OutputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    check: GuardrailFunction<(RunContext<C>, Arc<str>), GuardrailVerdict>,
}

impl<C> OutputGuardrail<C> {
    /// Creates a guardrail for the final output.
    pub fn new<Fut>(
        name: &str,
        check: impl Fn(RunContext<C>, Arc<str>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<GuardrailVerdict, GuardrailError>> + Send + 'static,
    {
        let check: GuardrailFunction<_, _> = Arc::new(move |(ctx, output)| check(ctx, output).boxed());
        Self { name: name.into(), check }
    }

    /// Returns the name of the guardrail.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if both are clones of one guardrail.
    pub(crate) fn is_same_guardrail(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.check, &other.check)
    }

    pub(crate) async fn check(
        &self,
        ctx: RunContext<C>,
        output: Arc<str>,
    ) -> Result<GuardrailVerdict, GuardrailError> {
        catch_panic(&self.check, (ctx, output)).await
    }
}

/// A check of a call immediately before its body runs.
pub struct ToolInputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    check: GuardrailFunction<ToolContext<C>, ToolGuardrailVerdict>,
}

impl<C> ToolInputGuardrail<C> {
    /// Creates a guardrail for calls. It receives the call's context: tool, arguments, agent.
    pub fn new<Fut>(name: &str, check: impl Fn(ToolContext<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<ToolGuardrailVerdict, GuardrailError>> + Send + 'static,
    {
        let check: GuardrailFunction<_, _> = Arc::new(move |ctx| check(ctx).boxed());
        Self { name: name.into(), check }
    }

    pub(crate) async fn check(&self, ctx: ToolContext<C>) -> Result<ToolGuardrailVerdict, GuardrailError> {
        catch_panic(&self.check, ctx).await
    }
}

/// A check of a call's output, including error texts, before the model, the journal or a watcher sees it.
pub struct ToolOutputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    check: GuardrailFunction<(ToolContext<C>, OutputContent), ToolGuardrailVerdict>,
}

impl<C> ToolOutputGuardrail<C> {
    /// Creates a guardrail for the output of tool calls. It receives the context of the call and its output.
    pub fn new<Fut>(
        name: &str,
        check: impl Fn(ToolContext<C>, OutputContent) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<ToolGuardrailVerdict, GuardrailError>> + Send + 'static,
    {
        let check: GuardrailFunction<_, _> = Arc::new(move |(ctx, output)| check(ctx, output).boxed());
        Self { name: name.into(), check }
    }

    pub(crate) async fn check(
        &self,
        ctx: ToolContext<C>,
        output: OutputContent,
    ) -> Result<ToolGuardrailVerdict, GuardrailError> {
        catch_panic(&self.check, (ctx, output)).await
    }
}

/// Executes a check and converts a panic to an error.
async fn catch_panic<I, V>(check: &GuardrailFunction<I, V>, input: I) -> Result<V, GuardrailError> {
    let caught = AssertUnwindSafe(async move { check(input).await }).catch_unwind().await;
    caught.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(&*panic)).into()))
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

macro_rules! shared {
    ($($name:ident { $($field:ident),* }),* $(,)?) => {
        $(impl<C> Clone for $name<C> {
            fn clone(&self) -> Self {
                Self { $($field: self.$field.clone()),* }
            }
        }

        impl<C> fmt::Debug for $name<C> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), self.name)
            }
        })*
    };
}

shared! {
    InputGuardrail { name, timing, check },
    OutputGuardrail { name, check },
    ToolInputGuardrail { name, check },
    ToolOutputGuardrail { name, check },
}
