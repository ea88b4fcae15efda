//! Live sessions: their journals in a folder, each as a conversation with its spoken and typed turns, calls and runs.
//!
//! The journal of a session has transcripts, and no sound: a session does not keep it. The lines are read as JSON, one entry
//! each, in the format of `windlass-realtime`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;
use windlass::core::id::AgentName;

use super::inbox::argument_table;
use super::markup::{duration, line, number, prose, query_text, time};
use crate::call_sheet::argument_texts;

/// Number of sessions in the list, the newest ones.
const SHOWN_SESSIONS: usize = 200;
/// Number of turns of a session on its page, the newest ones.
const SHOWN_TURNS: usize = 500;
/// Largest journal that is read.
const MAX_JOURNAL_BYTES: u64 = 64 << 20;

/// A live session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LiveSession {
    /// The agent that began.
    pub(super) agent: Option<AgentName>,
    turns: Vec<LiveTurn>,
    /// The runs that executed calls, by call.
    runs: BTreeMap<String, String>,
    outputs: BTreeMap<String, String>,
    is_closed: bool,
    requests: u64,
    tokens: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct LiveTurn {
    item: String,
    kind: TurnKind,
    is_interrupted: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum TurnKind {
    Message { who: String, parts: Vec<TurnPart> },
    Call { call: String, tool: String, arguments: String },
    AgentChange { agent: String },
}

/// A part of a message, as the journal has it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TurnPart {
    Text {
        text: String,
    },
    Audio {
        transcript: Option<String>,
        heard_ms: Option<u64>,
    },
    Image {},
    #[serde(other)]
    Unknown,
}

impl LiveSession {
    /// Reads the lines of a journal. A torn last line is left out.
    pub(super) fn read(text: &str) -> Self {
        let mut session = Self::default();
        for entry in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            session.add(&entry);
        }
        session
    }

    fn add(&mut self, entry: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match entry["type"].as_str() {
            Some("opened") => {
                self.agent.get_or_insert_with(|| AgentName::from(text(&entry["agent"])));
                self.is_closed = false;
            }
            Some("agent_changed") => {
                let kind = TurnKind::AgentChange { agent: text(&entry["agent"]) };
                self.turns.push(LiveTurn { item: String::new(), kind, is_interrupted: false });
            }
            Some("item_changed") => self.change_item(&entry["item"], entry["after"].as_str()),
            Some("item_removed") => {
                let removed = text(&entry["item"]);
                self.turns.retain(|turn| turn.item.is_empty() || turn.item != removed);
            }
            Some("calls_planned") => {
                for call in entry["calls"].as_array().into_iter().flatten() {
                    self.runs.insert(text(&call["kind"]["call"]), text(&entry["run"]));
                }
            }
            // A request inside a call has no agent here: the run of the call has its costs.
            Some("budget_spent") if entry["agent"].is_string() => {
                let count = |name: &str| entry["usage"][name].as_u64().unwrap_or(0);
                self.requests += 1;
                let tokens = count("input_tokens").saturating_add(count("output_tokens"));
                self.tokens = self.tokens.saturating_add(tokens);
            }
            Some("closed") => self.is_closed = true,
            _ => {}
        }
    }

    fn change_item(&mut self, item: &Value, after: Option<&str>) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (id, kind) = (text(&item["id"]), &item["kind"]);
        let kind = match kind["type"].as_str() {
            Some("message") => {
                let role = text(&kind["role"]);
                let who = if role == "assistant" {
                    item["agent"].as_str().unwrap_or("agent")
                } else {
                    role.as_str()
                };
                let parts = kind["parts"].as_array().into_iter().flatten();
                let parts = parts.filter_map(|part| serde_json::from_value(part.clone()).ok()).collect();
                TurnKind::Message { who: who.to_owned(), parts }
            }
            Some("call") => TurnKind::Call {
                call: text(&kind["call"]),
                tool: text(&kind["name"]),
                arguments: text(&kind["arguments"]),
            },
            Some("output") => {
                self.outputs.insert(text(&kind["call"]), text(&kind["text"]));
                return;
            }
            _ => return,
        };
        let turn = LiveTurn { item: id, kind, is_interrupted: item["status"] == "interrupted" };
        if let Some(known) = self.turns.iter_mut().find(|known| known.item == turn.item) {
            *known = turn;
            return;
        }
        let place = after.and_then(|after| self.turns.iter().position(|known| known.item == after));
        match place {
            Some(place) => self.turns.insert(place + 1, turn),
            None => self.turns.push(turn),
        }
    }
}

