//! From an answer of the model to a plan: which calls there are and what each may do, before any of them does.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::calls::CallMap;
use crate::canonical::Digest;
use crate::id::{AgentName, CallId};
use crate::item::{Call, Item};
use crate::rewrite::canonical_text;
use crate::tool::{Effect, Gate, ToolKey};

/// What the driver found under a call's name, in the tools resolved for this turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    /// A tool, and what its parser made of the arguments.
    Tool(FoundTool),
    /// Another agent, to pass control to.
    Handoff {
        /// Its name.
        to: AgentName,
    },
    /// Nothing; the model is told this.
    Missing {
        /// What it is told.
        text: String,
    },
    /// Nothing, and the run is configured to end for it.
    Fatal {
        /// What there is instead.
        offered: Vec<String>,
    },
}

/// A tool that a call found.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundTool {
    /// Its identity.
    pub key: ToolKey,
    /// Whether its body is a function or an agent.
    pub body: BodyKind,
    /// What it does to the world.
    pub effect: Effect,
    /// Whether a person must decide.
    pub gate: Gate,
    /// Calls with the same conflict key keep the model's order.
    pub conflict: Option<String>,
    /// Where the tool is idempotent: under which digest its result is kept.
    pub receipt: Option<Digest>,
    /// The arguments in canonical form, or what is wrong with them.
    pub arguments: Result<Arc<str>, Unfit>,
}

/// Arguments that a tool cannot be called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Every problem, by path.
    pub problems: String,
    /// The arguments in canonical form, where that is known.
    pub frozen: Option<Arc<str>>,
}

impl From<String> for Unfit {
    fn from(problems: String) -> Self {
        Self { problems, frozen: None }
    }
}

/// What runs when a tool is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyKind {
    /// The application's function.
    Function,
    /// Another agent, with a run of its own.
    Agent,
}

/// One call of an answer, and what it may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Which call.
    pub call: CallId,
    /// The tool's identity.
    pub key: ToolKey,
    /// Of the identity and the canonical arguments: what a decision is bound to.
    pub digest: Digest,
    /// What it may do.
    pub work: Work,
    /// The call that must settle first, because both have the same conflict key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<CallId>,
}

/// What a planned call may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Run a body.
    Body {
        /// Which kind.
        body: BodyKind,
        /// What it does to the world.
        effect: Effect,
        /// Whether a person must decide.
        gate: Gate,
        /// Under which digest the result is kept, for idempotent tools.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Digest>,
    },
    /// Tell the model what is wrong with its arguments. The body never sees them.
    Invalid {
        /// Every problem, by path.
        problems: String,
    },
    /// Tell the model that there is no such tool.
    Missing {
        /// What it is told.
        text: String,
    },
    /// Pass control to another agent, after the other calls of the turn.
    Handoff {
        /// Which agent.
        to: AgentName,
    },
    /// A second handoff in one answer: told so, and nothing else.
    Ignored,
}

/// What the model did that no tool can answer. Nothing of the answer has run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Misbehaviour {
    /// A call without an id.
    #[error("the model called `{name}` without a call id")]
    EmptyCallId {
        /// The tool it asked for.
        name: String,
    },
    /// A call id that already stands for another call.
    #[error("the model used call id `{call}` again for another call of `{name}`")]
    ReusedCallId {
        /// The id.
        call: CallId,
        /// The tool it asked for.
        name: String,
    },
    /// A tool that is not there.
    #[error("the model called `{name}`, which is not a tool of agent `{agent}` (it has: {})", list(offered))]
    MissingTool {
        /// The tool it asked for.
        name: String,
        /// The agent that was running.
        agent: AgentName,
        /// What there is.
        offered: Vec<String>,
    },
}

impl Misbehaviour {
    /// Whether the answer as such was readable, so that what was promised for answers (the hook) still holds.
    pub fn answer_was_readable(&self) -> bool {
        matches!(self, Self::MissingTool { .. })
    }
}

