//! Agents change: the new one is current when the model has its configuration, and not before.

use std::sync::Arc;
use std::time::Duration;

use windlass::core::{AgentName, CallId};

use super::{AgentKey, Answer, Change, Effect, Machine};
use crate::event::{ChangeCause, LiveError, LiveEvent};
use crate::id::CommandId;
use crate::journal::LiveEntry;
use crate::model::CommandKind;
use crate::settings::Configuration;

/// What the model is told of a handoff that came to nothing.
const NOT_HANDED_OVER: &str = "The handoff did not work. You are still the one who answers.";

impl Machine {
    /// Another agent is to be current. Changes come about one after another.
    pub(crate) fn change_agent(
        &mut self,
        agent: AgentKey,
        configuration: Arc<Configuration>,
        is_checked: bool,
        cause: ChangeCause,
    ) {
        self.changes.push_back(Change { agent, configuration, is_checked, cause, sent: None });
    }

    /// A handoff came to nothing before anything was sent.
    pub(crate) fn handoff_failed(&mut self, call: &CallId, to: &AgentName, message: String) {
        self.error(LiveError::AgentNotChanged { to: to.clone(), message });
        if let Some(item) = self.put_output(call, NOT_HANDED_OVER.to_owned(), Answer::Wanted) {
            self.gate.want(self.now, Some(item));
        }
    }

    pub(super) fn send_change(&mut self) {
        if !self.configuring.is_empty() {
            return;
        }
        let Some(change) = self.changes.front().filter(|change| change.sent.is_none()) else { return };
        let configuration = Box::new((*change.configuration).clone());
        let id = self.send(CommandKind::Configure(configuration));
        self.configuring.push_back((id.clone(), self.now));
        if let Some(change) = self.changes.front_mut() {
            change.sent = Some(id);
        }
    }

    /// A configuration is in force.
    pub(super) fn configured(&mut self) {
        self.ready.get_or_insert(Ok(()));
        let Some((id, _)) = self.configuring.pop_front() else { return };
        let is_change = self.changes.front().is_some_and(|change| is_under(change, &id));
        let Some(change) = self.changes.pop_front_if(|_| is_change) else { return };
        let from = std::mem::replace(&mut self.agent, change.agent.clone());
        self.configuration = change.configuration;
        self.is_checked = change.is_checked;
        let to = change.agent.name.clone();
        self.out.push(Effect::Journal(LiveEntry::Agent { agent: to.clone() }));
        self.emit(LiveEvent::AgentChanged { from: from.name, to: to.clone(), cause: change.cause.clone() });
        self.out.push(Effect::Changed { agent: change.agent, result: Ok(()) });
        if let ChangeCause::Handoff(call) = &change.cause {
            let text = format!("{{\"assistant\": {}}}", serde_json::Value::from(to.as_str()));
            if let Some(item) = self.put_output(call, text, Answer::Wanted) {
                self.gate.want(self.now, Some(item));
            }
        }
    }

    /// A configuration was not taken. The one before is still in force.
    pub(super) fn configuration_refused(&mut self, command: &CommandId, message: &str) -> bool {
        let Some(place) = self.configuring.iter().position(|(id, _)| id == command) else { return false };
        self.configuring.remove(place);
        let is_change = self.changes.front().is_some_and(|change| is_under(change, command));
        match self.changes.pop_front_if(|_| is_change) {
            Some(change) => self.not_changed(change, message.to_owned()),
            None if self.ready.is_none() => self.ready = Some(Err(message.to_owned())),
            // It was taken before, and is not taken on this connection: whoever watches must know.
            None => return false,
        }
        true
    }

    /// Nothing was said of a configuration for too long: the one before is sent again, to be sure which is in force.
    pub(super) fn give_up_configuring(&mut self) {
        let (now, patience) = (self.now, self.rules.acknowledge);
        let is_over = |(_, at): &mut (CommandId, Duration)| now >= *at + patience;
        let Some((id, _)) = self.configuring.pop_front_if(is_over) else { return };
        self.send(CommandKind::Configure(Box::new((*self.configuration).clone())));
        let message = "the model did not say that it took the configuration".to_owned();
        let is_change = self.changes.front().is_some_and(|change| is_under(change, &id));
        match self.changes.pop_front_if(|_| is_change) {
            Some(change) => self.not_changed(change, message),
            None => self.error(LiveError::Provider { code: "not_acknowledged".to_owned(), message }),
        }
    }

    fn not_changed(&mut self, change: Change, message: String) {
        let to = change.agent.name.clone();
        self.out.push(Effect::Changed { agent: change.agent, result: Err(message.clone()) });
        match change.cause {
            ChangeCause::Handoff(call) => self.handoff_failed(&call, &to, message),
            ChangeCause::Application => self.error(LiveError::AgentNotChanged { to, message }),
        }
    }
}

fn is_under(change: &Change, command: &CommandId) -> bool {
    change.sent.as_ref() == Some(command)
}
