//! Which files may answer: comparisons of their attributes, in the same JSON as the hosted tool's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A file's attributes: short facts that filters compare.
pub type Attributes = BTreeMap<String, Attribute>;

/// One attribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Attribute {
    /// A truth.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

impl From<bool> for Attribute {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Attribute {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Attribute {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<f64> for Attribute {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<i32> for Attribute {
    fn from(value: i32) -> Self {
        Self::Number(value.into())
    }
}

impl From<u32> for Attribute {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

/// Which files may answer.
///
/// Values of different types are never equal and never in order. A file that lacks the attribute passes `ne` and
/// `nin`, and nothing else.
///
/// ```
/// use windlass_search::Filter;
///
/// let filter = Filter::and([Filter::gte("year", 2024), Filter::is_in("team", ["legal", "sales"])]);
/// let written = serde_json::to_value(&filter).unwrap();
/// assert_eq!(written["filters"][0]["type"], "gte");
/// assert_eq!(serde_json::from_value::<Filter>(written).unwrap(), filter);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Filter {
    /// Equal.
    Eq(Comparison),
    /// Not equal.
    Ne(Comparison),
    /// Greater.
    Gt(Comparison),
    /// Greater or equal.
    Gte(Comparison),
    /// Less.
    Lt(Comparison),
    /// Less or equal.
    Lte(Comparison),
    /// One of several.
    In(Membership),
    /// None of several.
    Nin(Membership),
    /// All of these.
    And(Compound),
    /// At least one of these.
    Or(Compound),
}

/// An attribute beside a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The attribute's name.
    pub key: String,
    /// What it is compared with.
    pub value: Attribute,
}

/// An attribute beside several values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// The attribute's name.
    pub key: String,
    /// The values.
    pub value: Vec<Attribute>,
}

/// Several filters as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compound {
    /// The filters.
    pub filters: Vec<Filter>,
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident => $variant:ident),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(key: &str, value: impl Into<Attribute>) -> Self {
            Self::$variant(Comparison { key: key.to_owned(), value: value.into() })
        })*
    };
}

impl Filter {
    comparisons! {
        /// Files whose attribute is this.
        eq => Eq,
        /// Files whose attribute is not this, or that have none.
        ne => Ne,
        /// Files whose attribute is greater.
        gt => Gt,
        /// Files whose attribute is this or greater.
        gte => Gte,
        /// Files whose attribute is less.
        lt => Lt,
        /// Files whose attribute is this or less.
        lte => Lte,
    }

    /// Files whose attribute is one of these.
    pub fn is_in<A: Into<Attribute>>(key: &str, values: impl IntoIterator<Item = A>) -> Self {
        Self::In(Membership { key: key.to_owned(), value: values.into_iter().map(Into::into).collect() })
    }

    /// Files whose attribute is none of these, or that have none.
    pub fn not_in<A: Into<Attribute>>(key: &str, values: impl IntoIterator<Item = A>) -> Self {
        Self::Nin(Membership { key: key.to_owned(), value: values.into_iter().map(Into::into).collect() })
    }

    /// Files that all of these let through.
    pub fn and(filters: impl IntoIterator<Item = Self>) -> Self {
        Self::And(Compound { filters: filters.into_iter().collect() })
    }

    /// Files that at least one of these lets through.
    pub fn or(filters: impl IntoIterator<Item = Self>) -> Self {
        Self::Or(Compound { filters: filters.into_iter().collect() })
    }

    /// Whether a file with these attributes passes.
    pub fn passes(&self, attributes: &Attributes) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};

        let order = |by: &Comparison| attributes.get(&by.key).and_then(|have| compare(have, &by.value));
        let has = |by: &Membership| {
            attributes
                .get(&by.key)
                .is_some_and(|have| by.value.iter().any(|value| compare(have, value) == Some(Equal)))
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
            Self::And(by) => by.filters.iter().all(|filter| filter.passes(attributes)),
            Self::Or(by) => by.filters.iter().any(|filter| filter.passes(attributes)),
        }
    }
}

fn compare(left: &Attribute, right: &Attribute) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (Attribute::Bool(left), Attribute::Bool(right)) => Some(left.cmp(right)),
        (Attribute::Number(left), Attribute::Number(right)) => left.partial_cmp(right),
        (Attribute::Text(left), Attribute::Text(right)) => Some(left.cmp(right)),
        (Attribute::Bool(_) | Attribute::Number(_) | Attribute::Text(_), _) => None,
    }
}
