//! Faults that the server injects on request.

use std::time::Duration;

use serde_json::Value;

/// A fault, injected once or at every occurrence of its trigger.
#[derive(Clone, Debug, PartialEq)]
pub struct WireFault {
    /// The event that triggers the fault.
    pub trigger: FaultTrigger,
    /// Number of matching events to skip before the fault.
    pub skip_count: u32,
    /// True if the fault is injected at every occurrence, not once.
    pub is_repeated: bool,
    /// The effect of the fault.
    pub(super) action: FaultAction,
}

/// The event that triggers a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultTrigger {
    /// The server is about to send an event of this type.
    Sending(String),
    /// The server received an event of this type.
    Receiving(String),
}

/// The effect of a fault.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FaultAction {
    /// The event is not sent or not handled.
    Drop,
    /// The event is sent or handled twice.
    Duplicate,
    /// The event is sent later, after others.
    Delay(Duration),
    /// Another event is sent before it.
    Insert(Value),
    /// Another event is sent before it, this many times.
    Flood { event: Value, count: u32 },
    /// The event is answered with an error.
    Reject { code: String, names: ErrorNames },
    /// The connection is dropped without a close frame.
    Disconnect,
    /// The connection is closed with this code.
    Close(u16),
    /// Nothing is sent from then on, and the connection stays open.
    StopSending,
    /// The server ends its side of the connection without a close frame, and still reads.
    HalfClose,
}

/// The reference of an error to the event that it rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorNames {
    /// The error names the event.
    EventId,
    /// The error names no event.
    Nothing,
}

impl WireFault {
    fn new(trigger: FaultTrigger, action: FaultAction) -> Self {
        Self { trigger, skip_count: 0, is_repeated: false, action }
    }

    /// Creates a fault that drops the event.
    pub fn drop_event(trigger: FaultTrigger) -> Self {
        Self::new(trigger, FaultAction::Drop)
    }

    /// Creates a fault that duplicates the event.
    pub fn duplicate_event(trigger: FaultTrigger) -> Self {
        Self::new(trigger, FaultAction::Duplicate)
    }

    /// Creates a fault that delays the event, so that others overtake it.
    pub fn delay_event(trigger: FaultTrigger, delay: Duration) -> Self {
        Self::new(trigger, FaultAction::Delay(delay))
    }

    /// Creates a fault that sends another event first.
    pub fn insert_event(trigger: FaultTrigger, event: Value) -> Self {
        Self::new(trigger, FaultAction::Insert(event))
    }

    /// Creates a fault that answers the event with an error.
    pub fn reject_event(event: &str, code: &str) -> Self {
        let names = ErrorNames::EventId;
        Self::new(FaultTrigger::on_receive(event), FaultAction::Reject { code: code.to_owned(), names })
    }

    /// Creates a fault that answers the event with an error that does not name it.
    pub fn reject_anonymously(event: &str, code: &str) -> Self {
        let names = ErrorNames::Nothing;
        Self::new(FaultTrigger::on_receive(event), FaultAction::Reject { code: code.to_owned(), names })
    }

    /// Creates a fault that sends another event many times first.
    pub fn flood(trigger: FaultTrigger, event: Value, count: u32) -> Self {
        Self::new(trigger, FaultAction::Flood { event, count })
    }

    /// Creates a fault that ends the server's side of the connection without a close frame.
    pub fn half_close(trigger: FaultTrigger) -> Self {
        Self::new(trigger, FaultAction::HalfClose)
    }

    /// Creates a fault that drops the connection without a close frame.
    pub fn drop_connection(trigger: FaultTrigger) -> Self {
        Self::new(trigger, FaultAction::Disconnect)
    }

    /// Creates a fault that closes the connection with a code.
    pub fn close_connection(trigger: FaultTrigger, code: u16) -> Self {
        Self::new(trigger, FaultAction::Close(code))
    }

    /// Creates a fault after which nothing is sent any more.
    pub fn stop_sending(trigger: FaultTrigger) -> Self {
        Self::new(trigger, FaultAction::StopSending)
    }

    /// Sets the number of matching events to skip before the fault.
    #[must_use]
    pub fn after_occurrences(mut self, count: u32) -> Self {
        self.skip_count = count;
        self
    }

    /// Injects the fault at every occurrence of its trigger.
    #[must_use]
    pub fn repeated(mut self) -> Self {
        self.is_repeated = true;
        self
    }
}

impl FaultTrigger {
    /// Creates a trigger for an event that the server is about to send.
    pub fn on_send(event: &str) -> Self {
        Self::Sending(event.to_owned())
    }

    /// Creates a trigger for an event that the server received.
    pub fn on_receive(event: &str) -> Self {
        Self::Receiving(event.to_owned())
    }
}

/// Returns the fault that this event triggers, if any, and removes it unless it is repeated.
pub(super) fn take_due_fault(faults: &mut Vec<WireFault>, trigger: &FaultTrigger) -> Option<FaultAction> {
    let place = faults.iter().position(|fault| fault.trigger == *trigger)?;
    if faults[place].skip_count > 0 {
        faults[place].skip_count -= 1;
        return None;
    }
    match faults[place].is_repeated {
        true => Some(faults[place].action.clone()),
        false => Some(faults.remove(place).action),
    }
}
