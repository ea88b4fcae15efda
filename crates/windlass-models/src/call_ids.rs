//! Call ids of providers that number the calls of each response: `call_1` stands for another call in every response.
//!
//! Invariant: a history has one call for each id. The ids of such a provider get the number of their response as a suffix
//! when the response is decoded (`call_1-r3`). If the provider is declared as one that numbers its calls, it receives its
//! own ids back; a provider that was only found out receives the unique ids, which every provider accepts. A call without
//! an id gets one that no other response has ([`made_up_call_id`]).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use windlass::core::id::CallId;
use windlass::core::item::{CallOutput, HandoffOutput, Item, ToolCall};
use windlass::model::ModelRequest;

/// Start of the suffix that makes an id unique. All providers accept its characters.
const SUFFIX_START: &str = "-r";

/// Beginnings of ids that end with the number of a call in its response.
const COUNTED_PREFIXES: [&str; 9] =
    ["", "call_", "call-", "call", "tool_", "tool-", "tool_call_", "toolu_", "fc_"];

/// The scope in which a provider's call ids are unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallIdScope {
    /// A conversation. An id that stands for two calls is an error of the model, unless the ids are evidently numbers
    /// within the response, such as `call_1`.
    #[default]
    Conversation,
    /// A response: the provider numbers the calls of each response, so an id says nothing across responses.
    Response,
}

/// The ids of one request and its response.
#[derive(Clone, Copy)]
pub(crate) struct CallIdMapper<'a> {
    scope: CallIdScope,
    request: ModelRequest<'a>,
}

impl<'a> CallIdMapper<'a> {
    pub(crate) fn new(scope: CallIdScope, request: ModelRequest<'a>) -> Self {
        Self { scope, request }
    }

    /// Returns the input with the ids that the provider knows.
    pub(crate) fn provider_input(&self) -> Cow<'a, [Arc<Item>]> {
        let is_renamed = |item: &Arc<Item>| call_id(item).is_some_and(|id| without_suffix(id).is_some());
        match self.scope {
            CallIdScope::Response if self.request.input.iter().any(is_renamed) => {
                let rename = |item: &Arc<Item>| match call_id(item).and_then(without_suffix) {
                    Some(id) => with_call_id(item, id.into()),
                    None => item.clone(),
                };
                self.request.input.iter().map(rename).collect()
            }
            CallIdScope::Response | CallIdScope::Conversation => Cow::Borrowed(self.request.input),
        }
    }

    /// Returns the suffix of the response's ids, if the provider is declared as one that numbers its calls.
    pub(crate) fn declared_suffix(&self) -> Option<String> {
        (self.scope == CallIdScope::Response).then(|| self.unused_suffix())
    }

    /// Makes the ids of the response's calls unique, if the provider numbers them or sends none.
    pub(crate) fn make_unique(&self, items: &mut [Arc<Item>]) {
        for (at, item) in items.iter_mut().enumerate() {
            if matches!(&**item, Item::Call(call) if call.id.as_str().is_empty()) {
                *item = with_call_id(item, made_up_call_id(&self.request, at).into());
            }
        }
        let is_numbered = match self.scope {
            CallIdScope::Response => true,
            CallIdScope::Conversation => self.reuses_numbers(items),
        };
        if !is_numbered {
            return;
        }
        let suffix = self.unused_suffix();
        for item in items {
            if let Item::Call(call) = &**item {
                let id = format!("{}{suffix}", call.id);
                *item = with_call_id(item, id.into());
            }
        }
    }

    /// Returns true if a call of the response has the number of an earlier call as its id, and is another call, or the
    /// provider has done so before.
    fn reuses_numbers(&self, items: &[Arc<Item>]) -> bool {
        let calls = items.iter().filter_map(|item| match &**item {
            Item::Call(call) => Some(call),
            _ => None,
        });
        let mut counted = calls.enumerate().filter(|(at, call)| is_number_of_call(call, *at)).peekable();
        if counted.peek().is_none() {
            return false;
        }
        let earlier = || {
            self.request.input.iter().filter_map(|item| match &**item {
                Item::Call(call) => Some(call),
                _ => None,
            })
        };
        let is_known_to_number = earlier().any(|call| {
            let id = without_suffix(call.id.as_str());
            id.is_some_and(|id| {
                COUNTED_PREFIXES.contains(&id.trim_end_matches(|end: char| end.is_ascii_digit()))
            })
        });
        counted.any(|(_, call)| {
            earlier().any(|made| {
                let is_same = (&made.name, &made.arguments) == (&call.name, &call.arguments);
                made.id == call.id && (is_known_to_number || !is_same)
            })
        })
    }

    /// Returns a suffix that no call of the input has: the number of the turn, or the next that is free.
    fn unused_suffix(&self) -> String {
        let taken = self.request.input.iter().filter_map(|item| call_id(item)?.rsplit_once(SUFFIX_START));
        let taken: BTreeSet<&str> = taken.map(|(_, number)| number).collect();
        let mut number = self.request.turn;
        while taken.contains(number.to_string().as_str()) {
            number = number.saturating_add(1);
        }
        format!("{SUFFIX_START}{number}")
    }
}

/// Returns an id for a call that has none from its provider. `at` tells the calls of a response apart. The number of the
/// turn and the length of the input tell responses apart, so that the same call in a later response is another call.
pub(crate) fn made_up_call_id(request: &ModelRequest<'_>, at: usize) -> String {
    let mut length = request.input.len();
    loop {
        let id = format!("call_{}_{length}_{at}", request.turn);
        if !request.input.iter().any(|item| call_id(item) == Some(&id)) {
            return id;
        }
        length += 1;
    }
}

/// Returns true if an id is the number of its call in the response, from 0 or from 1.
fn is_number_of_call(call: &ToolCall, at: usize) -> bool {
    let prefix = call.id.as_str().trim_end_matches(|end: char| end.is_ascii_digit());
    let number: Option<usize> = call.id.as_str()[prefix.len()..].parse().ok();
    let has_name = || {
        let rest = prefix.strip_prefix("functions.").unwrap_or(prefix).strip_prefix(call.name.as_str());
        matches!(rest, Some("_" | "-" | ":" | "."))
    };
    number.is_some_and(|number| number == at || number == at + 1)
        && (COUNTED_PREFIXES.contains(&prefix) || has_name())
}

/// Returns the provider's own id, if this one has a suffix.
fn without_suffix(id: &str) -> Option<&str> {
    let (own, number) = id.rsplit_once(SUFFIX_START)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !own.is_empty()).then_some(own)
}

/// Returns the id of the call that an item is or answers.
fn call_id(item: &Arc<Item>) -> Option<&str> {
    match &**item {
        Item::Call(call) => Some(call.id.as_str()),
        Item::Output(output) => Some(output.call.as_str()),
        Item::Handoff(handoff) => Some(handoff.call.as_str()),
        _ => None,
    }
}

fn with_call_id(item: &Arc<Item>, id: CallId) -> Arc<Item> {
    Arc::new(match &**item {
        Item::Call(call) => Item::Call(ToolCall { id, ..call.clone() }),
        Item::Output(output) => Item::Output(CallOutput { call: id, ..output.clone() }),
        Item::Handoff(handoff) => Item::Handoff(HandoffOutput { call: id, ..handoff.clone() }),
        _ => return item.clone(),
    })
}
