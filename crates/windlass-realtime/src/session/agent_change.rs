//! Agent changes: the new agent is resolved once, and then becomes current.

use tokio::sync::oneshot;
use tokio::task::Id;
use windlass::agent::{Agent, ResolvedAgent};
use windlass::core::id::AgentName;

use super::actor::SessionActor;
use super::builder::{agent_setup, check_agent_tools};
use crate::event::{AgentChangeCause, RealtimeError, RealtimeEvent};

/// The result of resolving an agent.
pub(super) struct AgentResolution<C> {
    name: AgentName,
    cause: AgentChangeCause,
    reply: Option<oneshot::Sender<Result<(), String>>>,
    result: Result<ResolvedAgent<C>, String>,
}

/// Maximum number of agent changes that are requested and not in force.
const MAX_PENDING_CHANGES: usize = 64;
/// Number of resolved agents kept. Fewer responses than that are open at once.
const MAX_RESOLVED_AGENTS: usize = 128;

impl<C: Send + Sync + 'static> SessionActor<C> {
    /// Resolves an agent's instructions and tools in the background. The machine then makes it current.
    pub(super) fn start_agent_change(
        &mut self,
        agent: Agent<C>,
        cause: AgentChangeCause,
        reply: Option<oneshot::Sender<Result<(), String>>>,
    ) {
        if self.requested_changes.len() + self.machine.pending_change_count() >= MAX_PENDING_CHANGES {
            let (name, result) = (agent.name().clone(), Err("too many changes are waiting".to_owned()));
            return self.apply_change(AgentResolution { name, cause, reply, result });
        }
        let (session, app) = (self.context.session_id.clone(), self.context.app_context.clone());
        let (known, timeout) = (self.config.known_agents.clone(), self.config.ready_timeout);
        let task = self.resolve_tasks.spawn(async move {
            let name = agent.name().clone();
            let resolving = agent.resolve_with_context(&session, app, &known);
            let result = match tokio::time::timeout(timeout, resolving).await {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => Err(format!("its instructions and tools were not resolved within {timeout:?}")),
            };
            AgentResolution { name, cause, reply, result }
        });
        self.requested_changes.push_back((task.id(), None));
    }

    /// Applies the changes that are resolved, in the order in which they were requested.
    pub(super) fn on_agent_resolved(
        &mut self,
        done: Result<(Id, AgentResolution<C>), tokio::task::JoinError>,
    ) {
        match done {
            Ok((id, resolution)) => {
                if let Some((_, place)) = self.requested_changes.iter_mut().find(|(task, _)| *task == id) {
                    *place = Some(resolution);
                }
            }
            Err(error) => self.requested_changes.retain(|(task, _)| *task != error.id()),
        }
        while let Some((_, Some(_))) = self.requested_changes.front() {
            if let Some((_, Some(resolution))) = self.requested_changes.pop_front() {
                self.apply_change(resolution);
            }
        }
    }

    fn apply_change(&mut self, resolution: AgentResolution<C>) {
        let AgentResolution { name, cause, reply, result } = resolution;
        let now = self.elapsed();
        let is_supported =
            |resolved: ResolvedAgent<C>| match check_agent_tools(&*self.context.model, &resolved) {
                Ok(()) => Ok(resolved),
                Err(error) => Err(error.to_string()),
            };
        match result.and_then(is_supported) {
            Ok(resolved) => {
                let number = self.next_activation;
                self.next_activation += 1;
                let agent = agent_setup(number, &resolved, &self.context.settings, &self.config);
                self.resolved_agents.insert(number, resolved);
                self.evict_old_agents();
                if let Some(reply) = reply {
                    self.pending_change_replies.insert(number, reply);
                }
                self.machine.advance_to(now).change_agent(agent, cause);
            }
            Err(message) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Err(message.clone()));
                }
                match cause {
                    AgentChangeCause::Handoff(call) => {
                        self.machine.advance_to(now).fail_handoff(&call, &name, message)
                    }
                    AgentChangeCause::Application => {
                        self.emit_event(RealtimeEvent::Error(RealtimeError::AgentChangeFailed {
                            to: name,
                            message,
                        }));
                    }
                }
            }
        }
    }

    /// Evicts the oldest resolved agents, except those that open calls or pending changes need.
    fn evict_old_agents(&mut self) {
        while self.resolved_agents.len() > MAX_RESOLVED_AGENTS {
            let current = self.machine.agent().number;
            let is_needed = |number: u32| {
                number == current
                    || self.pending_change_replies.contains_key(&number)
                    || self.runs.values().any(|live| live.activation == number)
            };
            let Some(oldest) = self.resolved_agents.keys().copied().find(|number| !is_needed(*number)) else {
                return;
            };
            self.resolved_agents.remove(&oldest);
        }
    }
}
