//! Token counts. What a provider did not report is unknown, which is not zero.

use serde::{Deserialize, Serialize};

/// What the model calls of a run cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Requests sent to models, those that failed included.
    pub requests: u64,
    /// Requests whose cost is not known: they failed, were cancelled, or the provider did not say.
    #[serde(skip_serializing_if = "is_zero")]
    pub unknown: u64,
    /// Tokens read.
    pub input_tokens: u64,
    /// Of these, tokens that a cache served.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Of these, tokens that were put into a cache.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_written_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Of these, tokens of reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
}

impl Usage {
    /// One request that read and wrote so many tokens.
    pub fn tokens(input: u64, output: u64) -> Self {
        Self { requests: 1, input_tokens: input, output_tokens: output, ..Self::default() }
    }

    /// One request of which nothing else is known.
    pub fn unknown() -> Self {
        Self { requests: 1, unknown: 1, ..Self::default() }
    }

    /// Tokens read and written, of the requests whose cost is known.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens + self.output_tokens
    }

    /// Adds what another part of the run cost.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.unknown += other.unknown;
        self.input_tokens += other.input_tokens;
        self.cached_tokens += other.cached_tokens;
        self.cache_written_tokens += other.cache_written_tokens;
        self.output_tokens += other.output_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