/// A session in the list.
pub(super) struct LiveEntry {
    pub(super) name: String,
    changed_at: u64,
    session: LiveSession,
}

/// Lists the sessions of a folder that a person may see, newest first.
pub(super) fn list_sessions(folder: &Path, may_view: impl Fn(&AgentName) -> bool) -> Vec<LiveEntry> {
    let files = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut files: Vec<(u64, String)> = files
        .filter_map(|file| {
            let name = file.file_name().to_str()?.strip_suffix(".jsonl")?.to_owned();
            let changed = file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            Some((u64::try_from(changed.as_millis()).ok()?, name))
        })
        .collect();
    files.sort_by(|one, other| other.cmp(one));
    let entries = files.into_iter().take(SHOWN_SESSIONS).filter_map(|(changed_at, name)| {
        let session = load_session(folder, &name)?;
        session.agent.as_ref().is_some_and(&may_view).then_some(LiveEntry { name, changed_at, session })
    });
    entries.collect()
}

/// Reads a session of a folder; `None` if there is none of this name.
pub(super) fn load_session(folder: &Path, name: &str) -> Option<LiveSession> {
    let is_name = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let path: PathBuf = folder.join(format!("{name}.jsonl"));
    let is_readable = is_name && std::fs::metadata(&path).is_ok_and(|data| data.len() <= MAX_JOURNAL_BYTES);
    is_readable.then(|| std::fs::read_to_string(path).ok().map(|text| LiveSession::read(&text)))?
}

/// Renders the list of sessions.
pub(super) fn sessions(entries: &[LiveEntry]) -> Markup {
    html! {
        div.head { h1 { "Live sessions" } a.button href="/runs" { "Runs" } }
        section.panel {
            @if entries.is_empty() { p.dim { "No session has a journal in the folder." } } @else {
                div.wide tabindex="0" role="region" aria-label="Live sessions" { table.list {
                    thead { tr { th scope="col" { "state" } th scope="col" { "session" } th scope="col" { "agent" } th scope="col" { "changed" } th.num scope="col" { "turns" } } }
                    tbody { @for entry in entries {
                        tr {
                            td { @if entry.session.is_closed { span.status.quiet { "ended" } } @else { span.status.active { "open" } } }
                            td { a.mono href={ "/live/" (query_text(&entry.name)) } { (line(&entry.name)) } }
                            td { (line(entry.session.agent.as_ref().map_or("", |agent| agent.as_str()))) }
                            td { (time(entry.changed_at)) }
                            td.num { (number(entry.session.turns.len() as u64)) }
                        }
                    } }
                } }
            }
        }
    }
}

/// Renders a session.
pub(super) fn session(name: &str, session: &LiveSession) -> Markup {
    let spoken = session.turns.iter().filter(|turn| turn.is_spoken()).count();
    let hidden = session.turns.len().saturating_sub(SHOWN_TURNS);
    html! {
        div.head.run-head {
            h1 { "Live session " span.mono { (line(name)) } }
            @if session.is_closed { span.status.quiet { "ended" } } @else { span.status.active { "open" } }
        }
        dl.facts {
            @if let Some(agent) = &session.agent { div { dt { "agent" } dd { (line(agent.as_str())) } } }
            div { dt { "turns" } dd { (number(session.turns.len() as u64)) } }
            div { dt { "spoken" } dd { (number(spoken as u64)) } }
            @if session.requests > 0 {
                div { dt { "responses" } dd { (number(session.requests)) } }
                div { dt { "tokens" } dd { (number(session.tokens)) } }
            }
        }
        section.panel aria-labelledby="h-talk" {
            h2 #h-talk { "Conversation" }
            @if hidden > 0 { p.dim { (number(hidden as u64)) " earlier turns are not on this page." } }
            div.talk { @for turn in &session.turns[hidden..] { (turn_block(turn, session)) } }
            p.dim { "Speech is shown by its transcript: a session keeps no sound." }
        }
    }
}

impl LiveTurn {
    fn is_spoken(&self) -> bool {
        match &self.kind {
            TurnKind::Message { parts, .. } => {
                parts.iter().any(|part| matches!(part, TurnPart::Audio { .. }))
            }
            TurnKind::Call { .. } | TurnKind::AgentChange { .. } => false,
        }
    }
}