/// An answer with its calls planned, repeated calls left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The items that enter the history.
    pub items: Vec<Arc<Item>>,
    /// The calls among them, in the model's order.
    pub calls: Vec<Planned>,
    /// How many calls were left out, because they repeat calls that have their output.
    pub repeated: u32,
}

/// Plans an answer. `seen` holds the calls of earlier turns; `lookup` says what a call found.
pub fn plan(
    items: Vec<Arc<Item>>,
    agent: &AgentName,
    seen: &CallMap<Digest>,
    mut lookup: impl FnMut(&Call) -> Lookup,
) -> Result<Plan, Misbehaviour> {
    let count = items.iter().filter(|item| matches!(***item, Item::Call(_))).count();
    let mut plan =
        Plan { items: Vec::with_capacity(items.len()), calls: Vec::with_capacity(count), repeated: 0 };
    let mut fresh: CallMap<Digest> = CallMap::default();
    fresh.reserve(count);
    let mut last_of_conflict: BTreeMap<String, CallId> = BTreeMap::new();
    let mut has_handoff = false;
    // An id that stands for two calls makes the answer unreadable, so that is looked for to the end.
    let mut missing: Option<Misbehaviour> = None;
    for item in items {
        let Item::Call(call) = &*item else {
            plan.items.push(item);
            continue;
        };
        if call.id.as_str().is_empty() {
            return Err(Misbehaviour::EmptyCallId { name: call.name.clone() });
        }
        let found = lookup(call);
        let key = match &found {
            Lookup::Tool(tool) => tool.key.clone(),
            Lookup::Handoff { .. } | Lookup::Missing { .. } | Lookup::Fatal { .. } => ToolKey::of_call(call),
        };
        let digest = match &found {
            Lookup::Tool(FoundTool {
                arguments: Ok(arguments) | Err(Unfit { frozen: Some(arguments), .. }),
                ..
            }) => call_digest(&key, arguments),
            _ => call_digest(&key, &loosely_canonical(&call.arguments)),
        };
        if let Some(earlier) = fresh.get(&call.id).or_else(|| seen.get(&call.id)) {
            if *earlier != digest {
                return Err(Misbehaviour::ReusedCallId { call: call.id.clone(), name: call.name.clone() });
            }
            // A repeat is answered once, by the first. The reasoning that led to it goes with it, because
            // providers refuse reasoning that nothing follows.
            while plan.items.last().is_some_and(|last| matches!(**last, Item::Reasoning(_))) {
                plan.items.pop();
            }
            plan.repeated += 1;
            continue;
        }
        fresh.insert(call.id.clone(), digest);
        let mut after = None;
        let work = match found {
            Lookup::Tool(tool) => {
                if let Some(conflict) = tool.conflict {
                    after = last_of_conflict.insert(conflict, call.id.clone());
                }
                match tool.arguments {
                    Ok(_) => Work::Body {
                        body: tool.body,
                        effect: tool.effect,
                        gate: tool.gate,
                        receipt: tool.receipt,
                    },
                    Err(Unfit { problems, .. }) => Work::Invalid { problems },
                }
            }
            Lookup::Handoff { .. } if has_handoff => Work::Ignored,
            Lookup::Handoff { to } => {
                has_handoff = true;
                Work::Handoff { to }
            }
            Lookup::Missing { text } => Work::Missing { text },
            Lookup::Fatal { offered } => {
                let (name, agent) = (call.name.clone(), agent.clone());
                missing.get_or_insert(Misbehaviour::MissingTool { name, agent, offered });
                continue;
            }
        };
        plan.calls.push(Planned { call: call.id.clone(), key, digest, work, after });
        plan.items.push(item);
    }
    match missing {
        Some(missing) => Err(missing),
        None => Ok(plan),
    }
}

/// What a decision is bound to: the tool's identity and the canonical arguments.
pub fn call_digest(key: &ToolKey, arguments: &str) -> Digest {
    Digest::of_parts(&[&key.text(), arguments])
}

fn loosely_canonical(arguments: &str) -> Cow<'_, str> {
    canonical_text(arguments).unwrap_or(Cow::Borrowed(arguments))
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
