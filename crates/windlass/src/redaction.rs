//! Redaction of secrets: secret arguments and outputs reach the body and the model, and are never persisted.
//!
//! Invariant: the state of a live run holds the real items; everything written to a journal, a saved run or a
//! session is redacted here first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use windlass_core::{
    canonical::canonical_json,
    id::{CallId, CallPath},
    item::{CallOutput, Item, OutputContent, ToolCall},
    journal::{CallSettled, FilteredInput, HandoffRecorded, JournalEntry},
};

use crate::lock_unpoisoned;
use crate::tool::Tool;

/// Placeholder for a secret.
pub(crate) const REDACTED: &str = "[secret]";

/// The calls of a run with secrets, and their redacted forms.
#[derive(Default)]
pub(crate) struct SecretRegistry {
    has_secrets: AtomicBool,
    /// Secrets by call path, because nested agents may reuse call ids.
    calls: Mutex<BTreeMap<CallPath, CallSecrets>>,
}

/// The redacted form of one call.
#[derive(Clone, Default)]
struct CallSecrets {
    /// Redacted arguments, if the call has secret ones.
    redacted_arguments: Option<String>,
    output_visibility: OutputVisibility,
}

/// The visibility of an output in persisted data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OutputVisibility {
    #[default]
    Public,
    Secret,
}

impl SecretRegistry {
    /// Registers the secrets of a call, before anything about it is persisted.
    pub(crate) fn mark_call<C>(&self, tool: &Tool<C>, call: &ToolCall, path: impl FnOnce() -> CallPath) {
        if tool.secret_arguments.is_empty() && tool.output_visibility == OutputVisibility::Public {
            return;
        }
        let redacted_arguments = match tool.secret_arguments.as_slice() {
            [] => None,
            fields => redact_arguments(&call.arguments, fields),
        };
        let marked = CallSecrets { redacted_arguments, output_visibility: tool.output_visibility };
        self.has_secrets.store(true, Ordering::Relaxed);
        lock_unpoisoned(&self.calls).insert(path(), marked);
    }

    /// Returns an entry of the run at `within` in its redacted form.
    pub(crate) fn redact_entry(&self, within: &[CallId], entry: JournalEntry) -> JournalEntry {
        if !self.has_secrets.load(Ordering::Relaxed) {
            return entry;
        }
        match entry {
            JournalEntry::ModelResponded(mut answered) => {
                answered.items = self.redact_items(within, answered.items);
                JournalEntry::ModelResponded(answered)
            }
            // A rejected response may have two calls of one id; both get the arguments of the one that was marked.
            JournalEntry::ResponseRejected(mut rejected) => {
                rejected.items = self.redact_items(within, rejected.items);
                JournalEntry::ResponseRejected(rejected)
            }
            JournalEntry::CallSettled(settled)
                if self.output_visibility_of(within, &settled.call) == OutputVisibility::Secret =>
            {
                JournalEntry::CallSettled(CallSettled { output: REDACTED.into(), ..settled })
            }
            JournalEntry::HandoffRecorded(HandoffRecorded { call, to, filtered_history: history }) => {
                JournalEntry::HandoffRecorded(HandoffRecorded {
                    call,
                    to,
                    filtered_history: history.map(|items| self.redact_items(within, items)),
                })
            }
            JournalEntry::ModelInputFiltered(mut filtered) => {
                for part in &mut filtered.input {
                    if let FilteredInput::Item(item) = part {
                        *item = self.redact_item(within, item.clone());
                    }
                }
                JournalEntry::ModelInputFiltered(filtered)
            }
            other => other,
        }
    }

    /// Returns items of the run at `within` in their redacted form.
    pub(crate) fn redact_items(&self, within: &[CallId], items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        if !self.has_secrets.load(Ordering::Relaxed) {
            return items;
        }
        items.into_iter().map(|item| self.redact_item(within, item)).collect()
    }

    fn redact_item(&self, within: &[CallId], item: Arc<Item>) -> Arc<Item> {
        match &*item {
            Item::Call(call) => match self.redacted_arguments_of(within, &call.id) {
                Some(arguments) => Arc::new(Item::Call(ToolCall { arguments, ..call.clone() })),
                None => item,
            },
            Item::Output(output)
                if self.output_visibility_of(within, &output.call) == OutputVisibility::Secret =>
            {
                Arc::new(Item::Output(CallOutput {
                    content: OutputContent::from(REDACTED),
                    ..output.clone()
                }))
            }
            _ => item,
        }
    }

    fn redacted_arguments_of(&self, within: &[CallId], call: &CallId) -> Option<String> {
        self.call_secrets(within, call)?.redacted_arguments
    }

    fn output_visibility_of(&self, within: &[CallId], call: &CallId) -> OutputVisibility {
        self.call_secrets(within, call).map(|marked| marked.output_visibility).unwrap_or_default()
    }

    fn call_secrets(&self, within: &[CallId], call: &CallId) -> Option<CallSecrets> {
        lock_unpoisoned(&self.calls).get(&CallPath::new(within, call.clone())).cloned()
    }
}

/// Returns the arguments with the named fields redacted, or `None` if nothing changed. Arguments that are not
/// an object are redacted as a whole.
pub(crate) fn redact_arguments(arguments: &str, fields: &[Arc<str>]) -> Option<String> {
    let mut value: Value = match serde_json::from_str(arguments) {
        Ok(value @ Value::Object(_)) => value,
        _ => return Some(REDACTED.to_owned()),
    };
    let mut changed = false;
    for field in fields {
        for_each_at(&mut value, field, &mut |held| {
            *held = REDACTED.into();
            changed = true;
        });
    }
    changed.then(|| canonical_json(&value))
}

/// Returns true if the arguments are already redacted; the call cannot be executed from them.
pub(crate) fn is_redacted(arguments: &str, fields: &[Arc<str>]) -> bool {
    if arguments == REDACTED {
        return true;
    }
    let mut value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let mut is_any = false;
    for field in fields {
        for_each_at(&mut value, field, &mut |held| is_any |= held.as_str() == Some(REDACTED));
    }
    is_any
}

/// Calls `show` for every value at a path: a field, or fields joined by dots, through any lists. Names are compared
/// without case and separators: the body refuses a field of another spelling, but the journal would keep it.
fn for_each_at(value: &mut Value, path: &str, show: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| for_each_at(value, path, show)),
        Value::Object(fields) => {
            for (name, held) in fields.iter_mut() {
                if is_same_field(name, path) {
                    show(held);
                } else if let Some((first, rest)) = path.split_once('.')
                    && is_same_field(name, first)
                {
                    for_each_at(held, rest, show);
                }
            }
        }
        _ => {}
    }
}

/// Returns true if two field names differ at most in case, `_`, `-` and white space.
fn is_same_field(one: &str, other: &str) -> bool {
    let letters = |name: &'_ str| -> Vec<char> {
        let kept = name.chars().filter(|c| !matches!(c, '_' | '-') && !c.is_whitespace());
        kept.flat_map(char::to_lowercase).collect()
    };
    one == other || letters(one) == letters(other)
}

/// Returns a text with the secrets of the arguments redacted.
pub(crate) fn redact_text(text: &str, arguments: &str, fields: &[Arc<str>]) -> String {
    let mut value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let mut text = text.to_owned();
    for field in fields {
        for_each_at(&mut value, field, &mut |held| {
            let held = match held {
                Value::String(held) => std::mem::take(held),
                Value::Null => return,
                other => other.to_string(),
            };
            if !held.is_empty() {
                text = text.replace(&held, REDACTED);
            }
        });
    }
    text
}