fn turn_block(turn: &LiveTurn, session: &LiveSession) -> Markup {
    match &turn.kind {
        TurnKind::AgentChange { agent } => html! { p.line { "control passes to " b { (line(agent)) } } },
        TurnKind::Message { who, parts } => html! {
            div.msg.user[who == "user"] {
                div.who { (line(who))
                    @if turn.is_spoken() { " " span.tag { "spoken" } }
                    @if turn.is_interrupted { " " span.tag.warn { "interrupted" } } }
                div.text { @for part in parts { (part_text(part)) } }
            }
        },
        TurnKind::Call { call, tool, arguments } => html! {
            details.call.good[session.outputs.contains_key(call)] {
                summary { span.tool { (line(tool)) } span.brief { (line(arguments)) } }
                h3 { "Arguments" }
                (argument_table(&argument_texts(arguments)))
                @if let Some(output) = session.outputs.get(call) { h3 { "Output" } div.text.out { (prose(output)) } }
                @if let Some(run) = session.runs.get(call) { p { "Executed by run " a.mono href={ "/runs/" (query_text(run)) } { (line(run)) } } }
            }
        },
    }
}

fn part_text(part: &TurnPart) -> Markup {
    match part {
        TurnPart::Text { text } => prose(text),
        TurnPart::Audio { transcript, heard_ms } => html! {
            @match transcript { Some(text) => (prose(text)), None => span.dim { "[speech without a transcript]" } }
            @if let Some(heard) = heard_ms { span.dim { " (heard for " (duration(*heard)) ")" } }
        },
        TurnPart::Image {} => html! { span.dim { "[picture]" } },
        TurnPart::Unknown => html! { span.dim { "[a part of an unknown type]" } },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOURNAL: &str = r#"{"type":"opened","format":2,"agent":"desk"}
{"type":"item_changed","item":{"id":"i1","kind":{"type":"message","role":"user","parts":[{"type":"audio","transcript":"Pay <b>Ropeworks</b>"}]}},"after":null}
{"type":"item_changed","item":{"id":"i2","kind":{"type":"call","call":"c1","name":"pay","arguments":"{\"euros\":480}"},"agent":"desk"},"after":"i1"}
{"type":"calls_planned","run":"talk-1","response":"r1","agent":"desk","calls":[{"id":"i2","kind":{"type":"call","call":"c1","name":"pay","arguments":"{}"}}]}
{"type":"item_changed","item":{"id":"i3","kind":{"type":"output","call":"c1","text":"paid"}},"after":"i2"}
{"type":"item_changed","item":{"id":"i4","kind":{"type":"message","role":"assistant","parts":[{"type":"audio","transcript":"It is","heard_ms":1200}]},"status":"interrupted","agent":"desk"},"after":"i3"}
{"type":"budget_spent","request":"r1","agent":"desk","usage":{"requests":1,"input_tokens":7,"output_tokens":5},"active_ms":900}
{"type":"item_ch"#;

    #[test]
    fn spoken_turns_calls_and_interruptions_are_shown() {
        let read = LiveSession::read(JOURNAL);
        assert_eq!(read.agent, Some(AgentName::from("desk")));
        let shown = session("talk", &read).into_string();
        for part in [
            "Pay &lt;b&gt;Ropeworks&lt;/b&gt;",
            "<span class=\"tag\">spoken</span>",
            "<span class=\"tag warn\">interrupted</span>",
            "heard for 1.2 s",
            "href=\"/runs/talk-1\"",
            "paid",
            "<dd>12</dd>",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
    }

    #[test]
    fn a_name_leads_to_no_file_outside_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("secret.jsonl"), JOURNAL).expect("is written");
        let inner = folder.path().join("live");
        std::fs::create_dir(&inner).expect("is made");
        std::fs::write(inner.join("talk.jsonl"), JOURNAL).expect("is written");
        assert!(load_session(&inner, "talk").is_some());
        for name in ["../secret", "..%2fsecret", "", "talk.jsonl", "/etc/passwd"] {
            assert_eq!(load_session(&inner, name), None, "{name}");
        }
        assert_eq!(list_sessions(&inner, |_| true).len(), 1);
        assert_eq!(list_sessions(&inner, |agent| agent.as_str() == "other").len(), 0);
    }
}
