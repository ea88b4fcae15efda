//! Values of statements, with their types. A statement whose types are known needs no preparation by name.

use tokio_postgres::types::{ToSql, Type};

/// A value of a statement.
#[derive(Debug)]
pub(crate) enum SqlValue {
    Text(Option<String>),
    Integer(Option<i64>),
    Bytes(Option<Vec<u8>>),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    ByteRows(Vec<Vec<u8>>),
}

impl SqlValue {
    pub(crate) fn typed(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Text(value) => (value, Type::TEXT),
            Self::Integer(value) => (value, Type::INT8),
            Self::Bytes(value) => (value, Type::BYTEA),
            Self::Texts(values) => (values, Type::TEXT_ARRAY),
            Self::Integers(values) => (values, Type::INT8_ARRAY),
            Self::ByteRows(values) => (values, Type::BYTEA_ARRAY),
        }
    }
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<&String> for SqlValue {
    fn from(text: &String) -> Self {
        Self::Text(Some(text.clone()))
    }
}

impl From<Option<&str>> for SqlValue {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}

impl From<i64> for SqlValue {
    fn from(number: i64) -> Self {
        Self::Integer(Some(number))
    }
}

impl From<u32> for SqlValue {
    fn from(number: u32) -> Self {
        Self::Integer(Some(number.into()))
    }
}

impl From<Option<i64>> for SqlValue {
    fn from(number: Option<i64>) -> Self {
        Self::Integer(number)
    }
}

impl From<&[u8]> for SqlValue {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(Some(bytes.to_vec()))
    }
}

impl From<Option<&[u8]>> for SqlValue {
    fn from(bytes: Option<&[u8]>) -> Self {
        Self::Bytes(bytes.map(<[u8]>::to_vec))
    }
}
