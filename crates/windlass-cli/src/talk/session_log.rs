//! The events of a voice conversation, line by line in the terminal.

use serde_json::json;
use windlass::core::item::Role;
use windlass_realtime::{
    AfterDisconnect, HistoryChange, RealtimeEvent, RealtimeEvents, RealtimeItem, RealtimeItemKind,
    RealtimeItemStatus,
};
use windlass_text::SafeText;

use crate::run_driver::pending_line;
use crate::terminal::{OutputFormat, Terminal, TextStyle, paint, styled};

/// Width of a summary of a call.
const SUMMARY_WIDTH: usize = 100;

/// The log of one conversation.
pub(crate) struct SessionLog {
    term: Terminal,
    /// The last item that was printed. Providers repeat completed items.
    printed: Option<(String, String)>,
}

impl SessionLog {
    pub(crate) fn new(term: &Terminal) -> Self {
        Self { term: term.clone(), printed: None }
    }

    /// Logs the events until the session ends.
    pub(crate) async fn follow(mut self, mut events: RealtimeEvents) {
        while let Some(event) = events.next().await {
            self.log_event(event);
        }
    }

    fn log_event(&mut self, event: RealtimeEvent) {
        match event {
            RealtimeEvent::HistoryChanged(
                HistoryChange::Added { item, .. } | HistoryChange::Updated(item),
            ) => {
                self.log_item(&item);
            }
            RealtimeEvent::CallHeld { run, pending } => match self.term.output_format() {
                OutputFormat::Json => self.term.print_json(&json!({
                    "type": "call_held", "run": run, "call": pending.path.to_string(),
                    "tool": pending.tool.to_string(), "arguments": pending.arguments,
                })),
                OutputFormat::Text => {
                    let summary = pending_line(&pending, SUMMARY_WIDTH);
                    self.term.eprint_line(styled![paint(TextStyle::Waiting, "?"), " ", &summary]);
                    self.term.eprint_hint(format!(
                        "decide it on the page, or with `{} approve {run} {}`",
                        self.term.command_prefix(),
                        pending.path
                    ));
                }
            },
            RealtimeEvent::CallSettled { call, status, .. } => {
                let status = serde_json::to_value(status).unwrap_or_default();
                let text = format!("{call} {}", status.as_str().unwrap_or_default());
                self.log_line("call_settled", TextStyle::Success, "✓", &text);
            }
            RealtimeEvent::Disconnected { reason, next_step } => {
                let next = match next_step {
                    AfterDisconnect::Reconnects => "reconnecting",
                    _ => "the conversation ends",
                };
                self.log_line("disconnected", TextStyle::Failure, "!", &format!("{reason}; {next}"));
            }
            RealtimeEvent::Reconnected { .. } => {
                self.log_line("reconnected", TextStyle::Success, "✓", "reconnected");
            }
            RealtimeEvent::Error(error) => {
                self.log_line("error_event", TextStyle::Failure, "!", &error.to_string());
            }
            _ => {}
        }
    }

    fn log_item(&mut self, item: &RealtimeItem) {
        let RealtimeItemKind::Message { role, .. } = &item.kind else { return };
        let key = (item.id.to_string(), item.text());
        if item.status == RealtimeItemStatus::InProgress
            || key.1.is_empty()
            || self.printed.as_ref() == Some(&key)
        {
            return;
        }
        let (role, mark) = match role {
            Role::User => ("user", "›"),
            Role::Assistant => ("assistant", "‹"),
            Role::System => return,
        };
        match self.term.output_format() {
            OutputFormat::Json => {
                self.term.print_json(&json!({ "type": "item", "role": role, "text": key.1 }))
            }
            OutputFormat::Text => {
                self.term.eprint_line(styled![
                    paint(TextStyle::Hint, mark),
                    " ",
                    SafeText::from_words(&key.1)
                ]);
            }
        }
        self.printed = Some(key);
    }

    fn log_line(&self, kind: &str, style: TextStyle, mark: &str, text: &str) {
        match self.term.output_format() {
            OutputFormat::Json => self.term.print_json(&json!({ "type": kind, "message": text })),
            OutputFormat::Text => {
                self.term.eprint_line(styled![paint(style, mark), " ", SafeText::from_words(text)]);
            }
        }
    }
}
