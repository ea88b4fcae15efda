//! What a tool, a rule, a guardrail or a hook is told of where it runs.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use windlass_core::{AgentName, CallId, CallPath, Digest, Item, Media, Question, Reply, RunId, ToolKey};

use super::Tool;
use crate::artefact::Artefacts;
use crate::drive::Visibility;
use crate::error::StoreError;
use crate::event::{BodyEmitter, EventKind};
use crate::run::{EndList, Leaving};

/// A run, as the application's functions see it. It gives the application's own context by dereferencing.
pub struct RunContext<C = ()> {
    app: Arc<C>,
    run: RunId,
    agent: AgentName,
}

impl<C> RunContext<C> {
    pub(crate) fn new(app: Arc<C>, run: RunId, agent: AgentName) -> Self {
        Self { app, run, agent }
    }

    /// The application's own context.
    pub fn app(&self) -> &Arc<C> {
        &self.app
    }

    /// The run.
    pub fn run_id(&self) -> &RunId {
        &self.run
    }

    /// The agent that is current.
    pub fn agent(&self) -> &AgentName {
        &self.agent
    }
}

impl<C> Clone for RunContext<C> {
    fn clone(&self) -> Self {
        Self { app: self.app.clone(), run: self.run.clone(), agent: self.agent.clone() }
    }
}

impl<C> Deref for RunContext<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.app
    }
}

/// One call, as its body sees it. It gives the application's own context by dereferencing.
pub struct ToolContext<C = ()> {
    inner: Arc<Inner<C>>,
}

struct Inner<C> {
    around: Arc<Around<C>>,
    call: CallId,
    path: OnceLock<CallPath>,
    facts: CallFacts<C>,
    /// Stops this call alone. There is none before somebody asks for it.
    stop: OnceLock<CancellationToken>,
}

/// What the contexts of a turn's calls share.
pub(crate) struct Around<C> {
    pub(crate) run: RunContext<C>,
    /// The calls that lead to the agent that makes these.
    pub(crate) within: Arc<[CallId]>,
    /// Stops all of them.
    pub(crate) stop: CancellationToken,
    pub(crate) emitter: BodyEmitter,
    pub(crate) artefacts: Arc<Artefacts>,
    pub(crate) at_end: EndList,
    /// Calls that began in another run, which this one is a fork of.
    pub(crate) inherited: BTreeMap<CallId, RunId>,
}

/// What a call's context is made of.
pub(crate) struct CallFacts<C> {
    pub(crate) tool: Arc<Tool<C>>,
    pub(crate) arguments: Arc<str>,
    pub(crate) raw_arguments: RawArguments,
    pub(crate) replies: Vec<Reply>,
}

/// Arguments as the model wrote them.
#[derive(Clone)]
pub(crate) enum RawArguments {
    /// In the item that it wrote.
    Of(Arc<Item>),
    Text(Arc<str>),
}

impl RawArguments {
    fn as_str(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Of(item) => match &**item {
                Item::Call(call) => &call.arguments,
                _ => "",
            },
        }
    }
}

impl<C> ToolContext<C> {
    pub(crate) fn new(around: Arc<Around<C>>, call: CallId, facts: CallFacts<C>) -> Self {
        let (path, stop) = (OnceLock::new(), OnceLock::new());
        Self { inner: Arc::new(Inner { around, call, path, facts, stop }) }
    }

    /// The run around the call.
    pub fn run(&self) -> &RunContext<C> {
        &self.inner.around.run
    }

    /// The application's own context.
    pub fn app(&self) -> &Arc<C> {
        self.inner.around.run.app()
    }

    /// The agent that made the call.
    pub fn agent(&self) -> &AgentName {
        self.inner.around.run.agent()
    }

    /// The call and the calls that lead to it.
    pub fn path(&self) -> &CallPath {
        self.inner.path.get_or_init(|| CallPath::new(&self.inner.around.within, self.inner.call.clone()))
    }

    /// The call's id.
    pub fn call_id(&self) -> &str {
        self.inner.call.as_str()
    }

    /// The tool's identity.
    pub fn tool(&self) -> &ToolKey {
        &self.inner.facts.tool.key
    }

    /// The arguments that the call runs with, in canonical form.
    pub fn arguments(&self) -> &str {
        &self.inner.facts.arguments
    }

    /// The arguments as the model wrote them.
    pub fn raw_arguments(&self) -> &str {
        self.inner.facts.raw_arguments.as_str()
    }

