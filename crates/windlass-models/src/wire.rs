//! What the protocols have in common: names of tools, pictures and files, fields of requests, texts that borrow.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use windlass::core::{Content, Item, Media, Role};
use windlass::model::{ModelRequest, OfferedTool};

/// The longest name that providers take.
const LONGEST_NAME: usize = 64;

/// A tool's name as providers take it: letters, digits, `_` and `-`, with its namespace in front.
pub(crate) fn wire_name<'a>(namespace: Option<&str>, name: &'a str) -> Cow<'a, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if namespace.is_none() && name.len() <= LONGEST_NAME && name.chars().all(is_plain) {
        return name.into();
    }
    let whole = namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}__{name}"));
    let mut plain: String = whole.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if plain.len() > LONGEST_NAME {
        // Two long names must not become one.
        let hash = whole
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        plain.truncate(LONGEST_NAME - 9);
        plain.push_str(&format!("_{hash:08x}"));
    }
    plain.into()
}

/// The namespace and the name of the tool that a provider calls `wire`.
pub(crate) fn own_name(request: &ModelRequest<'_>, wire: String) -> (Option<String>, String) {
    let is_bare = |tool: &&OfferedTool| tool.namespace.is_none() && *tool.name == *wire;
    let offered = || request.tools.iter().chain(request.handoffs);
    if offered().any(|tool| is_bare(&tool)) {
        return (None, wire);
    }
    let found = offered().find(|tool| wire_name(tool.namespace.as_deref(), &tool.name) == wire);
    match found {
        Some(tool) => (tool.namespace.as_deref().map(str::to_owned), tool.name.to_string()),
        None => (None, wire),
    }
}

/// The name of an output's shape as providers take it.
pub(crate) fn shape_name(name: &str) -> Cow<'_, str> {
    if name.is_empty() { "output".into() } else { wire_name(None, name) }
}

/// The address of a picture or a file; its bytes are put into a `data:` address.
pub(crate) fn address(media: &Media, usual: &str) -> Option<String> {
    match (&media.url, &media.data) {
        (Some(url), _) => Some(url.clone()),
        (None, Some(data)) => {
            Some(format!("data:{};base64,{data}", media.media_type.as_deref().unwrap_or(usual)))
        }
        (None, None) => None,
    }
}

/// The part of a conversation that a provider that holds the rest has not seen: what comes after its last answer.
pub(crate) fn unseen(input: &[Arc<Item>]) -> &[Arc<Item>] {
    let is_said = |item: &Arc<Item>| match &**item {
        Item::Message(message) => message.role == Role::Assistant,
        Item::Call(_) | Item::Reasoning(_) | Item::Hosted(_) | Item::Unknown(_) => true,
        _ => false,
    };
    let from = input.iter().rposition(is_said).map_or(0, |at| at + 1);
    &input[from..]
}

/// What goes with a text but is no text, such as citations, under this kind.
pub(crate) const ANNOTATIONS: &str = "annotations";

/// Parts of a message with the annotations that follow each.
pub(crate) fn with_annotations(parts: &[Content]) -> impl Iterator<Item = (&Content, Option<&Value>)> {
    let own = |part: &Content| matches!(part, Content::Unknown(carried) if carried.kind == ANNOTATIONS);
    parts.iter().enumerate().filter(move |(_, part)| !own(part)).map(|(index, part)| {
        let next = match parts.get(index + 1) {
            Some(Content::Unknown(carried)) if carried.kind == ANNOTATIONS => Some(&carried.raw),
            _ => None,
        };
        (part, next)
    })
}

/// The fields of a request. What the settings have as extra fields wins over what stands here.
pub(crate) struct Fields<'a, M> {
    map: M,
    extra: &'a Map<String, Value>,
}

impl<'a, M: SerializeMap> Fields<'a, M> {
    pub(crate) fn new<S: Serializer<SerializeMap = M, Error = M::Error, Ok = M::Ok>>(
        serializer: S,
        extra: &'a Map<String, Value>,
    ) -> Result<Self, M::Error> {
        Ok(Self { map: serializer.serialize_map(None)?, extra })
    }

    pub(crate) fn put<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), M::Error> {
        if self.extra.contains_key(key) { Ok(()) } else { self.map.serialize_entry(key, value) }
    }

    pub(crate) fn put_some<T: Serialize>(&mut self, key: &str, value: Option<T>) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.put(key, &value))
    }

    pub(crate) fn end(mut self) -> Result<M::Ok, M::Error> {
        for (key, value) in self.extra {
            self.map.serialize_entry(key, value)?;
        }
        self.map.end()
    }
}

/// A text that borrows from what it was read from, unless it had escapes. `null` and other values are no text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Option<Cow<'a, str>>);

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or null")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Some(Cow::Borrowed(text))))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Some(Cow::Owned(text.to_owned()))))
            }

            fn visit_unit<E>(self) -> Result<Text<'de>, E> {
                Ok(Text(None))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// A text, or something else in its place.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum Loose<'a> {
    #[default]
    None,
    Text(Cow<'a, str>),
    Value(Value),
}

impl<'de: 'a, 'a> Deserialize<'de> for Loose<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Loose<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a list, an object or null")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Loose<'de>, E> {
                Ok(Loose::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Loose<'de>, E> {
                Ok(Loose::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E>(self) -> Result<Loose<'de>, E> {
                Ok(Loose::None)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Loose<'de>, A::Error> {
                Value::deserialize(SeqAccessDeserializer::new(list)).map(Loose::Value)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Loose<'de>, A::Error> {
                Value::deserialize(MapAccessDeserializer::new(map)).map(Loose::Value)
            }
        }
        deserializer.deserialize_any(Read)
    }
}
