//! From what a body returns to what the model is told: text, pictures, files, or JSON of any value.
//!
//! Pictures and files are told apart from data by the name of their Rust type, which only this program can
//! give: a tool whose *data* looks like a picture, an approval or a pause is still data.

use serde::ser::{Impossible, Serialize, SerializeSeq, Serializer};
use windlass_core::{Content, Media, OutputContent};

/// A picture, as a tool's output or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Image(pub Media);

/// A file, as a tool's output or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct File(pub Media);

/// Text, as a part of an output that has other parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Text(pub String);

/// Any part of an output, such as one that only the provider understands.
#[derive(Clone, Debug, PartialEq)]
pub struct Part(pub Content);

impl Image {
    /// A picture at an address, `data:` addresses included.
    pub fn at(url: impl Into<String>) -> Self {
        Self(Media { url: Some(url.into()), ..Media::default() })
    }
}

impl File {
    /// A file whose bytes, in base64, travel with the output.
    pub fn inline(name: impl Into<String>, base64: impl Into<String>) -> Self {
        Self(Media { name: Some(name.into()), data: Some(base64.into()), ..Media::default() })
    }
}

const IMAGE: &str = "$windlass::Image";
const FILE: &str = "$windlass::File";
const TEXT: &str = "$windlass::Text";
const PART: &str = "$windlass::Part";

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(IMAGE, &self.0)
    }
}

impl Serialize for File {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(FILE, &self.0)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(TEXT, &self.0)
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(PART, &self.0)
    }
}

/// What the model is told of a returned value: a string as it is, parts as parts, anything else as JSON.
pub(crate) fn content_of<T: Serialize + ?Sized>(value: &T) -> Result<OutputContent, serde_json::Error> {
    match value.serialize(Probe) {
        Ok(Found::Text(text)) => Ok(OutputContent::Text(text)),
        Ok(Found::Part(part)) => Ok(OutputContent::Parts(vec![part])),
        Ok(Found::Parts(parts)) => Ok(OutputContent::Parts(parts)),
        Err(Plain) => serde_json::to_string(value).map(OutputContent::Text),
    }
}

/// Looks at a value's outermost shape and gives up where it is plain data.
struct Probe;

enum Found {
    Text(String),
    Part(Content),
    Parts(Vec<Content>),
}

/// The value is plain data.
#[derive(Debug)]
struct Plain;

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("plain data")
    }
}

impl std::error::Error for Plain {}

impl serde::ser::Error for Plain {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self
    }
}

struct PartList(Vec<Content>);

impl SerializeSeq for PartList {
    type Ok = Found;
    type Error = Plain;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Plain> {
        match value.serialize(Probe)? {
            Found::Part(part) => self.0.push(part),
            Found::Text(_) | Found::Parts(_) => return Err(Plain),
        }
        Ok(())
    }

    fn end(self) -> Result<Found, Plain> {
        if self.0.is_empty() { Err(Plain) } else { Ok(Found::Parts(self.0)) }
    }
}

macro_rules! plain {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, _: $type) -> Result<Found, Plain> {
            Err(Plain)
        })*
    };
}

impl Serializer for Probe {
    type Ok = Found;
    type Error = Plain;
    type SerializeSeq = PartList;
    type SerializeTuple = Impossible<Found, Plain>;
    type SerializeTupleStruct = Impossible<Found, Plain>;
    type SerializeTupleVariant = Impossible<Found, Plain>;
    type SerializeMap = Impossible<Found, Plain>;
    type SerializeStruct = Impossible<Found, Plain>;
    type SerializeStructVariant = Impossible<Found, Plain>;

    plain! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_f32: f32, serialize_f64: f64, serialize_char: char, serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_str(self, text: &str) -> Result<Found, Plain> {
        Ok(Found::Text(text.to_owned()))
    }

    fn serialize_none(self) -> Result<Found, Plain> {
        Err(Plain)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Found, Plain> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Found, Plain> {
        Err(Plain)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<Found, Plain> {
        Err(Plain)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Found, Plain> {
        let read = || serde_json::to_value(value).map_err(|_| Plain);
        match name {
            IMAGE => Ok(Found::Part(Content::Image(serde_json::from_value(read()?).map_err(|_| Plain)?))),
            FILE => Ok(Found::Part(Content::File(serde_json::from_value(read()?).map_err(|_| Plain)?))),
            TEXT => {
                Ok(Found::Part(Content::Text { text: serde_json::from_value(read()?).map_err(|_| Plain)? }))
            }
            PART => Ok(Found::Part(serde_json::from_value(read()?).map_err(|_| Plain)?)),
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<Found, Plain> {
        Err(Plain)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<PartList, Plain> {
        Ok(PartList(Vec::new()))
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Plain> {
        Err(Plain)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Plain> {
        Err(Plain)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Plain> {
        Err(Plain)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Plain> {
        Err(Plain)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, Plain> {
        Err(Plain)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Plain> {
        Err(Plain)
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
