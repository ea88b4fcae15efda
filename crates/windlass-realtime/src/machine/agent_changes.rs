//! Agent changes and the configuration that is in force. Invariant: an agent becomes current when the model has
//! acknowledged its configuration, not before; no response is requested unless the model has acknowledged the current
//! agent's configuration on this connection; no response that starts while a configuration is unacknowledged is attributed
//! to an agent.

use std::time::Duration;

use windlass::core::id::{AgentName, CallId};

use super::{AgentSetup, PendingAgentChange, RealtimeMachine, RespondWhen, SessionEffect};
use crate::event::{AgentChangeCause, CloseReason, RealtimeError, RealtimeEvent};
use crate::id::CommandId;
use crate::journal::RealtimeEntry;
use crate::model::RealtimeCommandKind;
use crate::settings::SessionConfiguration;

/// The output of a failed handoff, as the model sees it.
const HANDOFF_FAILED_TEXT: &str = "The handoff did not work. You are still the one who answers.";

/// A configuration that was sent and has been neither acknowledged nor rejected. One is in flight at a time.
#[derive(Clone, Debug)]
pub(super) struct InFlightConfiguration {
    command: CommandId,
    sent_at: Duration,
    purpose: ConfigurationPurpose,
}

/// The purpose of a configuration in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConfigurationPurpose {
    /// The first configuration of a connection.
    Establish,
    /// The configuration of the first pending change.
    Change,
    /// The current agent's configuration, sent again because the model may have applied one that it never
    /// acknowledged.
    Restore,
}

/// The certainty that an error rejects a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RejectionCertainty {
    /// The error names the command.
    Named,
    /// The error names no command, and the configuration is the only command that it can mean.
    Inferred,
}

/// The configuration that the model has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ConfigurationState {
    /// The model has not acknowledged the current agent's configuration on this connection.
    #[default]
    Unconfirmed,
    /// The model has the current agent's configuration.
    Confirmed,
}

impl RealtimeMachine {
    /// Queues an agent change. Changes are applied one at a time.
    pub(crate) fn change_agent(&mut self, agent: AgentSetup, cause: AgentChangeCause) {
        self.pending_changes.push_back(PendingAgentChange { agent, cause });
    }

    /// Returns the number of changes whose configuration is not in force.
    pub(crate) fn pending_change_count(&self) -> usize {
        self.pending_changes.len()
    }

    /// Handles a handoff that failed before a configuration was sent.
    pub(crate) fn fail_handoff(&mut self, call: &CallId, to: &AgentName, message: String) {
        self.emit_error(RealtimeError::AgentChangeFailed { to: to.clone(), message });
        if let Some(item) = self.add_output(call, HANDOFF_FAILED_TEXT.to_owned(), RespondWhen::Now) {
            self.scheduler.demand_response(self.now, Some(item));
        }
    }

    /// Sends the current agent's configuration as the first one of a connection.
    pub(super) fn establish_configuration(&mut self) {
        self.configuration_state = ConfigurationState::Unconfirmed;
        self.confirmed_configuration = None;
        self.has_expired_configuration = false;
        self.send_configuration((*self.current_agent.configuration).clone(), ConfigurationPurpose::Establish);
    }

    fn send_configuration(&mut self, configuration: SessionConfiguration, purpose: ConfigurationPurpose) {
        self.is_configuration_kept &= purpose == ConfigurationPurpose::Establish;
        let command = self.send_command(RealtimeCommandKind::Configure(Box::new(configuration)));
        let in_flight = InFlightConfiguration { command, sent_at: self.now, purpose };
        self.in_flight_configuration = Some(in_flight);
    }

    /// Sends the configuration of the next change, unless another one is in flight. A response that was requested and
    /// has not started belongs to the agent that requested it, so the change waits for its start.
    pub(super) fn send_next_change(&mut self) {
        if self.in_flight_configuration.is_some() || self.scheduler.open_request().is_some() {
            return;
        }
        let Some(change) = self.pending_changes.front() else { return };
        let configuration = (*change.agent.configuration).clone();
        self.send_configuration(configuration, ConfigurationPurpose::Change);
    }

    /// Handles the acknowledgement of a configuration. One that does not name its command is taken for the one in
    /// flight, unless an earlier one is still unacknowledged.
    pub(super) fn on_configuration_applied(&mut self, command: Option<&CommandId>) {
        let is_it = |in_flight: &mut InFlightConfiguration| match command {
            Some(command) => in_flight.command == *command,
            None => !self.has_expired_configuration,
        };
        let Some(InFlightConfiguration { command, purpose, .. }) =
            self.in_flight_configuration.take_if(is_it)
        else {
            return;
        };
        self.configuration_state = ConfigurationState::Confirmed;
        self.confirmed_configuration = Some(command);
        match purpose {
            ConfigurationPurpose::Establish => {
                self.ready_result.get_or_insert(Ok(()));
                if let Some(attempts) = self.reconnect_attempts.take() {
                    self.metrics.reconnects += 1;
                    self.emit_event(RealtimeEvent::Reconnected { attempts });
                }
            }
            ConfigurationPurpose::Restore => {}
            ConfigurationPurpose::Change => self.complete_change(),
        }
    }

