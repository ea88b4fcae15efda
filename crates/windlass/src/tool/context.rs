//! The contexts that tools, rules, guardrails and hooks receive.

use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use windlass_core::{
    canonical::Digest,
    decision::{AnsweredQuestion, PersonQuestion},
    id::{AgentName, CallId, CallPath, RunId},
    idempotency::{CallKey, IdempotencyKey, UniqueCall},
    item::{Item, MediaSource},
    provenance::ContentSources,
    tool::ToolKey,
};

use super::Tool;
use super::progress::ProgressQueue;
use crate::artefact::{RunArtefacts, decode_text};
use crate::error::StoreError;
use crate::journal::AppendTarget;
use crate::receipts::KeyScopes;
use crate::redaction::{OutputVisibility, redact_arguments};
use crate::run::{ExitRegistry, RunExit};

/// The context of a run, for the application's functions. It dereferences to the application's own context.
pub struct RunContext<C = ()> {
    app: Arc<C>,
    run: RunId,
    agent: AgentName,
    parent_calls: Arc<[CallId]>,
}

impl<C> RunContext<C> {
    pub(crate) fn new(app: Arc<C>, run: RunId, agent: AgentName, parent_calls: Arc<[CallId]>) -> Self {
        Self { app, run, agent, parent_calls }
    }

    /// Returns the application's own context.
    pub fn app(&self) -> &Arc<C> {
        &self.app
    }

    /// Returns the id of the run.
    pub fn run_id(&self) -> &RunId {
        &self.run
    }

    /// Returns the current agent.
    pub fn agent(&self) -> &AgentName {
        &self.agent
    }

    /// Returns the calls that lead to a nested agent, outermost first; empty for the outermost run.
    pub fn parent_calls(&self) -> &[CallId] {
        &self.parent_calls
    }
}

impl<C> Clone for RunContext<C> {
    fn clone(&self) -> Self {
        Self {
            app: self.app.clone(),
            run: self.run.clone(),
            agent: self.agent.clone(),
            parent_calls: self.parent_calls.clone(),
        }
    }
}

impl<C> Deref for RunContext<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.app
    }
}

/// The context of a tool call. It dereferences to the application's own context.
pub struct ToolContext<C = ()> {
    inner: Arc<ToolContextInner<C>>,
}

struct ToolContextInner<C> {
    turn: Arc<TurnContext<C>>,
    call: CallId,
    path: OnceLock<CallPath>,
    details: CallDetails<C>,
    /// Idempotency key, once it can no longer change.
    key: OnceLock<(IdempotencyKey, u32)>,
    /// Cancels this call alone. Created on first use.
    cancel_token: OnceLock<CancellationToken>,
    /// Progress reports, if anybody is told of them.
    progress: Option<ProgressQueue>,
}

/// Data that the contexts of a turn's calls share.
pub(crate) struct TurnContext<C> {
    pub(crate) run_context: RunContext<C>,
    /// Calls that lead to the agent of these calls.
    pub(crate) parent_calls: Arc<[CallId]>,
    /// Cancels all calls of the turn.
    pub(crate) cancel_token: CancellationToken,
    /// True if watchers or hooks are told of the calls.
    pub(crate) is_observed: bool,
    pub(crate) artefacts: Arc<RunArtefacts>,
    pub(crate) exit_registry: ExitRegistry,
    /// Number of the model response that made the calls.
    pub(crate) number: u32,
    pub(crate) key_scopes: Arc<KeyScopes>,
    /// The store and the lease of the run, if it has a store.
    pub(crate) ownership: Option<Arc<AppendTarget>>,
}

/// The details of one call.
pub(crate) struct CallDetails<C> {
    pub(crate) tool: Arc<Tool<C>>,
    pub(crate) arguments: Arc<str>,
    pub(crate) raw_arguments: RawArguments,
    pub(crate) answered_questions: Vec<AnsweredQuestion>,
    /// Digest of the receipt that answers identical calls, if the call has receipts.
    pub(crate) receipt_digest: Option<Digest>,
    /// Idempotency key that an earlier attempt recorded.
    pub(crate) recorded_key: Option<IdempotencyKey>,
    /// Sources of the text that the model could read when it proposed the call.
    pub(crate) context_sources: ContentSources,
}

