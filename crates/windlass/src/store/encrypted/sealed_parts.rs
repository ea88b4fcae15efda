//! The sealed forms of lines, items, outputs, decisions and submissions.
//!
//! A sealed line keeps what a store itself must read: its time, the session and history reference of the first record, the
//! end of the run, and the names of media, which a store looks for before it deletes them.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use windlass_core::{
    canonical::Digest,
    decision::Decision,
    id::RunId,
    item::{Item, OpaqueItem, OutputContent},
    journal::{JournalLine, stored_media_urls},
};

use super::seal::EncryptionKeys;
use crate::error::{StoreError, StoreErrorKind};
use crate::fleet::{QueueOrder, RunSubmission};
use crate::store::PostedDecision;
use crate::store::query::{StartSession, end_of_run, session_of_first_line};

/// Kind of an item that is sealed.
const SEALED_KIND: &str = "windlass_sealed";

fn corrupt(what: &str) -> StoreError {
    StoreError::with_kind(StoreErrorKind::Corrupt, format!("{what} cannot be read after it was decrypted"))
}

fn to_text(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::new("a value cannot be written").with_source(error))
}

fn from_text<T: DeserializeOwned>(text: &str, what: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| corrupt(what))
}

/// Returns the references to stored media in the JSON text of a record or an item: a slash and the name. Nothing else
/// that looks like a name leaves the seal.
fn media_references(text: &str) -> Vec<String> {
    let urls = stored_media_urls(text);
    let names = urls.iter().filter_map(|url| url.rsplit_once('/')).map(|(_, name)| name);
    let names = names.filter(|name| name.parse::<Digest>().is_ok());
    let mut found: Vec<String> = names.map(|name| format!("/{name}")).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn line_place(run: &RunId, seq: u64) -> String {
    format!("line {seq} of {run}")
}

pub(super) fn seal_lines(
    keys: &EncryptionKeys,
    run: &RunId,
    at: u64,
    lines: Vec<JournalLine>,
) -> Result<Vec<JournalLine>, StoreError> {
    (at..).zip(lines).map(|(seq, line)| seal_line(keys, run, seq, line)).collect()
}

fn seal_line(
    keys: &EncryptionKeys,
    run: &RunId,
    seq: u64,
    line: JournalLine,
) -> Result<JournalLine, StoreError> {
    let time = line.body.strip_prefix("{\"at\":").and_then(|rest| rest.split_once(',')).map(|(at, _)| at);
    let time = time.filter(|at| at.bytes().all(|one| one.is_ascii_digit())).unwrap_or("0");
    // The order of the fields matters to readers, so the text is put together by hand.
    let mut body = format!("{{\"at\":{time}");
    if let Some((status, _)) = end_of_run(std::slice::from_ref(&line)) {
        let name = serde_json::to_value(status).ok().and_then(|name| Some(name.as_str()?.to_owned()));
        body.push_str(&format!(",\"run_{}\":{{}}", name.unwrap_or_default()));
    }
    if let Some(StartSession { session, history }) =
        Some(seq).filter(|seq| *seq == 0).and_then(|_| session_of_first_line(&line))
    {
        let mut started = Map::new();
        started.insert("session".to_owned(), json!(session));
        if let Some(history) = history {
            started.insert("history".to_owned(), json!(history));
        }
        body.push_str(&format!(",\"run_started\":{}", Value::Object(started)));
    }
    let media = media_references(&line.body);
    if !media.is_empty() {
        body.push_str(&format!(",\"media\":{}", json!(media)));
    }
    let sealed = keys.seal_text(&line_place(run, seq), &line.body)?;
    body.push_str(&format!(",\"sealed\":{}}}", json!(sealed)));
    Ok(JournalLine { hash: line.hash, body })
}

pub(super) fn open_lines(
    keys: &EncryptionKeys,
    run: &RunId,
    from: u64,
    lines: Vec<JournalLine>,
) -> Result<Vec<JournalLine>, StoreError> {
    (from..).zip(lines).map(|(seq, line)| open_line(keys, run, seq, line)).collect()
}

fn open_line(
    keys: &EncryptionKeys,
    run: &RunId,
    seq: u64,
    line: JournalLine,
) -> Result<JournalLine, StoreError> {
    #[derive(serde::Deserialize)]
    struct SealedLine {
        sealed: String,
    }
    // A record has no such field at this depth, so a line without it was written before the store was encrypted.
    match serde_json::from_str::<SealedLine>(&line.body) {
        Ok(SealedLine { sealed }) => {
            Ok(JournalLine { hash: line.hash, body: keys.open_text(&line_place(run, seq), sealed)? })
        }
        Err(_) => Ok(line),
    }
}

/// Seals an item. `place` is the session or the run that has it.
fn seal_item(keys: &EncryptionKeys, place: &str, item: &Item) -> Result<Arc<Item>, StoreError> {
    let text = to_text(item)?;
    let sealed = keys.seal_text(place, &text)?;
    let media = media_references(&text);
    let raw = if media.is_empty() {
        json!({ "sealed": sealed })
    } else {
        json!({ "sealed": sealed, "media": media })
    };
    Ok(Arc::new(Item::Unknown(OpaqueItem::new(SEALED_KIND, raw))))
}

pub(super) fn seal_items(
    keys: &EncryptionKeys,
    place: &str,
    items: &[Arc<Item>],
) -> Result<Vec<Arc<Item>>, StoreError> {
    items.iter().map(|item| seal_item(keys, place, item)).collect()
}

pub(super) fn open_items(
    keys: &EncryptionKeys,
    place: &str,
    items: Vec<Arc<Item>>,
) -> Result<Vec<Arc<Item>>, StoreError> {
    let open = |item: Arc<Item>| -> Result<Arc<Item>, StoreError> {
        match &*item {
            Item::Unknown(sealed) if sealed.kind == SEALED_KIND => {
                let text = sealed.raw["sealed"].as_str().ok_or_else(|| corrupt("an item"))?;
                Ok(Arc::new(from_text(&keys.open_text(place, text.to_owned())?, "an item")?))
            }
            _ => Ok(item),
        }
    };
    items.into_iter().map(open).collect()
}

pub(super) fn seal_output(
    keys: &EncryptionKeys,
    place: &str,
    output: &OutputContent,
) -> Result<OutputContent, StoreError> {
    Ok(OutputContent::Text(keys.seal_text(place, &to_text(output)?)?))
}

pub(super) fn open_output(
    keys: &EncryptionKeys,
    place: &str,
    output: OutputContent,
) -> Result<OutputContent, StoreError> {
    match output {
        OutputContent::Text(text) => {
            let opened = keys.open_text(place, text.clone())?;
            // A text without a seal was written before the store was encrypted.
            if opened == text { Ok(OutputContent::Text(text)) } else { from_text(&opened, "an output") }
        }
        parts @ OutputContent::Parts(_) => Ok(parts),
    }
}

fn decision_place(run: &RunId, posted: &PostedDecision) -> String {
    format!("decision about {} attempt {} of {run}", posted.path, posted.attempt)
}

pub(super) fn seal_decision(
    keys: &EncryptionKeys,
    run: &RunId,
    mut posted: PostedDecision,
) -> Result<PostedDecision, StoreError> {
    let place = decision_place(run, &posted);
    match &mut posted.decision.decision {
        Decision::ApproveEdited { arguments } => *arguments = keys.seal_text(&place, arguments)?,
        Decision::Reject { message: Some(message) } => *message = keys.seal_text(&place, message)?,
        Decision::ConfirmExecuted { output } => *output = seal_output(keys, &place, output)?,
        Decision::Answer { value } => *value = Value::String(keys.seal_text(&place, &to_text(&*value)?)?),
        Decision::Approve
        | Decision::Reject { message: None }
        | Decision::ConfirmNotExecuted
        | Decision::OutcomeUnknown => {}
    }
    Ok(posted)
}

pub(super) fn open_decision(
    keys: &EncryptionKeys,
    run: &RunId,
    mut posted: PostedDecision,
) -> Result<PostedDecision, StoreError> {
    let place = decision_place(run, &posted);
    match &mut posted.decision.decision {
        Decision::ApproveEdited { arguments: text } | Decision::Reject { message: Some(text) } => {
            *text = keys.open_text(&place, std::mem::take(text))?;
        }
        Decision::ConfirmExecuted { output } => *output = open_output(keys, &place, output.clone())?,
        Decision::Answer { value } => {
            if let Value::String(text) = value {
                let opened = keys.open_text(&place, text.clone())?;
                if opened != *text {
                    *value = from_text(&opened, "an answer")?;
                }
            }
        }
        Decision::Approve
        | Decision::Reject { message: None }
        | Decision::ConfirmNotExecuted
        | Decision::OutcomeUnknown => {}
    }
    Ok(posted)
}

/// Returns true if a sealed decision opens as the one that is posted.
pub(super) fn is_same_opened(
    keys: &EncryptionKeys,
    run: &RunId,
    sealed: &PostedDecision,
    posted: &PostedDecision,
) -> bool {
    let opened = open_decision(keys, run, sealed.clone());
    opened.is_ok_and(|opened| opened.decision.decision == posted.decision.decision)
}

fn submission_place(run: &RunId) -> String {
    format!("input of {run}")
}

pub(super) fn seal_submission(
    keys: &EncryptionKeys,
    submission: &RunSubmission,
) -> Result<RunSubmission, StoreError> {
    let input = seal_items(keys, &submission_place(&submission.run), &submission.input)?;
    Ok(RunSubmission { input, ..submission.clone() })
}

pub(super) fn open_submission(
    keys: &EncryptionKeys,
    submission: RunSubmission,
) -> Result<RunSubmission, StoreError> {
    let place = submission_place(&submission.run);
    Ok(RunSubmission { input: open_items(keys, &place, submission.input.clone())?, ..submission })
}

pub(super) fn seal_order(
    keys: &EncryptionKeys,
    run: &RunId,
    order: &QueueOrder,
) -> Result<QueueOrder, StoreError> {
    match order {
        QueueOrder::AddInput { items } => {
            Ok(QueueOrder::AddInput { items: seal_items(keys, &submission_place(run), items)? })
        }
        QueueOrder::Cancel | QueueOrder::HandOver => Ok(order.clone()),
    }
}

pub(super) fn open_order(
    keys: &EncryptionKeys,
    run: &RunId,
    order: QueueOrder,
) -> Result<QueueOrder, StoreError> {
    match order {
        QueueOrder::AddInput { items } => {
            Ok(QueueOrder::AddInput { items: open_items(keys, &submission_place(run), items)? })
        }
        QueueOrder::Cancel | QueueOrder::HandOver => Ok(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_references_to_media_leave_the_seal() {
        let digest = Digest::of_text("a picture").to_string();
        let shown = json!({ "type": "image", "url": format!("artefact:a \"run/{digest}") });
        assert_eq!(media_references(&shown.to_string()), [format!("/{digest}")]);
        let linked = json!({ "url": format!("https://host/reset/{digest}"), "path": format!("a/{digest}") });
        assert_eq!(media_references(&linked.to_string()), [""; 0]);
        let said = json!({ "text": shown.to_string() });
        assert_eq!(media_references(&said.to_string()), [""; 0]);
        let long = json!({ "url": "artefact:run/call-1" });
        assert_eq!(media_references(&long.to_string()), [""; 0]);
    }
}
