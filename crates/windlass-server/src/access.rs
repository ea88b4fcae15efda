//! Access: who a request comes from, and the rights of that person by agent.
//!
//! Tokens are random and stored as SHA-256 digests, which are compared in constant time. The name of the person is the one
//! that decisions record.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use windlass::core::canonical::Digest;
use windlass::core::id::AgentName;

/// Name that stands for every agent in the rights of a person.
const EVERY_AGENT: &str = "*";

/// A right of a person. Every right includes that to view, and [`AccessRole::Administer`] includes all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessRole {
    /// Reads runs, their events and their journals.
    View,
    /// Starts, cancels and forks runs, and adds input.
    Run,
    /// Decides about calls that wait for a person.
    Approve,
    /// Imports runs, revives dead letters, and has all other rights.
    Administer,
}

impl AccessRole {
    /// Returns the name of the right.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Run => "run",
            Self::Approve => "approve",
            Self::Administer => "administer",
        }
    }

    fn includes(self, wanted: Self) -> bool {
        match self {
            Self::Administer => true,
            Self::View | Self::Run | Self::Approve => self == wanted || wanted == Self::View,
        }
    }
}

/// Number of random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Makes a random access token.
///
/// # Errors
///
/// Returns an error if the operating system has no randomness.
pub fn new_access_token() -> std::io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The SHA-256 digest of an access token. The token itself is not stored.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Computes the digest of a token.
    pub fn of_token(token: &str) -> Self {
        Self(*Digest::of_text(token).as_bytes())
    }

    /// Returns true if the token has this digest. The time does not depend on the place of a difference.
    pub fn matches(&self, token: &str) -> bool {
        self.0.ct_eq(&Self::of_token(token).0).into()
    }
}

impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Digest::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest")
    }
}

impl FromStr for TokenDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(*text.parse::<Digest>()?.as_bytes()))
    }
}

impl<'de> Deserialize<'de> for TokenDigest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A person or program that may use the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessEntry {
    /// Name of the person. Decisions record it.
    pub name: String,
    /// Digest of the person's token; absent for a person who is known by the header of a proxy alone.
    #[serde(default)]
    pub token_sha256: Option<TokenDigest>,
    /// Rights by agent; `*` stands for every agent.
    #[serde(default)]
    pub roles: BTreeMap<String, Vec<AccessRole>>,
}

/// A reverse proxy that has authenticated the person.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedProxy {
    /// Addresses that the proxy connects from.
    pub addresses: Vec<IpAddr>,
    /// Name of the header with the name of the person.
    pub header: String,
}

/// The people who may use a server, and how they are known.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessPolicy {
    /// The people.
    #[serde(default, rename = "person")]
    pub people: Vec<AccessEntry>,
    /// The proxy whose header names the person.
    #[serde(default)]
    pub proxy: Option<TrustedProxy>,
    /// Name of the one user of a server that only listens on the loopback interface. It has all rights and no token.
    #[serde(skip)]
    pub local_user: Option<String>,
}

impl AccessPolicy {
    /// Creates the policy of a server for the one user of this machine. Such a server listens on the loopback interface
    /// only.
    pub fn for_local_user(name: impl Into<String>) -> Self {
        Self { local_user: Some(name.into()), ..Self::default() }
    }

    /// Adds a person with a token and rights.
    #[must_use]
    pub fn with_person(
        mut self,
        name: impl Into<String>,
        token: TokenDigest,
        roles: impl IntoIterator<Item = (&'static str, AccessRole)>,
    ) -> Self {
        let mut granted: BTreeMap<String, Vec<AccessRole>> = BTreeMap::new();
        for (agent, role) in roles {
            granted.entry(agent.to_owned()).or_default().push(role);
        }
        self.people.push(AccessEntry { name: name.into(), token_sha256: Some(token), roles: granted });
        self
    }

    /// Returns the person of a request; `None` if it comes from nobody who is known.
    pub(crate) fn identify(&self, evidence: RequestEvidence<'_>) -> Option<PersonIdentity> {
        if let Some(name) = &self.local_user {
            let roles = BTreeMap::from([(EVERY_AGENT.to_owned(), vec![AccessRole::Administer])]);
            return Some(PersonIdentity { name: name.clone(), roles });
        }
        if let Some(token) = evidence.token {
            // Every entry is compared, so that the time does not tell which one has matched.
            let mut found = None;
            for person in &self.people {
                if person.token_sha256.as_ref().is_some_and(|digest| digest.matches(token)) {
                    found = Some(person);
                }
            }
            return found.map(PersonIdentity::of_entry);
        }
        let name = evidence.proxy_name?;
        self.people.iter().find(|person| person.name == name).map(PersonIdentity::of_entry)
    }

    /// Returns the name of the header that a peer may identify people with; `None` if the peer is no trusted proxy.
    pub(crate) fn identity_header(&self, peer: IpAddr) -> Option<&str> {
        let proxy = self.proxy.as_ref()?;
        proxy.addresses.contains(&peer.to_canonical()).then_some(proxy.header.as_str())
    }
}

/// The facts of a request that say who it comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestEvidence<'a> {
    pub(crate) token: Option<&'a str>,
    /// Name in the header of a trusted proxy.
    pub(crate) proxy_name: Option<&'a str>,
}

/// An authenticated person with rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersonIdentity {
    pub(crate) name: String,
    roles: BTreeMap<String, Vec<AccessRole>>,
}

impl PersonIdentity {
    fn of_entry(entry: &AccessEntry) -> Self {
        Self { name: entry.name.clone(), roles: entry.roles.clone() }
    }

    /// Returns true if the person has the right for the agent.
    pub(crate) fn may(&self, wanted: AccessRole, agent: &AgentName) -> bool {
        [agent.as_str(), EVERY_AGENT]
            .iter()
            .filter_map(|name| self.roles.get(*name))
            .flatten()
            .any(|role| role.includes(wanted))
    }

    /// Returns true if the person has the right for every agent.
    pub(crate) fn may_everywhere(&self, wanted: AccessRole) -> bool {
        self.roles.get(EVERY_AGENT).into_iter().flatten().any(|role| role.includes(wanted))
    }

    /// Returns the rights of the person by agent.
    pub(crate) fn roles(&self) -> &BTreeMap<String, Vec<AccessRole>> {
        &self.roles
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
