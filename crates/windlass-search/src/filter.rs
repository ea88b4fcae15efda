//! Filters over file attributes, in the same JSON format as the hosted tool's filters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A file's attributes by name, which filters compare.
pub type FileAttributes = BTreeMap<String, AttributeValue>;

/// The value of one attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum AttributeValue {
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
}

impl From<bool> for AttributeValue {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for AttributeValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<f64> for AttributeValue {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<i32> for AttributeValue {
    fn from(value: i32) -> Self {
        Self::Number(value.into())
    }
}

impl From<u32> for AttributeValue {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

/// A filter that selects the files of a search by their attributes.
///
/// Values of different types are neither equal nor ordered. A file without the attribute matches `ne` and `nin`,
/// and no other comparison.
///
/// ```
/// use windlass_search::AttributeFilter;
///
/// let filter = AttributeFilter::and([
///     AttributeFilter::gte("year", 2024),
///     AttributeFilter::one_of("team", ["legal", "sales"]),
/// ]);
/// let written = serde_json::to_value(&filter).unwrap();
/// assert_eq!(written["filters"][0]["type"], "gte");
/// assert_eq!(serde_json::from_value::<AttributeFilter>(written).unwrap(), filter);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum AttributeFilter {
    /// The attribute equals the value.
    Eq(AttributeComparison),
    /// The attribute differs from the value or is absent.
    Ne(AttributeComparison),
    /// The attribute is greater than the value.
    Gt(AttributeComparison),
    /// The attribute is greater than or equal to the value.
    Gte(AttributeComparison),
    /// The attribute is less than the value.
    Lt(AttributeComparison),
    /// The attribute is less than or equal to the value.
    Lte(AttributeComparison),
    /// The attribute equals one of the values.
    In(AttributeMembership),
    /// The attribute equals none of the values or is absent.
    Nin(AttributeMembership),
    /// All of the filters match.
    And(CompoundFilter),
    /// At least one of the filters matches.
    Or(CompoundFilter),
}

/// A comparison of an attribute with one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttributeComparison {
    /// The attribute's name.
    pub key: String,
    /// The value to compare with.
    pub value: AttributeValue,
}

/// A comparison of an attribute with several values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttributeMembership {
    /// The attribute's name.
    pub key: String,
    /// The values to compare with.
    pub value: Vec<AttributeValue>,
}

/// Several filters, combined by `and` or `or`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompoundFilter {
    /// The combined filters.
    pub filters: Vec<AttributeFilter>,
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident => $variant:ident),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(key: &str, value: impl Into<AttributeValue>) -> Self {
            Self::$variant(AttributeComparison { key: key.to_owned(), value: value.into() })
        })*
    };
}

impl AttributeFilter {
    comparisons! {
        /// Selects files whose attribute equals the value.
        eq => Eq,
        /// Selects files whose attribute differs from the value or is absent.
        ne => Ne,
        /// Selects files whose attribute is greater than the value.
        gt => Gt,
        /// Selects files whose attribute is greater than or equal to the value.
        gte => Gte,
        /// Selects files whose attribute is less than the value.
        lt => Lt,
        /// Selects files whose attribute is less than or equal to the value.
        lte => Lte,
    }

    /// Selects files whose attribute equals one of the values.
    pub fn one_of<A: Into<AttributeValue>>(key: &str, values: impl IntoIterator<Item = A>) -> Self {
        Self::In(AttributeMembership {
            key: key.to_owned(),
            value: values.into_iter().map(Into::into).collect(),
        })
    }

    /// Selects files whose attribute equals none of the values or is absent.
    pub fn none_of<A: Into<AttributeValue>>(key: &str, values: impl IntoIterator<Item = A>) -> Self {
        Self::Nin(AttributeMembership {
            key: key.to_owned(),
            value: values.into_iter().map(Into::into).collect(),
        })
    }

    /// Selects files that match all of the filters.
    pub fn and(filters: impl IntoIterator<Item = Self>) -> Self {
        Self::And(CompoundFilter { filters: filters.into_iter().collect() })
    }

    /// Selects files that match at least one of the filters.
    pub fn or(filters: impl IntoIterator<Item = Self>) -> Self {
        Self::Or(CompoundFilter { filters: filters.into_iter().collect() })
    }

    /// Returns true if a file with these attributes matches the filter.
    pub fn matches(&self, attributes: &FileAttributes) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};

        let order = |by: &AttributeComparison| {
            attributes.get(&by.key).and_then(|have| compare_values(have, &by.value))
        };
        let has = |by: &AttributeMembership| {
            attributes
                .get(&by.key)
                .is_some_and(|have| by.value.iter().any(|value| compare_values(have, value) == Some(Equal)))
        };
        match self {
            Self::Eq(by) => order(by) == Some(Equal),
            Self::Ne(by) => order(by) != Some(Equal),
            Self::Gt(by) => order(by) == Some(Greater),
            Self::Gte(by) => matches!(order(by), Some(Greater | Equal)),
            Self::Lt(by) => order(by) == Some(Less),
            Self::Lte(by) => matches!(order(by), Some(Less | Equal)),
            Self::In(by) => has(by),
            Self::Nin(by) => !has(by),
            Self::And(by) => by.filters.iter().all(|filter| filter.matches(attributes)),
            Self::Or(by) => by.filters.iter().any(|filter| filter.matches(attributes)),
        }
    }
}

/// Orders two values of the same type; returns `None` for values of different types.
fn compare_values(left: &AttributeValue, right: &AttributeValue) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (AttributeValue::Bool(left), AttributeValue::Bool(right)) => Some(left.cmp(right)),
        (AttributeValue::Number(left), AttributeValue::Number(right)) => left.partial_cmp(right),
        (AttributeValue::Text(left), AttributeValue::Text(right)) => Some(left.cmp(right)),
        (AttributeValue::Bool(_) | AttributeValue::Number(_) | AttributeValue::Text(_), _) => None,
    }
}
