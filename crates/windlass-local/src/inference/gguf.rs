//! Reader of GGUF files: metadata, and tensors as bytes.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

/// The header of a GGUF file.
pub(crate) struct GgufFile<R> {
    source: R,
    metadata: BTreeMap<String, GgufValue>,
    tensors: BTreeMap<String, TensorInfo>,
    data_start: u64,
    data_length: u64,
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GgufValue {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Vec<Self>),
}

/// The description of a tensor. The first dimension is the length of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorInfo {
    pub(crate) dimensions: Vec<usize>,
    pub(crate) kind: u32,
    offset: u64,
}

/// Maximum depth of arrays inside arrays.
const MAX_DEPTH: usize = 4;
/// Maximum number of dimensions of a tensor, as in ggml.
const MAX_DIMENSIONS: u32 = 4;

impl<R: Read + Seek> GgufFile<R> {
    /// Reads the header. Every length is compared with the size of the file before memory is reserved for it.
    pub(crate) fn read(mut source: R) -> Result<Self, String> {
        let size = source.seek(SeekFrom::End(0)).map_err(in_header)?;
        source.seek(SeekFrom::Start(0)).map_err(in_header)?;
        let mut header = HeaderReader { source: std::io::BufReader::new(source), size };
        if header.bytes::<4>()? != *b"GGUF" {
            return Err("it is no GGUF file".to_owned());
        }
        let version = header.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("its GGUF version is {version}; 2 and 3 can be read"));
        }
        let (tensor_count, value_count) = (header.u64()?, header.u64()?);
        let mut metadata = BTreeMap::new();
        for _ in 0..value_count {
            let name = header.text()?;
            let kind = header.u32()?;
            let value = header.value(kind, 0)?;
            metadata.insert(name, value);
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let name = header.text()?;
            let rank = header.u32()?;
            if rank > MAX_DIMENSIONS {
                return Err(format!("its tensor `{name}` has {rank} dimensions"));
            }
            let dimensions = (0..rank).map(|_| header.length()).collect::<Result<_, _>>()?;
            tensors.insert(name, TensorInfo { dimensions, kind: header.u32()?, offset: header.u64()? });
        }
        let alignment = match metadata.get("general.alignment") {
            Some(GgufValue::Integer(alignment)) if (1..=1 << 16).contains(alignment) => *alignment as u64,
            Some(other) => return Err(format!("its alignment is {other:?}")),
            None => 32,
        };
        let position = header.source.stream_position().map_err(in_header)?;
        let data_start = position.next_multiple_of(alignment);
        let data_length = size.saturating_sub(data_start);
        Ok(Self { source: header.source.into_inner(), metadata, tensors, data_start, data_length })
    }

    pub(crate) fn value(&self, name: &str) -> Option<&GgufValue> {
        self.metadata.get(name)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(GgufValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.value(name) {
            Some(GgufValue::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Option<usize> {
        match self.value(name) {
            Some(GgufValue::Integer(number)) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(crate) fn float(&self, name: &str) -> Option<f32> {
        match self.value(name) {
            Some(GgufValue::Float(number)) => Some(*number as f32),
            Some(GgufValue::Integer(number)) => Some(*number as f32),
            _ => None,
        }
    }

    /// Returns a list of texts.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<&str>, String> {
        let Some(GgufValue::Array(values)) = self.value(name) else {
            return Err(format!("the file has no list `{name}`"));
        };
        let texts = values.iter().map(|value| match value {
            GgufValue::Text(text) => Ok(text.as_str()),
            other => Err(format!("`{name}` contains {other:?}, which is no text")),
        });
        texts.collect()
    }

    /// Returns a list of integers, empty if it is missing.
    pub(crate) fn integers(&self, name: &str) -> Vec<i128> {
        let Some(GgufValue::Array(values)) = self.value(name) else { return Vec::new() };
        let numbers = values.iter().map(|value| match value {
            GgufValue::Integer(number) => *number,
            _ => 0,
        });
        numbers.collect()
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    pub(crate) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Reads the bytes of a tensor.
    pub(crate) fn tensor_bytes(&mut self, name: &str, length: usize) -> Result<Vec<u8>, String> {
        let info = self.tensors.get(name).ok_or_else(|| format!("the file has no tensor `{name}`"))?;
        let end = info.offset.checked_add(length as u64);
        if end.is_none_or(|end| end > self.data_length) {
            return Err(format!("its tensor `{name}` ends after the end of the file"));
        }
        let failed = |error: std::io::Error| format!("its tensor `{name}` cannot be read: {error}");
        self.source.seek(SeekFrom::Start(self.data_start + info.offset)).map_err(failed)?;
        let mut bytes = vec![0; length];
        self.source.read_exact(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }
}

fn in_header(error: std::io::Error) -> String {
    format!("its header cannot be read: {error}")
}

struct HeaderReader<R> {
    source: std::io::BufReader<R>,
    size: u64,
}

impl<R: Read + Seek> HeaderReader<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(in_header)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads a count, which cannot exceed the size of the file.
    fn length(&mut self) -> Result<usize, String> {
        let length = self.u64()?;
        if length > self.size {
            return Err(format!("its header names a length of {length}, more than the file has"));
        }
        usize::try_from(length).map_err(|error| error.to_string())
    }

    fn text(&mut self) -> Result<String, String> {
        let mut bytes = vec![0; self.length()?];
        self.source.read_exact(&mut bytes).map_err(in_header)?;
        String::from_utf8(bytes).map_err(|error| format!("its header contains an invalid text: {error}"))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<GgufValue, String> {
        Ok(match kind {
            0 => GgufValue::Integer(u8::from_le_bytes(self.bytes()?).into()),
            1 => GgufValue::Integer(i8::from_le_bytes(self.bytes()?).into()),
            2 => GgufValue::Integer(u16::from_le_bytes(self.bytes()?).into()),
            3 => GgufValue::Integer(i16::from_le_bytes(self.bytes()?).into()),
            4 => GgufValue::Integer(self.u32()?.into()),
            5 => GgufValue::Integer(i32::from_le_bytes(self.bytes()?).into()),
            6 => GgufValue::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => GgufValue::Bool(self.bytes::<1>()? != [0]),
            8 => GgufValue::Text(self.text()?),
            9 if depth < MAX_DEPTH => {
                let kind = self.u32()?;
                let count = self.length()?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(kind, depth + 1)?);
                }
                GgufValue::Array(values)
            }
            10 => GgufValue::Integer(self.u64()?.into()),
            11 => GgufValue::Integer(i64::from_le_bytes(self.bytes()?).into()),
            12 => GgufValue::Float(f64::from_le_bytes(self.bytes()?)),
            other => return Err(format!("its header contains a value of the unknown kind {other}")),
        })
    }
}

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
