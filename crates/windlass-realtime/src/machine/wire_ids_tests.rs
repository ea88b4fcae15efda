//! Providers that use their ids again.

use std::sync::Arc;

use windlass::core::item::Role;
use windlass::model::ModelSettings;

use super::super::{AgentActivation, AgentSetup, RealtimeMachine, SessionEffect, SessionPolicy};
use crate::history::{
    RealtimeContentPart, RealtimeHistory, RealtimeItem, RealtimeItemKind, RealtimeItemStatus,
};
use crate::id::ResponseId;
use crate::model::{RealtimeCommandKind, RealtimeModelEvent, ResponseScope, ResponseStatus};
use crate::settings::{RealtimeSettings, SessionConfiguration};

/// Creates a machine whose configuration is in force.
fn configured_machine() -> RealtimeMachine {
    let configuration = SessionConfiguration {
        agent: "desk".into(),
        instructions: None,
        tools: Vec::new(),
        handoffs: Vec::new(),
        model_settings: ModelSettings::default(),
        realtime_settings: RealtimeSettings::default(),
    };
    let setup = AgentSetup {
        activation: AgentActivation { number: 0, name: "desk".into() },
        configuration: Arc::new(configuration),
        has_guardrails: false,
        has_ordered_tools: false,
        budget: None,
        answers_speech: false,
    };
    let mut machine = RealtimeMachine::new(SessionPolicy::default(), setup, RealtimeHistory::default());
    machine.on_connected(None);
    let configured = machine.take_effects().into_iter().find_map(|effect| match effect {
        SessionEffect::SendCommand(command) if matches!(command.kind, RealtimeCommandKind::Configure(_)) => {
            Some(command.id)
        }
        _ => None,
    });
    machine.on_model_event(RealtimeModelEvent::ConfigurationApplied { command: configured });
    machine
}

/// Reports a whole response that consists of one item, as providers do: the item with its response, and without.
fn respond(machine: &mut RealtimeMachine, response: &str, item: &RealtimeItem) {
    let response = ResponseId::from(response);
    let scope = ResponseScope::InConversation;
    let started =
        RealtimeModelEvent::ResponseStarted { response: response.clone(), requested_by: None, scope };
    machine.on_model_event(started);
    let announced = RealtimeItem { status: RealtimeItemStatus::InProgress, ..item.clone() };
    for item in [announced, item.clone()] {
        let of_response = RealtimeItem { response: Some(response.clone()), ..item.clone() };
        machine.on_model_event(RealtimeModelEvent::ItemChanged { item: of_response, after: None });
        machine.on_model_event(RealtimeModelEvent::ItemChanged { item, after: None });
    }
    let (status, calls) = (ResponseStatus::Completed, Vec::new());
    machine.on_model_event(RealtimeModelEvent::ResponseEnded { response, status, usage: None, calls });
    machine.take_effects();
}

#[test]
fn items_that_are_numbered_in_each_response_are_different_items() {
    let mut machine = configured_machine();
    for (response, text) in [("r1", "One."), ("r2", "Two.")] {
        let parts = vec![RealtimeContentPart::text(text)];
        respond(&mut machine, response, &RealtimeItem::message("item_1", Role::Assistant, parts));
    }
    for response in ["r3", "r4"] {
        let (name, arguments) = ("look".to_owned(), "{}".to_owned());
        let call = RealtimeItemKind::Call { call: "call_1".into(), name, arguments };
        respond(&mut machine, response, &RealtimeItem::new("item_1", call));
    }
    let items = machine.history().items();
    let known: Vec<(&str, &str)> = items
        .iter()
        .map(|item| (item.id.as_str(), item.response.as_ref().map_or("", ResponseId::as_str)))
        .collect();
    let expected = [("item_1", "r1"), ("item_1.2", "r2"), ("item_1.3", "r3"), ("item_1.4", "r4")];
    assert_eq!(known, expected);
    let texts: Vec<String> = items.iter().map(RealtimeItem::text).collect();
    assert_eq!(texts, ["One.", "Two.", "", ""]);
    assert!(items.iter().all(|item| item.status == RealtimeItemStatus::Completed), "{items:?}");
    let calls: Vec<&str> = items
        .iter()
        .filter_map(|item| match &item.kind {
            RealtimeItemKind::Call { call, .. } => Some(call.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(calls, ["call_1", "call_1.2"]);
}

#[test]
fn an_item_that_the_application_deletes_is_named_as_the_provider_names_it() {
    let mut machine = configured_machine();
    for (response, text) in [("r1", "One."), ("r2", "Two.")] {
        let parts = vec![RealtimeContentPart::text(text)];
        respond(&mut machine, response, &RealtimeItem::message("item_1", Role::Assistant, parts));
    }
    assert!(machine.delete_item(&"item_1.2".into()));
    let is_deletion = |effect: &SessionEffect| match effect {
        SessionEffect::SendCommand(command) => {
            command.kind == RealtimeCommandKind::DeleteItem { item: "item_1".into() }
        }
        _ => false,
    };
    assert!(machine.take_effects().iter().any(is_deletion));
}

#[test]
fn an_item_that_is_announced_before_its_response_is_one_item() {
    let mut machine = configured_machine();
    let parts = vec![RealtimeContentPart::text("One.")];
    let item = RealtimeItem::message("item_1", Role::Assistant, parts);
    let early = RealtimeItem { status: RealtimeItemStatus::InProgress, ..item.clone() };
    machine.on_model_event(RealtimeModelEvent::ItemChanged { item: early, after: None });
    respond(&mut machine, "r1", &item);
    let known: Vec<&str> = machine.history().items().iter().map(|item| item.id.as_str()).collect();
    assert_eq!(known, ["item_1"]);
}
