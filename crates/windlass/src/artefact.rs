//! Artefacts: outputs that are too long for the model, kept whole, and a tool that reads on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;
use windlass_core::{Effect, RunId};

use crate::error::StoreError;
use crate::store::Store;
use crate::tool::{Tool, ToolContext, ToolError};

/// The name of the tool that reads on.
pub(crate) const READ_ON: &str = "read_output";

/// How much of an output the tool reads at once, unless it is asked for less.
const PAGE: usize = 32 * 1024;

/// The artefacts of a run: in its store, or in memory for as long as the run is driven.
pub(crate) struct Artefacts {
    run: RunId,
    store: Option<Arc<dyn Store>>,
    kept: Mutex<BTreeMap<String, Arc<str>>>,
}

impl Artefacts {
    pub(crate) fn new(run: RunId, store: Option<Arc<dyn Store>>) -> Self {
        Self { run, store, kept: Mutex::default() }
    }

    pub(crate) async fn keep(&self, name: &str, text: &str) -> Result<(), StoreError> {
        match &self.store {
            Some(store) => store.keep_artefact(&self.run, name, text).await,
            None => {
                self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), text.into());
                Ok(())
            }
        }
    }

    pub(crate) async fn read(&self, name: &str) -> Result<Option<Arc<str>>, StoreError> {
        match &self.store {
            Some(store) => Ok(store.artefact(&self.run, name).await?.map(Into::into)),
            None => Ok(self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()),
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadOn {
    /// The call whose output to read, as the note under the cut output names it.
    call: String,
    /// The byte to begin with.
    from: usize,
    /// How many bytes to read at most.
    #[serde(default)]
    bytes: Option<usize>,
}

/// A tool that reads the rest of an output that was cut. Give it to agents whose tools may say a lot.
pub fn read_output<C: Send + Sync + 'static>() -> Tool<C> {
    let description = "Reads on in the output of an earlier call that was cut because of its length.";
    Tool::function(READ_ON, description, |ctx: ToolContext<C>, asked: ReadOn| async move {
        let text = ctx.artefact(&asked.call).await?;
        let Some(text) = text else {
            return Err(ToolError::tell(format!("no output was kept for call `{}`", asked.call)));
        };
        let from = text.floor_char_boundary(asked.from.min(text.len()));
        let until = text.floor_char_boundary((from + asked.bytes.unwrap_or(PAGE).min(PAGE)).min(text.len()));
        let rest = text.len() - until;
        let note = if rest > 0 { format!("\n[{rest} bytes more, from byte {until}]") } else { String::new() };
        Ok::<_, ToolError>(format!("{}{note}", &text[from..until]))
    })
    .effect(Effect::Pure)
    .output_budget(PAGE * 2)
}
