//! Compaction: the old part of a session becomes a summary, in one step that either happens or does not.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use windlass_core::{AgentName, Item, Message, Role};

use super::{Session, SessionState, begins_a_turn};
use crate::error::{StoreError, StoreErrorKind};
use crate::model::{Deltas, ModelRequest, ModelSettings, SharedModel, item_line};

/// Makes a summary of the items that are to go.
pub type Summarise =
    Arc<dyn Fn(Vec<Arc<Item>>) -> BoxFuture<'static, Result<String, StoreError>> + Send + Sync>;

/// When a session is compacted, how much of it stays, and what becomes of the rest.
#[derive(Clone)]
pub struct Compaction {
    when: When,
    keep: usize,
    summarise: Summarise,
}

#[derive(Clone)]
enum When {
    Items(usize),
    Tokens(usize),
}

/// What a compaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// There was not enough to compact.
    NotNeeded,
    /// So many items became one summary.
    Summarised {
        /// How many.
        items: usize,
    },
    /// Somebody else changed the session meanwhile, and nothing was done.
    Overtaken,
}

impl Compaction {
    /// When there are more than so many items. The newest `keep` stay as they are.
    pub fn above_items(items: usize, keep: usize) -> Self {
        Self { when: When::Items(items), keep, summarise: plain() }
    }

    /// When the items hold more than about so many tokens. The newest `keep` items stay as they are.
    pub fn above_tokens(tokens: usize, keep: usize) -> Self {
        Self { when: When::Tokens(tokens), keep, summarise: plain() }
    }

    /// The summary is what this function makes of the items that go.
    #[must_use]
    pub fn with<Fut>(mut self, summarise: impl Fn(Vec<Arc<Item>>) -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<String, StoreError>> + Send + 'static,
    {
        self.summarise = Arc::new(move |items| summarise(items).boxed());
        self
    }

    /// The summary is what a model makes of the items that go.
    #[must_use]
    pub fn with_model(self, model: impl Into<SharedModel>) -> Self {
        let model = model.into();
        self.with(move |items| {
            let model = model.clone();
            async move { summary_of(&model, &items).await }
        })
    }

    fn is_due(&self, items: &[Arc<Item>]) -> bool {
        match self.when {
            When::Items(limit) => items.len() > limit,
            When::Tokens(limit) => items.iter().map(|item| tokens(item)).sum::<usize>() > limit,
        }
    }
}

impl Session {
    /// Compacts the session, if it is due. Either all of it happens, or nothing does: a run that writes at the
    /// same time is never overwritten.
    pub async fn compact(&self, compaction: &Compaction) -> Result<Compacted, StoreError> {
        let SessionState { version, mut items } = self.store.load(&self.id).await?;
        if !compaction.is_due(&items) {
            return Ok(Compacted::NotNeeded);
        }
        let wanted = items.len().saturating_sub(compaction.keep);
        let Some(from) = (wanted..items.len())
            .find(|place| begins_a_turn(&items, *place))
            .or(Some(items.len()))
            .filter(|from| *from > 1)
        else {
            return Ok(Compacted::NotNeeded);
        };
        let kept = items.split_off(from);
        let summary = (compaction.summarise)(items).await?;
        let text = format!("[Summary of the conversation so far]\n{summary}");
        let mut compacted = vec![Arc::new(Item::Message(Message::new(Role::User, text)))];
        compacted.extend(kept);
        match self.store.replace(&self.id, version, compacted).await {
            Ok(()) => Ok(Compacted::Summarised { items: from }),
            Err(error) if error.kind() == StoreErrorKind::Stale => Ok(Compacted::Overtaken),
            Err(error) => Err(error),
        }
    }
}

/// A summary that needs nobody: what was said, without the calls in between.
fn plain() -> Summarise {
    Arc::new(|items| {
        let said =
            items.iter().filter(|item| matches!(***item, Item::Message(_))).map(|item| item_line(item));
        let said: Vec<String> = said.collect();
        std::future::ready(Ok(said.join("\n"))).boxed()
    })
}

async fn summary_of(model: &SharedModel, items: &[Arc<Item>]) -> Result<String, StoreError> {
    const ASK: &str = "Summarise this conversation for yourself, so that you can go on without it. Keep names, \
                       numbers, decisions and what was done.";
    let transcript: Vec<String> = items.iter().map(|item| item_line(item)).collect();
    let input = [Arc::new(Item::user(transcript.join("\n")))];
    let (agent, settings) = (AgentName::from("summary"), ModelSettings::default());
    let request = ModelRequest {
        agent: &agent,
        turn: 1,
        instructions: Some(ASK),
        input: &input,
        tools: &[],
        handoffs: &[],
        settings: &settings,
        output: None,
        previous_response: None,
    };
    let answer = model.answer(request, &Deltas::ignored()).await.map_err(|error| {
        StoreError::new(format!("the summary could not be made: {error}")).caused_by(error)
    })?;
    let said = answer.items.iter().filter_map(|item| match &**item {
        Item::Message(message) => Some(message.text()),
        _ => None,
    });
    Ok(said.collect::<Vec<_>>().join("\n"))
}

/// About how many tokens an item has: four bytes make one, in most languages and most models.
fn tokens(item: &Item) -> usize {
    item_line(item).len() / 4 + 4
}
