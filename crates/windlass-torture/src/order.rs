//! Orders: the runs that the workers have to drive, and the words that users and models say in them. Everything is
//! derived from the order, so that the verdict knows without Windlass what each session must contain.

use serde::{Deserialize, Serialize};
use windlass_sim::SimRng;

use crate::deployment::CallArguments;

/// A run that workers have to drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOrder {
    /// Id of the run.
    pub run: String,
    /// Seed of the run's model.
    pub seed: u64,
    /// Session that the run belongs to.
    pub session: Option<String>,
    /// True if the agent has the tool whose receipts are the session's.
    pub has_session_key: bool,
    /// The run that this one is a fork of.
    pub fork_of: Option<String>,
    /// True if the decider cancels the run, unless it ends before.
    pub is_cancelled: bool,
}

/// Input that was ordered for a run while a driver had it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedInput {
    /// Id of the run.
    pub run: String,
    /// Number of the order.
    pub order: u64,
    /// The words.
    pub text: String,
    /// Epoch of the driver that had the run after the order was posted.
    pub epoch: u64,
}

/// A call that the model of a run makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptedCall {
    /// Id of the call.
    pub id: String,
    /// Name of the tool.
    pub tool: &'static str,
    /// The arguments.
    pub arguments: CallArguments,
}

/// Number of turns with calls in a run.
pub const TURN_COUNT: u32 = 3;
/// Number of turns with calls of the nested agent.
pub const HELPER_TURN_COUNT: u32 = 2;
/// Name of the agent without a tool whose receipts are the session's.
const AGENT: &str = "tortured";
/// Name of the agent with one.
const SESSION_AGENT: &str = "tortured_in_session";
/// Name of the nested agent.
pub const HELPER: &str = "helper";

const TOOLS: &[&str] = &[
    "once",
    "asked",
    "guarded",
    "key",
    "key",
    "store_key",
    "expiring_key",
    "expiring_key",
    "look",
    "gated",
    "gated",
    "gated_key",
    "question",
    "legacy",
    "helper",
];
/// Beginning of the names of sessions that are in another store than their runs.
const ELSEWHERE: &str = "elsewhere-";

const HELPER_TOOLS: &[&str] = &["once", "asked", "key", "gated", "question", "store_key", "expiring_key"];

/// Returns the name of a session, in the store of its runs or elsewhere.
pub fn session_name(number: u64, is_elsewhere: bool) -> String {
    format!("{}{number}", if is_elsewhere { ELSEWHERE } else { "session-" })
}

/// Returns true if a session is in another store than its runs.
pub fn is_elsewhere(session: &str) -> bool {
    session.starts_with(ELSEWHERE)
}

/// Returns the name of the agent with a tool whose receipts are the session's, or without one.
pub fn agent_name(has_session_key: bool) -> &'static str {
    if has_session_key { SESSION_AGENT } else { AGENT }
}

impl RunOrder {
    /// Returns the name of the run's agent.
    pub fn agent_name(&self) -> &'static str {
        agent_name(self.has_session_key)
    }

    /// Returns the words of the user, which no other run has.
    pub fn user_message(&self) -> String {
        format!("please carry out {}", self.run)
    }

    /// Returns the last words of the model, which no other run has.
    pub fn final_message(&self) -> String {
        format!("{} is carried out", self.run)
    }

    /// Returns the calls of a turn, counted from 1; none after the last turn with calls.
    pub fn calls_of_turn(&self, agent: &str, turn: u32) -> Vec<ScriptedCall> {
        let turns = if agent == HELPER { HELPER_TURN_COUNT } else { TURN_COUNT };
        if turn > turns {
            return Vec::new();
        }
        let mut rng = SimRng::for_purpose(self.seed, &format!("{agent} turn {turn}"));
        let mut tools = if agent == HELPER { HELPER_TOOLS.to_vec() } else { TOOLS.to_vec() };
        if self.has_session_key && agent == self.agent_name() {
            tools.push("session_key");
            tools.push("session_key");
        }
        (0..1 + rng.below(3))
            .map(|place| {
                let tool = *rng.pick(&tools);
                // Few values for tools with receipts, so that identical calls meet.
                let values = if tool.ends_with("key") { 3 } else { 1000 };
                let what = format!("{tool}-{}", rng.below(values));
                let arguments = CallArguments { what, target: format!("{tool} desk") };
                ScriptedCall { id: format!("{}.{agent}.t{turn}c{place}", self.run), tool, arguments }
            })
            .collect()
    }

    /// Returns all calls of the run's own agent.
    pub fn own_calls(&self) -> impl Iterator<Item = ScriptedCall> + '_ {
        (1..=TURN_COUNT).flat_map(|turn| self.calls_of_turn(self.agent_name(), turn))
    }
}
