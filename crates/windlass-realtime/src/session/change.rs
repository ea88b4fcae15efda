//! Another agent is asked for its instructions and tools, once, and then becomes current.

use std::sync::Arc;

use tokio::sync::oneshot;
use windlass::agent::{Agent, Resolved};

use super::actor::Actor;
use super::builder::{configuration, supported};
use crate::event::{ChangeCause, LiveError, LiveEvent};
use crate::machine::AgentKey;

/// What came of resolving an agent.
pub(super) struct Resolution<C> {
    name: windlass::core::AgentName,
    cause: ChangeCause,
    reply: Option<oneshot::Sender<Result<(), String>>>,
    result: Result<Resolved<C>, String>,
}

/// How many agents are remembered as they were. More answers than that are not open at once.
const REMEMBERED: usize = 128;

impl<C: Send + Sync + 'static> Actor<C> {
    /// Asks for the instructions and tools of an agent, once; then it becomes current.
    pub(super) fn resolve(
        &mut self,
        agent: Agent<C>,
        cause: ChangeCause,
        reply: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        let (session, app) = (self.setting.session.clone(), self.setting.app.clone());
        let (known, patience) = (self.plan.known.clone(), self.plan.patience);
        self.resolving.spawn(async move {
            let name = agent.name().clone();
            let resolving = agent.resolve_with(&session, app, &known);
            let result = match tokio::time::timeout(patience, resolving).await {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => Err(format!("its instructions and tools were not there within {patience:?}")),
            };
            Resolution { name, cause, reply, result }
        });
    }

    pub(super) fn resolved(&mut self, done: Result<Resolution<C>, tokio::task::JoinError>) {
        let Ok(Resolution { name, cause, reply, result }) = done else { return };
        let now = self.now();
        let is_supported = |resolved: Resolved<C>| match supported(&*self.setting.model, &resolved) {
            Ok(()) => Ok(resolved),
            Err(error) => Err(error.to_string()),
        };
        match result.and_then(is_supported) {
            Ok(resolved) => {
                let agent = AgentKey { number: self.next_agent, name };
                self.next_agent += 1;
                let configuration = Arc::new(configuration(&resolved, &self.setting.settings));
                let is_checked = resolved.is_checked() || !self.plan.guardrails.is_empty();
                self.agents.insert(agent.number, resolved);
                self.forget_old_agents();
                if let Some(reply) = reply {
                    self.changing.insert(agent.number, reply);
                }
                self.machine.at(now).change_agent(agent, configuration, is_checked, cause);
            }
            Err(message) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Err(message.clone()));
                }
                match cause {
                    ChangeCause::Handoff(call) => self.machine.at(now).handoff_failed(&call, &name, message),
                    ChangeCause::Application => {
                        self.emit(LiveEvent::Error(LiveError::AgentNotChanged { to: name, message }));
                    }
                }
            }
        }
    }

    /// A session may change agents for as long as it lasts. Calls and answers that are under way keep theirs.
    fn forget_old_agents(&mut self) {
        while self.agents.len() > REMEMBERED {
            let current = self.machine.agent().number;
            let is_needed = |number: u32| {
                number == current
                    || self.changing.contains_key(&number)
                    || self.runs.values().any(|live| live.agent == number)
            };
            let Some(oldest) = self.agents.keys().copied().find(|number| !is_needed(*number)) else { return };
            self.agents.remove(&oldest);
        }
    }
}
