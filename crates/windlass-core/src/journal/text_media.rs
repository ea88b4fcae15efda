//! Media lines: the stored pictures and files that the text of a run takes along.
//!
//! Invariant: a media line is no record. The address of a stored medium ends with the digest of its content, and the records
//! have the address, so that a reader recognises other content without a MAC.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::format::MEDIA_PREFIX;
use crate::canonical::Digest;

/// Beginning of the address of a stored medium in the JSON of a record.
const ADDRESS_FIELD: &str = "\"url\":\"artefact:";
/// Length of the part of [`ADDRESS_FIELD`] before the quotation mark of the address.
const FIELD_NAME_LEN: usize = "\"url\":".len();

/// A medium with its address.
#[derive(Serialize, Deserialize)]
struct MediaLine {
    url: String,
    /// The content in base64.
    data: String,
}

/// Returns the addresses of the stored media that the text of a run refers to, the last ones first.
pub fn stored_media_urls(text: &str) -> Vec<String> {
    let mut known = BTreeSet::new();
    let urls = text.rmatch_indices(ADDRESS_FIELD).filter_map(|(at, _)| {
        let mut values =
            serde_json::Deserializer::from_str(&text[at + FIELD_NAME_LEN..]).into_iter::<String>();
        values.next()?.ok()
    });
    urls.filter(|url| known.insert(url.clone())).collect()
}

/// Appends a stored medium to the text of a run. Content whose digest is not in the address is left out.
pub fn append_text_media(text: &mut String, url: &str, data: &str) {
    if !is_content_of(url, data) {
        return;
    }
    let line = MediaLine { url: url.to_owned(), data: data.to_owned() };
    // Two texts always have a JSON form.
    let line = serde_json::to_string(&line).unwrap_or_default();
    text.push_str(&format!("{MEDIA_PREFIX}{line}\n"));
}

/// Returns the media in the text of a run by their addresses, in base64. Content that is not that of its address is left out.
pub fn read_text_media(text: &str) -> BTreeMap<String, String> {
    let lines = text.split('\n').filter_map(|line| line.strip_prefix(MEDIA_PREFIX));
    let media = lines.filter_map(|line| serde_json::from_str::<MediaLine>(line).ok());
    media
        .filter(|media| is_content_of(&media.url, &media.data))
        .map(|media| (media.url, media.data))
        .collect()
}

fn is_content_of(url: &str, data: &str) -> bool {
    let digest = url.rsplit_once('/').and_then(|(_, name)| name.parse::<Digest>().ok());
    digest.is_some_and(|digest| digest == Digest::of_text(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_content_of_an_address_is_written_and_read() {
        let url = format!("artefact:a b/{}", Digest::of_text("aGk="));
        let mut text = "head x\n".to_owned();
        append_text_media(&mut text, &url, "aGk=");
        append_text_media(&mut text, &url, "b3Ro");
        append_text_media(&mut text, "artefact:r/evidence:c1", "aGk=");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert_eq!(read_text_media(&text), BTreeMap::from([(url, "aGk=".to_owned())]));
        assert_eq!(read_text_media(&text.replace("aGk=", "aGo=")), BTreeMap::new());
    }

    #[test]
    fn addresses_are_those_of_records_and_not_of_texts() {
        let text = r#"{"x":[{"url":"artefact:r/1"},{"url":"https://a"}]}
{"text":"{\"url\":\"artefact:r/2\"}"}
{"x":[{"url":"artefact:r\"/3"},{"url":"artefact:r/1"}]}"#;
        assert_eq!(stored_media_urls(text), ["artefact:r/1", "artefact:r\"/3"]);
    }
}
