//! Provenance: where the text in a model's context came from.
//!
//! Text from outside can tell a model what to do (prompt injection). Every output therefore carries the sources of its
//! text, and a run adds them up: a call has the sources of everything that its model could have read when it proposed
//! the call. Sources are only ever added. A filter, a handoff or a compaction that removes an item does not remove its
//! source, because a later text may repeat what the item said.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::item::{Item, OpaqueItem};

/// A kind of place outside the conversation from which text can enter it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentSource {
    /// Pages and search results of the web.
    Web,
    /// A server of the Model Context Protocol.
    Mcp,
    /// Files, and searches in files.
    File,
    /// The output of a command.
    Command,
    /// The screen of a computer or a browser.
    Computer,
    /// A place that is not known, such as a conversation that a provider stored.
    Unknown,
}

impl ContentSource {
    /// All sources.
    pub const ALL: [Self; 6] =
        [Self::Web, Self::Mcp, Self::File, Self::Command, Self::Computer, Self::Unknown];

    /// Returns the serialised name, such as `web`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Mcp => "mcp",
            Self::File => "file",
            Self::Command => "command",
            Self::Computer => "computer",
            Self::Unknown => "unknown",
        }
    }

    /// Returns a description for people, such as `the web`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Web => "the web",
            Self::Mcp => "an MCP server",
            Self::File => "files",
            Self::Command => "a command",
            Self::Computer => "a screen",
            Self::Unknown => "an unknown place",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Web => 1,
            Self::Mcp => 2,
            Self::File => 4,
            Self::Command => 8,
            Self::Computer => 16,
            Self::Unknown => 32,
        }
    }
}

/// A set of sources. It is serialised as a list of names in a fixed order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentSources(u8);

impl ContentSources {
    /// The empty set: instructions, the user's own words, and tools that bring no text from elsewhere.
    pub const NONE: Self = Self(0);

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// Returns true if the set has the source.
    pub fn contains(self, source: ContentSource) -> bool {
        self.0 & source.bit() != 0
    }

    /// Returns the sources of both sets.
    #[must_use]
    pub fn with(self, other: impl Into<Self>) -> Self {
        Self(self.0 | other.into().0)
    }

    /// Adds the sources of another set.
    pub fn add(&mut self, other: impl Into<Self>) {
        *self = self.with(other);
    }

    /// Returns the sources in a fixed order.
    pub fn iter(self) -> impl Iterator<Item = ContentSource> {
        ContentSource::ALL.into_iter().filter(move |source| self.contains(*source))
    }

    /// Returns the sources of the text of an item.
    pub fn of_item(item: &Item) -> Self {
        match item {
            Item::Message(message) => message.sources,
            Item::Output(output) => output.sources,
            Item::HostedTool(hosted) | Item::Unknown(hosted) => Self::of_hosted_item(hosted),
            // The model wrote these itself, from what its context had before.
            Item::Reasoning(_) | Item::Call(_) | Item::Handoff(_) => Self::NONE,
        }
    }

    /// Returns the sources of the text of all items.
    pub fn of_items<'a>(items: impl IntoIterator<Item = &'a std::sync::Arc<Item>>) -> Self {
        items.into_iter().fold(Self::NONE, |sources, item| sources.with(Self::of_item(item)))
    }

    /// Returns the source of the result of a tool that the provider ran. A type that is not known may have any text.
    fn of_hosted_item(item: &OpaqueItem) -> Self {
        const BY_WORD: [(&str, ContentSource); 7] = [
            ("web_", ContentSource::Web),
            ("mcp_", ContentSource::Mcp),
            ("file_search", ContentSource::File),
            ("code_", ContentSource::Command),
            ("bash_", ContentSource::Command),
            ("shell", ContentSource::Command),
            ("computer", ContentSource::Computer),
        ];
        let known = BY_WORD.into_iter().find(|(word, _)| item.kind.starts_with(word));
        known.map_or(ContentSource::Unknown, |(_, source)| source).into()
    }
}

impl From<ContentSource> for ContentSources {
    fn from(source: ContentSource) -> Self {
        Self(source.bit())
    }
}

impl FromIterator<ContentSource> for ContentSources {
    fn from_iter<I: IntoIterator<Item = ContentSource>>(sources: I) -> Self {
        sources.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Writes the sources as people read them: `the web and files`.
impl fmt::Display for ContentSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.iter().count();
        for (index, source) in self.iter().enumerate() {
            let separator = match index {
                0 => "",
                _ if index + 1 == count => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{}", source.describe())?;
        }
        Ok(())
    }
}

impl fmt::Debug for ContentSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for ContentSources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.iter().count()))?;
        for source in self.iter() {
            list.serialize_element(&source)?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for ContentSources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(SourcesVisitor)
    }
}

struct SourcesVisitor;

impl<'de> Visitor<'de> for SourcesVisitor {
    type Value = ContentSources;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of content sources")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ContentSources, A::Error> {
        let mut sources = ContentSources::NONE;
        while let Some(source) = list.next_element::<ContentSource>()? {
            sources.add(source);
        }
        Ok(sources)
    }
}

#[cfg(test)]
#[path = "provenance_tests.rs"]
mod tests;
