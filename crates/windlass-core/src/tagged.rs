//! Deserialisation of internally tagged enums without a buffer.
//!
//! serde's derived code collects all fields of such an enum before it looks at the tag. Our own texts have the tag
//! first, so the variant can be read directly from the rest. A text with another order is buffered.

/// Implements `Deserialize` for an enum whose tag is the field `type`: a list of tags, each with the type of the
/// variant's content and a function from the content to the enum.
macro_rules! deserialize_tagged {
    ($name:ident { $($tag:literal => $content:ty, $make:expr;)+ }) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                const TAGS: &[&str] = &[$($tag),+];

                /// The text of a tag.
                struct Tag(&'static str);

                impl<'de> serde::Deserialize<'de> for Tag {
                    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                        struct TagVisitor;
                        impl serde::de::Visitor<'_> for TagVisitor {
                            type Value = Tag;
                            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                                f.write_str("a type")
                            }
                            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Tag, E> {
                                let known = TAGS.iter().find(|tag| **tag == text);
                                known.map(|tag| Tag(tag)).ok_or_else(|| E::unknown_variant(text, TAGS))
                            }
                        }
                        deserializer.deserialize_str(TagVisitor)
                    }
                }

                fn read_content<'de, D: serde::Deserializer<'de>>(
                    tag: &Tag,
                    rest: D,
                ) -> Result<$name, D::Error> {
                    match tag.0 {
                        $($tag => <$content as serde::Deserialize>::deserialize(rest).map($make),)+
                        other => Err(serde::de::Error::unknown_variant(other, TAGS)),
                    }
                }

                struct TaggedVisitor;
                impl<'de> serde::de::Visitor<'de> for TaggedVisitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object with a type")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        use serde::de::Error as _;
                        let first = map.next_key::<$crate::tagged::FirstKey>()?;
                        let first = first.ok_or_else(|| A::Error::missing_field("type"))?;
                        let name = match first {
                            $crate::tagged::FirstKey::Tag => {
                                let tag = map.next_value::<Tag>()?;
                                let rest = serde::de::value::MapAccessDeserializer::new(map);
                                return read_content(&tag, rest);
                            }
                            $crate::tagged::FirstKey::Other(name) => name,
                        };
                        let mut fields = serde_json::Map::new();
                        fields.insert(name, map.next_value()?);
                        while let Some((name, value)) = map.next_entry()? {
                            fields.insert(name, value);
                        }
                        let tag = fields.remove("type").ok_or_else(|| A::Error::missing_field("type"))?;
                        let tag = <Tag as serde::Deserialize>::deserialize(tag).map_err(A::Error::custom)?;
                        read_content(&tag, serde_json::Value::Object(fields)).map_err(A::Error::custom)
                    }
                }
                deserializer.deserialize_map(TaggedVisitor)
            }
        }
    };
}

pub(crate) use deserialize_tagged;

use std::fmt;

use serde::{Deserialize, Deserializer, de};

/// The first key of a tagged object.
pub(crate) enum FirstKey {
    /// The tag.
    Tag,
    /// Another field.
    Other(String),
}

impl<'de> Deserialize<'de> for FirstKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl de::Visitor<'_> for KeyVisitor {
            type Value = FirstKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<FirstKey, E> {
                Ok(if text == "type" { FirstKey::Tag } else { FirstKey::Other(text.to_owned()) })
            }
        }
        deserializer.deserialize_identifier(KeyVisitor)
    }
}
