//! The recording of a run: its screenshots, frame by frame, as one HTML page.

use std::fmt::Write;

use windlass::artefact::fetch_media;
use windlass::core::{
    id::{CallId, Timestamp},
    item::{ContentPart, Item, MediaSource, OutputContent},
    journal::{JournalEntry, JournalRecord},
};
use windlass::error::StoreError;
use windlass::store::Store;

use crate::action::ComputerCall;
use crate::computer::Screenshot;

/// One tool call of a run with the screenshot that followed it.
#[derive(Clone, Debug)]
pub struct RecordingFrame {
    /// Id of the call.
    pub call: CallId,
    /// Time at which the call settled.
    pub settled_at: Timestamp,
    /// Descriptions of the actions, one line each.
    pub actions: Vec<String>,
    /// Text of the output beside the screenshot.
    pub output_text: String,
    /// The screenshot; absent if the store no longer has it.
    pub screenshot: Option<Screenshot>,
}

/// The calls of a run whose outputs have screenshots, in the order in which they settled.
#[derive(Clone, Debug, Default)]
pub struct ScreenRecording {
    /// The frames, one per call.
    pub frames: Vec<RecordingFrame>,
}

impl ScreenRecording {
    /// Builds the recording of a run from its journal. Screenshots that the journal only references are
    /// loaded from `store`.
    pub async fn from_journal(
        records: &[JournalRecord],
        store: Option<&dyn Store>,
    ) -> Result<Self, StoreError> {
        let mut frames = Vec::new();
        for record in records {
            let JournalEntry::CallSettled(settled) = &record.entry else { continue };
            let OutputContent::Parts(parts) = &settled.output else { continue };
            let Some(media) = parts.iter().find_map(image_of) else { continue };
            frames.push(RecordingFrame {
                call: settled.call.clone(),
                settled_at: record.at,
                actions: describe_actions(records, &settled.call),
                output_text: settled.output.text().into_owned(),
                screenshot: load_image(media, store).await?.map(Screenshot::from_base64),
            });
        }
        Ok(Self { frames })
    }

    /// Renders the recording as a self-contained HTML page; the arrow keys step through the frames.
    pub fn to_html(&self, title: &str) -> String {
        let mut page = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>");
        page.push_str(&escape_html(title));
        page.push_str(STYLE);
        let _ = write!(
            page,
            "<h1>{}</h1><p>{} frames. The arrow keys step.</p>",
            escape_html(title),
            self.frames.len()
        );
        for (number, frame) in self.frames.iter().enumerate() {
            let _ = write!(
                page,
                "<figure><figcaption>{}. <code>{}</code>",
                number + 1,
                escape_html(frame.call.as_str())
            );
            for line in &frame.actions {
                let _ = write!(page, "<br>{}", escape_html(line));
            }
            if !frame.output_text.is_empty() {
                let _ = write!(page, "<br><em>{}</em>", escape_html(&frame.output_text));
            }
            page.push_str("</figcaption>");
            match &frame.screenshot {
                Some(picture) => {
                    let _ =
                        write!(page, "<img alt=\"\" src=\"data:image/png;base64,{}\">", picture.as_base64());
                }
                None => page.push_str("<p>This picture is not kept any more.</p>"),
            }
            page.push_str("</figure>");
        }
        page.push_str(SCRIPT);
        page
    }
}

const STYLE: &str = "</title><style>body{font:16px/1.4 sans-serif;margin:2em auto;max-width:70em}\
    figure{margin:2em 0}img{max-width:100%;border:1px solid #888}figcaption{margin-bottom:.5em}</style>";

const SCRIPT: &str = "<script>const all=[...document.querySelectorAll('figure')];let at=0;\
    addEventListener('keydown',event=>{const step={ArrowRight:1,ArrowLeft:-1}[event.key];if(!step)return;\
    at=Math.max(0,Math.min(all.length-1,at+step));all[at].scrollIntoView();event.preventDefault()})</script></html>";

fn image_of(part: &ContentPart) -> Option<&MediaSource> {
    match part {
        ContentPart::Image(media) => Some(media),
        _ => None,
    }
}

async fn load_image(media: &MediaSource, store: Option<&dyn Store>) -> Result<Option<String>, StoreError> {
    match (&media.data, &media.url, store) {
        (Some(data), _, _) => Ok(Some(data.clone())),
        (None, Some(url), Some(store)) => fetch_media(store, url).await,
        (None, _, _) => Ok(None),
    }
}

/// Describes the actions of a call from its arguments, one line each.
fn describe_actions(records: &[JournalRecord], call: &CallId) -> Vec<String> {
    let answers = records.iter().filter_map(|record| match &record.entry {
        JournalEntry::ModelResponded(answered) => Some(&answered.items),
        _ => None,
    });
    let found = answers.flatten().find_map(|item| match &**item {
        Item::Call(found) if found.id == *call => Some(found),
        _ => None,
    });
    let Some(found) = found else { return Vec::new() };
    match serde_json::from_str::<ComputerCall>(&found.arguments) {
        Ok(asked) => asked.actions.iter().map(ToString::to_string).collect(),
        Err(_) => vec![format!("{} {}", found.name, found.arguments)],
    }
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
