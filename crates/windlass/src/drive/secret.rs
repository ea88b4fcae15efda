//! Secrets: what is marked so reaches the body and the model, and nothing that lasts.
//!
//! The machine of a live run holds the real items. Whatever is written down, in a journal, a saved run or a
//! session, goes through here first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use windlass_core::{
    Call, CallId, CallPath, CallSettled, Entry, HandedOff, Item, Output, OutputContent, canonical,
};

use super::lock;

/// What stands in place of a secret.
pub(crate) const SECRET: &str = "[secret]";

/// Which calls of a run have secrets, and what may be written of them.
#[derive(Default)]
pub(super) struct Secrets {
    is_used: AtomicBool,
    /// By path: agents inside calls may use the ids that the agent outside does.
    calls: Mutex<BTreeMap<CallPath, Marked>>,
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
    pub(super) fn mark(&self, call: CallPath, marked: Marked) {
        self.is_used.store(true, Ordering::Relaxed);
        lock(&self.calls).insert(call, marked);
    }

    /// An entry of the run that `within` leads to, as it may be written.
    pub(super) fn entry(&self, within: &[CallId], entry: Entry) -> Entry {
        if !self.is_used.load(Ordering::Relaxed) {
            return entry;
        }
        match entry {
            Entry::Answered(mut answered) => {
                answered.items = self.items(within, answered.items);
                Entry::Answered(answered)
            }
            Entry::CallSettled(settled) if self.output_of(within, &settled.call) == Visibility::Secret => {
                Entry::CallSettled(CallSettled { output: SECRET.into(), ..settled })
            }
            Entry::HandedOff(HandedOff { call, to, history }) => Entry::HandedOff(HandedOff {
                call,
                to,
                history: history.map(|items| self.items(within, items)),
            }),
            other => other,
        }
    }

    /// Items of the run that `within` leads to, as they may be written.
    pub(super) fn items(&self, within: &[CallId], items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        if !self.is_used.load(Ordering::Relaxed) {
            return items;
        }
        items.into_iter().map(|item| self.item(within, item)).collect()
    }

    fn item(&self, within: &[CallId], item: Arc<Item>) -> Arc<Item> {
        match &*item {
            Item::Call(call) => match self.arguments_of(within, &call.id) {
                Some(arguments) => Arc::new(Item::Call(Call { arguments, ..call.clone() })),
                None => item,
            },
            Item::Output(output) if self.output_of(within, &output.call) == Visibility::Secret => {
                Arc::new(Item::Output(Output { content: OutputContent::from(SECRET), ..output.clone() }))
            }
            _ => item,
        }
    }

    fn arguments_of(&self, within: &[CallId], call: &CallId) -> Option<String> {
        self.marked(within, call)?.arguments
    }

    fn output_of(&self, within: &[CallId], call: &CallId) -> Visibility {
        self.marked(within, call).map(|marked| marked.output).unwrap_or_default()
    }

    fn marked(&self, within: &[CallId], call: &CallId) -> Option<Marked> {
        lock(&self.calls).get(&CallPath::new(within, call.clone())).cloned()
    }
}

/// Arguments without the named fields; without anything, where they are not an object.
pub(crate) fn without(arguments: &str, fields: &[Arc<str>]) -> Option<String> {
    let mut value: Value = match serde_json::from_str(arguments) {
        Ok(value @ Value::Object(_)) => value,
        _ => return Some(SECRET.to_owned()),
    };
    let mut changed = false;
    for field in fields {
        each_at(&mut value, field, &mut |held| {
            *held = SECRET.into();
            changed = true;
        });
    }
    changed.then(|| canonical(&value))
}

/// Whether the arguments are what was written in place of real ones.
pub(crate) fn is_without(arguments: &str, fields: &[Arc<str>]) -> bool {
    if arguments == SECRET {
        return true;
    }
    let mut value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let mut is_any = false;
    for field in fields {
        each_at(&mut value, field, &mut |held| is_any |= held.as_str() == Some(SECRET));
    }
    is_any
}

/// Shows every value that a path leads to: a field, or fields joined by dots, through whatever lists there are.
fn each_at(value: &mut Value, path: &str, show: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| each_at(value, path, show)),
        Value::Object(fields) => match (fields.contains_key(path), path.split_once('.')) {
            (true, _) => fields.get_mut(path).into_iter().for_each(show),
            (false, Some((first, rest))) => {
                if let Some(value) = fields.get_mut(first) {
                    each_at(value, rest, show);
                }
            }
            (false, None) => {}
        },
        _ => {}
    }
}

/// A text without the secrets that stand in the arguments.
pub(super) fn scrubbed(text: &str, arguments: &str, fields: &[Arc<str>]) -> String {
    let mut value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let mut text = text.to_owned();
    for field in fields {
        each_at(&mut value, field, &mut |held| {
            let held = match held {
                Value::String(held) => std::mem::take(held),
                Value::Null => return,
                other => other.to_string(),
            };
            if !held.is_empty() {
                text = text.replace(&held, SECRET);
            }
        });
    }
    text
}
