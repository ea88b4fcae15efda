//! The forms of images and files that an API accepts. A form that it lacks is refused by name before the request, instead
//! of a request without it.
//!
//! An output of a tool is not refused, because its call has happened: a text stands for the part, and the model reads it.

use std::borrow::Cow;

use windlass::core::item::{ContentPart, Item, MediaSource, Role};
use windlass::model::{ModelError, ModelErrorKind, ModelRequest};

/// A form of an image or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaForm {
    /// An address of the web.
    Url,
    /// The id of a file at the provider.
    FileId,
    /// The bytes.
    Bytes,
}

/// The forms that an API accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MediaSupport {
    pub(crate) api: &'static str,
    pub(crate) images: &'static [MediaForm],
    pub(crate) files: &'static [MediaForm],
}

/// All forms.
pub(crate) const ALL_FORMS: &[MediaForm] = &[MediaForm::Url, MediaForm::FileId, MediaForm::Bytes];

impl MediaForm {
    /// Returns the forms of an image or a file.
    fn of(media: &MediaSource) -> impl Iterator<Item = Self> {
        let is_data = media.url.as_deref().is_some_and(|url| url.starts_with("data:"));
        let forms = [
            (Self::FileId, media.file_id.is_some()),
            (Self::Url, media.url.is_some() && !is_data),
            (Self::Bytes, is_data || (media.url.is_none() && media.data.is_some())),
        ];
        forms.into_iter().filter(|(_, is_there)| *is_there).map(|(form, _)| form)
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Url => "by URL",
            Self::FileId => "by the id of an uploaded file",
            Self::Bytes => "as bytes",
        }
    }
}

impl MediaSupport {
    /// Checks the messages of the user.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first image or file that the API does not accept.
    pub(crate) fn check(&self, request: &ModelRequest<'_>) -> Result<(), ModelError> {
        let messages = request.input.iter().filter_map(|item| match &**item {
            Item::Message(message) if message.role != Role::Assistant => Some(message),
            _ => None,
        });
        match messages.flat_map(|message| &message.content).find_map(|part| self.refusal(part)) {
            Some(text) => Err(ModelError::new(text).with_kind(ModelErrorKind::InvalidRequest)),
            None => Ok(()),
        }
    }

    /// Returns the part of a tool's output, or a text that stands for it if the API does not accept it.
    pub(crate) fn describe_refused<'a>(&self, part: &'a ContentPart) -> Cow<'a, ContentPart> {
        match self.refusal(part) {
            Some(text) => Cow::Owned(ContentPart::Text { text: format!("[{text}]") }),
            None => Cow::Borrowed(part),
        }
    }

    /// Returns the reason why the API does not accept an image or a file.
    fn refusal(&self, part: &ContentPart) -> Option<String> {
        let (kind, media, accepted) = match part {
            ContentPart::Image(media) => ("image", media, self.images),
            ContentPart::File(media) => ("file", media, self.files),
            _ => return None,
        };
        let mut forms = MediaForm::of(media).peekable();
        let Some(first) = forms.peek().copied() else {
            return Some(format!("the {kind} for {} has neither bytes nor a URL nor an id", self.api));
        };
        if forms.any(|form| accepted.contains(&form)) {
            return None;
        }
        let name = media.name.as_deref().map_or_else(String::new, |name| format!(" (`{name}`)"));
        let other: Vec<&str> = accepted.iter().map(|form| form.describe()).collect();
        let hint = match other.join(" or ") {
            hint if hint.is_empty() => String::new(),
            hint => format!("; hint: send it {hint}"),
        };
        Some(format!("{} accepts no {kind} {}{name}{hint}", self.api, first.describe()))
    }
}
