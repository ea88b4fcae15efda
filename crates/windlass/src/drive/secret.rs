//! Secrets: what is marked so reaches the body and the model, and nothing that lasts.
//!
//! The machine of a live run holds the real items. Whatever is written down, in a journal, a saved run or a
//! session, goes through here first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use windlass_core::{
    Answered, Call, CallId, CallSettled, Entry, HandedOff, Item, Output, OutputContent, canonical,
};

use super::lock;

/// What stands in place of a secret.
pub(super) const SECRET: &str = "[secret]";

/// Which calls of a run have secrets, and what may be written of them.
#[derive(Default)]
pub(super) struct Secrets {
    is_used: AtomicBool,
    calls: Mutex<BTreeMap<CallId, Marked>>,
}

/// What may be written of one call.
#[derive(Clone, Default)]
pub(super) struct Marked {
    /// The arguments without their secrets, where they have any.
    pub(super) arguments: Option<String>,
    pub(super) output: Visibility,
}

/// Whether something may be written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Visibility {
    #[default]
    Open,
    Secret,
}

impl Secrets {
    pub(super) fn mark(&self, call: CallId, marked: Marked) {
        self.is_used.store(true, Ordering::Relaxed);
        lock(&self.calls).insert(call, marked);
    }

    /// An entry as it may be written.
    pub(super) fn entry(&self, entry: Entry) -> Entry {
        if !self.is_used.load(Ordering::Relaxed) {
            return entry;
        }
        match entry {
            Entry::Answered(answered) => {
                Entry::Answered(Answered { items: self.items(answered.items), ..answered })
            }
            Entry::CallSettled(settled) if self.output_of(&settled.call) == Visibility::Secret => {
                Entry::CallSettled(CallSettled { output: SECRET.into(), ..settled })
            }
            Entry::HandedOff(HandedOff { call, to, history }) => {
                Entry::HandedOff(HandedOff { call, to, history: history.map(|items| self.items(items)) })
            }
            other => other,
        }
    }

    /// Items as they may be written.
    pub(super) fn items(&self, items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        if !self.is_used.load(Ordering::Relaxed) {
            return items;
        }
        items.into_iter().map(|item| self.item(item)).collect()
    }

    fn item(&self, item: Arc<Item>) -> Arc<Item> {
        match &*item {
            Item::Call(call) => match self.arguments_of(&call.id) {
                Some(arguments) => Arc::new(Item::Call(Call { arguments, ..call.clone() })),
                None => item,
            },
            Item::Output(output) if self.output_of(&output.call) == Visibility::Secret => {
                Arc::new(Item::Output(Output { content: OutputContent::from(SECRET), ..output.clone() }))
            }
            _ => item,
        }
    }

    fn arguments_of(&self, call: &CallId) -> Option<String> {
        lock(&self.calls).get(call).and_then(|marked| marked.arguments.clone())
    }

    fn output_of(&self, call: &CallId) -> Visibility {
        lock(&self.calls).get(call).map(|marked| marked.output).unwrap_or_default()
    }
}

/// Arguments without the named fields; without anything, where they are not an object.
pub(super) fn without(arguments: &str, fields: &[Arc<str>]) -> Option<String> {
    let mut value: Value = match serde_json::from_str(arguments) {
        Ok(value @ Value::Object(_)) => value,
        _ => return Some(SECRET.to_owned()),
    };
    let mut changed = false;
    for field in fields {
        if let Some(held) = value.get_mut(&**field) {
            *held = SECRET.into();
            changed = true;
        }
    }
    changed.then(|| canonical(&value))
}

/// Whether the arguments are what was written in place of real ones.
pub(super) fn is_without(arguments: &str, fields: &[Arc<str>]) -> bool {
    if arguments == SECRET {
        return true;
    }
    let value: Value = serde_json::from_str(arguments).unwrap_or_default();
    fields.iter().any(|field| value.get(&**field).and_then(Value::as_str) == Some(SECRET))
}

/// A text without the secrets that stand in the arguments.
pub(super) fn scrubbed(text: &str, arguments: &str, fields: &[Arc<str>]) -> String {
    let value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let mut text = text.to_owned();
    for field in fields {
        let held = match value.get(&**field) {
            Some(Value::String(held)) => held.clone(),
            Some(Value::Null) | None => continue,
            Some(other) => other.to_string(),
        };
        if !held.is_empty() {
            text = text.replace(&held, SECRET);
        }
    }
    text
}
