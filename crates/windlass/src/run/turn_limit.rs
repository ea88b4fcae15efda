//! The maximum number of turns of a run.

use crate::agent::Agent;

/// Default maximum number of turns.
const DEFAULT_MAX_TURNS: u32 = 10;

/// The maximum number of turns of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TurnLimit {
    /// The default, or the number that a tool of the agents declares if that is higher.
    #[default]
    ByTools,
    /// This number.
    AtMost(u32),
    /// No limit.
    Unlimited,
}

impl TurnLimit {
    /// Returns the limit of a run of these agents; `None` if there is none.
    pub(crate) fn for_agents<'a, C: Send + Sync + 'static>(
        self,
        agents: impl Iterator<Item = &'a Agent<C>>,
    ) -> Option<u32> {
        match self {
            Self::ByTools => {
                let declared = agents.flat_map(Agent::tool_list).filter_map(|tool| tool.default_max_turns);
                Some(declared.max().unwrap_or(0).max(DEFAULT_MAX_TURNS))
            }
            Self::AtMost(turns) => Some(turns),
            Self::Unlimited => None,
        }
    }
}