/// Arguments as the model wrote them.
#[derive(Clone)]
pub(crate) enum RawArguments {
    /// Contained in the call's item.
    InItem(Arc<Item>),
    Text(Arc<str>),
}

impl RawArguments {
    fn as_str(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::InItem(item) => match &**item {
                Item::Call(call) => &call.arguments,
                _ => "",
            },
        }
    }
}

impl<C> ToolContext<C> {
    pub(crate) fn new(around: Arc<TurnContext<C>>, call: CallId, facts: CallDetails<C>) -> Self {
        let (path, stop) = (OnceLock::new(), OnceLock::new());
        let key = OnceLock::new();
        Self {
            inner: Arc::new(ToolContextInner {
                progress: around.is_observed.then(ProgressQueue::default),
                turn: around,
                call,
                path,
                details: facts,
                key,
                cancel_token: stop,
            }),
        }
    }

    /// Returns the context of the run.
    pub fn run_context(&self) -> &RunContext<C> {
        &self.inner.turn.run_context
    }

    /// Returns the application's own context.
    pub fn app(&self) -> &Arc<C> {
        self.inner.turn.run_context.app()
    }

    /// Returns the agent that made the call.
    pub fn agent(&self) -> &AgentName {
        self.inner.turn.run_context.agent()
    }

    /// Returns the path of the call: the calls that lead to it, and the call itself.
    pub fn call_path(&self) -> &CallPath {
        self.inner.path.get_or_init(|| CallPath::new(&self.inner.turn.parent_calls, self.inner.call.clone()))
    }

    /// Returns the id of the call, assigned by the model. With nested agents only [`ToolContext::call_path`] is unique.
    pub fn call_id(&self) -> &str {
        self.inner.call.as_str()
    }

    /// Returns the key of the tool.
    pub fn tool_key(&self) -> &ToolKey {
        &self.inner.details.tool.key
    }

    /// Returns the sources outside the conversation of the text that the model could read when it proposed the call.
    /// Such text can contain instructions, so a rule may be stricter about the call.
    pub fn context_sources(&self) -> ContentSources {
        self.inner.details.context_sources
    }

    /// Returns the arguments of the call, as canonical JSON.
    pub fn arguments(&self) -> &str {
        &self.inner.details.arguments
    }

    /// Returns the arguments as the model wrote them.
    pub fn raw_arguments(&self) -> &str {
        self.inner.details.raw_arguments.as_str()
    }

    /// Returns the idempotency key of the call, to pass to the services that the tool calls, so that they can detect a
    /// repeated call.
    ///
    /// The key is recorded when the call starts. It is the same in every attempt, after a crash, on another machine, with
    /// another build of the application, and in a fork that continues the call, unless the fork's tool or approver says that
    /// the call had no effect: then the fork makes a call of its own. For an idempotent tool, identical calls of
    /// one agent have the same key within the scope of its receipts
    /// ([`ReceiptPolicy`](crate::tool::ReceiptPolicy)), until a receipt expires; otherwise the key is unique to this call.
    /// Before the call is about to start, in an approval rule, it is the key that the first of these calls has.
    pub fn idempotency_key(&self) -> String {
        let details = &self.inner.details;
        match (&details.recorded_key, self.inner.key.get(), details.receipt_digest) {
            // A fork that has renewed the key of its origin has both.
            (_, Some((key, _)), _) => key.to_string(),
            (Some(recorded), None, _) => recorded.to_string(),
            // The generation is not known before the claim of the receipt.
            (None, None, Some(_)) => self.derive_key(0).to_string(),
            (None, None, None) => self.inner.key.get_or_init(|| (self.derive_key(0), 0)).0.to_string(),
        }
    }

