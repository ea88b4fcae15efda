//! Facts about a response beside its items.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
pub use windlass_core::journal::FinishReason;

/// Facts about a response beside its items, as the provider reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ResponseDetails {
    /// The reason for which the response ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// The text of [`ModelSettings::stop`](super::ModelSettings::stop) at which the response ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_sequence: Option<String>,
    /// The service tier that served the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<String>,
    /// Log probabilities of the text's tokens, in the provider's format.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Value>,
    /// The texts of further choices, if the request asked for more than one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<String>,
    /// The provider's rate limits after this request, by their names, such as `requests` and `tokens`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rate_limits: BTreeMap<String, RateLimitBudget>,
    /// The other fields of the response, by the provider's names, such as `system_fingerprint`, `citations`,
    /// `safetyRatings` or `trace`. The fields that repeat the request are left out.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub other: Map<String, Value>,
}

/// One of a provider's rate limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimitBudget {
    /// The maximum of the current period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The rest of the current period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The end of the current period, in the provider's notation: a duration such as `6m0s`, or a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<String>,
}
