//! Prices of models: a dated list that an application can replace. A model that the list does not have has no price, and
//! the cost of its requests is unknown.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use windlass_core::usage::Usage;

/// The list that is shipped with this crate.
const SHIPPED_PRICES: &str = include_str!("../prices.json");
/// Billionths of a currency unit per token, for a price of one unit per million tokens.
const NANOS_PER_TOKEN: f64 = 1_000.0;

/// A dated list of prices.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PriceList {
    /// Date of the prices.
    pub as_of: String,
    /// Source of the prices.
    pub source: String,
    /// Currency of the prices.
    pub currency: String,
    /// The prices.
    pub models: Vec<ModelPrice>,
}

/// The price of a model, in currency units per million tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ModelPrice {
    /// Name of the model, without its date and its provider.
    pub model: String,
    /// Price of input tokens.
    pub input: f64,
    /// Price of input tokens from a cache; that of other input if absent.
    #[serde(default)]
    pub cached_input: Option<f64>,
    /// Price of input tokens that are written to a cache; that of other input if absent.
    #[serde(default)]
    pub cache_write: Option<f64>,
    /// Price of output tokens, reasoning included.
    pub output: f64,
    /// Price of input tokens of audio; that of other input if absent.
    #[serde(default)]
    pub audio_input: Option<f64>,
    /// Price of output tokens of audio; that of other output if absent.
    #[serde(default)]
    pub audio_output: Option<f64>,
}

/// An error that prevents a price list from being read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PriceListError {
    /// The file cannot be read.
    #[error("the price list cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The text is not a price list.
    #[error("the text is not a price list: {0}")]
    Parse(#[from] serde_json::Error),
}

impl PriceList {
    /// Returns the list that is shipped with this crate: list prices that were not verified. See its date and its source.
    pub fn shipped() -> Arc<Self> {
        static SHIPPED: OnceLock<Arc<PriceList>> = OnceLock::new();
        let parse = || Self::parse(SHIPPED_PRICES).unwrap_or_else(|_| Self::empty());
        SHIPPED.get_or_init(|| Arc::new(parse())).clone()
    }

    /// Returns a list without prices.
    pub fn empty() -> Self {
        Self { as_of: String::new(), source: String::new(), currency: "USD".to_owned(), models: Vec::new() }
    }

    /// Parses a list from JSON, in the form of the shipped file `prices.json`.
    ///
    /// # Errors
    ///
    /// Returns an error if the text has another form.
    pub fn parse(text: &str) -> Result<Self, PriceListError> {
        Ok(serde_json::from_str(text)?)
    }

    /// Loads a list from a JSON file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or has another form.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PriceListError> {
        Self::parse(&std::fs::read_to_string(path)?)
    }

    /// Returns the price of a model as its provider names it: with or without a date, and behind the name of a provider.
    pub fn find_price(&self, model: &str) -> Option<&ModelPrice> {
        self.models.iter().find(|price| is_model_name(model, &price.model))
    }

    /// Sets the cost of a usage, if neither the provider has reported it nor the model is unknown.
    pub fn complete_usage(&self, usage: &mut Usage, model: Option<&str>) {
        if usage.priced_requests > 0 || usage.unknown_requests > 0 {
            return;
        }
        if usage.cost_nanos > 0 {
            usage.priced_requests = usage.requests;
        } else if let Some(price) = model.and_then(|model| self.find_price(model)) {
            usage.cost_nanos = price.cost_nanos(usage);
            usage.priced_requests = usage.requests;
        }
    }
}

/// Returns true if a name stands for the model of a list: with or without a date, and behind the name of a provider.
pub(crate) fn is_model_name(name: &str, listed: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    match name.strip_prefix(listed) {
        Some("" | "-latest") => true,
        // Only a date may follow: another word is another model.
        Some(rest) => rest.strip_prefix(['-', '@']).is_some_and(is_date),
        None => false,
    }
}

fn is_date(text: &str) -> bool {
    text.len() >= 4 && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

impl ModelPrice {
    /// Returns the cost of a usage in billionths of a currency unit.
    pub fn cost_nanos(&self, usage: &Usage) -> u64 {
        let plain_input = usage
            .input_tokens
            .saturating_sub(usage.cached_tokens)
            .saturating_sub(usage.cache_write_tokens)
            .saturating_sub(usage.audio_input_tokens);
        let plain_output = usage.output_tokens.saturating_sub(usage.audio_output_tokens);
        let parts = [
            (plain_input, self.input),
            (usage.cached_tokens, self.cached_input.unwrap_or(self.input)),
            (usage.cache_write_tokens, self.cache_write.unwrap_or(self.input)),
            (usage.audio_input_tokens, self.audio_input.unwrap_or(self.input)),
            (plain_output, self.output),
            (usage.audio_output_tokens, self.audio_output.unwrap_or(self.output)),
        ];
        // A conversion with `as` saturates.
        parts.iter().map(|(tokens, price)| *tokens as f64 * price * NANOS_PER_TOKEN).sum::<f64>().round()
            as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dated_names_have_a_price_and_other_models_have_none() {
        let prices = PriceList::shipped();
        assert!(!prices.models.is_empty() && !prices.as_of.is_empty());
        for name in ["gpt-5", "gpt-5-2025-08-07", "openai/gpt-5", "gpt-5-latest"] {
            assert_eq!(prices.find_price(name).map(|price| price.model.as_str()), Some("gpt-5"), "{name}");
        }
        assert_eq!(prices.find_price("gpt-5-mini-2025-08-07").map(|one| one.input), Some(0.25));
        for name in ["gpt-5-turbo", "gpt-50", "clerk-1", ""] {
            assert_eq!(prices.find_price(name), None, "{name}");
        }
    }

    #[test]
    fn the_cost_has_the_parts_of_a_usage() {
        let price = ModelPrice {
            model: "m".to_owned(),
            input: 2.0,
            cached_input: Some(0.5),
            cache_write: Some(2.5),
            output: 8.0,
            audio_input: Some(32.0),
            audio_output: Some(64.0),
        };
        let usage = Usage {
            cached_tokens: 400,
            cache_write_tokens: 100,
            audio_input_tokens: 10,
            audio_output_tokens: 20,
            reasoning_tokens: 50,
            ..Usage::of_tokens(1_000, 100)
        };
        // 490 × 2 + 400 × 0.5 + 100 × 2.5 + 10 × 32 + 80 × 8 + 20 × 64 millionths.
        assert_eq!(price.cost_nanos(&usage), 3_670_000);
        let mut unknown = Usage::of_tokens(1, 1);
        PriceList::empty().complete_usage(&mut unknown, Some("m"));
        assert_eq!(
            (unknown.priced_requests, unknown.describe_cost("USD")),
            (0, Some("unknown cost".to_owned()))
        );
    }
}