    /// Returns the fencing token of the run's driver: the epoch of its lease, which rises with every driver of the run; 0
    /// for a run without a store.
    ///
    /// A process that was frozen or cut off for longer than its lease may go on with a body for a moment although another
    /// process drives the run. A service that remembers the highest token of a run and refuses lower ones is safe from
    /// that. The token is in the journal with the start of the call.
    pub fn fence(&self) -> u64 {
        self.inner.turn.ownership.as_ref().map_or(0, |owned| owned.lease.epoch)
    }

    /// Asks the store whether this driver still owns the run, right before an effect that cannot be fenced. False also if
    /// the store cannot tell. Always true for a run without a store.
    ///
    /// It makes the moment in which a frozen process can do harm short, and does not remove it: pass
    /// [`ToolContext::fence`] on where that is possible.
    pub async fn still_owner(&self) -> bool {
        let Some(owned) = &self.inner.turn.ownership else { return true };
        match owned.store.load_lease(&owned.lease.run).await {
            Ok(lease) => lease.is_some_and(|lease| {
                (lease.epoch, lease.owner.as_str()) == (owned.lease.epoch, owned.lease.owner.as_str())
            }),
            Err(error) => {
                tracing::warn!(run = %owned.lease.run, %error, "the owner of the run cannot be found out");
                false
            }
        }
    }

    /// Returns the digest of the receipt that answers identical calls, if the call has receipts.
    pub(crate) fn receipt_digest(&self) -> Option<Digest> {
        self.inner.details.receipt_digest
    }

    /// Sets the generation of the key, which the claim of the call's receipt has determined. A recorded key stays.
    pub(crate) fn fix_key(&self, generation: u32) {
        if self.inner.details.recorded_key.is_none() {
            self.inner.key.get_or_init(|| (self.derive_key(generation), generation));
        }
    }

    /// Replaces the recorded key, which belongs to the run that this one was forked from, by a key of this run.
    pub(crate) fn renew_key(&self) {
        self.inner.key.get_or_init(|| (self.derive_key(0), 0));
    }

    /// Returns the identity with which the first attempt of the call in this run is recorded.
    pub(crate) fn call_key(&self) -> CallKey {
        let (key, generation) = self.inner.key.get_or_init(|| (self.derive_key(0), 0)).clone();
        let receipt_digest = self.inner.details.receipt_digest;
        CallKey { idempotency_key: key, receipt_digest, generation }
    }

    fn derive_key(&self, generation: u32) -> IdempotencyKey {
        let (details, turn) = (&self.inner.details, &self.inner.turn);
        let scope = turn.key_scopes.key_scope(details.tool.receipt_policy.scope);
        if let (Some(operation), Some(scope)) = (&details.receipt_digest, scope) {
            return IdempotencyKey::derive(scope, operation, generation);
        }
        // The call is unique, so its secrets need not be in a digest that is stored.
        let shown = match details.tool.secret_arguments.as_slice() {
            [] => None,
            fields => redact_arguments(&details.arguments, fields),
        };
        let arguments = shown.as_deref().unwrap_or(&details.arguments);
        IdempotencyKey::of_unique_call(UniqueCall {
            run: turn.key_scopes.run(),
            nonce: turn.key_scopes.nonce(),
            turn: turn.number,
            parent_calls: &turn.parent_calls,
            call: &self.inner.call,
            agent: self.agent(),
            tool: &details.tool.key,
            arguments: &details.tool.without_null_parameters(arguments),
        })
    }

    /// Returns the questions that the body asked in earlier attempts, with their answers, in order.
    pub fn answered_questions(&self) -> &[AnsweredQuestion] {
        &self.inner.details.answered_questions
    }

