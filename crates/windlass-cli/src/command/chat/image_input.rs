//! Images in a message, given by their paths.

use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use windlass::core::item::{ContentPart, MediaSource, Message, Role};

use crate::cli_error::CliError;

/// Maximum size of an image, in bytes.
const MAX_IMAGE_BYTES: u64 = 20 << 20;

/// The types of images that models read, by their first bytes.
const IMAGE_SIGNATURES: [(&[u8], &str); 4] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
];
/// Endings of the names of images.
const IMAGE_ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];

/// A message with the images that its text names.
pub(super) struct ImageMessage {
    pub(super) message: Message,
    /// Name and size in bytes of each image.
    pub(super) images: Vec<(String, usize)>,
}

/// Reads the images that a message names by the paths of existing files. Relative paths begin at `folder`.
pub(super) fn attach_images(text: &str, folder: &Path) -> Result<ImageMessage, CliError> {
    let mut message = Message::new(Role::User, text);
    let mut images = Vec::new();
    for path in image_paths(text, folder) {
        let shown = path.display();
        let size = std::fs::metadata(&path).map(|metadata| metadata.len()).unwrap_or(u64::MAX);
        if size > MAX_IMAGE_BYTES {
            return Err(CliError::usage(format!("the image `{shown}` is larger than 20 MiB")));
        }
        let bytes = std::fs::read(&path)
            .map_err(|error| CliError::new(format!("the image `{shown}` cannot be read: {error}")))?;
        let Some(media_type) = media_type(&bytes) else {
            return Err(CliError::usage(format!("`{shown}` is not an image that a model can read"))
                .with_hint("PNG, JPEG, GIF and WebP images can be sent"));
        };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        message.content.push(ContentPart::Image(MediaSource {
            data: Some(BASE64.encode(&bytes)),
            media_type: Some(media_type.to_owned()),
            name: Some(name.clone()),
            ..MediaSource::default()
        }));
        images.push((name, bytes.len()));
    }
    Ok(ImageMessage { message, images })
}

fn media_type(bytes: &[u8]) -> Option<&'static str> {
    let (_, media_type) = IMAGE_SIGNATURES.iter().find(|(start, _)| bytes.starts_with(start))?;
    let is_webp = bytes.get(8..12) == Some(b"WEBP");
    (*media_type != "image/webp" || is_webp).then_some(media_type)
}

/// Returns the paths of existing images in a text. Terminals paste a path with spaces in quotes or with backslashes.
fn image_paths(text: &str, folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for word in split_words(text) {
        // A path may end a sentence.
        let word = word.trim_end_matches(['.', ',', ';', ':', '!', '?', ')']).trim_start_matches('(');
        let word = word.strip_prefix("file://").unwrap_or(word);
        let ending = Path::new(word).extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let is_image = ending.is_some_and(|ending| IMAGE_ENDINGS.contains(&ending.as_str()));
        let path = match (word.strip_prefix("~/"), std::env::var_os("HOME")) {
            (Some(rest), Some(home)) => Path::new(&home).join(rest),
            _ => folder.join(word),
        };
        if is_image && path.is_file() && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// Splits a text at spaces outside quotes, and at the end of a quote.
fn split_words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let Some(word) = words.last_mut() else { break };
        match (letter, quote) {
            ('\\', None) => word.extend(letters.next()),
            ('\'' | '"', None) if word.is_empty() => quote = Some(letter),
            (letter, Some(open)) if letter == open => {
                quote = None;
                words.push(String::new());
            }
            (letter, None) if letter.is_whitespace() => words.push(String::new()),
            (letter, _) => word.push(letter),
        }
    }
    words
}

#[cfg(test)]
#[path = "image_input_tests.rs"]
mod tests;
