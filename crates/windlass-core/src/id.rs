//! Ids: newtypes over shared text, cheap to clone, with a stable text form.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Makes an id: a newtype over shared text, cheap to clone, with a stable text form. For crates that depend on `serde`.
#[macro_export]
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(::std::sync::Arc<str>);

        impl $name {
            /// Makes the id from its text form.
            pub fn new(text: impl Into<::std::sync::Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text form.
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
    /// Names one run.
    RunId
}
text_id! {
    /// Names one call: the id that the model gave it.
    CallId
}
text_id! {
    /// Names an agent, uniquely among the agents that a run can reach.
    AgentName
}
text_id! {
    /// Names a session: a stored history that runs share.
    SessionId
}

/// Where a call stands among nested agents: the calls that lead to it, outermost first, itself last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<CallId>", try_from = "Vec<CallId>")]
pub struct CallPath(Vec<CallId>);

impl CallPath {
    /// The path of `call` inside the agents reached by `within`.
    pub fn new(within: &[CallId], call: CallId) -> Self {
        let mut path = Vec::with_capacity(within.len() + 1);
        path.extend_from_slice(within);
        path.push(call);
        Self(path)
    }

    /// The call itself.
    pub fn call(&self) -> &CallId {
        &self.0[self.0.len() - 1]
    }

    /// The calls that lead to it, outermost first; empty for a call of the outermost run.
    pub fn within(&self) -> &[CallId] {
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
    /// Reads `outer/inner`, the form that [`fmt::Display`] writes.
    fn from(text: &str) -> Self {
        Self(text.split('/').map(CallId::from).collect())
    }
}

impl fmt::Display for CallPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, call) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("/")?;
            }
            call.fmt(f)?;
        }
        Ok(())
    }
}

/// Milliseconds since the Unix epoch. The core never reads a clock: times come in with the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// So much later.
    #[must_use]
    pub fn after(self, wait: std::time::Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }
}
