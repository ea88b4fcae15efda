//! Agent changes. Invariant: an agent becomes current when the model has acknowledged its configuration, not
//! before.

use std::time::Duration;

use windlass::core::id::{AgentName, CallId};

use super::{AgentSetup, PendingAgentChange, RealtimeMachine, RespondWhen, SessionEffect};
use crate::event::{AgentChangeCause, RealtimeError, RealtimeEvent};
use crate::id::CommandId;
use crate::journal::RealtimeEntry;
use crate::model::RealtimeCommandKind;

/// The output of a failed handoff, as the model sees it.
const HANDOFF_FAILED_TEXT: &str = "The handoff did not work. You are still the one who answers.";

impl RealtimeMachine {
    /// Queues an agent change. Changes are applied one at a time.
    pub(crate) fn change_agent(&mut self, agent: AgentSetup, cause: AgentChangeCause) {
        self.pending_changes.push_back(PendingAgentChange { agent, cause, sent_as: None });
    }

    /// Handles a handoff that failed before a configuration was sent.
    pub(crate) fn fail_handoff(&mut self, call: &CallId, to: &AgentName, message: String) {
        self.emit_error(RealtimeError::AgentChangeFailed { to: to.clone(), message });
        if let Some(item) = self.add_output(call, HANDOFF_FAILED_TEXT.to_owned(), RespondWhen::Now) {
            self.scheduler.demand_response(self.now, Some(item));
        }
    }

    /// Sends the configuration of the next change, unless another configuration is unacknowledged.
    pub(super) fn send_next_change(&mut self) {
        if !self.unacknowledged_configurations.is_empty() {
            return;
        }
        let Some(change) = self.pending_changes.front().filter(|change| change.sent_as.is_none()) else {
            return;
        };
        let configuration = Box::new((*change.agent.configuration).clone());
        let id = self.send_command(RealtimeCommandKind::Configure(configuration));
        self.unacknowledged_configurations.push_back((id.clone(), self.now));
        if let Some(change) = self.pending_changes.front_mut() {
            change.sent_as = Some(id);
        }
    }

    /// Handles the acknowledgement of the oldest unacknowledged configuration.
    pub(super) fn on_configuration_applied(&mut self) {
        self.ready_result.get_or_insert(Ok(()));
        let Some((id, _)) = self.unacknowledged_configurations.pop_front() else { return };
        let is_change = self.pending_changes.front().is_some_and(|change| was_sent_as(change, &id));
        let Some(change) = self.pending_changes.pop_front_if(|_| is_change) else { return };
        let agent = change.agent.activation.clone();
        let from = std::mem::replace(&mut self.current_agent, change.agent).activation.name;
        let to = agent.name.clone();
        self.pending_effects
            .push(SessionEffect::AppendJournal(RealtimeEntry::AgentChanged { agent: to.clone() }));
        self.emit_event(RealtimeEvent::AgentChanged { from, to: to.clone(), cause: change.cause.clone() });
        self.pending_effects.push(SessionEffect::AgentChanged { agent, result: Ok(()) });
        if let AgentChangeCause::Handoff(call) = &change.cause {
            let text = format!("{{\"assistant\": {}}}", serde_json::Value::from(to.as_str()));
            if let Some(item) = self.add_output(call, text, RespondWhen::Now) {
                self.scheduler.demand_response(self.now, Some(item));
            }
        }
    }

    /// Handles the rejection of a configuration. The previous one stays in force. Returns false if the
    /// rejection must still be reported.
    pub(super) fn on_configuration_rejected(&mut self, command: &CommandId, message: &str) -> bool {
        let Some(place) = self.unacknowledged_configurations.iter().position(|(id, _)| id == command) else {
            return false;
        };
        self.unacknowledged_configurations.remove(place);
        let is_change = self.pending_changes.front().is_some_and(|change| was_sent_as(change, command));
        match self.pending_changes.pop_front_if(|_| is_change) {
            Some(change) => self.fail_change(change, message.to_owned()),
            None if self.ready_result.is_none() => self.ready_result = Some(Err(message.to_owned())),
            // The configuration was accepted on an earlier connection and is rejected on this one: report it.
            None => return false,
        }
        true
    }

    /// Gives up on a configuration that was not acknowledged in time, and sends the current one again, so that
    /// it is certainly the one in force.
    pub(super) fn expire_configuration(&mut self) {
        let (now, timeout) = (self.now, self.policy.acknowledge_timeout);
        let is_over = |(_, at): &mut (CommandId, Duration)| now >= *at + timeout;
        let Some((id, _)) = self.unacknowledged_configurations.pop_front_if(is_over) else { return };
        self.send_command(RealtimeCommandKind::Configure(Box::new(
            (*self.current_agent.configuration).clone(),
        )));
        let message = "the model did not acknowledge the configuration in time".to_owned();
        let is_change = self.pending_changes.front().is_some_and(|change| was_sent_as(change, &id));
        match self.pending_changes.pop_front_if(|_| is_change) {
            Some(change) => self.fail_change(change, message),
            None => self.emit_error(RealtimeError::Provider { code: "not_acknowledged".to_owned(), message }),
        }
    }

    fn fail_change(&mut self, change: PendingAgentChange, message: String) {
        let agent = change.agent.activation;
        let to = agent.name.clone();
        self.pending_effects.push(SessionEffect::AgentChanged { agent, result: Err(message.clone()) });
        match change.cause {
            AgentChangeCause::Handoff(call) => self.fail_handoff(&call, &to, message),
            AgentChangeCause::Application => {
                self.emit_error(RealtimeError::AgentChangeFailed { to, message })
            }
        }
    }
}

fn was_sent_as(change: &PendingAgentChange, command: &CommandId) -> bool {
    change.sent_as.as_ref() == Some(command)
}
