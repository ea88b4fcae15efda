//! Guardrails: checks that must pass. One that fails to do its work counts as one that said no.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{Item, OutputContent};

use crate::tool::{RunContext, ToolContext};

/// Why a guardrail could not do its work.
pub type GuardrailError = Box<dyn std::error::Error + Send + Sync>;

/// What a guardrail of a run says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Pass,
    /// End the run.
    Trip,
}

/// What a guardrail of a tool says.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolVerdict {
    /// Go on.
    Allow,
    /// Go on with this output instead. Of an input guardrail it means [`ToolVerdict::Reject`].
    Replace(OutputContent),
    /// The call gets this as its output, and the run goes on.
    Reject(String),
    /// End the run.
    Stop,
}

/// When a guardrail of a run's input runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// Beside the model. No tool starts before it has settled.
    #[default]
    Overlapping,
    /// Before anything else.
    First,
}

type Check<I, V> = Arc<dyn Fn(I) -> BoxFuture<'static, Result<V, GuardrailError>> + Send + Sync>;

/// Checks what a run is given.
pub struct InputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    pub(crate) timing: Timing,
    check: Check<(RunContext<C>, Arc<[Arc<Item>]>), Verdict>,
}

impl<C> InputGuardrail<C> {
    /// A check of the run's input, beside the model.
    pub fn new<Fut>(
        name: &str,
        check: impl Fn(RunContext<C>, Arc<[Arc<Item>]>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Verdict, GuardrailError>> + Send + 'static,
    {
        let check: Check<_, _> = Arc::new(move |(ctx, input)| check(ctx, input).boxed());
        Self { name: name.into(), timing: Timing::Overlapping, check }
    }

    /// Runs it before anything else.
    #[must_use]
    pub fn first(mut self) -> Self {
        self.timing = Timing::First;
        self
    }

    pub(crate) async fn check(
        &self,
        ctx: RunContext<C>,
        input: Arc<[Arc<Item>]>,
    ) -> Result<Verdict, GuardrailError> {
        caught(&self.check, (ctx, input)).await
    }
}

/// Checks what a run would end with.
pub struct OutputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    check: Check<(RunContext<C>, Arc<str>), Verdict>,
}

impl<C> OutputGuardrail<C> {
    /// A check of the final output.
    pub fn new<Fut>(
        name: &str,
        check: impl Fn(RunContext<C>, Arc<str>) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<Verdict, GuardrailError>> + Send + 'static,
    {
        let check: Check<_, _> = Arc::new(move |(ctx, output)| check(ctx, output).boxed());
        Self { name: name.into(), check }
    }

    /// Whether both are the same check.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.check, &other.check)
    }

    pub(crate) async fn check(
        &self,
        ctx: RunContext<C>,
        output: Arc<str>,
    ) -> Result<Verdict, GuardrailError> {
        caught(&self.check, (ctx, output)).await
    }
}

/// Checks a call right before its body.
pub struct ToolInputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    check: Check<ToolContext<C>, ToolVerdict>,
}

impl<C> ToolInputGuardrail<C> {
    /// A check of a call, by its context: tool, arguments, agent.
    pub fn new<Fut>(name: &str, check: impl Fn(ToolContext<C>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<ToolVerdict, GuardrailError>> + Send + 'static,
    {
        let check: Check<_, _> = Arc::new(move |ctx| check(ctx).boxed());
        Self { name: name.into(), check }
    }

    pub(crate) async fn check(&self, ctx: ToolContext<C>) -> Result<ToolVerdict, GuardrailError> {
        caught(&self.check, ctx).await
    }
}

/// Checks a call's output before anybody sees it, failure texts included.
pub struct ToolOutputGuardrail<C = ()> {
    pub(crate) name: Arc<str>,
    check: Check<(ToolContext<C>, OutputContent), ToolVerdict>,
}

impl<C> ToolOutputGuardrail<C> {
    /// A check of a call's output.
    pub fn new<Fut>(
        name: &str,
        check: impl Fn(ToolContext<C>, OutputContent) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<ToolVerdict, GuardrailError>> + Send + 'static,
    {
        let check: Check<_, _> = Arc::new(move |(ctx, output)| check(ctx, output).boxed());
        Self { name: name.into(), check }
    }

    pub(crate) async fn check(
        &self,
        ctx: ToolContext<C>,
        output: OutputContent,
    ) -> Result<ToolVerdict, GuardrailError> {
        caught(&self.check, (ctx, output)).await
    }
}

/// Runs a check; a panic is an error like any other.
async fn caught<I, V>(check: &Check<I, V>, input: I) -> Result<V, GuardrailError> {
    let caught = AssertUnwindSafe(async move { check(input).await }).catch_unwind().await;
    caught.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_text(&*panic)).into()))
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
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
