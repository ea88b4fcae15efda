//! Estimates of tokens between the figures that a provider reports.

use windlass_core::item::{ContentPart, Item, MediaSource, OpaqueItem, OutputContent};
use windlass_core::usage::Usage;

/// Tokens that the structure of one item costs.
const ITEM_OVERHEAD: u64 = 6;
/// Tokens of an image. Providers scale larger images down.
const IMAGE_TOKENS: u64 = 1_600;
/// ASCII bytes in a token, at the low end of texts and code in common tokenisers.
const ASCII_BYTES_PER_TOKEN: u64 = 3;

/// Estimates the tokens of a text. Characters outside ASCII count as a token each.
pub(crate) fn estimate_text(text: &str) -> u64 {
    if text.is_ascii() {
        return (text.len() as u64).div_ceil(ASCII_BYTES_PER_TOKEN);
    }
    let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
    let other = text.chars().filter(|c| !c.is_ascii()).count() as u64;
    ascii.div_ceil(ASCII_BYTES_PER_TOKEN) + other
}

/// Estimates the tokens of an item.
pub(crate) fn estimate_item(item: &Item) -> u64 {
    let content = match item {
        Item::Message(message) => message.content.iter().map(estimate_part).sum(),
        Item::Call(call) => estimate_text(&call.name) + estimate_text(&call.arguments),
        Item::Output(output) => estimate_output(&output.content),
        Item::Handoff(handoff) => estimate_text(&handoff.output_text()),
        // Encrypted reasoning is longer than the tokens that it stands for.
        Item::Reasoning(reasoning) => estimate_text(&reasoning.raw.to_string()),
        Item::HostedTool(item) | Item::Unknown(item) => estimate_opaque(item),
        _ => 0,
    };
    ITEM_OVERHEAD + content
}

/// Estimates the tokens of a call's output.
fn estimate_output(content: &OutputContent) -> u64 {
    match content {
        OutputContent::Text(text) => estimate_text(text),
        OutputContent::Parts(parts) => parts.iter().map(estimate_part).sum(),
    }
}

fn estimate_part(part: &ContentPart) -> u64 {
    match part {
        ContentPart::Text { text } | ContentPart::Refusal { text } => estimate_text(text),
        ContentPart::Image(_) => IMAGE_TOKENS,
        ContentPart::File(MediaSource { data: Some(data), .. }) => estimate_text(data),
        ContentPart::File(_) => IMAGE_TOKENS,
        ContentPart::Unknown(item) => estimate_opaque(item),
        _ => 0,
    }
}

fn estimate_opaque(item: &OpaqueItem) -> u64 {
    estimate_text(&item.raw.to_string())
}

/// The relation between estimates and the tokens that the provider counted last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ContextGauge {
    last: Option<CountedRequest>,
    /// The last count of a request that was not estimated, with the length of its history.
    unestimated: Option<UnestimatedRequest>,
}

/// A counted request without an estimate: no window was known, so nothing needed one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnestimatedRequest {
    pub(crate) history_len: usize,
    tokens: u64,
}

/// The last request whose tokens are known.
#[derive(Clone, Copy, Debug)]
struct CountedRequest {
    estimate: u64,
    tokens: u64,
}

impl ContextGauge {
    /// Takes over the tokens that a provider counted for a request with this estimate, if there is one, and with a history
    /// of this length.
    pub(crate) fn observe(&mut self, estimate: Option<u64>, history_len: usize, usage: Option<&Usage>) {
        let counted = usage.filter(|usage| usage.requests == 1 && usage.unknown_requests == 0);
        let Some(tokens) = counted.map(|usage| usage.input_tokens).filter(|tokens| *tokens > 0) else {
            return;
        };
        match estimate {
            Some(estimate) => self.last = Some(CountedRequest { estimate: estimate.max(1), tokens }),
            None => self.unestimated = Some(UnestimatedRequest { history_len, tokens }),
        }
    }

    /// Takes over that a request with this estimate exceeded the window.
    pub(crate) fn observe_overflow(&mut self, estimate: u64, window: Option<u64>) {
        let tokens = window.unwrap_or(0).max(self.tokens_of(estimate)).max(1);
        self.last = Some(CountedRequest { estimate: estimate.max(1), tokens });
    }

    /// Removes the last count of a request that was not estimated.
    pub(crate) fn take_unestimated(&mut self) -> Option<UnestimatedRequest> {
        self.unestimated.take()
    }

    /// Estimates a counted request after the fact.
    pub(crate) fn estimate_later(&mut self, request: UnestimatedRequest, estimate: u64) {
        self.last = Some(CountedRequest { estimate: estimate.max(1), tokens: request.tokens });
    }

    /// True if a provider has counted the tokens of a request.
    pub(crate) fn is_calibrated(&self) -> bool {
        self.last.is_some()
    }

    /// Returns the expected tokens of a request with this estimate: the last count, and the estimate of what is new.
    pub(crate) fn tokens_of(&self, estimate: u64) -> u64 {
        let Some(CountedRequest { estimate: known, tokens }) = self.last else { return estimate };
        let scale = |part: u64| {
            u64::try_from(u128::from(part) * u128::from(tokens) / u128::from(known)).unwrap_or(u64::MAX)
        };
        match estimate.checked_sub(known) {
            Some(new) => tokens.saturating_add(new.max(scale(new))),
            None => scale(estimate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ContextGauge, estimate_text};
    use windlass_core::usage::Usage;

    #[test]
    fn what_the_provider_counted_is_the_base_of_the_estimate() {
        let mut gauge = ContextGauge::default();
        assert_eq!(gauge.tokens_of(300), 300, "without a count it is the estimate");
        gauge.observe(Some(300), 1, Some(&Usage::of_tokens(150, 10)));
        assert_eq!(gauge.tokens_of(300), 150);
        assert_eq!(gauge.tokens_of(400), 250, "what is new is never estimated below the estimate");
        assert_eq!(gauge.tokens_of(100), 50);
        gauge.observe(Some(300), 1, Some(&Usage::of_tokens(900, 10)));
        assert_eq!(gauge.tokens_of(400), 1200, "and grows as the counted part did");
        gauge.observe(Some(500), 1, Some(&Usage::of_unknown_request()));
        gauge.observe(Some(500), 1, None);
        assert_eq!(gauge.tokens_of(300), 900, "an unknown usage is no count");
        gauge.observe_overflow(300, Some(4_000));
        assert_eq!(gauge.tokens_of(150), 2_000);
    }

    #[test]
    fn letters_outside_ascii_count_as_a_token() {
        assert_eq!(estimate_text("abcdef"), 2);
        assert_eq!(estimate_text("日本語"), 3);
        assert_eq!(estimate_text("日本abc"), 3);
    }
}
