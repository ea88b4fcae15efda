//! The JSON form of a record in a line: `{"at": …, "path": […], "call_settled": {…}}`.
//!
//! The name of the event is the key of its fields. The sequence number is not in it: it is the position of the line.

use std::fmt;

use serde::de::{self, Deserializer, IgnoredAny, MapAccess};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::{JournalEntry, JournalRecord};
use crate::id::{CallId, Timestamp};

/// A record that is written into a line.
pub(super) struct RecordBody<'a>(pub(super) &'a JournalRecord);

/// A record that was read from a line.
pub(super) struct ParsedBody {
    at: Timestamp,
    path: Vec<CallId>,
    entry: JournalEntry,
}

impl ParsedBody {
    /// Returns the record at its position in the journal.
    pub(super) fn into_record(self, seq: u64) -> JournalRecord {
        let Self { at, path, entry } = self;
        JournalRecord { seq, at, path, entry }
    }
}

/// The fields of an event that has none.
#[derive(Serialize, Deserialize)]
struct NoFields {}

macro_rules! entries {
    ($($name:literal => $variant:ident,)+) => {
        /// The names of all events.
        const ENTRY_NAMES: &[&str] = &[$($name,)+ "turn_continued"];

        impl Serialize for RecordBody<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let JournalRecord { seq: _, at, path, entry } = self.0;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("at", at)?;
                if !path.is_empty() {
                    map.serialize_entry("path", path)?;
                }
                match entry {
                    $(JournalEntry::$variant(fields) => map.serialize_entry($name, fields)?,)+
                    JournalEntry::TurnContinued => map.serialize_entry("turn_continued", &NoFields {})?,
                }
                map.end()
            }
        }

        fn read_entry<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<JournalEntry, A::Error> {
            match name {
                $($name => map.next_value().map(JournalEntry::$variant),)+
                _ => map.next_value::<NoFields>().map(|_| JournalEntry::TurnContinued),
            }
        }
    };
}

entries! {
    "run_started" => RunStarted,
    "model_responded" => ModelResponded,
    "response_rejected" => ResponseRejected,
    "model_request_failed" => ModelRequestFailed,
    "model_input_filtered" => ModelInputFiltered,
    "history_compacted" => HistoryCompacted,
    "budget_reserved" => BudgetReserved,
    "budget_reached" => BudgetReached,
    "call_held" => CallHeld,
    "decision_recorded" => DecisionRecorded,
    "decision_revoked" => DecisionRevoked,
    "call_started" => CallStarted,
    "call_body_ended" => CallBodyEnded,
    "call_settled" => CallSettled,
    "call_ended_late" => CallEndedLate,
    "handoff_recorded" => HandoffRecorded,
    "output_rejected" => OutputRejected,
    "input_added" => InputAdded,
    "run_restored" => RunRestored,
    "run_finished" => RunFinished,
    "run_failed" => RunFailed,
    "run_cancelled" => RunCancelled,
}

/// A key of a record.
enum BodyKey {
    At,
    Path,
    Entry(&'static str),
    Unknown(String),
}

impl<'de> Deserialize<'de> for BodyKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl de::Visitor<'_> for KeyVisitor {
            type Value = BodyKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<BodyKey, E> {
                Ok(match text {
                    "at" => BodyKey::At,
                    "path" => BodyKey::Path,
                    _ => match ENTRY_NAMES.iter().find(|name| **name == text) {
                        Some(name) => BodyKey::Entry(name),
                        None => BodyKey::Unknown(text.to_owned()),
                    },
                })
            }
        }
        deserializer.deserialize_identifier(KeyVisitor)
    }
}

impl<'de> Deserialize<'de> for ParsedBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BodyVisitor)
    }
}

struct BodyVisitor;

impl<'de> de::Visitor<'de> for BodyVisitor {
    type Value = ParsedBody;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParsedBody, A::Error> {
        use de::Error;
        let (mut at, mut path, mut entry, mut unknown) = (None, Vec::new(), None, None);
        while let Some(key) = map.next_key()? {
            match key {
                BodyKey::At => at = Some(map.next_value()?),
                BodyKey::Path => path = map.next_value()?,
                BodyKey::Entry(name) if entry.is_none() => entry = Some(read_entry(name, &mut map)?),
                BodyKey::Entry(name) => return Err(A::Error::custom(format!("`{name}` is a second event"))),
                BodyKey::Unknown(name) => {
                    map.next_value::<IgnoredAny>()?;
                    unknown = Some(name);
                }
            }
        }
        let at = at.ok_or_else(|| A::Error::missing_field("at"))?;
        let entry = entry.ok_or_else(|| match &unknown {
            Some(name) => A::Error::unknown_variant(name, ENTRY_NAMES),
            None => A::Error::custom("the record has no event"),
        })?;
        Ok(ParsedBody { at, path, entry })
    }
}
