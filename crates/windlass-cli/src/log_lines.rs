//! The log of the libraries on standard error: warnings and errors, one line each.
//!
//! Invariant: text from elsewhere is escaped, so that no client of a server writes a line of its own.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use windlass_text::SafeText;

use crate::terminal::Terminal;

/// Prints warnings and errors of the libraries from now on.
pub(crate) fn print_warnings(term: &Terminal) {
    // An error means that the process has a log already.
    let _ = tracing::subscriber::set_global_default(WarningPrinter { term: term.clone() });
}

struct WarningPrinter {
    term: Terminal,
}

impl Subscriber for WarningPrinter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are not enabled, and their ids are not looked at.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = LogFields::default();
        event.record(&mut fields);
        let level = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        let line = format!("{level}: {}{}", fields.message, fields.others);
        self.term.eprint_line(SafeText::from_line(&line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event, and its other fields.
#[derive(Default)]
struct LogFields {
    message: String,
    others: String,
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a text does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }
}
