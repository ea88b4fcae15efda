//! Replay of recorded calls under a policy.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass::core::decision::HoldReason;
use windlass::core::id::{AgentName, CallId, CallPath};
use windlass::core::item::Item;
use windlass::core::journal::{CallStatus, JournalEntry, JournalRecord};
use windlass::core::plan::CallDisposition;
use windlass::core::provenance::{ContentSource, ContentSources};
use windlass::core::run::Run;

use super::apply::tool_name;
use super::{PolicyCall, PolicyDecision, PolicyVerdict, ToolPolicy};

/// A recorded call, its handling at that time, and the decision of a policy about it.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyReplay {
    /// The call.
    pub path: CallPath,
    /// The agent that made it.
    pub agent: AgentName,
    /// The name of the tool, with its MCP server in front if it has one.
    pub tool: String,
    /// The arguments, as they were recorded.
    pub arguments: String,
    /// The handling of the call in the recorded run.
    pub recorded: RecordedHandling,
    /// The decision of the policy.
    pub decision: PolicyDecision,
}

/// The handling of a call in a recorded run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedHandling {
    /// It ran without approval.
    Ran,
    /// A person was asked.
    Asked,
    /// A guardrail or a policy refused it.
    Refused,
}

impl PolicyReplay {
    /// Returns true if the policy would handle the call otherwise.
    pub fn is_changed(&self) -> bool {
        match (self.recorded, self.decision.verdict) {
            (_, PolicyVerdict::Tool)
            | (RecordedHandling::Ran, PolicyVerdict::Allow)
            | (RecordedHandling::Asked, PolicyVerdict::Ask | PolicyVerdict::AskEachTime)
            | (RecordedHandling::Refused, PolicyVerdict::Deny) => false,
            (
                RecordedHandling::Ran | RecordedHandling::Asked | RecordedHandling::Refused,
                PolicyVerdict::Allow | PolicyVerdict::Ask | PolicyVerdict::AskEachTime | PolicyVerdict::Deny,
            ) => true,
        }
    }
}

impl ToolPolicy {
    /// Decides about every call of a journal that would have executed a body, at the time at which it was made.
    pub fn replay(&self, records: &[JournalRecord]) -> Vec<PolicyReplay> {
        let mut agents: BTreeMap<&[CallId], &AgentName> = BTreeMap::new();
        let mut calls: Vec<PolicyReplay> = Vec::new();
        // The state of the run after each record says what the model could read.
        let mut run: Option<Run> = None;
        for record in records {
            let within = record.path.as_slice();
            match (&mut run, &record.entry) {
                (Some(run), entry) => _ = run.apply_at(within, entry),
                (None, JournalEntry::RunStarted(started)) => run = Some(Run::start((**started).clone())),
                (None, _) => {}
            }
            match &record.entry {
                JournalEntry::RunStarted(started) => _ = agents.insert(within, &started.agent),
                JournalEntry::HandoffRecorded(handed) => _ = agents.insert(within, &handed.to),
                JournalEntry::ModelResponded(answer) => {
                    let agent =
                        agents.get(within).map_or_else(|| AgentName::from("?"), |agent| (*agent).clone());
                    let minute = u32::try_from(record.at.0 / 60_000 % (24 * 60)).ok();
                    for planned in &answer.calls {
                        if !matches!(planned.disposition, CallDisposition::Execute { .. }) {
                            continue;
                        }
                        let call = answer.items.iter().find_map(|item| match &**item {
                            Item::Call(call) if call.id == planned.call => Some(call),
                            _ => None,
                        });
                        let Some(call) = call else { continue };
                        let (name, origin) = tool_name(&planned.key);
                        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
                        let decision = self.decide(&PolicyCall {
                            agent: agent.as_str(),
                            tool: &name,
                            origin: origin.as_deref(),
                            arguments: &arguments,
                            context_sources: sources_of(run.as_ref(), within, &planned.call),
                            minute_of_day: minute,
                        });
                        calls.push(PolicyReplay {
                            path: CallPath::new(within, planned.call.clone()),
                            agent: agent.clone(),
                            tool: origin
                                .map_or_else(|| name.to_string(), |server| format!("{server}/{name}")),
                            arguments: call.arguments.clone(),
                            recorded: RecordedHandling::Ran,
                            decision,
                        });
                    }
                }
                JournalEntry::CallHeld(held) if held.reason == HoldReason::Approval => {
                    mark(&mut calls, within, &held.call, RecordedHandling::Asked);
                }
                JournalEntry::CallSettled(settled) if settled.status == CallStatus::BlockedByGuardrail => {
                    mark(&mut calls, within, &settled.call, RecordedHandling::Refused);
                }
                _ => {}
            }
        }
        calls
    }
}

/// Returns the sources of the text that the model could read when it proposed a call.
fn sources_of(run: Option<&Run>, within: &[CallId], call: &CallId) -> ContentSources {
    run.and_then(|run| run.at_path(within))
        .map_or(ContentSource::Unknown.into(), |run| run.call_sources(call))
}

fn mark(calls: &mut [PolicyReplay], within: &[CallId], call: &CallId, recorded: RecordedHandling) {
    let found = calls
        .iter_mut()
        .rev()
        .find(|replay| replay.path.parent_calls() == within && replay.path.call() == call);
    if let Some(replay) = found {
        replay.recorded = recorded;
    }
}
