//! Redaction of secrets: secret arguments and outputs reach the body and the model, and are never persisted.
//!
//! Invariant: the state of a live run holds the real items; everything written to a journal, a saved run or a
//! session is redacted here first. Fields that a tool marks are replaced wherever the call is written; their values are
//! masked in every other text too, because bodies, guardrails, people and models repeat them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use windlass_core::{
    canonical::canonical_json,
    decision::PendingCall,
    id::{CallId, CallPath},
    item::{CallOutput, Item, OutputContent, ToolCall},
    journal::{CallSettled, FilteredInput, HandoffRecorded, JournalEntry, JournalRecord},
    run::{Run, RunItem, model_text},
};

use crate::event::{RunEvent, RunEventKind};
use crate::lock_unpoisoned;
use crate::lost_secrets::redact_answer;
use crate::secret_mask::SecretMask;
use crate::tool::Tool;

/// Placeholder for a secret.
pub(crate) const REDACTED: &str = "[secret]";

/// The calls of a run with secrets, and their redacted forms.
#[derive(Default)]
pub(crate) struct SecretRegistry {
    has_secrets: AtomicBool,
    /// Secrets by call path, because nested agents may reuse call ids.
    calls: Mutex<BTreeMap<CallPath, CallSecrets>>,
    /// Values of secret arguments.
    mask: SecretMask,
}

/// The redacted form of one call.
#[derive(Clone, Default)]
struct CallSecrets {
    /// Names of the secret arguments of the call's tool.
    secret_fields: Vec<Arc<str>>,
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
    /// Creates the registry of a new run, which masks these values from the start.
    pub(crate) fn new(mask: SecretMask) -> Self {
        Self { mask, ..Self::default() }
    }

    /// Returns true if something may have to be redacted.
    fn is_active(&self) -> bool {
        self.has_secrets.load(Ordering::Relaxed) || self.mask.has_values()
    }

    /// Registers the secrets of a call, before anything about it is persisted.
    pub(crate) fn mark_call<C>(&self, tool: &Tool<C>, call: &ToolCall, path: impl FnOnce() -> CallPath) {
        if tool.secret_arguments.is_empty() && tool.output_visibility == OutputVisibility::Public {
            return;
        }
        let redacted_arguments = match tool.secret_arguments.as_slice() {
            [] => None,
            fields => {
                self.mask_values(&call.arguments, fields);
                redact_arguments(&call.arguments, fields)
            }
        };
        let secret_fields = tool.secret_arguments.clone();
        let output_visibility = tool.output_visibility;
        self.mark_path(path(), CallSecrets { secret_fields, redacted_arguments, output_visibility });
    }

    /// Registers the secret fields and the secret output of a call that an earlier driver planned. Its records name neither.
    pub(crate) fn mark_restored_call<C>(&self, tool: &Tool<C>, path: CallPath) {
        if tool.secret_arguments.is_empty() && tool.output_visibility == OutputVisibility::Public {
            return;
        }
        let mut marked = lock_unpoisoned(&self.calls).remove(&path).unwrap_or_default();
        marked.secret_fields.clone_from(&tool.secret_arguments);
        if tool.output_visibility == OutputVisibility::Secret {
            marked.output_visibility = OutputVisibility::Secret;
        }
        self.mark_path(path, marked);
    }

    /// Registers the secrets of a call of an unknown tool. The model may have misspelt the name of a tool with secrets, so
    /// the secret fields of all tools count.
    pub(crate) fn mark_unknown_call<'a, C: 'a>(
        &self,
        tools: impl Iterator<Item = &'a Arc<Tool<C>>>,
        call: &ToolCall,
        path: impl FnOnce() -> CallPath,
    ) {
        let fields: Vec<Arc<str>> = tools.flat_map(|tool| tool.secret_arguments.clone()).collect();
        if fields.is_empty() {
            return;
        }
        self.mask_values(&call.arguments, &fields);
        if let Some(redacted) = redact_arguments(&call.arguments, &fields) {
            let marked = CallSecrets { redacted_arguments: Some(redacted), ..CallSecrets::default() };
            self.mark_path(path(), marked);
        }
    }

