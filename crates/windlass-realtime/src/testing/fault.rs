//! How the server misbehaves, as it is told.

use std::time::Duration;

use serde_json::Value;

/// A misbehaviour, once.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// When.
    pub when: Moment,
    /// How many times the moment passes before it happens.
    pub skip: u32,
    /// What.
    pub(super) what: Misbehaviour,
}

/// When a fault happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When the server is about to send an event of this type.
    Sending(String),
    /// When the server got an event of this type.
    Receiving(String),
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Misbehaviour {
    /// The event is not sent, or not looked at.
    Drop,
    /// The event is sent, or looked at, twice.
    Repeat,
    /// The event comes so much later, after others.
    Delay(Duration),
    /// Something else is said before it.
    Insert(Value),
    /// The event is answered with an error.
    Refuse { code: String },
    /// The connection is gone, without a word.
    Vanish,
    /// The connection is closed with a code.
    Close(u16),
    /// Nothing is sent any more, and the connection stays.
    FallSilent,
}

impl Fault {
    fn new(when: Moment, what: Misbehaviour) -> Self {
        Self { when, skip: 0, what }
    }

    /// The event is dropped.
    pub fn drop_event(when: Moment) -> Self {
        Self::new(when, Misbehaviour::Drop)
    }

    /// The event happens twice.
    pub fn repeat(when: Moment) -> Self {
        Self::new(when, Misbehaviour::Repeat)
    }

    /// The event comes later, after others.
    pub fn delay(when: Moment, by: Duration) -> Self {
        Self::new(when, Misbehaviour::Delay(by))
    }

    /// Something else is said first.
    pub fn insert(when: Moment, event: Value) -> Self {
        Self::new(when, Misbehaviour::Insert(event))
    }

    /// The event is answered with an error.
    pub fn refuse(event: &str, code: &str) -> Self {
        Self::new(Moment::receiving(event), Misbehaviour::Refuse { code: code.to_owned() })
    }

    /// The connection is gone, without a word.
    pub fn vanish(when: Moment) -> Self {
        Self::new(when, Misbehaviour::Vanish)
    }

    /// The connection is closed with a code.
    pub fn close(when: Moment, code: u16) -> Self {
        Self::new(when, Misbehaviour::Close(code))
    }

    /// Nothing is sent any more.
    pub fn fall_silent(when: Moment) -> Self {
        Self::new(when, Misbehaviour::FallSilent)
    }

    /// It happens only after the moment has passed so many times.
    #[must_use]
    pub fn after(mut self, times: u32) -> Self {
        self.skip = times;
        self
    }
}

impl Moment {
    /// When the server is about to send an event of this type.
    pub fn sending(event: &str) -> Self {
        Self::Sending(event.to_owned())
    }

    /// When the server got an event of this type.
    pub fn receiving(event: &str) -> Self {
        Self::Receiving(event.to_owned())
    }
}

/// The fault whose moment has come, taken out of the list.
pub(super) fn due(faults: &mut Vec<Fault>, moment: &Moment) -> Option<Misbehaviour> {
    let place = faults.iter().position(|fault| fault.when == *moment)?;
    if faults[place].skip > 0 {
        faults[place].skip -= 1;
        return None;
    }
    Some(faults.remove(place).what)
}
