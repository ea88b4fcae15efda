//! Structured output while it is streamed.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::OutputType;
use crate::event::{RunEvent, RunEventKind};

/// The structured output of a run as far as it has arrived, for display. It is not validated: fields may be missing, and
/// texts and lists may still grow. Numbers, `true`, `false` and `null` appear when they are complete.
#[derive(Clone, Debug)]
pub struct PartialOutput {
    output_type: OutputType,
    text: PartialJson,
    /// True if the model's response is complete or was abandoned, so that the next delta begins another.
    has_ended: bool,
}

impl PartialOutput {
    /// Creates the collector of an output of type `T`.
    pub fn of<T: DeserializeOwned + JsonSchema>() -> Self {
        Self { output_type: OutputType::of::<T>(), text: PartialJson::default(), has_ended: false }
    }

    /// Takes in an event of the run. Returns true if the output has grown. Events of nested agents are ignored, and an
    /// attempt that is retried begins anew.
    pub fn observe(&mut self, event: &RunEvent) -> bool {
        if !event.path.is_empty() {
            return false;
        }
        match &event.kind {
            RunEventKind::TextDelta { delta } => {
                if std::mem::take(&mut self.has_ended) {
                    self.text = PartialJson::default();
                }
                self.text.push(delta);
                true
            }
            RunEventKind::ModelResponded(_)
            | RunEventKind::ModelRetryScheduled { .. }
            | RunEventKind::DeltasDiscarded
            | RunEventKind::AgentUpdated { .. } => {
                self.has_ended = true;
                false
            }
            _ => false,
        }
    }

    /// Returns the output as far as it is known, or `None` if it has not begun or is not JSON.
    pub fn value(&self) -> Option<Value> {
        let value = self.text.value()?;
        if self.output_type.is_wrapped() { OutputType::unwrap_value(value) } else { Some(value) }
    }
}

/// The position of the scanner in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenContainer {
    Array,
    /// An object before or inside a key, or before its colon.
    ObjectKey,
    /// An object after a colon.
    ObjectValue,
}

/// JSON text that is not complete. Each byte is scanned once.
#[derive(Clone, Debug, Default)]
struct PartialJson {
    text: String,
    open: Vec<OpenContainer>,
    /// Length of the text that is valid when the open containers are closed after it.
    closable_len: usize,
    string: Option<OpenString>,
    is_in_scalar: bool,
}

/// A string that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenString {
    /// Length of the text up to the last whole character of the string.
    whole_len: usize,
    escape: EscapeProgress,
}

/// The position in an escape sequence of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EscapeProgress {
    Outside,
    AfterBackslash,
    /// The digits of `\u` so far, and their number.
    Unicode(u32, u8),
    /// After a first surrogate: a second one follows.
    AfterFirstSurrogate,
    SecondBackslash,
    SecondUnicode(u8),
}

impl PartialJson {
    fn push(&mut self, delta: &str) {
        let start = self.text.len();
        self.text.push_str(delta);
        for (offset, byte) in delta.bytes().enumerate() {
            self.scan_byte(byte, start + offset);
        }
    }

    fn scan_byte(&mut self, byte: u8, at: usize) {
        if let Some(mut string) = self.string {
            let is_end = string.advance(byte, at);
            self.string = if is_end { None } else { Some(string) };
            if is_end && self.open.last() != Some(&OpenContainer::ObjectKey) {
                self.closable_len = at + 1;
            }
            return;
        }
        let is_delimiter = matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
        if self.is_in_scalar && is_delimiter {
            (self.is_in_scalar, self.closable_len) = (false, at);
        }
        match byte {
            b'"' => {
                self.string = Some(OpenString { whole_len: at + 1, escape: EscapeProgress::Outside });
            }
            b'{' | b'[' => {
                let opened = if byte == b'{' { OpenContainer::ObjectKey } else { OpenContainer::Array };
                self.open.push(opened);
                self.closable_len = at + 1;
            }
            b'}' | b']' => {
                self.open.pop();
                self.closable_len = at + 1;
            }
            b':' => self.replace_top(OpenContainer::ObjectKey, OpenContainer::ObjectValue),
            b',' => self.replace_top(OpenContainer::ObjectValue, OpenContainer::ObjectKey),
            _ if is_delimiter => {}
            _ => self.is_in_scalar = true,
        }
    }

    fn replace_top(&mut self, from: OpenContainer, to: OpenContainer) {
        if let Some(top) = self.open.last_mut()
            && *top == from
        {
            *top = to;
        }
    }

    fn value(&self) -> Option<Value> {
        if self.closable_len == 0 {
            return None;
        }
        let is_value_string = self.open.last() != Some(&OpenContainer::ObjectKey);
        let mut closed = match &self.string {
            Some(string) if is_value_string => format!("{}\"", self.text.get(..string.whole_len)?),
            _ => self.text.get(..self.closable_len)?.to_owned(),
        };
        for container in self.open.iter().rev() {
            closed.push(if *container == OpenContainer::Array { ']' } else { '}' });
        }
        serde_json::from_str(&closed).ok()
    }
}

impl OpenString {
    /// Takes in a byte. Returns true at the end of the string.
    fn advance(&mut self, byte: u8, at: usize) -> bool {
        use EscapeProgress::{
            AfterBackslash, AfterFirstSurrogate, Outside, SecondBackslash, SecondUnicode, Unicode,
        };
        self.escape = match (self.escape, byte) {
            (Outside, b'"') => return true,
            (Outside, b'\\') => AfterBackslash,
            (AfterBackslash, b'u') => Unicode(0, 0),
            (Unicode(value, 3), digit) => {
                let value = value * 16 + hex_value(digit);
                if (0xd800..0xdc00).contains(&value) { AfterFirstSurrogate } else { Outside }
            }
            (Unicode(value, digits), digit) => Unicode(value * 16 + hex_value(digit), digits + 1),
            (AfterFirstSurrogate, b'\\') => SecondBackslash,
            (SecondBackslash, b'u') => SecondUnicode(0),
            (SecondUnicode(digits), _) if digits < 3 => SecondUnicode(digits + 1),
            // A surrogate without its second half is an error of the text, which the parser finds.
            (AfterFirstSurrogate, b'"') => return true,
            (Outside | AfterBackslash | AfterFirstSurrogate | SecondBackslash | SecondUnicode(_), _) => {
                Outside
            }
        };
        // Bytes of a character arrive together, because deltas are text.
        if self.escape == Outside {
            self.whole_len = at + 1;
        }
        false
    }
}

fn hex_value(digit: u8) -> u32 {
    char::from(digit).to_digit(16).unwrap_or(0)
}

#[cfg(test)]
#[path = "partial_output_tests.rs"]
mod tests;