    fn mark_path(&self, path: CallPath, marked: CallSecrets) {
        self.has_secrets.store(true, Ordering::Relaxed);
        lock_unpoisoned(&self.calls).insert(path, marked);
    }

    /// Creates the registry of a run that resumes in this process: its state has secrets that its records lack.
    pub(crate) fn resume(records: &[JournalRecord], root: &Run, mask: SecretMask) -> Self {
        let registry = Self::new(mask);
        for JournalRecord { path, entry, .. } in records {
            let Some(run) = root.at_path(path) else { continue };
            match entry {
                JournalEntry::ModelResponded(answered) => {
                    for item in &answered.items {
                        let Item::Call(recorded) = &**item else { continue };
                        if recorded.arguments.contains(REDACTED) {
                            registry.resume_call(path, recorded, run);
                        }
                    }
                }
                JournalEntry::CallSettled(settled) if settled.output == OutputContent::from(REDACTED) => {
                    let path = CallPath::new(path, settled.call.clone());
                    let mut marked = lock_unpoisoned(&registry.calls).remove(&path).unwrap_or_default();
                    marked.output_visibility = OutputVisibility::Secret;
                    registry.mark_path(path, marked);
                }
                _ => {}
            }
        }
        registry
    }

    /// Marks a call whose recorded arguments have placeholders.
    fn resume_call(&self, path: &[CallId], recorded: &ToolCall, run: &Run) {
        let live = run.items().iter().rev().find_map(|made| match &*made.item {
            Item::Call(call) if call.id == recorded.id => Some(&call.arguments),
            _ => None,
        });
        let Some(live) = live.filter(|live| **live != recorded.arguments) else { return };
        let mut fields = Vec::new();
        let placeholders: Value = serde_json::from_str(&recorded.arguments).unwrap_or_default();
        collect_redacted_fields(&placeholders, "", &mut fields);
        self.mask_values(live, &fields.into_iter().map(Arc::from).collect::<Vec<_>>());
        let marked =
            CallSecrets { redacted_arguments: Some(recorded.arguments.clone()), ..CallSecrets::default() };
        self.mark_path(CallPath::new(path, recorded.id.clone()), marked);
    }

    /// Adds the values of secret arguments, which are masked in every text from now on.
    pub(crate) fn mask_values(&self, arguments: &str, fields: &[Arc<str>]) {
        self.mask.add_values(arguments, fields);
    }

    /// Returns a text in which the values of secrets are masked.
    pub(crate) fn mask_text(&self, text: String) -> String {
        self.mask.mask_text(text)
    }

    /// Returns a JSON value in which the values of secrets are masked.
    pub(crate) fn mask_json(&self, value: Value) -> Value {
        self.mask.mask_json(value)
    }

    /// Returns the mask of the secret values, which the registry shares with it.
    pub(crate) fn mask(&self) -> SecretMask {
        self.mask.clone()
    }

    /// Returns the output of a call of the run at `within` in the form in which it is kept for other drivers and calls:
    /// without its secrets, and with a note about them if it had any.
    pub(crate) fn redact_kept_output(
        &self,
        within: &[CallId],
        call: &CallId,
        output: OutputContent,
    ) -> OutputContent {
        if !self.is_active() {
            return output;
        }
        if self.output_visibility_of(within, call) == OutputVisibility::Secret {
            return model_text::with_secrets_lost(REDACTED.into());
        }
        match self.mask.mask_value(output.clone()) {
            masked if masked == output => output,
            masked => model_text::with_secrets_lost(masked),
        }
    }

    /// Returns an entry of the run at `within` in its redacted form.
    pub(crate) fn redact_entry(&self, within: &[CallId], mut entry: JournalEntry) -> JournalEntry {
        redact_answer(&mut entry);
        if !self.is_active() {
            return entry;
        }
        let original_output = match &entry {
            JournalEntry::CallSettled(settled) => Some(settled.output.clone()),
            _ => None,
        };
        let secret_arguments = match &entry {
            JournalEntry::CallHeld(held) => self.secret_fields_of(within, &held.call),
            _ => Vec::new(),
        };
        let mut redacted = self.mask.mask_value(self.redact_fields(within, entry));
        match (&mut redacted, original_output) {
            (JournalEntry::CallSettled(settled), Some(original)) => {
                settled.is_output_redacted = settled.output != original;
            }
            // An edit may have secrets that the call has not. Its decision is redacted by these names.
            (JournalEntry::CallHeld(held), _) => held.secret_arguments = secret_arguments,
            _ => {}
        }
        redacted
    }

