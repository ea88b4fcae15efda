//! Conversion of a body's return value to the output that the model sees: text, pictures, files, or the JSON of
//! any value.
//!
//! Pictures and files are distinguished from data by the name of their Rust type, which only this program can
//! set: data of a tool that merely look like a picture, an approval or a pause remain data.

use serde::ser::{Impossible, Serialize, SerializeSeq, Serializer};
use windlass_core::item::{ContentPart, MediaSource, OutputContent};

/// A picture, as a tool's output or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePart(pub MediaSource);

/// A file, as a tool's output or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct FilePart(pub MediaSource);

/// Text, as a part of an output that has other parts.
#[derive(Clone, Debug, PartialEq)]
pub struct TextPart(pub String);

/// Any part of an output, such as one that only the provider understands.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputPart(pub ContentPart);

impl ImagePart {
    /// Creates a picture from a URL, including `data:` URLs.
    pub fn from_url(url: impl Into<String>) -> Self {
        Self(MediaSource { url: Some(url.into()), ..MediaSource::default() })
    }
}

impl FilePart {
    /// Creates a file whose base64 bytes are inlined in the output.
    pub fn inline(name: impl Into<String>, base64: impl Into<String>) -> Self {
        Self(MediaSource { name: Some(name.into()), data: Some(base64.into()), ..MediaSource::default() })
    }
}

const IMAGE: &str = "$windlass::Image";
const FILE: &str = "$windlass::File";
const TEXT: &str = "$windlass::Text";
const PART: &str = "$windlass::Part";

impl Serialize for ImagePart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(IMAGE, &self.0)
    }
}

impl Serialize for FilePart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(FILE, &self.0)
    }
}

impl Serialize for TextPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(TEXT, &self.0)
    }
}

impl Serialize for OutputPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(PART, &self.0)
    }
}

/// Converts a returned value to the output for the model: strings as text, parts as parts, anything else as
/// JSON.
pub(crate) fn to_output_content<T: Serialize + ?Sized>(
    value: &T,
) -> Result<OutputContent, serde_json::Error> {
    match value.serialize(OutputProbe) {
        Ok(ProbedOutput::Text(text)) => Ok(OutputContent::Text(text)),
        Ok(ProbedOutput::Part(part)) => Ok(OutputContent::Parts(vec![part])),
        Ok(ProbedOutput::Parts(parts)) => Ok(OutputContent::Parts(parts)),
        Err(PlainDataError) => serde_json::to_string(value).map(OutputContent::Text),
    }
}

/// A serializer that inspects the outermost layer of a value and fails for plain data.
struct OutputProbe;

enum ProbedOutput {
    Text(String),
    Part(ContentPart),
    Parts(Vec<ContentPart>),
}

/// The error for plain data.
#[derive(Debug)]
struct PlainDataError;

impl std::fmt::Display for PlainDataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("plain data")
    }
}

impl std::error::Error for PlainDataError {}

impl serde::ser::Error for PlainDataError {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self
    }
}

struct PartList(Vec<ContentPart>);

impl SerializeSeq for PartList {
    type Ok = ProbedOutput;
    type Error = PlainDataError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), PlainDataError> {
        match value.serialize(OutputProbe)? {
            ProbedOutput::Part(part) => self.0.push(part),
            ProbedOutput::Text(_) | ProbedOutput::Parts(_) => return Err(PlainDataError),
        }
        Ok(())
    }

    fn end(self) -> Result<ProbedOutput, PlainDataError> {
        if self.0.is_empty() { Err(PlainDataError) } else { Ok(ProbedOutput::Parts(self.0)) }
    }
}

macro_rules! plain {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, _: $type) -> Result<ProbedOutput, PlainDataError> {
            Err(PlainDataError)
        })*
    };
}

impl Serializer for OutputProbe {
    type Ok = ProbedOutput;
    type Error = PlainDataError;
    type SerializeSeq = PartList;
    type SerializeTuple = Impossible<ProbedOutput, PlainDataError>;
    type SerializeTupleStruct = Impossible<ProbedOutput, PlainDataError>;
    type SerializeTupleVariant = Impossible<ProbedOutput, PlainDataError>;
    type SerializeMap = Impossible<ProbedOutput, PlainDataError>;
    type SerializeStruct = Impossible<ProbedOutput, PlainDataError>;
    type SerializeStructVariant = Impossible<ProbedOutput, PlainDataError>;

    plain! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_f32: f32, serialize_f64: f64, serialize_char: char, serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_str(self, text: &str) -> Result<ProbedOutput, PlainDataError> {
        Ok(ProbedOutput::Text(text.to_owned()))
    }

    fn serialize_none(self) -> Result<ProbedOutput, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<ProbedOutput, PlainDataError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<ProbedOutput, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
    ) -> Result<ProbedOutput, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<ProbedOutput, PlainDataError> {
        let read = || serde_json::to_value(value).map_err(|_| PlainDataError);
        match name {
            IMAGE => Ok(ProbedOutput::Part(ContentPart::Image(
                serde_json::from_value(read()?).map_err(|_| PlainDataError)?,
            ))),
            FILE => Ok(ProbedOutput::Part(ContentPart::File(
                serde_json::from_value(read()?).map_err(|_| PlainDataError)?,
            ))),
            TEXT => Ok(ProbedOutput::Part(ContentPart::Text {
                text: serde_json::from_value(read()?).map_err(|_| PlainDataError)?,
            })),
            PART => Ok(ProbedOutput::Part(serde_json::from_value(read()?).map_err(|_| PlainDataError)?)),
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<ProbedOutput, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<PartList, PlainDataError> {
        Ok(PartList(Vec::new()))
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeStruct, PlainDataError> {
        Err(PlainDataError)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, PlainDataError> {
        Err(PlainDataError)
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
