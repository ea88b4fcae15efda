//! A run watched again: its screenshots, frame by frame, as one page.

use std::fmt::Write;

use windlass::StoreError;
use windlass::core::{CallId, Content, Entry, Item, Media, OutputContent, Record, Timestamp};
use windlass::fetch_media;
use windlass::store::Store;

use crate::action::ComputerCall;
use crate::computer::Screenshot;

/// One call of a run, with what was seen after it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The call.
    pub call: CallId,
    /// When it settled.
    pub at: Timestamp,
    /// What it did, a line for each action.
    pub did: Vec<String>,
    /// What was said beside the picture.
    pub said: String,
    /// The picture; none where the call has none, or it is not kept any more.
    pub picture: Option<Screenshot>,
}

/// The calls of a run that have pictures, in the order in which they settled.
#[derive(Clone, Debug, Default)]
pub struct Film {
    /// The frames.
    pub frames: Vec<Frame>,
}

impl Film {
    /// The film of a run, from its journal, and from the store where its pictures are, if it has one.
    pub async fn of(records: &[Record], store: Option<&dyn Store>) -> Result<Self, StoreError> {
        let mut frames = Vec::new();
        for record in records {
            let Entry::CallSettled(settled) = &record.entry else { continue };
            let OutputContent::Parts(parts) = &settled.output else { continue };
            let Some(media) = parts.iter().find_map(picture_of) else { continue };
            frames.push(Frame {
                call: settled.call.clone(),
                at: record.at,
                did: did(records, &settled.call),
                said: settled.output.text().into_owned(),
                picture: bytes(media, store).await?.map(Screenshot::of_base64),
            });
        }
        Ok(Self { frames })
    }

    /// The film as a page that needs nothing else: pictures, what was done, and a way to step through them.
    pub fn to_html(&self, title: &str) -> String {
        let mut page = String::from("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>");
        page.push_str(&escaped(title));
        page.push_str(STYLE);
        let _ = write!(
            page,
            "<h1>{}</h1><p>{} frames. The arrow keys step.</p>",
            escaped(title),
            self.frames.len()
        );
        for (number, frame) in self.frames.iter().enumerate() {
            let _ = write!(
                page,
                "<figure><figcaption>{}. <code>{}</code>",
                number + 1,
                escaped(frame.call.as_str())
            );
            for line in &frame.did {
                let _ = write!(page, "<br>{}", escaped(line));
            }
            if !frame.said.is_empty() {
                let _ = write!(page, "<br><em>{}</em>", escaped(&frame.said));
            }
            page.push_str("</figcaption>");
            match &frame.picture {
                Some(picture) => {
                    let _ = write!(page, "<img alt=\"\" src=\"data:image/png;base64,{}\">", picture.base64());
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

fn picture_of(part: &Content) -> Option<&Media> {
    match part {
        Content::Image(media) => Some(media),
        _ => None,
    }
}

async fn bytes(media: &Media, store: Option<&dyn Store>) -> Result<Option<String>, StoreError> {
    match (&media.data, &media.url, store) {
        (Some(data), _, _) => Ok(Some(data.clone())),
        (None, Some(url), Some(store)) => fetch_media(store, url).await,
        (None, _, _) => Ok(None),
    }
}

/// What a call did, as its arguments say.
fn did(records: &[Record], call: &CallId) -> Vec<String> {
    let answers = records.iter().filter_map(|record| match &record.entry {
        Entry::Answered(answered) => Some(&answered.items),
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

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