    /// Returns an event of a live run in the form that a replay of its journal gives.
    pub(crate) fn redact_event(&self, event: RunEvent) -> RunEvent {
        if !self.is_active() {
            return event;
        }
        let RunEvent { seq, path, is_repeated, kind } = event;
        let kind = match kind {
            RunEventKind::Item(RunItem { agent, item, kind }) => {
                let item = self.redact_items(&path, vec![item.clone()]).pop().unwrap_or(item);
                RunEventKind::Item(RunItem { agent, item, kind })
            }
            RunEventKind::CallHeld(mut pending) => {
                self.redact_pending(&mut pending);
                RunEventKind::CallHeld(pending)
            }
            kind => kind,
        };
        RunEvent { seq, path, is_repeated, kind }
    }

    /// Gives a call that waits the arguments that the journal has.
    pub(crate) fn redact_pending(&self, pending: &mut PendingCall) {
        if self.is_active() {
            let redacted = self.redacted_arguments_of(pending.path.parent_calls(), pending.path.call());
            let arguments = redacted.unwrap_or_else(|| std::mem::take(&mut pending.arguments));
            pending.arguments = self.mask_text(arguments);
        }
    }

    /// Returns an entry without the fields that tools mark as secret.
    fn redact_fields(&self, within: &[CallId], entry: JournalEntry) -> JournalEntry {
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
                self.redact_parts(within, &mut filtered.input);
                JournalEntry::ModelInputFiltered(filtered)
            }
            JournalEntry::HistoryCompacted(mut compacted) => {
                self.redact_parts(within, &mut compacted.history);
                JournalEntry::HistoryCompacted(compacted)
            }
            other => other,
        }
    }

    /// Redacts the items that a filter or a compaction made.
    fn redact_parts(&self, within: &[CallId], parts: &mut [FilteredInput]) {
        for part in parts {
            if let FilteredInput::Item(item) = part {
                *item = self.redact_item(within, item.clone());
            }
        }
    }

    /// Returns items of the run at `within` in their redacted form.
    pub(crate) fn redact_items(&self, within: &[CallId], items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        if !self.is_active() {
            return items;
        }
        let redact = |item| match self.redact_item(within, item) {
            item if self.mask.has_values() => Arc::new(self.mask.mask_value((*item).clone())),
            item => item,
        };
        items.into_iter().map(redact).collect()
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

    fn secret_fields_of(&self, within: &[CallId], call: &CallId) -> Vec<String> {
        let secrets = self.call_secrets(within, call).unwrap_or_default();
        secrets.secret_fields.iter().map(|field| field.to_string()).collect()
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
pub(crate) fn for_each_at(value: &mut Value, path: &str, show: &mut dyn FnMut(&mut Value)) {
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

/// Returns edited arguments in which the placeholders of secrets are replaced by the secrets of the original arguments,
/// or `None` if a placeholder has no original.
///
/// A secret belongs to the place where it was displayed. In a list that the edit changed, nobody can tell which of the
/// elements a placeholder came from, so that its secrets count as lost.
pub(crate) fn restore_secrets(edited: &str, original: &str, fields: &[Arc<str>]) -> Option<String> {
    let (mut edited, original): (Value, Value) =
        (serde_json::from_str(edited).ok()?, serde_json::from_str(original).unwrap_or_default());
    let (displayed_edit, displayed_original) =
        (without_secrets(&edited, fields), without_secrets(&original, fields));
    let displayed = Some(ValuePair { edited: &displayed_edit, original: &displayed_original });
    let are_restored = fields.iter().all(|field| restore_at(&mut edited, Some(&original), displayed, field));
    are_restored.then(|| canonical_json(&edited))
}

/// Two values at the same place: of edited arguments, and of the original ones.
#[derive(Clone, Copy)]
struct ValuePair<'a> {
    edited: &'a Value,
    original: &'a Value,
}

impl<'a> ValuePair<'a> {
    fn field(self, name: &str) -> Option<Self> {
        Some(Self { edited: self.edited.get(name)?, original: self.original.get(name)? })
    }

    fn element(self, place: usize) -> Option<Self> {
        Some(Self { edited: self.edited.get(place)?, original: self.original.get(place)? })
    }

    fn is_same(self) -> bool {
        canonical_json(self.edited) == canonical_json(self.original)
    }
}

/// Replaces the placeholders at a path, as [`for_each_at`] reads it, by the originals of the same places. `displayed` are
/// the values without their secrets. Returns false if a placeholder has no original.
fn restore_at(
    edited: &mut Value,
    original: Option<&Value>,
    displayed: Option<ValuePair<'_>>,
    path: &str,
) -> bool {
    let mut are_restored = true;
    match edited {
        Value::Array(values) => {
            let displayed = displayed.filter(|displayed| displayed.is_same());
            for (place, value) in values.iter_mut().enumerate() {
                let displayed = displayed.and_then(|displayed| displayed.element(place));
                let original =
                    original.and_then(|original| original.get(place)).filter(|_| displayed.is_some());
                are_restored &= restore_at(value, original, displayed, path);
            }
        }
        Value::Object(fields) => {
            for (name, held) in fields.iter_mut() {
                let original = original.and_then(|original| original.get(name));
                if is_same_field(name, path) {
                    if held.as_str() == Some(REDACTED) {
                        match original {
                            Some(secret) if secret.as_str() != Some(REDACTED) => *held = secret.clone(),
                            Some(_) | None => are_restored = false,
                        }
                    }
                } else if let Some((first, rest)) = path.split_once('.')
                    && is_same_field(name, first)
                {
                    let displayed = displayed.and_then(|displayed| displayed.field(name));
                    are_restored &= restore_at(held, original, displayed, rest);
                }
            }
        }
        _ => {}
    }
    are_restored
}

/// Returns a value with a placeholder in every secret field.
fn without_secrets(value: &Value, fields: &[Arc<str>]) -> Value {
    let mut redacted = value.clone();
    for field in fields {
        for_each_at(&mut redacted, field, &mut |held| *held = REDACTED.into());
    }
    redacted
}

/// Returns edited arguments without the secrets: the secret fields of the tool, and the fields that are a placeholder in
/// the recorded arguments. `None` if nothing changed.
pub(crate) fn redact_edit<F: AsRef<str>>(
    edited: &str,
    recorded: &str,
    secret_fields: &[F],
) -> Option<String> {
    if recorded == REDACTED {
        return Some(REDACTED.to_owned());
    }
    let mut edited: Value = serde_json::from_str(edited).ok()?;
    let mut fields = secret_fields.iter().map(|field| field.as_ref().to_owned()).collect();
    collect_redacted_fields(&serde_json::from_str(recorded).unwrap_or_default(), "", &mut fields);
    let mut is_changed = false;
    for field in &fields {
        for_each_at(&mut edited, field, &mut |held| {
            is_changed |= held.as_str() != Some(REDACTED);
            *held = REDACTED.into();
        });
    }
    is_changed.then(|| canonical_json(&edited))
}

/// Adds the paths of all placeholders.
fn collect_redacted_fields(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text == REDACTED && !path.is_empty() => found.push(path.to_owned()),
        Value::Array(held) => held.iter().for_each(|held| collect_redacted_fields(held, path, found)),
        Value::Object(fields) => fields.iter().for_each(|(name, held)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            collect_redacted_fields(held, &path, found);
        }),
        _ => {}
    }
}

/// Returns a text with the secrets of the arguments redacted. The longest is replaced first, so that no part of it stays
/// where another secret is its beginning.
pub(crate) fn redact_text(text: &str, arguments: &str, fields: &[Arc<str>]) -> String {
    let mut value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let mut secrets = Vec::new();
    for field in fields {
        for_each_at(&mut value, field, &mut |held| match held {
            Value::String(held) => secrets.push(std::mem::take(held)),
            Value::Null => {}
            other => secrets.push(other.to_string()),
        });
    }
    secrets.retain(|secret| !secret.is_empty());
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, REDACTED))
}

#[cfg(test)]
#[path = "redaction_tests.rs"]
mod tests;
