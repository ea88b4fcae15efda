//! Addresses in pages and answers: texts in a query, and pictures of runs.

use windlass::core::item::MediaSource;

/// Media types of pictures that pages show. None of them has a script.
const PICTURE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/// Writes a text for a query of an address.
pub(crate) fn query_text(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            written.push(char::from(byte));
        } else {
            written.push_str(&format!("%{byte:02X}"));
        }
    }
    written
}

/// Returns the address at which a page shows a picture: one of this server for a stored picture, the picture itself if the
/// item has it. Returns `None` for a picture elsewhere: pages load nothing from elsewhere.
pub(crate) fn picture_address(source: &MediaSource) -> Option<String> {
    if let (Some(data), Some(kind)) = (&source.data, source.media_type.as_deref()) {
        return PICTURE_TYPES.contains(&kind).then(|| format!("data:{kind};base64,{data}"));
    }
    let url = source.url.as_deref()?;
    if url.starts_with("artefact:") {
        return Some(format!("/media?url={}", query_text(url)));
    }
    let is_picture = PICTURE_TYPES.iter().any(|kind| url.starts_with(&format!("data:{kind};base64,")));
    is_picture.then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_shown_from_the_store_or_from_its_item_and_from_nowhere_else() {
        let stored = MediaSource { url: Some("artefact:r/1&2".to_owned()), ..MediaSource::default() };
        assert_eq!(picture_address(&stored).as_deref(), Some("/media?url=artefact%3Ar%2F1%262"));
        let within = |kind: &str| MediaSource {
            data: Some("aGk=".to_owned()),
            media_type: Some(kind.to_owned()),
            ..MediaSource::default()
        };
        assert_eq!(picture_address(&within("image/png")).as_deref(), Some("data:image/png;base64,aGk="));
        for kind in ["image/svg+xml", "text/html", "image/png;x"] {
            assert_eq!(picture_address(&within(kind)), None, "{kind}");
        }
        let by_url = |url: &str| MediaSource { url: Some(url.to_owned()), ..MediaSource::default() };
        for url in ["https://elsewhere.example/a.png", "data:image/svg+xml;base64,PHN2Zz4=", "javascript:1"] {
            assert_eq!(picture_address(&by_url(url)), None, "{url}");
        }
        let itself = "data:image/jpeg;base64,aGk=";
        assert_eq!(picture_address(&by_url(itself)).as_deref(), Some(itself));
    }
}
