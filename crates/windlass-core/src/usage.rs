//! Token usage. Usage that a provider did not report is counted as unknown, not as zero.

use serde::{Deserialize, Serialize};

/// The model usage of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Requests sent to models, including failed ones.
    #[serde(default = "one_request", skip_serializing_if = "is_one_request")]
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
    /// Input tokens of audio.
    #[serde(skip_serializing_if = "is_zero")]
    pub audio_input_tokens: u64,
    /// Output tokens of audio.
    #[serde(skip_serializing_if = "is_zero")]
    pub audio_output_tokens: u64,
    /// Cost in billionths of a currency unit, of the requests whose cost the provider reported or a price list has.
    #[serde(skip_serializing_if = "is_zero")]
    pub cost_nanos: u64,
    /// Requests whose cost is known. The cost of the others is unknown, which is not the same as zero.
    #[serde(skip_serializing_if = "is_zero")]
    pub priced_requests: u64,
}

fn one_request() -> u64 {
    1
}

fn is_one_request(requests: &u64) -> bool {
    *requests == 1
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

    /// Creates the usage of one request that was never sent, which costs nothing.
    pub fn of_unsent_request() -> Self {
        Self { requests: 1, priced_requests: 1, ..Self::default() }
    }

    /// Returns input plus output tokens of the requests whose cost is known.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Returns the share of the input tokens that were served from a cache, from 0 to 1; `None` without input tokens.
    pub fn cache_hit_rate(&self) -> Option<f64> {
        let read = self.cached_tokens.min(self.input_tokens);
        (self.input_tokens > 0).then(|| read as f64 / self.input_tokens as f64)
    }

    /// Returns the cost in currency units, of the requests whose cost is known.
    pub fn cost(&self) -> f64 {
        self.cost_nanos as f64 / 1e9
    }

    /// Returns the number of requests whose cost is unknown.
    pub fn unpriced_requests(&self) -> u64 {
        self.requests.saturating_sub(self.priced_requests)
    }

    /// Describes the cost in the currency of a price list: an amount, an amount with the number of requests that it lacks,
    /// or that it is unknown. `None` if there was no request.
    pub fn describe_cost(&self, currency: &str) -> Option<String> {
        let (known, unknown) = (self.priced_requests, self.unpriced_requests());
        let amount = || format_amount(self.cost_nanos, currency);
        match (known, unknown) {
            (0, 0) => None,
            (0, _) => Some("unknown cost".to_owned()),
            (_, 0) => Some(amount()),
            (_, 1) => Some(format!("{} and 1 request of unknown cost", amount())),
            _ => Some(format!("{} and {unknown} requests of unknown cost", amount())),
        }
    }

    /// Adds another usage to this one. Counts saturate: providers report them, and may report anything.
    pub fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.unknown_requests = self.unknown_requests.saturating_add(other.unknown_requests);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
        self.audio_input_tokens = self.audio_input_tokens.saturating_add(other.audio_input_tokens);
        self.audio_output_tokens = self.audio_output_tokens.saturating_add(other.audio_output_tokens);
        self.cost_nanos = self.cost_nanos.saturating_add(other.cost_nanos);
        self.priced_requests = self.priced_requests.saturating_add(other.priced_requests);
    }
}

/// Formats billionths of a currency unit: `$0.0120`, `€0.0120`, or with the code of another currency `CHF 0.0120`.
pub fn format_amount(nanos: u64, currency: &str) -> String {
    let amount = nanos as f64 / 1e9;
    match currency {
        "USD" => format!("${amount:.4}"),
        "EUR" => format!("€{amount:.4}"),
        "GBP" => format!("£{amount:.4}"),
        other => format!("{other} {amount:.4}"),
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::Usage;

    #[test]
    fn a_cost_is_in_the_currency_of_its_prices() {
        let usage = Usage { cost_nanos: 12_000_000, requests: 2, priced_requests: 1, ..Usage::default() };
        for (currency, amount) in [("USD", "$0.0120"), ("EUR", "€0.0120"), ("CHF", "CHF 0.0120")] {
            let expected = format!("{amount} and 1 request of unknown cost");
            assert_eq!(usage.describe_cost(currency), Some(expected));
        }
    }

    #[test]
    fn the_hit_rate_of_the_cache_is_a_share_of_the_input() {
        let usage = Usage { cached_tokens: 750, ..Usage::of_tokens(1000, 50) };
        assert_eq!(usage.cache_hit_rate(), Some(0.75));
        assert_eq!(Usage::of_tokens(10, 1).cache_hit_rate(), Some(0.0));
        assert_eq!(Usage::of_unknown_request().cache_hit_rate(), None, "unknown is not zero");
        // A provider may report anything.
        let odd = Usage { cached_tokens: 7, ..Usage::of_tokens(5, 1) };
        assert_eq!(odd.cache_hit_rate(), Some(1.0));
    }

    #[test]
    fn counts_of_any_size_are_added() {
        let most = Usage {
            requests: u64::MAX,
            unknown_requests: u64::MAX,
            input_tokens: u64::MAX,
            cached_tokens: u64::MAX,
            cache_write_tokens: u64::MAX,
            output_tokens: u64::MAX,
            reasoning_tokens: u64::MAX,
            audio_input_tokens: u64::MAX,
            audio_output_tokens: u64::MAX,
            cost_nanos: u64::MAX,
            priced_requests: u64::MAX,
        };
        let mut sum = most;
        sum.add(&most);
        assert_eq!(sum, most);
        assert_eq!(sum.total_tokens(), u64::MAX);
    }
}
