//! Token usage. Usage that a provider did not report is counted as unknown, not as zero.

use serde::{Deserialize, Serialize};

/// The model usage of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Requests sent to models, including failed ones.
    pub requests: u64,
    /// Requests of unknown cost: failed, cancelled, or not reported by the provider.
    #[serde(skip_serializing_if = "is_zero")]
    pub unknown_requests: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Input tokens that were served from a cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Input tokens that were written to a cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Output tokens that were used for reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
}

impl Usage {
    /// Creates the usage of one request with these token counts.
    pub fn of_tokens(input: u64, output: u64) -> Self {
        Self { requests: 1, input_tokens: input, output_tokens: output, ..Self::default() }
    }

    /// Creates the usage of one request of unknown cost.
    pub fn of_unknown_request() -> Self {
        Self { requests: 1, unknown_requests: 1, ..Self::default() }
    }

    /// Returns input plus output tokens of the requests whose cost is known.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens + self.output_tokens
    }

    /// Adds another usage to this one.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.unknown_requests += other.unknown_requests;
        self.input_tokens += other.input_tokens;
        self.cached_tokens += other.cached_tokens;
        self.cache_write_tokens += other.cache_write_tokens;
        self.output_tokens += other.output_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
