//! Identifiers: newtypes over shared text that are cheap to clone and have a stable text form.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an identifier: a newtype over shared text that is cheap to clone and has a stable text form. The
/// calling crate must depend on `serde`.
#[macro_export]
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(::std::sync::Arc<str>);

        impl $name {
            /// Creates the id from its text form.
            pub fn new(text: impl Into<::std::sync::Arc<str>>) -> Self {
                Self(text.into())
            }

            /// Returns the text form.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, "{}({:?})", stringify!($name), &*self.0)
            }
        }

        impl ::std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::new(text)
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }
    };
}

text_id! {
    /// The id of a run.
    RunId
}
text_id! {
    /// The id of a tool call, as assigned by the model.
    CallId
}
text_id! {
    /// The name of an agent, unique among the agents that a run can reach.
    AgentName
}
text_id! {
    /// The id of a session: a stored history that several runs share.
    SessionId
}

/// The path of a call through nested agents: the calls that lead to it, outermost first, and the call itself
/// last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<CallId>", try_from = "Vec<CallId>")]
pub struct CallPath(Vec<CallId>);

impl CallPath {
    /// Creates the path of `call` inside the nested agents that the calls `within` lead to.
    pub fn new(within: &[CallId], call: CallId) -> Self {
        let mut path = Vec::with_capacity(within.len() + 1);
        path.extend_from_slice(within);
        path.push(call);
        Self(path)
    }

    /// Returns the call itself.
    pub fn call(&self) -> &CallId {
        &self.0[self.0.len() - 1]
    }

    /// Returns the calls that lead to this call, outermost first; empty for a call of the outermost run.
    pub fn parent_calls(&self) -> &[CallId] {
        &self.0[..self.0.len() - 1]
    }
}

impl TryFrom<Vec<CallId>> for CallPath {
    type Error = &'static str;

    fn try_from(calls: Vec<CallId>) -> Result<Self, Self::Error> {
        if calls.is_empty() { Err("a path names at least one call") } else { Ok(Self(calls)) }
    }
}

impl From<CallPath> for Vec<CallId> {
    fn from(path: CallPath) -> Self {
        path.0
    }
}

impl From<CallId> for CallPath {
    fn from(call: CallId) -> Self {
        Self(vec![call])
    }
}

impl From<&str> for CallPath {
    /// Parses `outer/inner`, the form that [`fmt::Display`] writes: `%2F` in it is a slash of an id, `%25` a percent
    /// sign.
    fn from(text: &str) -> Self {
        let id = |text: &str| CallId::from(text.replace("%2F", "/").replace("%25", "%"));
        Self(text.split('/').map(id).collect())
    }
}

impl fmt::Display for CallPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, call) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("/")?;
            }
            // The model chooses ids, and one with a slash must not read as the path of another call.
            if call.as_str().contains(['/', '%']) {
                f.write_str(&call.as_str().replace('%', "%25").replace('/', "%2F"))?;
            } else {
                call.fmt(f)?;
            }
        }
        Ok(())
    }
}

/// Milliseconds since the Unix epoch. The core reads no clock; timestamps are inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns this time plus `wait`, saturating at the maximum.
    #[must_use]
    pub fn saturating_add(self, wait: std::time::Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::{CallId, CallPath};

    #[test]
    fn the_text_of_a_path_stands_for_one_path() {
        let path = |ids: &[&str]| CallPath(ids.iter().map(|id| CallId::from(*id)).collect());
        assert_ne!(path(&["a/b"]).to_string(), path(&["a", "b"]).to_string());
        for ids in
            [&["a", "b"][..], &["a/b"], &["%2F", "a%"], &["%252F"], &["a/", "/b"], &["", ""], &["%25%2F/"]]
        {
            assert_eq!(CallPath::from(path(ids).to_string().as_str()), path(ids));
        }
        assert_eq!(path(&["outer", "inner"]).to_string(), "outer/inner");
    }
}