    /// Returns the answer to a question, if it was asked and answered. A body that needs an answer looks here
    /// first, and asks if there is none:
    ///
    /// ```
    /// use windlass::core::decision::PersonQuestion;
    /// use windlass::prelude::*;
    ///
    /// /// Books a table.
    /// #[tool]
    /// async fn book(ctx: &ToolContext<()>, guests: u32) -> Result<String, ToolError> {
    ///     let question = PersonQuestion::new("Inside or outside?");
    ///     let Some(place) = ctx.answer_to(&question) else { return Err(ToolError::ask_person(question)) };
    ///     Ok(format!("a table for {guests}, {}", place.as_str().unwrap_or("anywhere")))
    /// }
    /// ```
    pub fn answer_to(&self, question: &PersonQuestion) -> Option<&Value> {
        self.inner
            .details
            .answered_questions
            .iter()
            .find(|reply| reply.question == *question)
            .map(|reply| &reply.answer)
    }

    /// Resolves when the call should stop: the run is cancelled, or its deadline has passed. Bodies that must
    /// release resources can await it; all others are simply dropped.
    pub async fn cancelled(&self) {
        self.call_token().cancelled().await;
    }

    /// True if the call should stop. For blocking bodies, which cannot be dropped.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancel_token.get().is_some_and(CancellationToken::is_cancelled)
            || self.inner.turn.cancel_token.is_cancelled()
    }

    /// Loads an artefact of this run: by the id of an earlier call, its full output if the model saw a
    /// truncated one; by the name given to [`ToolContext::save_artefact`], the saved bytes.
    pub async fn load_artefact(&self, name: &str) -> Result<Option<Arc<[u8]>>, StoreError> {
        self.inner.turn.artefacts.load(name).await
    }

    /// Loads an artefact of this run as text, like [`ToolContext::load_artefact`].
    ///
    /// # Errors
    ///
    /// Returns an error if the artefact is not UTF-8.
    pub async fn load_text_artefact(&self, name: &str) -> Result<Option<String>, StoreError> {
        let body = self.load_artefact(name).await?;
        body.map(|body| decode_text(name, body.to_vec())).transpose()
    }

    /// Saves a text or other bytes with the run, under a name that the tool chooses. Without a store they are kept in
    /// memory while the run is driven.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`StoreErrorKind::Fenced`](crate::error::StoreErrorKind::Fenced) if another driver
    /// has taken over the run.
    pub async fn save_artefact(&self, name: &str, body: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.inner.turn.artefacts.save(name, body.as_ref()).await
    }

    /// Saves the bytes of a picture or a file with the run, once, and returns the source that references them
    /// in an output. The journal then contains the reference and the model sees the bytes. Without a store, and
    /// for a secret output, the bytes are inlined in the output instead.
    pub async fn save_media(&self, media_type: &str, base64: &str) -> Result<MediaSource, StoreError> {
        match self.inner.details.tool.output_visibility {
            OutputVisibility::Public => self.inner.turn.artefacts.save_media(media_type, base64).await,
            OutputVisibility::Secret => Ok(MediaSource {
                data: Some(base64.to_owned()),
                media_type: Some(media_type.to_owned()),
                ..MediaSource::default()
            }),
        }
    }

    /// Registers a callback for the exit of the run's driver: the run ended, failed, was cancelled or paused,
    /// or its driver was dropped. Callbacks run in reverse order of their registration, and the run waits for
    /// them for a limited time.
    pub fn on_run_exit<Fut>(&self, act: impl FnOnce(RunExit) -> Fut + Send + 'static)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.inner.turn.exit_registry.register(Box::new(move |leaving| act(leaving).boxed()));
    }

    /// Requests the body to stop.
    pub(crate) fn cancel_call(&self) {
        self.call_token().cancel();
    }

    fn call_token(&self) -> &CancellationToken {
        self.inner.cancel_token.get_or_init(|| self.inner.turn.cancel_token.child_token())
    }

    /// Reports the progress of the call to watchers and hooks. It never waits: if they are slow, older reports are dropped,
    /// and the last one is kept.
    pub fn report_progress(&self, progress: impl Into<Value>) {
        if let Some(queue) = &self.inner.progress {
            queue.push(progress.into());
        }
    }

    /// Returns the reports that wait for watchers and hooks; `None` if there are neither.
    pub(crate) fn progress(&self) -> Option<&ProgressQueue> {
        self.inner.progress.as_ref()
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
        self.inner.turn.run_context.app()
    }
}