    fn complete_change(&mut self) {
        let Some(change) = self.pending_changes.pop_front() else { return };
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

    /// Handles the rejection of a configuration. Returns false if the command was not a configuration in flight or in
    /// force.
    pub(super) fn on_configuration_rejected(
        &mut self,
        command: &CommandId,
        message: &str,
        certainty: RejectionCertainty,
    ) -> bool {
        if self.confirmed_configuration.as_ref() == Some(command) {
            // The acknowledgement was not that of this configuration, so the model has another one.
            self.configuration_state = ConfigurationState::Unconfirmed;
            self.pending_effects
                .push(SessionEffect::EndSession(CloseReason::ConfigurationRejected(message.to_owned())));
            return true;
        }
        let rejected = self.in_flight_configuration.take_if(|in_flight| in_flight.command == *command);
        let Some(InFlightConfiguration { purpose, .. }) = rejected else { return false };
        match (purpose, certainty) {
            // The model keeps its previous configuration, which is the current agent's.
            (ConfigurationPurpose::Change, RejectionCertainty::Named) => {
                self.fail_change(message.to_owned());
            }
            // The error may be about something else, so the model may have applied the change.
            (ConfigurationPurpose::Change, RejectionCertainty::Inferred) => {
                self.fail_change(message.to_owned());
                self.restore_configuration();
            }
            (ConfigurationPurpose::Establish, _) if self.ready_result.is_none() => {
                self.ready_result = Some(Err(message.to_owned()));
            }
            // The session fails closed: it does not go on with a model that has another configuration.
            (ConfigurationPurpose::Establish | ConfigurationPurpose::Restore, _) => {
                self.pending_effects
                    .push(SessionEffect::EndSession(CloseReason::ConfigurationRejected(message.to_owned())));
            }
        }
        true
    }

    /// Returns true if the model certainly has the current agent's configuration. While another one is unacknowledged, the
    /// model may have applied it already.
    pub(super) fn is_configuration_certain(&self) -> bool {
        self.configuration_state == ConfigurationState::Confirmed && self.in_flight_configuration.is_none()
    }

    /// Returns true if a change of the configuration is in flight, or the restoration after one.
    pub(super) fn is_configuration_changing(&self) -> bool {
        let is_change =
            |in_flight: &InFlightConfiguration| in_flight.purpose != ConfigurationPurpose::Establish;
        self.in_flight_configuration.as_ref().is_some_and(is_change)
    }

    /// Returns the command of the configuration in flight.
    pub(super) fn configuration_command(&self) -> Option<&CommandId> {
        self.in_flight_configuration.as_ref().map(|in_flight| &in_flight.command)
    }

    /// Returns the time at which the configuration in flight counts as lost.
    pub(super) fn configuration_deadline(&self) -> Option<Duration> {
        let in_flight = self.in_flight_configuration.as_ref()?;
        Some(in_flight.sent_at.saturating_add(self.policy.acknowledge_timeout))
    }

    /// Gives up on a configuration that was not acknowledged in time. After a change, the current agent's configuration
    /// is sent again, so that it is certainly the one in force; without that certainty, the connection is replaced.
    pub(super) fn expire_configuration(&mut self) {
        if self.configuration_deadline().is_none_or(|deadline| self.now < deadline) {
            return;
        }
        let Some(InFlightConfiguration { purpose, .. }) = self.in_flight_configuration.take() else { return };
        self.configuration_state = ConfigurationState::Unconfirmed;
        let message = "the model did not acknowledge the configuration in time".to_owned();
        match purpose {
            ConfigurationPurpose::Change => {
                self.fail_change(message);
                self.restore_configuration();
            }
            ConfigurationPurpose::Establish if self.ready_result.is_none() => {
                self.ready_result = Some(Err(message));
            }
            ConfigurationPurpose::Establish | ConfigurationPurpose::Restore => {
                self.pending_effects.push(SessionEffect::DropConnection(message));
            }
        }
    }

    /// Sends the current agent's configuration again, because the model may have applied a change that counts as failed.
    fn restore_configuration(&mut self) {
        self.has_expired_configuration = true;
        self.configuration_state = ConfigurationState::Unconfirmed;
        self.confirmed_configuration = None;
        let current = (*self.current_agent.configuration).clone();
        self.send_configuration(current, ConfigurationPurpose::Restore);
    }

    fn fail_change(&mut self, message: String) {
        let Some(change) = self.pending_changes.pop_front() else { return };
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