    /// A key to hand to whatever the tool calls, so that a repeat is known as one. It is the same in every
    /// attempt, after a crash, on another machine, and in a fork that goes on with the call. For an idempotent tool it is the same for every call
    /// with the same arguments; otherwise it belongs to this call alone.
    pub fn idempotency_key(&self) -> String {
        let digest = match self.inner.facts.tool.receipt(&self.inner.facts.arguments) {
            Some(receipt) => receipt,
            None => {
                let tool = self.tool().to_string();
                let path = self.path().to_string();
                let around = &self.inner.around;
                let run = around.inherited.get(&self.inner.call).unwrap_or(&around.run.run);
                Digest::of_parts(&[run.as_str(), &path, &tool, &self.inner.facts.arguments])
            }
        };
        format!("wl-{}", &digest.to_string()[..32])
    }

    /// What the body asked in earlier attempts, with the answers, in order.
    pub fn replies(&self) -> &[Reply] {
        &self.inner.facts.replies
    }

    /// The answer to a question, where it was asked and answered. A body that needs to know something looks here
    /// first, and asks if there is nothing:
    ///
    /// ```
    /// use windlass::core::Question;
    /// use windlass::prelude::*;
    ///
    /// /// Books a table.
    /// #[tool]
    /// async fn book(ctx: &ToolContext<()>, guests: u32) -> Result<String, ToolError> {
    ///     let question = Question::new("Inside or outside?");
    ///     let Some(place) = ctx.reply(&question) else { return Err(ToolError::ask(question)) };
    ///     Ok(format!("a table for {guests}, {}", place.as_str().unwrap_or("anywhere")))
    /// }
    /// ```
    pub fn reply(&self, question: &Question) -> Option<&Value> {
        self.inner.facts.replies.iter().find(|reply| reply.question == *question).map(|reply| &reply.answer)
    }

    /// Resolves when the call should stop: the run is cancelled, or a deadline has passed. Bodies that hold
    /// something open can wait for it; all others are simply dropped.
    pub async fn cancelled(&self) {
        self.own_stop().cancelled().await;
    }

    /// Whether the call should stop. For blocking bodies, which cannot be dropped.
    pub fn is_cancelled(&self) -> bool {
        self.inner.stop.get().is_some_and(CancellationToken::is_cancelled)
            || self.inner.around.stop.is_cancelled()
    }

    /// The whole output of an earlier call of this run, where the model was shown only a part of it.
    pub async fn artefact(&self, call: &str) -> Result<Option<Arc<str>>, StoreError> {
        self.inner.around.artefacts.read(call).await
    }

    /// Keeps a text with the run, under a name of the tool's own. Where the run has no store it lasts as long as
    /// the run is driven.
    pub async fn keep_artefact(&self, name: &str, text: &str) -> Result<(), StoreError> {
        self.inner.around.artefacts.keep(name, text).await
    }

    /// Keeps the bytes of a picture or a file with the run, once, and gives what stands for them in an output.
    /// The journal then names them and does not hold them; the model is shown them. Without a store, and for a
    /// secret output, they travel with the output instead.
    pub async fn keep_media(&self, media_type: &str, base64: &str) -> Result<Media, StoreError> {
        match self.inner.facts.tool.output_visibility {
            Visibility::Open => self.inner.around.artefacts.keep_media(media_type, base64).await,
            Visibility::Secret => Ok(Media {
                data: Some(base64.to_owned()),
                media_type: Some(media_type.to_owned()),
                ..Media::default()
            }),
        }
    }

    /// Does something when the run leaves this process, however it does: it ended, failed, was cancelled, waits for
    /// a person, or its driver is gone. What was asked for last is done first. The run waits for it, for a while.
    pub fn at_end<Fut>(&self, act: impl FnOnce(Leaving) -> Fut + Send + 'static)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.inner.around.at_end.add(Box::new(move |leaving| act(leaving).boxed()));
    }

    /// Asks the body to stop.
    pub(crate) fn stop(&self) {
        self.own_stop().cancel();
    }

    fn own_stop(&self) -> &CancellationToken {
        self.inner.stop.get_or_init(|| self.inner.around.stop.child_token())
    }

    /// Tells whoever watches the run how far the call has come.
    pub fn progress(&self, progress: impl Into<Value>) {
        self.inner
            .around
            .emitter
            .try_emit(EventKind::Progress { call: self.inner.call.clone(), progress: progress.into() });
    }
}

impl<C> Clone for ToolContext<C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<C> Deref for ToolContext<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.inner.around.run.app()
    }
}
